"""Why no run came of a tick, or why the one that came does not move: in words, with who holds it and the next look.

`find_tick_blockers` is pure; `tick_blockers` reads what it must know. A tick that is due says what will become of it
when the next pass decides, as things stand now. Serves F101, F117, O54.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pipelines import blackouts, lanes, queries, releases
from pipelines.blackouts import Active
from pipelines.blockers import CLOCK, ENGINE, NOBODY, PERSON, Blocker, first_causes
from pipelines.errors import Refusal
from pipelines.models import OverlapPolicy, Run, Tick, Trigger
from pipelines.sql import database_now
from pipelines.states import RunStatus, SkipReason, TickState

LANED = (OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE, OverlapPolicy.QUEUE_ALL)
SKIPPED = {
    SkipReason.PAUSED: "it was skipped: the trigger was off when it came",
    SkipReason.OVERLAP: "it was skipped: an earlier run of the trigger was unfinished, and that leaves ticks out",
    SkipReason.BLACKOUT: "it was skipped: a blackout held",
    SkipReason.CATCH_UP: "it was skipped: it was found too late, and the trigger does not catch up on it",
    SkipReason.EXISTING: "it was skipped: it had a run already",
}
ASK = "; no run is made of it unless somebody asks for a backfill"


@dataclass(frozen=True, slots=True)
class Around:
    """What must be known besides the tick: its trigger, how that stands now, and the tick's run where one is there.

    `unready` says why no run can be made now. `inside` are the runs that are in the trigger's lane.
    """

    now: datetime
    trigger: Trigger
    unready: str = ""
    blackout: Active | None = None
    inside: tuple[lanes.Inside, ...] = ()
    run: Run | None = None


def tick_blockers(tick: Tick, trigger: Trigger) -> list[Blocker]:
    """What holds the tick, or its run; none of one whose run has ended well.

    Of the run's stages only those that wait for something else than one another.
    """
    run = Run.objects.filter(id=tick.run).first() if tick.run and tick.state == TickState.DISPATCHED else None
    around = Around(database_now(), trigger, run=run)
    if tick.state in (TickState.DUE, TickState.FAILED):
        around = Around(
            around.now,
            trigger,
            unready=_unready(trigger),
            blackout=blackouts.active(trigger.workspace_id, trigger.environment_id, trigger.id),
            inside=lanes.first_inside(trigger.id) if trigger.overlap_policy in LANED else (),
        )
    found = find_tick_blockers(tick, around)
    return found + (first_causes(queries.blockers(run)) if run is not None else [])


def find_tick_blockers(tick: Tick, around: Around) -> list[Blocker]:
    """What holds the tick itself; of one with a run, whatever holds that is the run's to say."""
    match tick.state:
        case TickState.SKIPPED:
            detail = f" ({tick.detail})" if tick.detail else ""
            return [Blocker(PERSON, f"{SKIPPED[SkipReason(tick.reason)]}{detail}{ASK}")]
        case TickState.FAILED:
            return [Blocker(PERSON, _failed(tick, around))]
        case TickState.DUE:
            return [_due(tick, around)]
    run = around.run
    if run is None:
        return [Blocker(NOBODY, "its run was made, and is gone by retention")]
    if run.status == RunStatus.CANCELLED:
        return [Blocker(PERSON, "its run was cancelled and stays so; a backfill may do it once more")]
    return []


def _due(tick: Tick, around: Around) -> Blocker:
    if tick.start_at > around.now:
        cause = f"it starts at {_time(tick.start_at)}: its trigger spreads its ticks, or tries this one again"
        then = _then(around)
        return Blocker(CLOCK, f"{cause}; {then}" if then else cause, tick.start_at)
    since = f"it has been due since {_time(tick.start_at)}, and the next pass of the schedule decides"
    then = _then(around)
    return Blocker(ENGINE, f"{since}; {then}" if then else since, tick.start_at, behind=around.inside)


def _then(around: Around) -> str:
    """What becomes of it, as things stand now; blank: its run is made."""
    trigger = around.trigger
    if not trigger.enabled:
        return "as things stand it is skipped: the trigger is off"
    if around.blackout is not None:
        return f"as things stand it is skipped: {around.blackout.sentence()}"
    if around.inside and trigger.overlap_policy == OverlapPolicy.SKIP:
        return f"as things stand it is skipped, because a run is unfinished: {around.inside[0].sentence()}"
    if around.unready:
        return f"as things stand it fails: {around.unready}"
    if around.inside:
        return f"its run will be held behind {around.inside[0].sentence()}"
    return ""


def _failed(tick: Tick, around: Around) -> str:
    said = f": {tick.error_message}" if tick.error_message else ""
    cause = f"its run could not be made, {tick.error_code}{said}"
    if around.unready:
        return f"{cause}; that still holds: {around.unready}"
    return f"{cause}; a run could be made now{ASK}"


def _unready(trigger: Trigger) -> str:
    try:
        releases.managed(trigger.workspace_id, trigger.pipeline_id, trigger.environment_id)
    except Refusal as refusal:
        return refusal.detail
    return ""


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
