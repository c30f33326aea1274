"""Plans of verbs in place: pure, complete, the same for the same world, and refused where the state takes no verb."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st

from pipelines.errors import STATUS, Refusal
from pipelines.states import (
    CLAIMABLE_STAGE,
    RUN_NO_OPS,
    RUN_VERBS,
    STAGE_MOVES,
    TERMINAL_RUN,
    TERMINAL_STAGE,
    RunStatus,
    StageState,
)
from recovery.dispositions import EffectFact
from recovery.plans import Asked, Plan, make_plan
from recovery.states import Disposition, OperationKind
from recovery.world import AttemptFact, StageFact, World

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RUN = uuid.UUID(int=1)
K, S = OperationKind, StageState


def a_stage(position: int, name: str, state: str = "completed", *needs: int, **more: Any) -> StageFact:
    return StageFact(uuid.UUID(int=100 + position), position, name, StageState(state), needs, **more)


def a_world(*stages: StageFact, status: str = "running", **more: Any) -> World:
    return World(RUN, RunStatus(status), NOW, stages, environment="development", **more)


def chain(*states: str, **more: Any) -> World:
    """a → b → c … in these states."""
    stages = [
        a_stage(index, "abcdefgh"[index], state, *([index - 1] if index else [])) for index, state in enumerate(states)
    ]
    return a_world(*stages, **more)


def retry(world: World, name: str, scope: str = "stage", **more: Any) -> Asked:
    choices = {"scope": scope, "input": None, "acknowledge_effects": False}
    reason = more.pop("reason", "again")
    return Asked(K.RETRY, RUN, named(world, name).id, choices | more, reason)


def skip(world: World, name: str) -> Asked:
    return Asked(K.SKIP, RUN, named(world, name).id, {"output": None, "has_output": False}, "not needed")


def on_run(kind: OperationKind) -> Asked:
    return Asked(kind, RUN, choices={"until": None} if kind == K.PAUSE else {})


def named(world: World, name: str) -> StageFact:
    return next(stage for stage in world.stages if stage.name == name)


def told(plan: Plan) -> dict[str, list[tuple[str, str, str, int]]]:
    return {
        part: [(line.stage, line.was, line.to, line.epoch) for line in getattr(plan, part)]
        for part in ("kept", "run_again", "then")
    }


def refusal(world: World, asked: Asked) -> str:
    with pytest.raises(Refusal) as refused:
        make_plan(world, asked)
    return refused.value.code


# retry


def test_a_retry_alone_keeps_what_came_before_and_flags_what_came_after() -> None:
    """F34, F51, P66: every stage in exactly one list, what is kept with the digest of its output."""
    world = chain("completed", "completed", "completed")
    world = replace(world, stages=tuple(replace(one, output_digest=f"sha-{one.name}") for one in world.stages))
    plan = make_plan(world, retry(world, "b"))
    assert told(plan) == {
        "kept": [("a", "completed", "completed", 1)],
        "run_again": [("b", "completed", "ready", 2)],
        "then": [("c", "completed", "completed", 1)],
    }
    assert plan.kept[0].output_digest == "sha-a"
    assert (plan.then[0].stale, plan.then[0].action, plan.then[0].output_digest) == (True, "flag_stale", "sha-c")
    assert plan.run_again[0].output_digest == "", "its output is no longer the current one"


def test_a_retry_with_everything_behind_it_begins_all_of_it_anew() -> None:
    """F34, P67."""
    world = chain("completed", "failed", "pending", "skipped")
    plan = make_plan(world, retry(world, "b", "stage_and_downstream"))
    assert told(plan) == {
        "kept": [("a", "completed", "completed", 1)],
        "run_again": [("b", "failed", "ready", 2), ("d", "skipped", "pending", 2)],
        "then": [("c", "pending", "pending", 1)],
    }


def test_what_waits_for_a_gate_before_its_work_asks_again() -> None:
    world = a_world(a_stage(0, "a", "failed", has_gate_before=True, gate_approved=True))
    plan = make_plan(world, retry(world, "a"))
    assert told(plan)["run_again"] == [("a", "failed", "waiting", 2)]
    assert plan.run_again[0].action == "rewind"


def test_what_was_ready_behind_it_falls_back() -> None:
    world = chain("completed", "ready", "pending")
    assert told(make_plan(world, retry(world, "a")))["then"] == [
        ("b", "ready", "pending", 1),
        ("c", "pending", "pending", 1),
    ]


def test_a_branch_beside_it_that_is_under_way_is_not_in_the_plan() -> None:
    """It moves on by itself meanwhile, and must not make the plan another one."""
    worlds = [a_world(a_stage(0, "a", "failed"), a_stage(1, "b", state)) for state in ("dispatched", "running")]
    plans = [make_plan(world, retry(world, "a")) for world in worlds]
    assert plans[0].digest == plans[1].digest
    assert "b" not in [line.stage for line in plans[0].lines]


@pytest.mark.parametrize(
    ("behind", "more", "code"),
    [
        ("dispatched", {}, "stage_state_invalid"),
        ("running", {}, "stage_state_invalid"),
        ("waiting", {}, "stage_state_invalid"),
        ("needs_reconciliation", {}, "needs_reconciliation"),
        ("failed", {"gate_denied": True}, "gate_denied"),
    ],
)
def test_what_stands_in_the_way_behind_it_is_named(behind: str, more: dict[str, Any], code: str) -> None:
    """Model §2, retry: of all descendants; a retry of the stage alone does not mind."""
    world = a_world(a_stage(0, "a", "completed"), a_stage(1, "b", behind, 0, **more))
    assert refusal(world, retry(world, "a", "stage_and_downstream")) == code
    assert make_plan(world, retry(world, "a")).run_again[0].stage == "a"


@pytest.mark.parametrize("reason", ["", "again"])
@pytest.mark.parametrize("state", StageState.values)
def test_each_state_takes_a_retry_or_says_why_not(state: str, reason: str) -> None:
    """R11, R13, model §2."""
    world = a_world(a_stage(0, "a", state))
    asked = retry(world, "a", reason=reason)
    if state == S.NEEDS_RECONCILIATION:
        assert refusal(world, asked) == "needs_reconciliation"
    elif state not in STAGE_MOVES["retry"]:
        assert refusal(world, asked) == "stage_state_invalid"
    elif state != S.FAILED and not reason:
        assert refusal(world, asked) == "validation_error"
    else:
        assert make_plan(world, asked).run_again[0].to == "ready"


@pytest.mark.parametrize("verb", [retry, skip])
@pytest.mark.parametrize(
    ("world", "code"),
    [
        ({"status": "cancelled"}, "execution_state_invalid"),
        ({"status": "failed", "failure_code": "deadline_exceeded"}, "deadline_exceeded"),
        ({"status": "running", "deadline_at": NOW - timedelta(seconds=1)}, "deadline_exceeded"),
    ],
)
def test_a_run_that_is_over_for_good_offers_the_fork(
    verb: Callable[[World, str], Asked], world: dict[str, Any], code: str
) -> None:
    """F58, I8: whatever its stage is, and before anything else is looked at."""
    found = a_world(a_stage(0, "a", "failed", gate_denied=True), **world)
    with pytest.raises(Refusal) as refused:
        make_plan(found, verb(found, "a"))
    assert (refused.value.code, refused.value.extra) == (code, {"instead": "fork"})


@pytest.mark.parametrize("verb", [retry, skip])
def test_a_denied_gate_is_final_in_its_run(verb: Callable[[World, str], Asked]) -> None:
    """R12, model §3.4."""
    world = a_world(a_stage(0, "a", "failed", gate_denied=True), status="failed")
    assert refusal(world, verb(world, "a")) == "gate_denied"


# effects


PAYMENT = EffectFact("a", "external_http", "committed", "charge", "k-1", "e-1")


def test_what_may_repeat_is_listed_and_judged() -> None:
    """O44, P68: of every stage that runs again, of none that is kept."""
    world = chain("failed", "pending", effects=(PAYMENT, replace(PAYMENT, stage="b", effect_id="e-2")))
    plan = make_plan(world, retry(world, "a"))
    assert [(one.stage, one.key, one.effect_id) for one in plan.may_repeat] == [("a", "k-1", "e-1")]
    assert plan.verdict.disposition == Disposition.OPERATOR_REVIEW_REQUIRED
    world = replace(world, effects=(replace(PAYMENT, state="absent"),))
    plan = make_plan(world, retry(world, "a"))
    assert (plan.may_repeat, plan.verdict.disposition) == ((), Disposition.RECOVERY_ALLOWED)


def test_what_was_never_declared_needs_the_checklist_and_the_checklist_clears_nothing_else() -> None:
    """P59, P87: `acknowledge_effects` is about what no record tells of."""
    stage = a_stage(0, "a", "failed", effect_mode="external", attempt_number=1)
    world = a_world(stage)
    plan = make_plan(world, retry(world, "a"))
    assert [reason.code for reason in plan.verdict.reasons] == ["undeclared_effects"]
    assert [(one.stage, one.state) for one in plan.may_repeat] == [("a", "undeclared")]
    acknowledged = retry(world, "a", acknowledge_effects=True)
    assert make_plan(world, acknowledged).verdict.disposition == Disposition.RECOVERY_ALLOWED
    recorded = replace(world, effects=(PAYMENT,))
    assert make_plan(recorded, acknowledged).verdict.disposition == Disposition.OPERATOR_REVIEW_REQUIRED


@pytest.mark.parametrize(
    "more",
    [{"attempt_number": 0}, {"effect_protocol": "intent"}, {"effect_mode": "idempotent"}, {"effect_mode": "none"}],
)
def test_a_stage_that_did_nothing_unseen_needs_no_checklist(more: dict[str, Any]) -> None:
    stage = a_stage(0, "a", "failed", **({"effect_mode": "external", "attempt_number": 3} | more))
    world = a_world(stage)
    assert make_plan(world, retry(world, "a")).verdict.disposition == Disposition.RECOVERY_ALLOWED


def test_a_skip_repeats_nothing_and_says_what_stays_unknown() -> None:
    """P69–P71: an uncertain stage may be left out; its effect stays open."""
    world = chain("needs_reconciliation", "pending", effects=(replace(PAYMENT, state="unknown"),))
    plan = make_plan(world, skip(world, "a"))
    assert told(plan)["then"] == [("a", "needs_reconciliation", "skipped", 1), ("b", "pending", "ready", 1)]
    assert plan.verdict.disposition == Disposition.RECOVERY_ALLOWED
    assert plan.goes_on_outside == ("a: external http, step charge is unknown and stays open",)


# runs


@pytest.mark.parametrize("status", RunStatus.values)
@pytest.mark.parametrize("kind", [K.PAUSE, K.RESUME, K.CANCEL])
def test_each_run_status_takes_a_verb_or_says_why_not(kind: OperationKind, status: str) -> None:
    """P62, P63, P76."""
    world = chain("completed", status=status)
    if status in RUN_VERBS[kind] or status in RUN_NO_OPS.get(kind, ()):
        assert make_plan(world, on_run(kind)).kind == kind
    else:
        assert refusal(world, on_run(kind)) == "execution_state_invalid"
    overdue = replace(world, deadline_at=NOW)
    if status not in TERMINAL_RUN:
        assert refusal(overdue, on_run(kind)) == "deadline_exceeded"


def test_a_cancel_ends_everything_unfinished_and_names_what_may_go_on_outside() -> None:
    """P72–P75: it never claims that outside work stopped."""
    world = chain("completed", "running", "pending")
    world = replace(world, attempts=(AttemptFact(named(world, "b").id, 3, "running", "host-7"),))
    plan = make_plan(world, on_run(K.CANCEL))
    assert told(plan)["kept"] == [("a", "completed", "completed", 1)]
    assert [line.to for line in plan.then] == ["cancelled", "cancelled"]
    assert plan.goes_on_outside == ("b: attempt 3 may still run at host-7; it is told to stop",)


def test_a_pause_takes_back_what_was_only_handed_out() -> None:
    """P60, P61."""
    world = a_world(a_stage(0, "a", "dispatched"), a_stage(1, "b", "running"))
    world = replace(world, attempts=(AttemptFact(named(world, "b").id, 1, "running", "host-7"),))
    plan = make_plan(world, on_run(K.PAUSE))
    assert told(plan)["then"] == [("a", "dispatched", "ready", 1)]
    assert plan.goes_on_outside == ("b: attempt 1 may finish first",)


def test_a_pause_until_a_time_that_has_passed_is_refused() -> None:
    world = chain("ready")
    assert refusal(world, Asked(K.PAUSE, RUN, choices={"until": NOW.isoformat()})) == "validation_error"
    later = (NOW + timedelta(seconds=1)).isoformat()
    assert make_plan(world, Asked(K.PAUSE, RUN, choices={"until": later})).choices["until"] == later


# for any world


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A graph of up to six stages in any states, also such as the engine never makes."""
    count = draw(st.integers(1, 6))
    stages = []
    for position in range(count):
        needs = draw(st.lists(st.integers(0, position - 1), unique=True, max_size=3)) if position else []
        stages.append(
            a_stage(
                position,
                "abcdef"[position],
                draw(st.sampled_from(StageState.values)),
                *sorted(needs),
                run_next_if_failed=draw(st.booleans()),
                effect_mode=draw(st.sampled_from(["none", "idempotent", "external"])),
                effect_protocol=draw(st.sampled_from(["none", "intent"])),
                has_gate_before=draw(st.booleans()),
                gate=draw(st.sampled_from(["", "before", "after"])),
                gate_approved=draw(st.booleans()),
                epoch=draw(st.integers(1, 3)),
                attempt_number=draw(st.integers(0, 2)),
                stale=draw(st.booleans()),
            )
        )
    effects = draw(
        st.lists(
            st.builds(
                EffectFact,
                st.sampled_from([stage.name for stage in stages]),
                st.sampled_from(["internal_state", "external_http"]),
                st.sampled_from(["declared", "committed", "absent", "unknown"]),
                key=st.just("k-1"),
            ),
            max_size=4,
        )
    )
    return a_world(*stages, status=draw(st.sampled_from(RunStatus.values)), effects=tuple(effects))


def takes(world: World, asked: Asked) -> bool:
    """Whether the state takes the verb; where not, the refusal is a typed one."""
    try:
        make_plan(world, asked)
    except Refusal as refused:
        return STATUS[refused.code] not in (400, 409)
    return True


@st.composite
def requests(draw: st.DrawFn) -> tuple[World, Asked]:
    """A world, and a verb that it takes."""
    world = draw(worlds())
    acknowledged = draw(st.booleans())
    asked = [skip(world, stage.name) for stage in world.stages]
    for scope in ("stage", "stage_and_downstream"):
        asked += [retry(world, stage.name, scope, acknowledge_effects=acknowledged) for stage in world.stages]
    taken = [one for one in asked if takes(world, one)]
    taken += [one for one in (on_run(K.PAUSE), on_run(K.RESUME), on_run(K.CANCEL)) if takes(world, one)]
    if not taken:
        world = replace(world, status=RunStatus.RUNNING)
        taken = [on_run(K.PAUSE), on_run(K.CANCEL)]
    return world, draw(st.sampled_from(taken))


@given(requests())
def test_no_stage_stands_in_two_lists_and_whatever_changes_stands_in_one(given_: tuple[World, Asked]) -> None:
    """F51: complete, so that what is not told does not change."""
    world, asked = given_
    plan = make_plan(world, asked)
    names = [line.stage for line in plan.lines]
    assert len(names) == len(set(names))
    for line in plan.lines:
        stage = named(world, line.stage)
        assert line.was == stage.state
        assert line.epoch in (stage.epoch, stage.epoch + 1)
    assert all((line.was, line.epoch) == (line.to, named(world, line.stage).epoch) for line in plan.kept)
    assert all(line.epoch == named(world, line.stage).epoch + 1 for line in plan.run_again)
    assert {stage.name for stage in world.stages if stage.state in TERMINAL_STAGE - {S.CANCELLED}} <= set(names)


@given(requests())
def test_only_what_stands_behind_the_stage_is_touched(given_: tuple[World, Asked]) -> None:
    """P66, P67: siblings and what came before stay as they are, unless settling finds them due anyway."""
    world, asked = given_
    plan = make_plan(world, asked)
    reach = {stage.name for stage in world.stages}
    if asked.stage_id is not None:
        stage = world.stage(asked.stage_id)
        reach = {stage.name, *(one.name for one in world.behind(stage))}
    assert {line.stage for line in plan.run_again} <= reach
    assert {line.stage for line in plan.then if line.action} <= reach
    again = {line.stage for line in plan.run_again}
    assert {one.stage for one in plan.may_repeat} <= again


@given(requests(), st.integers(0, 10_000))
def test_a_plan_is_the_same_whenever_it_is_made(given_: tuple[World, Asked], seconds: int) -> None:
    """Nothing in it depends on the time, and its digest is that of its canonical JSON."""
    world, asked = given_
    plan = make_plan(world, asked)
    later = make_plan(replace(world, now=world.now + timedelta(seconds=seconds)), asked)
    assert later == plan
    body = json.loads(json.dumps(plan.as_json()))
    digest = body.pop("plan_digest")
    assert digest == plan.digest == sha256(rfc8785.dumps(body)).hexdigest()


@given(requests(), st.data())
def test_a_stage_of_the_plan_that_moved_makes_it_another_plan(given_: tuple[World, Asked], data: st.DataObject) -> None:
    """What would then be `plan_changed`: no change of what a plan tells goes unseen."""
    world, asked = given_
    plan = make_plan(world, asked)
    assume(plan.lines)
    stage = named(world, data.draw(st.sampled_from(plan.lines)).stage)
    state = data.draw(st.sampled_from([one for one in StageState if one != stage.state]))
    stages = [replace(one, state=state) if one is stage else one for one in world.stages]
    other = replace(world, stages=tuple(stages))
    assert not takes(other, asked) or make_plan(other, asked).digest != plan.digest


@given(requests())
def test_what_may_be_handed_out_at_once_waits_for_nothing(given_: tuple[World, Asked]) -> None:
    """A plan never makes ready what still waits for another stage."""
    world, asked = given_
    plan = make_plan(world, asked)
    after = {stage.name: stage.state for stage in world.stages} | {line.stage: line.to for line in plan.lines}
    for line in plan.lines:
        if line.to in CLAIMABLE_STAGE and line.to != line.was:
            needed = [world.stages[position] for position in named(world, line.stage).depends_on]
            for one in needed:
                bypassed = after[one.name] == S.FAILED and one.run_next_if_failed
                taken_back = line.action == "take_back"
                assert after[one.name] in (S.COMPLETED, S.SKIPPED) or bypassed or taken_back
