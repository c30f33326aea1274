"""What an act on a stage or run will do, in lines for the screen: pure, from the rows as they are now."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.console.acts import Step
from pipelines.graph import descendants
from pipelines.models import Stage
from pipelines.states import ACTIVE_STAGE, STAGE_MOVES, TERMINAL_STAGE, StageState

FINISHED = (StageState.COMPLETED, StageState.SKIPPED, StageState.FAILED)


def later_than(stage: Stage, stages: Sequence[Stage]) -> list[Stage]:
    """The stages that depend on it, directly or not, in graph order."""
    behind = set(descendants(stage.position, {one.position: one.depends_on for one in stages}))
    return [one for one in stages if one.position in behind]


def of_retry(stage: Stage, stages: Sequence[Stage], *, alone: bool = False) -> list[Step]:
    """The lines of a retry, for both scopes; `alone`: only the stage itself can be chosen."""
    later = later_than(stage, stages)
    kept = [one.name for one in stages if one.state in FINISHED and one != stage and one not in later]
    finished = [one.name for one in later if one.state in FINISHED]
    lines = [Step("ready", "Runs again", f"{stage.name}, in epoch {stage.epoch + 1}; its counters start anew")]
    if kept:
        lines.insert(0, Step("completed", "Kept", f"{_count(kept, 'stage')}: {_names(kept)}"))
    if finished:
        choice = "" if alone else ", or run again, as you choose"
        told = f"{_names(finished)}: marked as made from the older result{choice}"
        lines.append(Step("retry_scheduled", "Behind it", told))
    waiting = [one.name for one in later if one.state not in TERMINAL_STAGE]
    if waiting:
        lines.append(Step("pending", "Then", f"{_names(waiting)}, once {stage.name} is completed"))
    lines.append(Step("superseded", "Not erased", "earlier attempts, outputs and decisions stay readable"))
    if stage.effect_mode == "external":
        told = f"what {stage.name} does outside: a retry does it again, it takes nothing back"
        lines.append(Step("blocked", "May repeat", told))
    if not alone and (behind := acting_behind(stage, stages)):
        told = f"what {', '.join(behind)} did outside, when everything behind {stage.name} is run again"
        lines.append(Step("blocked", "May repeat", told))
    return lines


def acting_behind(stage: Stage, stages: Sequence[Stage]) -> list[str]:
    """The stages behind it that acted outside and would do so again with them."""
    return [one.name for one in later_than(stage, stages) if acted_outside(one)]


def of_skip(stage: Stage, stages: Sequence[Stage]) -> list[Step]:
    """The lines of a skip."""
    waiting = [one.name for one in later_than(stage, stages) if one.state not in TERMINAL_STAGE]
    lines = [Step("skipped", "Left out", f"{stage.name} will not run; the run records that it was left out on purpose")]
    if waiting:
        lines.append(Step("ready", "Goes on", f"{_names(waiting)}, without its result unless you give one"))
    if stage.state == StageState.NEEDS_RECONCILIATION:
        told = f"what {stage.name} did outside stays unknown; skipping does not undo it"
        lines.append(Step("blocked", "Uncertain", told))
    return lines


def acted_outside(stage: Stage) -> bool:
    """Whether beginning the stage anew may repeat what an earlier attempt of it did outside."""
    return stage.effect_mode == "external" and stage.state in STAGE_MOVES["rewind"] and stage.attempt_number > 0


def of_cancel(stages: Sequence[Stage]) -> list[Step]:
    """The lines of a cancel: what ends, and what may still go on outside."""
    unfinished = [one.name for one in stages if one.state not in TERMINAL_STAGE]
    done = [one.name for one in stages if one.state in FINISHED]
    lines = [Step("cancelled", "Ends for good", f"{_count(unfinished, 'stage')}: {_names(unfinished) or 'none'}")]
    if done:
        lines.append(Step("completed", "Stays", f"{_names(done)}: nothing of it is undone"))
    for stage in stages:
        if stage.state in ACTIVE_STAGE:
            told = f"{stage.name}: its worker is told to stop; what it has begun outside may still go on"
            lines.append(Step("running", "May go on", told))
        elif stage.state == StageState.NEEDS_RECONCILIATION:
            lines.append(Step("blocked", "Uncertain", f"{stage.name}: what it did outside is unknown"))
        elif stage.state == StageState.WAITING:
            lines.append(Step("waiting", "Open gate", f"{stage.name}: its decision is no longer asked for"))
    return lines


def _names(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"
