"""Plans of forks, for any graph, any state and any release: complete, and never more or less than they say."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from approvals.rules import Requirement
from pipelines.checkpoint_reading import Done
from pipelines.states import RunStatus, StageState
from recovery.agreements import with_agreement
from recovery.dispositions import EffectFact
from recovery.fork_plans import judged, plan_fork
from recovery.fork_world import ForkWorld, Shape
from recovery.plans import Asked
from recovery.states import Disposition, OperationKind
from recovery.world import StageFact, World

NAMES = "abcdefgh"
RUN, RELEASE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)


def shape_of(release_id: uuid.UUID, stages: list[dict[str, Any]]) -> Shape:
    named = [{"handler": "Handler", **stage} for stage in stages]
    return Shape.of(release_id, {"stages": named})


@st.composite
def worlds(draw: st.DrawFn) -> tuple[ForkWorld, Asked]:
    """A source of some graph, what is done of it, and a release that may have other stages and another graph."""
    names = list(NAMES[: draw(st.integers(1, 6))])

    def graph(of: list[str]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "needs": sorted(draw(st.sets(st.sampled_from(of[:index])))) if index else [],
                "effect_mode": draw(st.sampled_from(["idempotent", "external"])),
                "approval": draw(st.sampled_from([None, {"when": "before"}])),
            }
            for index, name in enumerate(of)
        ]

    was = shape_of(RELEASE, [*graph(names), {"name": "z", "needs": [names[0]]}])
    added = draw(st.sampled_from([[], ["new"]]))
    will_be = shape_of(OTHER, [*graph([*names, *added]), {"name": "z", "needs": [names[0]]}])
    kind = draw(st.sampled_from([OperationKind.RERUN, OperationKind.REPLAY]))
    start = draw(st.sampled_from(names)) if kind == OperationKind.RERUN else ""
    keepable = [name for name in names if name != start and name not in will_be.behind(start)] if start else []
    done = draw(st.sets(st.sampled_from(keepable))) | (will_be.before(start) & set(names)) if keepable else set()
    attempts = draw(st.integers(0, 2))
    facts = tuple(
        StageFact(uuid.uuid4(), index, name, StageState.FAILED, effect_mode="external", attempt_number=attempts)
        for index, name in enumerate([*names, "z"])
    )
    effects = tuple(
        EffectFact(
            name, "external_http", draw(st.sampled_from(["committed", "unknown", "absent"])), key="k", effect_id=name
        )
        for name in draw(st.sets(st.sampled_from(names)))
    )
    source = World(RUN, RunStatus.FAILED, datetime.now(UTC), facts, environment="staging", effects=effects)
    kept = {name: Done(uuid.uuid4(), name, "completed", 1, None, "d" * 64) for name in done}
    world = ForkWorld(source, was, will_be, start, uuid.UUID(int=9) if start else None, kept)
    return world, Asked(kind, RUN, choices={"environment": "staging"})


@given(worlds())
def test_every_stage_of_the_release_is_kept_or_runs_and_none_is_both(told: tuple[ForkWorld, Asked]) -> None:
    """F51: complete; X and all behind it run, and only what the checkpoint says is done is kept."""
    world, asked = told
    plan = plan_fork(world, asked)
    kept, again = [line.stage for line in plan.kept], [line.stage for line in plan.run_again]
    assert sorted(kept + again) == sorted(world.will_be.names)
    assert set(kept) == set(world.done)
    if world.start:
        assert {world.start, *world.will_be.behind(world.start)} <= set(again)
    else:
        assert kept == []
    for line in plan.run_again:
        waits = [name for name in world.will_be.needs(line.stage) if name in again]
        assert (line.to == "pending") == bool(waits)
    assert any(line.to != "pending" for line in plan.run_again)
    for line in plan.kept:
        assert line.stale == any(name in again for name in world.will_be.needs(line.stage))
    assert set(plan.as_json()["added"]) == set(world.will_be.names) - set(world.was.names)


@given(worlds())
def test_the_same_world_has_the_same_digest_and_asking_for_approval_another(told: tuple[ForkWorld, Asked]) -> None:
    world, asked = told
    plan = plan_fork(world, asked)
    assert plan.digest == plan_fork(world, asked).digest
    assert plan.digest != with_agreement(plan, Requirement()).digest


@given(worlds())
def test_what_runs_again_is_judged_and_what_is_kept_is_not(told: tuple[ForkWorld, Asked]) -> None:
    """Model §2 Disposition: of a replay everything, of a rerun what would be repeated; never blindly (§3.9)."""
    world, asked = told
    plan = plan_fork(world, asked)
    again = {line.stage for line in plan.run_again}
    facts, unseen = judged(world, again)
    assert {fact.stage for fact in facts} == {fact.stage for fact in world.source.effects if fact.stage in again}
    doubtful = [fact for fact in facts if fact.state in ("committed", "unknown")]
    assert plan.verdict.lets_go_on == (not doubtful and not unseen)
    outside = {stage["name"] for stage in world.will_be.stages if stage["effect_mode"] == "external"}
    tried = {stage.name for stage in world.source.stages if stage.attempt_number}
    assert {reason.stage for reason in unseen} == again & outside & tried


def test_a_posture_counts_also_for_what_is_kept() -> None:
    """O27, O47: what it declares and the run kept no effect of, or denies. What else the run kept is judged by that."""
    shape = shape_of(RELEASE, [{"name": "a"}, {"name": "b", "needs": ["a"]}])
    fact = EffectFact("a", "external_http", "absent", step_id="a", key="k-1", effect_id="e-1")
    stages = tuple(StageFact(uuid.uuid4(), index, name, StageState.FAILED) for index, name in enumerate("ab"))
    source = World(RUN, RunStatus.FAILED, datetime.now(UTC), stages, environment="staging", effects=(fact,))
    done = {"a": Done(uuid.uuid4(), "a", "completed", 1, None, "")}
    asked = Asked(OperationKind.RERUN, RUN, choices={"environment": "staging"})
    known = {"class": "external_http", "step_id": "a", "idempotency_key": "k-1", "committed": True}
    for posture, disposition in (
        ([], Disposition.RECOVERY_ALLOWED),
        ([known], Disposition.OPERATOR_REVIEW_REQUIRED),
        ([{**known, "committed": False}], Disposition.RECOVERY_ALLOWED),
        ([{**known, "committed": False, "step_id": None}], Disposition.RECOVERY_ALLOWED),  # the stage itself
        ([{**known, "idempotency_key": "k-2"}], Disposition.OPERATOR_REVIEW_REQUIRED),
        ([{"class": "external_http", "committed": False}], Disposition.OPERATOR_REVIEW_REQUIRED),
        ([{"class": "internal_state", "committed": True}], Disposition.RECOVERY_ALLOWED),
    ):
        world = ForkWorld(source, shape, shape, "b", uuid.UUID(int=9), done, posture)
        assert plan_fork(world, asked).verdict.disposition == disposition, posture
