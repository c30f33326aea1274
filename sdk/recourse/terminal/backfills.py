"""`recourse backfill …`: filling what a trigger missed, and steering and watching it (contract §4, O49–O56)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recourse.terminal.asking import add_yes, agree, is_asked
from recourse.terminal.choosing import trigger_id
from recourse.terminal.executions import ID
from recourse.terminal.exits import DONE, STANDS_STILL, WAITS
from recourse.terminal.output import Answer, Column, Output, short_time, time_of, words, words_of
from recourse.terminal.pages import LISTS, add_filters, add_list_options, chosen, read_page
from recourse.terminal.parsing import command, group, moment, whole
from recourse.terminal.watching import Watch, add_every

STATUSES = (
    "previewed",
    "awaiting_approval",
    "running",
    "paused",
    "completed",
    "completed_with_failures",
    "cancelled",
)
ENDED = frozenset({"completed", "completed_with_failures", "cancelled"})
REPROCESS = ("none", "failed", "all")
ORDERS = ("oldest", "newest")
GAPS = ("first_existing", "shift", "skip")
OVERLAPS = ("first", "second", "both")
MOST_CONCURRENT = 1_000
MOST_TICKS = 100_000
SHOWN = 40  # ticks of a plan at a terminal
WISHED = (
    "max_concurrent",
    "reprocess",
    "order",
    "max_ticks",
    "cron",
    "timezone",
    "gap",
    "overlap",
    "override_reason",
    "reason",
)
WINDOW = "--from 2026-03-30T00:00+02:00 --to 2026-04-10T23:59+02:00"

TICKS = (
    Column("local time", lambda tick: str(tick.get("local_time") or "").replace("T", " "), whole=True),
    Column("would be", "status", whole=True, is_status=True),
    Column("in UTC", time_of("tick_time"), rank=2, whole=True),
    Column("rule", "rule", rank=3),
    Column("run", "execution_id", rank=1, whole=True),
)
BACKFILLS = (
    Column("id", "backfill_id", whole=True),
    Column("status", words_of("status"), whole=True, is_status=True),
    Column("trigger", "trigger", rank=1),
    Column("environment", "environment", rank=3),
    Column("from", lambda one: short_time((one.get("window") or {}).get("from")), rank=2, whole=True),
    Column("to", lambda one: short_time((one.get("window") or {}).get("to")), rank=2, whole=True),
    Column("asked for by", "requested_by", rank=4),
)
FAILED = (
    Column("failed tick", time_of("tick_time"), whole=True),
    Column("run", lambda one: one.get("execution_id") or "no run", whole=True),
    Column("why", lambda one: (one.get("error") or {}).get("message"), rank=1),
)


def add_commands(topics: Any) -> None:
    """Adds `backfill`."""
    verbs = group(
        topics,
        "backfill",
        "fill what a trigger missed, and steer that",
        "Fills the ticks that a trigger missed between two times, both included: one run each, made at once, a few let"
        " in at a time. Ticks that have a run are left alone unless --reprocess says otherwise. TRIGGER is a name or an"
        " id.",
        [
            f"recourse backfill plan fx-daily {WINDOW}",
            f"recourse backfill start fx-daily {WINDOW} --max-concurrent 3 --reason 'the rates were away' --watch",
            f"recourse backfill watch {ID}",
        ],
    )
    plan = command(
        verbs,
        "plan",
        "say which ticks would be filled, who must agree, how long it may take",
        _plan,
        examples=[f"recourse backfill plan fx-daily {WINDOW}", f"recourse backfill plan fx-daily {WINDOW} --json"],
    )
    start = command(
        verbs,
        "start",
        "fill them; at a terminal after showing the plan and asking",
        _start,
        description="Fills the ticks. At a terminal it shows the plan, asks, and starts just that plan. Elsewhere"
        " it starts at once: give --plan-digest of `backfill plan --json`, and it is refused when the world has moved.",
        examples=[
            f"recourse backfill start fx-daily {WINDOW} --max-concurrent 3 --reason 'the rates were away'",
            f"recourse backfill start fx-daily {WINDOW} --yes --watch",
        ],
    )
    for verb in (plan, start):
        _add_wish(verb)
    start.add_argument("--plan-digest", metavar="DIGEST", help="of the plan; another one is refused")
    start.add_argument(
        "--client-request-id", metavar="UUID", help="a lowercase UUID: the same again is the same backfill"
    )
    start.add_argument("--watch", action="store_true", help="go on as `backfill watch`")
    add_yes(start)
    listed = command(
        verbs,
        "list",
        "list backfills, newest first",
        _list,
        description=f"Lists backfills, newest first.\n\n{LISTS}",
        examples=["recourse backfill list --status running", "recourse backfill list --trigger fx-daily --json"],
    )
    listed.add_argument("--trigger", metavar="TRIGGER", help="its name or id")
    add_filters(
        listed,
        {
            "status": {"choices": STATUSES, "metavar": "STATUS", "help": ", ".join(STATUSES)},
            "pipeline": {"metavar": "SLUG"},
        },
    )
    add_list_options(listed)
    show = command(
        verbs,
        "show",
        "tell how far it is, and which ticks failed",
        _show,
        examples=[f"recourse backfill show {ID}", f"recourse backfill show {ID} --json"],
    )
    watch = command(
        verbs,
        "watch",
        "watch it until it ends",
        _watch,
        description="Watches it until it ends: as a bar at a terminal, as a line per change in a pipe, as JSON lines"
        " with --json. Ends with 0 when all is well, 3 when a tick or its run failed, it was cancelled or is paused, 4"
        " when others must agree first. Ctrl-C ends the watching and nothing else.",
        examples=[f"recourse backfill watch {ID}", f"recourse backfill watch {ID} --json --every 10"],
    )
    for one in (start, watch):
        add_every(one)
    pause = command(
        verbs,
        "pause",
        "let no more runs in; those that are in go on",
        _steer("pause"),
        examples=[f"recourse backfill pause {ID} --reason 'the bank is slow'"],
    )
    resume = command(
        verbs, "resume", "let runs in again", _steer("resume"), examples=[f"recourse backfill resume {ID}"]
    )
    cancel = command(
        verbs,
        "cancel",
        "cancel the runs that are held; those that are in go on, and the ticks are missed again",
        _steer("cancel"),
        examples=[f"recourse backfill cancel {ID} --reason 'not needed any more'"],
    )
    for verb in (show, watch, pause, resume, cancel):
        verb.add_argument("backfill", metavar="ID", help="of the backfill")
    for verb in (pause, resume, cancel):
        verb.add_argument("--reason", metavar="TEXT", help="kept with the act, for whoever looks later")
        verb.add_argument("--client-request-id", metavar="UUID", help="a lowercase UUID that makes repeating safe")
        verb.set_defaults(fields=())
    resume.add_argument("--override-reason", metavar="TEXT", help="go on although a blackout holds; kept with it")
    resume.set_defaults(fields=("override_reason",))
    add_yes(cancel)


def _add_wish(verb: Any) -> None:
    verb.add_argument("trigger", metavar="TRIGGER", help="its name or id")
    verb.add_argument("--from", dest="from_time", type=moment, required=True, metavar="TIME", help="the first time")
    verb.add_argument("--to", dest="to_time", type=moment, required=True, metavar="TIME", help="the last time")
    verb.add_argument("--max-concurrent", type=whole(1, MOST_CONCURRENT), metavar="N", help="runs at once (1)")
    verb.add_argument(
        "--reprocess", choices=REPROCESS, help="ticks with an ended run to do once more: none, failed, all"
    )
    verb.add_argument("--order", choices=ORDERS, help="which come first: oldest, newest")
    verb.add_argument("--max-ticks", type=whole(1, MOST_TICKS), metavar="N", help="above 1,000 it must allow them")
    verb.add_argument("--cron", metavar="CRON", help="other ticks than the trigger's own; so the next three")
    verb.add_argument("--timezone", metavar="ZONE", help="in which --cron, or the trigger's own, is read")
    verb.add_argument("--gap", choices=GAPS, help="of a time that does not exist: first_existing, shift, skip")
    verb.add_argument("--overlap", choices=OVERLAPS, help="of a time that exists twice: first, second, both")
    verb.add_argument("--override-reason", metavar="TEXT", help="start it although a blackout holds; kept with it")
    verb.add_argument("--reason", metavar="TEXT", help="kept with it, for whoever looks later")


def _wish(client: Any, options: argparse.Namespace) -> dict[str, Any]:
    wish = {name: getattr(options, name) for name in WISHED}
    told = {name: value for name, value in wish.items() if value is not None}
    window = {"from_time": options.from_time, "to_time": options.to_time}
    return {"trigger_binding_id": trigger_id(client, options.trigger), **window, **told}


def _plan(client: Any, options: argparse.Namespace) -> int:
    plan = client.triggers.backfill(**_wish(client, options), dry_run=True)
    if options.out.is_json:
        options.out.document(plan)
    else:
        _show_plan(options.out, plan)
    return DONE


def _start(client: Any, options: argparse.Namespace) -> int:
    wish, digest, out = _wish(client, options), options.plan_digest, options.out
    if digest is None and is_asked(options):
        plan = client.triggers.backfill(**wish, dry_run=True)
        _show_plan(out, plan)
        agree(options)
        digest = plan["plan_digest"]
    done = client.triggers.backfill(**wish, plan_digest=digest, client_request_id=options.client_request_id)
    if options.watch and done["status"] == "running":
        if not out.is_json:
            out.lines([f"backfill {done['backfill_id']}: running"])
        return Watched(client, options, done["backfill_id"]).until_it_ends()
    lines = [f"backfill {done['backfill_id']}: {words(done['status'])}, {done['total_ticks']} to fill"]
    if done.get("replayed"):
        lines.append("the same request made it before")
    if done["status"] == "running":
        lines.append(f"to look how far it is: recourse backfill watch {done['backfill_id']}")
    if done["status"] == "awaiting_approval":
        lines.append("somebody else must agree first: recourse approval list")
    out.say(done, lines)
    return WAITS if done["status"] == "awaiting_approval" else DONE


def _list(client: Any, options: argparse.Namespace) -> int:
    filters = chosen(options)
    if options.trigger:
        filters["trigger"] = trigger_id(client, options.trigger)
    options.out.page(read_page(options, client.backfills.list, **filters), BACKFILLS, "no backfills")
    return DONE


def _show(client: Any, options: argparse.Namespace) -> int:
    found, out = client.backfills.get(options.backfill), options.out
    if out.is_json:
        out.document(found)
        return DONE
    window = found["window"]
    out.lines(
        [
            sentence_of(found),
            f"  {found['trigger']} in {found['environment']}",
            f"  {short_time(window['from'])} to {short_time(window['to'])}",
            f"  asked for by {found['requested_by']}{': ' + found['reason'] if found.get('reason') else ''}",
        ]
    )
    if found["failed"]:
        ticks = client.backfills.ticks(options.backfill, status="failed", page_size=SHOWN)["results"]
        out.table(FAILED, ticks, "the ticks have runs; of these some failed: recourse execution list --status failed")
    return DONE


def _watch(client: Any, options: argparse.Namespace) -> int:
    return Watched(client, options, options.backfill).until_it_ends()


def _steer(name: str) -> Callable[[Any, argparse.Namespace], int]:
    def act(client: Any, options: argparse.Namespace) -> int:
        if name == "cancel" and is_asked(options):
            options.out.lines([sentence_of(client.backfills.get(options.backfill)), "held runs would be cancelled"])
            agree(options)
        said = {field: getattr(options, field) for field in options.fields}
        verb = getattr(client.backfills, name)
        done = verb(options.backfill, options.reason, **said, client_request_id=options.client_request_id)
        options.out.say(done, [f"backfill {done['backfill_id']}: {words(done['status'])}"])
        return DONE

    return act


class Watched(Watch):
    """A backfill that is watched: a bar at a terminal."""

    what = "backfill"
    again = "recourse backfill watch"

    def look(self) -> Answer:
        found: Answer = self.client.backfills.get(self.id)
        return found

    def lines(self, before: Answer | None, now: Answer) -> Sequence[str]:
        told = sentence_of(now)
        return [] if before is not None and sentence_of(before) == told else [told]

    def drawn(self, now: Answer) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total, ended = max(1, int(now["total_ticks"])), _ended(now)
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=total, completed=ended, width=max(10, min(40, self.out.width - 20)))
        row.add_row(bar if self.out.has_signs else Text(""), Text(f"{ended} of {now['total_ticks']}"))
        made = Table.grid()
        made.add_row(Text(self.out.text(f"{now['trigger']} in {now['environment']}: {words(now['status'])}")))
        made.add_row(row)
        made.add_row(Text(self.out.text(counts_of(now))))
        return made

    def end(self, now: Answer) -> int | None:
        if now["status"] == "awaiting_approval":
            return WAITS
        if now["status"] == "paused":
            self.out.note(f"it is paused: recourse backfill resume {self.id}")
            return STANDS_STILL
        if now["status"] in ENDED:
            return DONE if now["status"] == "completed" else STANDS_STILL
        return None


def sentence_of(found: Answer) -> str:
    counts = counts_of(found)
    total = f"{_ended(found)} of {found['total_ticks']} ended"
    return f"backfill {found['backfill_id']} {words(found['status'])}: {total}{', ' + counts if counts else ''}"


def counts_of(found: Answer) -> str:
    progress: Mapping[str, Any] = found.get("progress") or {}
    runs: Mapping[str, int] = progress.get("runs") or {}
    ticks: Mapping[str, int] = progress.get("ticks") or {}
    counted = (
        (runs.get("completed", 0), "completed"),
        (progress.get("active") or 0, "active"),
        (progress.get("held") or 0, "held"),
        (ticks.get("pending", 0), "to be made"),
        (int(found.get("failed") or 0) + runs.get("failed", 0) + runs.get("cancelled", 0), "failed"),
        (found.get("skipped") or 0, "had a run"),
    )
    parts = [f"{count} {word}" for count, word in counted if count]
    if progress.get("eta_seconds"):
        parts.append(f"about {span(float(progress['eta_seconds']))} left")
    return ", ".join(parts)


def span(length: float) -> str:
    """Seconds as `45 s`, `12 min`, `3 h 20 min`."""
    whole_minutes = round(length / 60)
    if length < 90:
        return f"{round(length)} s"
    hours, minutes = divmod(whole_minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _ended(found: Answer) -> int:
    runs = (found.get("progress") or {}).get("runs") or {}
    ended = sum(runs.get(state, 0) for state in ("completed", "failed", "cancelled"))
    return min(int(found["total_ticks"]), ended + int(found.get("failed") or 0))


def _show_plan(out: Output, plan: Answer) -> None:
    ticks = list(plan.get("ticks") or ())
    shown = ticks[:SHOWN] if out.is_terminal else ticks
    if shown:
        out.table(TICKS, shown)
    if len(ticks) > len(shown):
        out.lines([f"… and {len(ticks) - len(shown)} more"])
    out.lines(lines_of_plan(plan))


def lines_of_plan(plan: Answer) -> list[str]:
    """The rest of a plan, what to know first at its head."""
    lines = []
    if plan.get("blackout"):
        lines.append(f"! nothing starts now: {plan['blackout'].get('name')}; --override-reason says why it may")
    if plan.get("protected"):
        lines.append("! its environment is protected: an operator's backfill waits for approval")
    lines += [f"! no live worker has the handler {one}: its runs wait" for one in plan.get("without_worker") or ()]
    lines.append(f"{plan['total_ticks']} to fill, {plan['skipped']} have a run already; nothing was changed")
    if plan.get("withheld"):
        lines.append(f"! {plan['withheld']} not done again: their runs did something outside; replay each by itself")
    lines += [f"  {count} {words(why)}" for why, count in (plan.get("missed_because") or {}).items()]
    for one in plan.get("approvals") or ():
        roles = one.get("roles") or [one.get("role")]
        lines.append(f"needs the agreement of {one['count']} {' or '.join(map(words, roles))}: {one['why']}")
    if plan.get("estimate_seconds"):
        lines.append(f"may take about {span(float(plan['estimate_seconds']))}")
    return [*lines, f"digest: {plan.get('plan_digest')}"]
