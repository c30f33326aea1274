"""Watching something until it ends: drawn anew at a terminal, a line per change in a pipe, JSON lines for machines.

What is watched is looked at again and again; what changed twice between two looks is seen once. A console that gives no
answer for a while is waited for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from recourse.errors import OutcomeUnknown
from recourse.telling import line_of_run_retry
from recourse.terminal.choosing import RUN_HELP, run_id
from recourse.terminal.executions import ID, lines_of_blockers
from recourse.terminal.exits import DONE, INTERRUPTED, STANDS_STILL
from recourse.terminal.output import STYLES, Answer, Output, short_time, words
from recourse.terminal.parsing import command, seconds

PATIENCE = 60.0  # seconds without an answer
ENDED = frozenset({"completed", "failed", "cancelled"})
QUIET = frozenset({"completed", "skipped", "pending"})  # stages that give way to others where there is little room


def add_commands(topics: Any) -> None:
    """Adds `watch`."""
    watch = command(
        topics,
        "watch",
        "watch a run until it ends",
        _watch,
        description="Watches a run until it ends: its stages drawn anew at a terminal, a line per change in a pipe,"
        " JSON lines with --json. Ends with 0 when the run completed, 3 when it failed or was cancelled; one that"
        " retries itself by a policy goes on. Ctrl-C ends the watching and nothing else.",
        examples=[
            f"recourse watch {ID}",
            f"recourse watch {ID} && echo 'it is done'",
            f"recourse watch {ID} --json --every 5",
        ],
    )
    watch.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_every(watch)


def add_every(verb: Any) -> None:
    verb.add_argument("--every", type=seconds, default=1.0, metavar="SECONDS", help="between two looks (1)")


def _watch(client: Any, options: argparse.Namespace) -> int:
    return WatchedRun(client, options, run_id(client, options.run)).until_it_ends()


class Watch:
    """Looks, shows, waits, until `end` knows how it ends."""

    what = "run"
    again = "recourse watch"

    def __init__(self, client: Any, options: argparse.Namespace, watched: str) -> None:
        self.client = client
        self.id = watched
        self.out: Output = options.out
        self._every: float = options.every
        self._before: Answer | None = None

    def look(self) -> Answer:
        raise NotImplementedError

    def lines(self, before: Answer | None, now: Answer) -> Sequence[str]:
        """What is new since the last look; of the first one, how it stands."""
        raise NotImplementedError

    def drawn(self, now: Answer) -> Any:
        raise NotImplementedError

    def end(self, now: Answer) -> int | None:
        raise NotImplementedError

    def until_it_ends(self) -> int:
        try:
            return self._drawn_anew() if self._draws() else self._line_by_line()
        except KeyboardInterrupt:
            self.out.note(f"not watched any more; the {self.what} goes on. To look again: {self.again} {self.id}")
            return INTERRUPTED

    def _draws(self) -> bool:
        if self.out.is_json or not self.out.moves:
            return False
        try:
            import rich.live  # noqa: F401
        except ImportError:
            return False
        return True

    def _line_by_line(self) -> int:
        while True:
            now = self._patiently()
            if self.out.is_json:
                if now != self._before:
                    self.out.json_line(now)
            elif lines := self.lines(self._before, now):
                self.out.lines(lines)
            self._before = now
            if (code := self.end(now)) is not None:
                return code
            time.sleep(self._every)

    def _drawn_anew(self) -> int:
        from rich.live import Live

        now = self._patiently()
        with Live(self.drawn(now), console=self.out.console(), auto_refresh=False, transient=False) as live:
            while (code := self.end(now)) is None:
                time.sleep(self._every)
                now = self._patiently()
                live.update(self.drawn(now), refresh=True)
        return code

    def _patiently(self) -> Answer:
        """The next look. A console that is away for less than `PATIENCE` is waited for."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.look()
            except OutcomeUnknown:
                if time.monotonic() >= until or (self._before is None and not self.out.is_terminal):
                    raise
                time.sleep(self._every)


class WatchedRun(Watch):
    def look(self) -> Answer:
        run = self.client.executions.get(self.id)
        stages = self.client.executions.stages(self.id)["results"]
        stands = run["status"] in ("waiting", "blocked", "paused")
        blockers = self.client.executions.blockers(self.id)["results"] if stands else []
        return {"execution": run, "stages": [_seen(stage) for stage in stages], "blockers": blockers}

    def lines(self, before: Answer | None, now: Answer) -> Sequence[str]:
        return lines_of_change(before, now)

    def drawn(self, now: Answer) -> Any:
        from rich.table import Table
        from rich.text import Text

        def text(line: str, style: str = "") -> Any:
            return Text(self.out.text(line), style if self.out.has_colours else "")

        run, blockers = now["execution"], lines_of_blockers(now["blockers"])
        head = f"{run.get('name') or 'run'} in {run['environment']}: {words(run['status'])}{_since(run)}"
        room = max(3, self.out.height - len(blockers) - 5)
        shown, rest = most_telling(now["stages"], room)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for stage in shown:
            more = f"attempt {stage['attempt']}" if stage["attempt"] > 1 else ""
            more += f" {stage['error_code']}" if stage.get("error_code") else ""
            table.add_row(
                text(stage["name"]), text(words(stage["status"]), STYLES.get(stage["status"], "")), text(more.strip())
            )
        made = Table.grid()
        made.add_row(text(head, STYLES.get(run["status"], "bold")))
        made.add_row(table)
        for line in [*([rest] if rest else []), *blockers, *_by_policy(run)]:
            made.add_row(text(line))
        return made

    def end(self, now: Answer) -> int | None:
        if not is_over(now["execution"]):
            return None
        return DONE if now["execution"]["status"] == "completed" else STANDS_STILL


def lines_of_change(before: Answer | None, now: Answer) -> list[str]:
    """One line for every change of the run and of its stages; at first one for each that there is to tell."""
    run = now["execution"]
    at = short_time(run.get("updated_at"))
    known = {stage["stage_id"]: stage for stage in before["stages"]} if before else {}
    lines = []
    for stage in now["stages"]:
        was = known.get(stage["stage_id"])
        if (was and _of_stage(was) == _of_stage(stage)) or (not was and stage["status"] == "pending"):
            continue
        since = f"{words(was['status'])} → " if was and was["status"] != stage["status"] else ""
        lines.append(f"{at}  {stage['name']}: {since}{_of_stage(stage)}")
    if not before or before["execution"]["status"] != run["status"]:
        since = f"{words(before['execution']['status'])} → " if before else ""
        failure = (run.get("failure") or {}).get("code")
        lines.append(f"{at}  the run: {since}{words(run['status'])}{f', {failure}' if failure else ''}")
    causes = lines_of_blockers(now["blockers"])
    if not before or causes != lines_of_blockers(before["blockers"]):
        lines += [f"{at}  {cause}" for cause in causes]
    if not before or _by_policy(run) != _by_policy(before["execution"]):
        lines += [f"{at}  {line}" for line in _by_policy(run)]
    return lines


def most_telling(stages: Sequence[Answer], room: int) -> tuple[Sequence[Answer], str]:
    """The stages that there is room for, in their order, those first at which something happens; and the others in
    numbers."""
    if len(stages) <= room:
        return stages, ""
    by_interest = sorted(range(len(stages)), key=lambda at: (stages[at]["status"] in QUIET, at))
    kept = set(by_interest[: room - 1])
    counted: dict[str, int] = {}
    for at, stage in enumerate(stages):
        if at not in kept:
            counted[stage["status"]] = counted.get(stage["status"], 0) + 1
    others = ", ".join(f"{count} {words(status)}" for status, count in counted.items())
    return [stage for at, stage in enumerate(stages) if at in kept], f"… and {others}"


def _seen(stage: Mapping[str, Any]) -> dict[str, Any]:
    """What is watched of a stage; its input and output are not."""
    seen = (
        "stage_id",
        "name",
        "status",
        "epoch",
        "attempt",
        "error_code",
        "next_retry_at",
        "started_at",
        "finished_at",
    )
    return {name: stage.get(name) for name in seen}


def is_over(run: Answer) -> bool:
    """Whether it has ended. One that failed and retries itself by a policy goes on."""
    goes_on = run["status"] == "failed" and (run.get("run_retry") or {}).get("status") == "due"
    return run["status"] in ENDED and not goes_on


def _by_policy(run: Answer) -> list[str]:
    return [f"by policy: {line_of_run_retry(run['run_retry'])}"] if run.get("run_retry") else []


def _of_stage(stage: Answer) -> str:
    told = words(stage["status"])
    if (stage.get("attempt") or 0) > 1:
        told += f", attempt {stage['attempt']}"
    if stage.get("error_code") and stage["status"] in ("failed", "retry_scheduled"):
        told += f", {stage['error_code']}"
    return told


def _since(run: Answer) -> str:
    """How long it has been at it."""
    try:
        began = datetime.fromisoformat(str(run["started_at"]))
        until = datetime.fromisoformat(str(run["finished_at"])) if run.get("finished_at") else datetime.now(UTC)
    except (KeyError, ValueError):
        return ""
    return f", {max(0, round((until - began).total_seconds()))} s"
