"""What follows when a gate is approved or rejected, line by line: pure, from the stages of its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.console.acts import Step, listed, stages_in_words
from pipelines.graph import descendants
from pipelines.models import Gate, GateMoment, Run, Stage
from pipelines.states import (
    TERMINAL_RUN,
    StageFact,
    StageState,
    derive_run_status,
    lets_go_on,
)


@dataclass(frozen=True, slots=True)
class World:
    """A gate, where it stands, and how many approvals it needs beyond the next one."""

    gate: Gate
    stage: Stage
    run: Run
    stages: Sequence[Stage]
    short: int = 0


def on_approval(world: World) -> list[Step]:
    """What the next approval does: that alone, or with those that it still needs."""
    stage = world.stage
    lines = not_the_last(world.short)
    if world.gate.moment == GateMoment.BEFORE:
        lines.append(Step("ready", "Begins", f"{stage.name} goes to a worker that has registered {stage.handler}"))
        if stage.effect_mode == "external":
            lines.append(Step("blocked", "Acts", f"{stage.name} acts outside, and is never repeated blindly"))
        again = f"every attempt of epoch {world.gate.epoch}: a retry by the machine asks nobody again"
        lines.append(Step("approved", "Covers", again))
    else:
        lines.append(Step("completed", "Completes", f"{stage.name}, with the result that it offers"))
        lines.extend(_what_follows(world, StageState.COMPLETED))
    if world.run.paused:
        lines.append(Step("paused", "Not yet", "the run is paused: nothing is handed out before it is resumed"))
    return lines


def on_rejection(world: World) -> list[Step]:
    """What one rejection does, whoever has approved before."""
    stage = world.stage
    final = f"{stage.name}, for good in this run: neither a retry nor a skip reopens it"
    lines = [Step("failed", "Fails", final)]
    if world.gate.moment == GateMoment.AFTER:
        lines.append(Step("declared", "Kept", "the result that it offers stays readable and never counts"))
    lines.extend(_what_follows(world, StageState.FAILED))
    lines.append(Step("declared", "Way out", "a rerun or replay is a new run, and asks anew at this gate"))
    return lines


def not_the_last(short: int) -> list[Step]:
    """That the next approval alone does nothing, where so many more must follow."""
    more = f"{short} more {'approval' if short == 1 else 'approvals'} must follow before anything moves"
    return [Step("waiting", "Counts", f"the next one is not the last: {more}")] if short else []


def on_expiry(world: World) -> str:
    """What happens when nobody decides in time."""
    return f"{world.stage.name} fails"


def _what_follows(world: World, state: StageState) -> Iterator[Step]:
    """What those behind the stage do once it is in this state, and the run where that ends it."""
    after = {
        stage.position: StageFact(
            state if stage.id == world.stage.id else StageState(stage.state), stage.run_next_if_failed
        )
        for stage in world.stages
    }
    behind = [
        stage
        for stage in world.stages
        if world.stage.position in stage.depends_on and stage.state == StageState.PENDING
    ]
    if lets_go_on(after[world.stage.position]):
        due = [one for one in behind if all(lets_go_on(after[position]) for position in one.depends_on)]
        later = [one for one in behind if one not in due]
        if due:
            yield Step("ready", "Then", f"{_count(due)} may begin: {_names(due)}")
        if later:
            yield Step(
                "pending", "Later", f"{_count(later)}, once the rest that they wait for lets them: {_names(later)}"
            )
    else:
        due = []
        if held := _held(world):
            yield Step("pending", "Held", f"{_count(held)} behind it, for good in this run: {_names(held)}")
    end = derive_run_status(after.values(), started=True, paused=False)
    if not due and end in TERMINAL_RUN:
        yield Step(end, "Ends", f"the run is {end.value}: nothing else of it is under way")


def _held(world: World) -> list[Stage]:
    """What waits for the stage, directly or not, and has not begun."""
    waiting = set(descendants(world.stage.position, {stage.position: stage.depends_on for stage in world.stages}))
    return [stage for stage in world.stages if stage.position in waiting and stage.state == StageState.PENDING]


def _count(stages: Sequence[Stage]) -> str:
    return stages_in_words(len(stages))


def _names(stages: Sequence[Stage]) -> str:
    return listed([stage.name for stage in stages])
