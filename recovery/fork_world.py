"""What plans of forks are made from: the source as it is, the release that will run, and the checkpoint to start from.

`read` gives the same facts to a dry run and, under the source's lock, to the fork itself. It refuses in the order of
model §5: state, blackout, environment, release, integrity; so nothing is loaded from a checkpoint that is not to be
believed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines import blackouts, checkpoint_reading
from pipelines.checkpoint_reading import Covering, Done, HandlerState
from pipelines.creation import from_definition
from pipelines.errors import Refusal
from pipelines.graph import GraphError, descendants, resolve_dependencies
from pipelines.limits import Limits
from pipelines.models import Release, Run
from pipelines.releases import release_in_force
from pipelines.states import ACTIVE_STAGE, ReleaseStatus, RunStatus
from recovery import world
from recovery.plans import Asked
from recovery.states import OperationKind
from recovery.world import World


@dataclass(frozen=True, slots=True)
class Shape:
    """The stages of a release, in the words of the engine, in graph order; `depends_on` holds positions. `limits` are
    those of its runs."""

    release_id: uuid.UUID
    stages: tuple[Mapping[str, Any], ...]
    depends_on: tuple[tuple[int, ...], ...]
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, release_id: uuid.UUID, definition: Mapping[str, Any]) -> Shape:
        stages = [from_definition(stage) for stage in definition["stages"]]
        try:
            needed = resolve_dependencies([one["name"] for one in stages], [one["depends_on"] for one in stages])
        except GraphError as error:
            raise Refusal("definition_changed", f"the release cannot run: {error}") from error
        limits = Limits.of(definition.get("limits"))
        return cls(release_id, tuple(stages), tuple(tuple(one) for one in needed), limits)

    @property
    def names(self) -> list[str]:
        return [stage["name"] for stage in self.stages]

    def stage(self, name: str) -> Mapping[str, Any] | None:
        return next((stage for stage in self.stages if stage["name"] == name), None)

    def needs(self, name: str) -> list[str]:
        """What the stage waits for directly."""
        return [self.names[position] for position in self.depends_on[self.names.index(name)]]

    def behind(self, name: str) -> set[str]:
        """What waits for the stage, directly or not; nothing when the release has no such stage."""
        if name not in self.names:
            return set()
        found = descendants(self.names.index(name), dict(enumerate(self.depends_on)))
        return {self.names[position] for position in found}

    def before(self, name: str) -> set[str]:
        """What the stage waits for, directly or not; nothing when the release has no such stage."""
        names = self.names
        if name not in names:
            return set()
        found: set[int] = set()
        left = [names.index(name)]
        while left:
            needed = set(self.depends_on[left.pop()]) - found
            found |= needed
            left += needed
        return {names[position] for position in found}


@dataclass(frozen=True, slots=True)
class ForkWorld:
    """A source and what forking it depends on. `start` is X, the stage that a rerun starts from; blank for a replay.

    `done` is what the checkpoint says is done, by stage name. `left` is what X's handler left, where it is handed over.
    """

    source: World
    was: Shape
    will_be: Shape
    start: str = ""
    checkpoint_id: uuid.UUID | None = None
    done: Mapping[str, Done] = field(default_factory=dict)
    posture: Sequence[Mapping[str, Any]] = ()
    left: HandlerState | None = None

    @property
    def is_held(self) -> bool:
        """The fork stands in its source's lane, and waits there for its turn (F52)."""
        return self.source.lane is not None and self.source.lane.holds


def read(asked: Asked, *, pinned: uuid.UUID | None = None, starts: bool = False) -> ForkWorld:
    """The world of a fork; `pinned` is the release that was reserved for it, where one was.

    Refused: a source that has not ended, unless it is blocked for good by what changed beneath it
    (`execution_state_invalid`), with `starts` what a blackout holds back
    (`blackout_active`), another environment
    (`recovery_environment_mismatch`), no release to run (`release_not_active`), a checkpoint that is not to be believed
    (`checkpoint_integrity_invalid`) or covers not enough (`checkpoint_not_found`), and a stage that is kept or needed
    and is not in the release (`definition_changed`).
    """
    source = world.read(asked.run_id)
    _check_ended(source)
    if starts and source.blackout and not asked.override_reason:
        raise blackouts.refusal(source.blackout)
    if asked.choices["environment"] != source.environment:
        detail = f"the run belongs to {source.environment}: it is recovered there and nowhere else"
        raise Refusal("recovery_environment_mismatch", detail, extra={"environment": source.environment})
    run = Run.objects.select_related("release", "pipeline").get(id=asked.run_id)
    was, will_be = Shape.of(run.release_id, json.loads(run.release.definition)), release_to_run(run, pinned)
    if asked.kind == OperationKind.REPLAY:
        return ForkWorld(source, was, will_be)
    return _from_checkpoint(asked, source, was, will_be)


def _check_ended(source: World) -> None:
    """A fork is made of what has ended, or stands still for good: it no longer stands on what it pinned, and nothing of
    it is under way (R16, R17)."""
    if source.is_terminal:
        return
    under_way = [stage.name for stage in source.stages if stage.state in ACTIVE_STAGE]
    if source.status == RunStatus.BLOCKED and source.changed and not under_way:
        return
    helps = "wait for its end, or cancel it first"
    if source.status == RunStatus.BLOCKED and source.changed:
        detail = f"work of the run is under way ({', '.join(under_way)}), so it is not forked yet: {helps}"
    else:
        detail = f"a run that is {source.status} is not forked: {helps}"
    raise Refusal("execution_state_invalid", detail)


def release_to_run(run: Run, pinned: uuid.UUID | None) -> Shape:
    """The pinned release, else the one in force now in the source's environment; an inline run has only its own."""
    if pinned is None and run.pipeline is not None:
        managed = release_in_force(run.workspace_id, run.pipeline.slug, run.environment_id)
        return Shape.of(managed.release_id, managed.definition)
    release = Release.objects.get(id=pinned or run.release_id)
    if release.status in (ReleaseStatus.REVOKED, ReleaseStatus.RETIRED):
        raise Refusal("release_not_active", f"the release is {release.status}: nothing is run on it any more")
    return Shape.of(release.id, json.loads(release.definition))


def _from_checkpoint(asked: Asked, source: World, was: Shape, will_be: Shape) -> ForkWorld:
    newest = checkpoint_reading.newest_valid(source.run_id)
    start: str = asked.choices["from_step_id"] or newest.current_step_id
    if start not in was.names:
        raise Refusal("checkpoint_not_found", f"no checkpoint of the run knows a stage called {start!r}")
    if start not in will_be.names:
        raise _lacking([start])
    covering = checkpoint_reading.newest_covering(source.run_id, will_be.before(start) & set(was.names))
    if lacking := _needed(start, covering, was) - set(will_be.names):
        raise _lacking(sorted(lacking))
    kept = {name: one for name, one in covering.done.items() if name not in will_be.behind(start) | {start}}
    failing = [name for name, one in kept.items() if one.state == "failed" and not _is_bypassed(will_be, name)]
    if failing:
        detail = f"{', '.join(failing)} failed, and in the release that will run a failure there is not passed by"
        raise Refusal("definition_changed", detail, extra={"stages": failing})
    handed_over = not asked.choices["from_step_id"]
    return ForkWorld(
        source=source,
        was=was,
        will_be=will_be,
        start=start,
        checkpoint_id=covering.checkpoint.id,
        done={name: one for name, one in kept.items() if name in will_be.names},
        posture=covering.posture,
        left=checkpoint_reading.handler_state(source.run_id, start) if handed_over else None,
    )


def _needed(start: str, covering: Covering, was: Shape) -> set[str]:
    """What was needed by X, and what would be kept: all of it done before, and none of it begun anew with X."""
    return was.before(start) | (set(covering.done) - was.behind(start) - {start})


def _is_bypassed(shape: Shape, name: str) -> bool:
    stage = shape.stage(name)
    return bool(stage and stage["run_next_if_failed"])


def _lacking(names: Sequence[str]) -> Refusal:
    detail = f"the release that will run has no {' and no '.join(names)}: replay the run, or start it anew"
    return Refusal("definition_changed", detail, extra={"stages": list(names)})
