"""`manage.py backfill`: plans, runs and steers a backfill, and waits for its runs with a progress bar."""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipelines import lanes, trigger_queries
from pipelines.access import CANCEL, FORK, STEER, VIEW, Actor
from pipelines.api.shapes import Moment, Wrong
from pipelines.errors import Refusal
from pipelines.management.console_command import ConsoleCommand, member, positive, slug, triggers_of
from pipelines.management.tables import harmless, table, text_of
from pipelines.models import Trigger
from pipelines.schedules import Gap, Overlap
from recovery import backfills
from recovery.backfill_plans import LISTED
from recovery.models import Backfill, BackfillOrder, Reprocess
from recovery.states import TERMINAL_BACKFILL, BackfillState

FAILED, AWAITS_APPROVAL, INTERRUPTED = 3, 4, 130
LOOK_SECONDS = 0.5
SAY_SECONDS = 10.0  # between lines where there is no terminal to draw on
SHOWN = 40  # ticks of a plan, and failures at the end

EXAMPLES = """\
examples:
  look first: which ticks, which of them have a run, who must agree, how long it may take
    manage.py backfill fx-daily --from 2026-03-30T00:00+02:00 --to 2026-04-10T23:59+02:00 --dry-run \\
      --by olga --reason 'the rates service was away'
  fill them, three at a time, and wait; Ctrl-C pauses it and says how to go on
    manage.py backfill fx-daily --from 2026-03-30T00:00+02:00 --to 2026-04-10T23:59+02:00 --max-concurrent 3 \\
      --by olga --reason 'the rates service was away'
  go on with it, watch it, or cancel what has not begun
    manage.py backfill --resume ID --by olga
    manage.py backfill --watch ID --by olga
    manage.py backfill --cancel ID --by olga --reason 'not needed any more'

exit status: 0 all well, 2 refused or wrong options (nothing was changed), 3 a tick or its run failed, or the backfill
was cancelled, 4 it awaits approval, 130 interrupted and paused.
"""


class Command(ConsoleCommand):
    help = (
        "Fills the ticks that a trigger missed between two times, both included: one run each, made at once, a few let"
        " in at a time. Ticks that have a run are left alone unless --reprocess says otherwise."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        return super().create_parser(prog_name, subcommand, epilog=EXAMPLES, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("trigger", nargs="?", metavar="TRIGGER", help="its name or id")
        parser.add_argument("--workspace", type=slug, metavar="W", help="where to look for the name")
        parser.add_argument("--from", dest="from_time", type=_moment, metavar="T", help="the first time, with its zone")
        parser.add_argument("--to", dest="to_time", type=_moment, metavar="T", help="the last time, with its zone")
        parser.add_argument("--by", required=True, metavar="USER", help="the member in whose name it is done")
        parser.add_argument("--reason", default="", metavar="R", help="kept with it, for whoever looks later")
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
        parser.add_argument("--max-concurrent", type=positive, default=1, metavar="N", help="runs at once (1)")
        parser.add_argument(
            "--reprocess", choices=Reprocess.values, default="none", help="ticks with an ended run to do once more"
        )
        parser.add_argument("--order", choices=BackfillOrder.values, default="oldest", help="which come first")
        parser.add_argument("--max-ticks", type=positive, metavar="N", help="above 1,000 ticks it must allow them")
        parser.add_argument("--cron", metavar="C", help="other ticks than the trigger's own; so the next three")
        parser.add_argument("--timezone", metavar="Z")
        parser.add_argument("--gap", choices=Gap.values)
        parser.add_argument("--overlap", choices=Overlap.values)
        parser.add_argument("--override-reason", default="", metavar="R", help="why it may start in a blackout")
        parser.add_argument("--key", default="", metavar="K", help="the same key again is the same backfill")
        parser.add_argument("--plan-digest", default="", metavar="D", help="of the dry run; another plan is refused")
        parser.add_argument("--no-wait", action="store_true", help="end once its runs are made or being made")
        parser.add_argument("--json", action="store_true", help="for machines: what the API answers")
        steer = parser.add_mutually_exclusive_group()
        for verb in ("resume", "cancel", "watch"):
            steer.add_argument(f"--{verb}", type=_id, metavar="ID", help=f"{verb} a backfill that there is")

    def handle(self, *_: Any, **options: Any) -> None:
        with self._interruptible():
            self._act(options)

    def _act(self, options: dict[str, Any]) -> None:
        for verb in ("resume", "cancel", "watch"):
            if options[verb] is not None:
                self._steer(verb, options[verb], options)
                return
        missing = [name for name in ("TRIGGER", "--from", "--to") if options[_DEST[name]] is None]
        if missing:
            raise CommandError(f"needed to plan a backfill: {', '.join(missing)}; --help shows examples", returncode=2)
        trigger = trigger_queries.named(options["trigger"], triggers_of(options["workspace"]))
        actor = member(trigger.workspace, options["by"], VIEW if options["dry_run"] else FORK, "backfill.start")
        wish = _wish(trigger, options)
        if options["dry_run"]:
            self._tell_plan(backfills.preview(wish, actor), options)
            return
        done = backfills.start(wish, actor, key=options["key"].strip(), plan_digest=options["plan_digest"])
        if done.replayed:
            self.note("duplicate request: this is the backfill that the key made before")
        self._go_on(done.backfill, actor, options)

    def _steer(self, verb: str, backfill_id: uuid.UUID, options: dict[str, Any]) -> None:
        row = Backfill.objects.select_related("workspace").filter(id=backfill_id).first()
        if row is None:
            raise Refusal("not_found", f"there is no backfill {backfill_id}")
        capability = {"resume": STEER, "cancel": CANCEL, "watch": VIEW}[verb]
        actor = member(row.workspace, options["by"], capability, f"backfill.{verb}")
        if verb == "resume":
            backfills.resume(row.id, actor, options["reason"], options["override_reason"])
        elif verb == "cancel":
            backfills.cancel(row.id, actor, options["reason"])
        self._go_on(backfills.find(actor, row.id), actor, options)

    def _go_on(self, backfill: Backfill, actor: Actor, options: dict[str, Any]) -> None:
        """Waits where that is wanted and of use, tells how it stands, and ends with the exit code of that."""
        backfill = backfills.find(actor, backfill.id)
        if backfill.state == BackfillState.RUNNING and not options["no_wait"]:
            backfill = self._wait(backfill, actor, options)
        found = backfills.progress(backfill)
        if options["json"]:
            self._say(backfills.answer(backfill, listed=LISTED).as_json() | {"progress": found.as_json()})
        else:
            self.stdout.write(_sentence(backfill, found))
            self._tell_failures(backfill)
        if backfill.state == BackfillState.AWAITING_APPROVAL:
            self.note(f"somebody else must agree to it first: /console/approvals/{backfill.id}/")
            raise SystemExit(AWAITS_APPROVAL)
        if found.troubled or (backfill.state == BackfillState.CANCELLED and not options["cancel"]):
            raise SystemExit(FAILED)

    # waiting

    def _wait(self, backfill: Backfill, actor: Actor, options: dict[str, Any]) -> Backfill:
        """Watches it to its end, doing meanwhile what a console's clock does, in case there is none.

        An interrupt pauses it; a second one ends at once and leaves it as it is.
        """
        with _shown(self.stderr, backfill, quiet=options["json"]) as show:
            while backfill.state == BackfillState.RUNNING and not self._stopping.is_set():
                backfills.carry_on()
                lanes.let_in([backfill.id])
                backfill = backfills.find(actor, backfill.id)
                show(backfills.progress(backfill))
                if backfill.state == BackfillState.RUNNING:
                    self._stopping.wait(LOOK_SECONDS)
        if self._stopping.is_set() and backfill.state == BackfillState.RUNNING:
            self._leave(backfill, actor)
            raise SystemExit(INTERRUPTED)
        return backfill

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """An interrupt is heeded between two steps, so that none is left half done; a second one ends at once."""
        self._stopping = threading.Event()

        def stop(*_: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self._stopping.set()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _leave(self, backfill: Backfill, actor: Actor) -> None:
        again = f"manage.py backfill --resume {backfill.id} --by {actor.name}"
        try:
            backfills.pause(backfill.id, actor, "interrupted at the terminal")
        except Refusal as refusal:  # it ended meanwhile, or the right is gone
            self.note(f"not paused: {refusal.detail}")
        else:
            self.note(f"paused: nothing more is let in, what runs goes on; to go on: {again}")
            self.note(f"to cancel what has not begun: {again.replace('--resume', '--cancel')}")

    # telling

    def _tell_plan(self, plan: backfills.Plan, options: dict[str, Any]) -> None:
        told = plan.answer(LISTED)
        if options["json"]:
            self._say(told)
            return
        rows = [
            (one["local_time"], one["tick_time"], one["status"], one.get("execution_id", ""), one["rule"])
            for one in told["ticks"][:SHOWN]
        ]
        if rows:
            self.stdout.write(text_of(self.stdout, table(("local time", "in UTC", "would be", "run", "rule"), rows)))
        if len(plan.occasions) > len(rows):
            self.stdout.write(f"… and {len(plan.occasions) - len(rows)} more")
        for line in _about(told):
            self.stdout.write(harmless(line))

    def _tell_failures(self, backfill: Backfill) -> None:
        rows = [
            (one["local_time"], one["execution_id"] or "no run", one["code"], one["message"])
            for one in backfills.failures(backfill, SHOWN)
        ]
        if rows:
            self.stdout.write(text_of(self.stdout, table(("failed", "run", "code", "why"), rows)))

    def _say(self, answer: Mapping[str, Any]) -> None:
        self.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False))


_DEST = {"TRIGGER": "trigger", "--from": "from_time", "--to": "to_time"}


def _wish(trigger: Trigger, options: dict[str, Any]) -> backfills.Wish:
    same = ("from_time", "to_time", "cron", "timezone", "gap", "overlap", "max_concurrent", "reprocess", "order")
    told = {name: options[name] for name in (*same, "max_ticks", "reason", "override_reason")}
    return backfills.Wish(trigger_id=trigger.id, **told)


@contextmanager
def _shown(output: Any, backfill: Backfill, *, quiet: bool) -> Iterator[Any]:
    """How far it is, as a bar where there is a terminal, else as a line now and then."""
    if quiet:
        yield lambda found: None
        return
    if not output.isatty():
        said_at = [0.0]

        def say(found: backfills.Progress) -> None:
            if time.monotonic() - said_at[0] >= SAY_SECONDS:
                said_at[0] = time.monotonic()
                output.write(f"{found.ended} of {found.total}: {_counts(found)}")

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[counts]}"), console=Console(stderr=True)) as bar:
        task = bar.add_task(backfill.trigger.name, total=None, counts="")

        def draw(found: backfills.Progress) -> None:
            bar.update(task, total=found.total, completed=found.ended, counts=_counts(found))

        yield draw


def _counts(found: backfills.Progress) -> str:
    told = (
        (found.active, "active"),
        (found.held, "held"),
        (found.pending, "to be made"),
        (found.troubled, "failed"),
        (found.skipped, "had a run"),
    )
    parts = [f"{count} {word}" for count, word in told if count]
    if found.eta_seconds:
        parts.append(f"about {timedelta(seconds=round(found.eta_seconds))} left")
    return ", ".join(parts)


def _sentence(backfill: Backfill, found: backfills.Progress) -> str:
    state = backfill.state.replace("_", " ")
    if backfill.state in TERMINAL_BACKFILL and not found.total:
        return f"backfill {backfill.id} {state}: nothing was missed, {found.skipped} have a run"
    counts = _counts(found)
    return (
        f"backfill {backfill.id} {state}: {found.completed} of {found.total} completed{f', {counts}' if counts else ''}"
    )


def _about(told: Mapping[str, Any]) -> Iterator[str]:
    """The rest of a plan in lines, what to know first at their head."""
    if told["blackout"]:
        yield f"! nothing starts now: {told['blackout']['name']}; --override-reason says why it may all the same"
    if told["protected"]:
        yield f"! {told['environment']} is protected: an operator's backfill waits for approval"
    for handler in told["without_worker"]:
        yield f"! no live worker has the handler {handler}: its runs wait for one"
    yield f"{told['total_ticks']} to fill, {told['skipped']} have a run already; nothing was changed"
    if told["withheld"]:
        yield f"! {told['withheld']} not done again: their runs did something outside; replay each from its page"
    for one in told["withheld_ticks"]:
        yield f"  {one['local_time']} run {one['execution_id']}: {one['message']}"
    if told["unfit"]:
        yield f"! {told['unfit']} of {told['unfit_of']} looked at will fail: the schema does not take their input"
    for one in told["unfit_ticks"]:
        yield f"  {one['local_time']}: {one['message']}"
    for why, count in told["missed_because"].items():
        yield f"  {count} {why}"
    for one in told["approvals"]:
        yield f"needs the agreement of {one['count']} {one['role'].replace('_', ' ')}: {one['why']}"
    if told["estimate_seconds"]:
        yield f"may take about {timedelta(seconds=round(told['estimate_seconds']))}"
    yield f"plan {told['plan_digest']}"


def _moment(text: str) -> datetime:
    found = Moment().checker()(text)
    if type(found) is Wrong:
        raise argparse.ArgumentTypeError(f"{text!r} {found.problems[0][1]}, such as 2026-05-20T08:00:00+02:00")
    return found


def _id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no id") from error
