"""`manage.py triggers`: which schedules there are, what comes next and what was missed; switching one on or off."""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from pipelines import trigger_queries, triggers
from pipelines.access import RELEASE
from pipelines.api.triggers import tick_view, trigger_views
from pipelines.management.console_command import ConsoleCommand, member, slug, triggers_of
from pipelines.management.tables import table, text_of
from pipelines.models import Run, Tick, Trigger

LONGEST_LIST = 1_000
PAGE = 200
RECENT = 10  # ticks of the ledger that `show` tells

EXAMPLES = """\
examples:
  manage.py triggers list --workspace acme
  manage.py triggers show fx-daily              its next ticks, its last ones, and what was missed
  manage.py triggers disable fx-daily --by maria --reason 'the bank moves'
  manage.py triggers enable fx-daily --by maria
  manage.py backfill fx-daily --from 2026-05-04T00:00:00+02:00 --to 2026-05-08T23:59:59+02:00 --dry-run \\
    --by maria --reason 'the bank had moved'    fills what was missed

A trigger that is switched on fires nothing that it missed: it says how many ticks those are.

exit status: 0 done, 1 it could not be done, 2 refused or wrong options; nothing was changed.
"""


class Command(ConsoleCommand):
    help = "Lists the schedules of pipelines, shows what is due next and what was missed, and switches them on and off."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        return super().create_parser(prog_name, subcommand, epilog=EXAMPLES, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        listed = self._verb(verbs, "list", "all of them, with what comes next and what was missed", self._list)
        listed.add_argument("--workspace", type=slug, metavar="W", help="the workspace's slug; without it all")
        self._named(
            self._verb(verbs, "show", "one of them: settings, next and last ticks, what was missed", self._show)
        )
        for name, call in (("enable", self._enable), ("disable", self._disable)):
            verb = self._verb(verbs, name, "switch it " + ("on" if name == "enable" else "off"), call)
            self._named(verb)
            verb.add_argument("--by", required=True, metavar="USER", help="who does it: a release manager or an admin")
            verb.add_argument("--reason", default="", metavar="R", help="kept with the change, for whoever looks later")

    def handle(self, *_: Any, **options: Any) -> None:
        call: Callable[[dict[str, Any]], None] = options["call"]
        call(options)

    def _verb(self, verbs: Any, name: str, text: str, call: Callable[[dict[str, Any]], None]) -> CommandParser:
        verb: CommandParser = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        verb.add_argument("--json", action="store_true", help="for machines: what the API answers")
        verb.set_defaults(call=call)
        return verb

    def _named(self, verb: CommandParser) -> None:
        verb.add_argument("trigger", metavar="NAME|ID")
        verb.add_argument("--workspace", type=slug, metavar="W", help="where to look for the name")

    def _list(self, options: dict[str, Any]) -> None:
        rows = list(triggers_of(options["workspace"]).order_by("workspace__slug", "name", "id")[: LONGEST_LIST + 1])
        if len(rows) > LONGEST_LIST:
            self.note(f"only the first {LONGEST_LIST}; choose a --workspace")
        rows = rows[:LONGEST_LIST]
        views = [view for start in range(0, len(rows), PAGE) for view in trigger_views(rows[start : start + PAGE])]
        if options["json"]:
            self._say(views)
            return
        if not rows:
            self.note("there are no triggers yet: POST /v1/triggers makes one")
            return
        columns = ("trigger", "workspace", "environment", "schedule", "next", "last", "missed", "on")
        lines = [_line(row, view) for row, view in zip(rows, views, strict=True)]
        self.stdout.write(text_of(self.stdout, table(columns, lines)))

    def _show(self, options: dict[str, Any]) -> None:
        self._tell(trigger_queries.named(options["trigger"], triggers_of(options["workspace"])), options)

    def _enable(self, options: dict[str, Any]) -> None:
        self._switch(options, is_on=True)

    def _disable(self, options: dict[str, Any]) -> None:
        self._switch(options, is_on=False)

    def _switch(self, options: dict[str, Any], *, is_on: bool) -> None:
        trigger = trigger_queries.named(options["trigger"], triggers_of(options["workspace"]))
        actor = member(trigger.workspace, options["by"], RELEASE, triggers.ENABLE if is_on else triggers.DISABLE)
        was_on = trigger.enabled
        triggers.switch(trigger.id, actor=actor, enabled=is_on, reason=options["reason"])
        trigger = trigger_queries.find_trigger(actor, trigger.id)
        state = "on" if is_on else "off"
        self.note(f"{trigger.name} is switched {state}" if was_on != is_on else f"{trigger.name} was {state} already")
        self._tell(trigger, options)

    def _tell(self, trigger: Trigger, options: dict[str, Any]) -> None:
        view = trigger_views([trigger])[0]
        recent = list(Tick.objects.filter(trigger=trigger).order_by("-at")[:RECENT])
        if options["json"]:
            self._say(view | {"ticks": [tick_view(one) for one in recent]})
            return
        self.stdout.write("\n".join(_facts(view)))
        upcoming = [(_when(one["local_time"]), one["tick_time"], one["says"]) for one in view["next_ticks"]]
        self.stdout.write(text_of(self.stdout, table(("next", "in UTC", "why then"), upcoming)))
        runs = trigger_queries.runs_of(recent)
        past = [(_when(one.local_time), _became(one), _run(one, runs), _why(one, runs)) for one in recent]
        if past:
            self.stdout.write(text_of(self.stdout, table(("last", "became", "run", "detail"), past)))
        if view["missed"]:
            self.stdout.write(_missed_sentence(view))

    def _say(self, answer: Any) -> None:
        self.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False))


def _line(trigger: Trigger, view: dict[str, Any]) -> tuple[str, ...]:
    last = view["last_tick"]
    return (
        trigger.name,
        trigger.workspace.slug,
        view["environment"],
        view["description"],
        _when(view["next_ticks"][0]["local_time"]) if view["next_ticks"] else "-",
        f"{_when(last['local_time'])} {_outcome(last['status'], last['reason'])}" if last else "-",
        _missed(view),
        "yes" if view["enabled"] else "no",
    )


def _facts(view: dict[str, Any]) -> Iterable[str]:
    yield f"{view['name']}  {view['id']}"
    yield f"  {view['pipeline']} in {view['environment']} for {view['application']}"
    yield f"  {view['description']}  ({view['cron']}, {view['timezone']})"
    yield f"  {'on' if view['enabled'] else 'off: what is told as next would be'}, version {view['version']}"
    if view["blackout"]:
        yield f"  nothing starts now: the blackout {view['blackout']} holds"
    yield f"  while an earlier run is unfinished: {view['overlap_policy']}; of ticks found too late: {view['catch_up']}"
    for name, word in (("starts_at", "from"), ("ends_at", "until")):
        if view[name]:
            yield f"  {word} {view[name]}"


def _missed_sentence(view: dict[str, Any]) -> str:
    window = f"--from {view['missed_from']} --to {view['missed_to']}"
    return (
        f"{_missed(view)} missed, from {view['missed_from']} to {view['missed_to']}; to fill them: "
        f"manage.py backfill {view['id']} {window} --by USER --reason R --dry-run"
    )


def _missed(view: dict[str, Any]) -> str:
    return f"{view['missed']}{'+' if view['missed_capped'] else ''}"


def _when(local_time: str) -> str:
    """2026-06-01 16:15 +02:00"""
    local = datetime.fromisoformat(local_time)
    return f"{local:%Y-%m-%d %H:%M} {local.isoformat()[19:]}".strip()


def _became(tick: Tick) -> str:
    return _outcome(tick.state, tick.reason)


def _outcome(state: str, reason: str | None) -> str:
    return f"{state} ({reason})" if reason else state


def _run(tick: Tick, runs: Mapping[uuid.UUID, Run]) -> str:
    if tick.run is None:
        return tick.error_code or "-"
    if tick.state != "dispatched":
        return "reserved"
    return f"{tick.run} {runs[tick.run].status if tick.run in runs else 'not there'}"


def _why(tick: Tick, runs: Mapping[uuid.UUID, Run]) -> str:
    """What the ledger says of a tick, else how its run failed."""
    run = runs.get(tick.run) if tick.run else None
    return tick.detail or tick.error_message or (run.failure_code if run else "")
