"""`recourse audit`: who did, tried or was refused what, newest first; with `--follow` what is added, as it comes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from recourse.errors import OutcomeUnknown
from recourse.terminal.executions import ID
from recourse.terminal.exits import DONE, INTERRUPTED, Refused
from recourse.terminal.output import Answer, Column, time_of
from recourse.terminal.pages import LISTS, add_filters, add_list_options, chosen, read_page
from recourse.terminal.parsing import command, moment
from recourse.terminal.watching import PATIENCE, add_every

OUTCOMES = ("allowed", "denied", "failed", "no_op")
CHANNELS = ("console", "api", "mcp", "admin", "command", "application")
FOLLOWED = 50  # events of a look; what is beyond is read page by page

EVENTS = (
    Column("at", time_of("at"), whole=True),
    Column("what", "sentence", least=24),
    Column("action", "action", rank=2, whole=True),
    Column("outcome", "outcome", rank=1, whole=True, is_status=True),
    Column("request", "request_id", rank=3, whole=True),
)


def add_commands(topics: Any) -> None:
    """Adds `audit`."""
    audit = command(
        topics,
        "audit",
        "list who did, tried or was refused what; --follow what is added",
        _audit,
        description="Lists audit events, newest first, in sentences. With --follow it goes on with what is added,"
        f" oldest first, until Ctrl-C: a line each, or JSON lines.\n\n{LISTS}",
        examples=[
            f"recourse audit --execution-id {ID}",
            "recourse audit --outcome denied --created-after 24h",
            "recourse audit --follow --json",
        ],
    )
    add_filters(
        audit,
        {
            "execution_id": {"metavar": "RUN", "help": "only of this run"},
            "stage_id": {"metavar": "ID"},
            "actor": {"metavar": "NAME"},
            "action": {"metavar": "ACTION", "help": "such as run.cancel"},
            "outcome": {"choices": OUTCOMES, "metavar": "OUTCOME", "help": ", ".join(OUTCOMES)},
            "channel": {"choices": CHANNELS, "metavar": "CHANNEL", "help": ", ".join(CHANNELS)},
            "request_id": {"metavar": "ID"},
            "created_after": {"type": moment, "metavar": "TIME", "help": "with its offset, or 2h for two hours ago"},
            "created_before": {"type": moment, "metavar": "TIME", "help": "as --created-after"},
        },
    )
    add_list_options(audit)
    audit.add_argument("--follow", action="store_true", help="go on with what is added")
    add_every(audit)


def _audit(client: Any, options: argparse.Namespace) -> int:
    if options.follow and (options.all or options.next):
        raise Refused("--follow begins with the newest events: leave --all and --next out")
    if options.follow:
        return _follow(client, options)
    options.out.page(read_page(options, client.audit_events.list, **chosen(options)), EVENTS, "no events")
    return DONE


def _follow(client: Any, options: argparse.Namespace) -> int:
    """The last events, and then each that is added. Events are known by their ids; of one look all pages are read down
    to the first that was told."""
    filters = chosen(options)
    size = filters.pop("page_size", 10)
    told: list[str] = []
    silent_since: float | None = None
    try:
        first = client.audit_events.list(page_size=size, **filters)["results"]
        _tell(options, list(reversed(first)))
        told = [event["id"] for event in first]
        while True:
            time.sleep(options.every)
            try:
                added = _added(client, filters, set(told), reach=bool(told))
                silent_since = None
            except OutcomeUnknown:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since >= PATIENCE:
                    raise
                continue
            _tell(options, list(reversed(added)))
            told = ([event["id"] for event in added] + told)[:1000]
    except KeyboardInterrupt:
        return INTERRUPTED


def _added(client: Any, filters: dict[str, Any], told: set[str], *, reach: bool) -> list[Answer]:
    """Events that were not told yet, newest first."""
    found: list[Answer] = []
    page = client.audit_events.list(page_size=FOLLOWED, **filters)
    while True:
        fresh = [event for event in page["results"] if event["id"] not in told]
        found += fresh
        # below one that was told, all were; before the first event there is no such mark
        if not reach or len(fresh) < len(page["results"]) or not page.get("next"):
            return found
        page = client.audit_events.list(next=page["next"])


def _tell(options: argparse.Namespace, events: Sequence[Answer]) -> None:
    for event in events:
        if options.out.is_json:
            options.out.json_line(event)
        else:
            options.out.lines([f"{EVENTS[0].of(event)}  {event['sentence']}"])
