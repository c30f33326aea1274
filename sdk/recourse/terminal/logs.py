"""`recourse logs`: what the handlers of a run logged, oldest first; with `--follow` what is added, as it comes."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from recourse.errors import OutcomeUnknown
from recourse.terminal.choosing import RUN_HELP, run_id
from recourse.terminal.executions import ID
from recourse.terminal.exits import DONE, INTERRUPTED, Refused
from recourse.terminal.output import Answer, short_time
from recourse.terminal.pages import LARGEST_PAGE, LISTS, add_filters, add_list_options, chosen, read_page
from recourse.terminal.parsing import command
from recourse.terminal.watching import PATIENCE, add_every, is_over


def add_commands(topics: Any) -> None:
    """Adds `logs`."""
    logs = command(
        topics,
        "logs",
        "tell what the handlers of a run logged; --follow what is added",
        _logs,
        description="Tells what the handlers of a run logged, of all its attempts, oldest first, a line each. With"
        " --follow it goes on with what is added until the run has ended, or Ctrl-C: lines, or JSON lines."
        f"\n\n{LISTS}",
        examples=[
            f"recourse logs {ID} --all",
            f"recourse logs {ID} --stage load --level error --level warning",
            f"recourse logs {ID} --follow --json",
        ],
    )
    logs.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_filters(
        logs,
        {
            "stage": {"metavar": "NAME"},
            "attempt_id": {"metavar": "ID"},
            "level": {"metavar": "LEVEL", "help": "such as error, in whatever case"},
        },
    )
    add_list_options(logs)
    logs.add_argument("--follow", action="store_true", help="tell all of it, and go on with what is added")
    add_every(logs)


def _logs(client: Any, options: argparse.Namespace) -> int:
    if options.follow and (options.all or options.next or options.limit):
        raise Refused("--follow begins with the oldest line and tells all: leave --limit, --all and --next out")
    run, out = run_id(client, options.run), options.out
    if options.follow:
        return _follow(client, options, run)
    answer = read_page(options, lambda **asked: client.executions.logs(run, **asked), **chosen(options))
    if out.is_json:
        out.document(answer)
        return DONE
    out.lines(lines_of(answer["results"]) or ["nothing was logged"])
    out.tell_more(answer)
    return DONE


def _follow(client: Any, options: argparse.Namespace, run: str) -> int:
    """Every line once. The page that is the last is read again: it holds what came in since, also out of its turn."""
    filters = chosen(options) | {"page_size": LARGEST_PAGE}
    link: str | None = None
    told: set[Any] = set()  # of the page at the link
    silent_since: float | None = None
    try:
        while True:
            try:
                ended = is_over(client.executions.get(run))  # asked first: what was logged until then is read after it
                page = client.executions.logs(run, next=link, **filters)
                silent_since = None
            except OutcomeUnknown:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since >= PATIENCE:
                    raise
                time.sleep(options.every)
                continue
            _tell(options, [line for line in page["results"] if line["id"] not in told])
            told = {line["id"] for line in page["results"]}
            if page.get("next"):
                link = page["next"]
            elif ended:
                return DONE
            else:
                time.sleep(options.every)
    except KeyboardInterrupt:
        return INTERRUPTED


def _tell(options: argparse.Namespace, lines: Sequence[Answer]) -> None:
    if options.out.is_json:
        for line in lines:
            options.out.json_line(line)
    else:
        options.out.lines(lines_of(lines))


def lines_of(lines: Sequence[Answer]) -> list[str]:
    """`time  level  stage: message {fields}`; an attempt after the first is named, further lines are indented."""
    made = []
    for line in lines:
        attempt = f" (attempt {line['attempt']})" if line["attempt"] > 1 else ""
        fields = f" {json.dumps(line['fields'], ensure_ascii=False)}" if line["fields"] else ""
        first, *more = line["message"].splitlines() or [""]
        more = [f"    {one}" for one in more]
        said = [f"{short_time(line['at'])}  {line['level'].lower():<7}  {line['stage']}{attempt}: {first}", *more]
        said[-1] += fields
        made += said
    return made
