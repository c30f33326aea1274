"""Every stage state × every action, every run status × every verb, generated from the tables (F47).

Each cell either moves as the table says, with one event, or is a typed refusal or no-op that changes nothing at all.
Siblings are never touched, except by what ends their whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from approvals.transitions import decide_gate
from pipelines import leases, results, sweeps
from pipelines.access import Actor
from pipelines.errors import STATUS, Refusal
from pipelines.jobs import Job
from pipelines.models import Attempt, Event, Run, Stage
from pipelines.moves import OF_EACH, IllegalMove, Moves
from pipelines.states import (
    ACTIVE_STAGE,
    ATTEMPT_MOVES,
    RUN_NO_OPS,
    RUN_VERBS,
    STAGE_MOVES,
    TERMINAL_STAGE,
    AttemptState,
    RunStatus,
    StageState,
)
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import everything, kinds, stage, states, status
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

StartRun = Callable[..., Run]
S, R = StageState, RunStatus
STALE = "stale_execution"


@dataclass
class Scene:
    """A run whose stage `target` is in one state; `sibling` waits at a gate meanwhile, `after` depends on `target`."""

    run: Run
    hand: Hand
    clock: Clock
    operator: Actor
    application: Actor
    job: Job | None = None

    @property
    def target(self) -> Stage:
        return stage(self.run, "target")

    def execution(self) -> Attempt | None:
        return Attempt.objects.filter(stage=self.target).order_by("number").last()


Stand = Callable[[Scene], None]


def nothing(scene: Scene) -> None:
    pass


def handed_out(scene: Scene) -> None:
    (scene.job,) = scene.hand.pull(acquire=False)


def at_work(scene: Scene) -> None:
    scene.job = scene.hand.take()


def ended(how: str, **told: Any) -> Stand:
    def stand(scene: Scene) -> None:
        at_work(scene)
        assert scene.job is not None
        assert scene.hand.report(scene.job, how, **told).accepted

    return stand


def lost(scene: Scene) -> None:
    at_work(scene)
    scene.clock.advance(settings.RECOURSE_LEASE_SECONDS)
    sweeps.expire_leases()


def skipped(scene: Scene) -> None:
    skip_stage(scene.target.id, actor=scene.operator, reason="not needed")


def cancelled(scene: Scene) -> None:
    at_work(scene)
    cancel_run(scene.run.id, actor=scene.operator)


GATE_BEFORE = {"approval": {"when": "before", "expires_in": 1000}}
GATE_AFTER = {"approval": {"when": "after", "expires_in": 1000}}

# how to bring `target` into each state: what it is declared with, and what happens to it
STANDS: dict[str, tuple[StageState, dict[str, Any], Stand]] = {
    "pending": (S.PENDING, {"depends_on": ["sibling"]}, nothing),
    "ready": (S.READY, {}, nothing),
    "dispatched": (S.DISPATCHED, {}, handed_out),
    "running": (S.RUNNING, {}, at_work),
    "retry_scheduled": (
        S.RETRY_SCHEDULED,
        {"options": {"max_retries": 1, "retry_interval": 5}},
        ended("failed", error_code="FOO"),
    ),
    "waiting before": (S.WAITING, GATE_BEFORE, nothing),
    "waiting after": (S.WAITING, GATE_AFTER, ended("succeeded", output=1)),
    "needs_reconciliation": (S.NEEDS_RECONCILIATION, {"effect_mode": "external"}, lost),
    "completed": (S.COMPLETED, {}, ended("succeeded", output=1)),
    "failed": (S.FAILED, {}, ended("failed", error_code="FOO")),
    "skipped": (S.SKIPPED, {}, skipped),
    "cancelled": (S.CANCELLED, {}, cancelled),
}


def test_the_matrix_covers_every_stage_state() -> None:
    assert {state for state, _, _ in STANDS.values()} == set(StageState)


# Actions: what is done, the name of the table's row, and where it does not apply the code of the refusal or None,
# which stands for "no refusal, and nothing changed".


def pull(scene: Scene) -> None:
    scene.clock.advance(6)
    scene.hand.pull(10, acquire=False)


def acquire(scene: Scene) -> None:
    found = scene.execution()
    if found is not None:
        lease = leases.acquire(scene.hand.holder, scene.target.id, found.id)
        assert lease is not None
        assert lease.acquired == (scene.target.state == S.RUNNING)
        assert lease.acquired or lease.reason in {
            "lease_held",
            "lease_expired",
            "stale_execution",
            "stage_not_active",
            "run_terminal",
        }


def renew(scene: Scene) -> None:
    found = scene.execution()
    if found is not None and found.state != AttemptState.RUNNING:
        (lease,) = leases.renew(scene.hand.holder, [(scene.target.id, found.id)])
        assert not lease.acquired


def release(scene: Scene) -> None:
    found = scene.execution()
    if found is None:
        raise Refusal(STALE, "there is no attempt to release")
    leases.release(scene.hand.holder, scene.target.id, found.id)


def report(how: str) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        found = scene.execution()
        if found is None:
            raise Refusal(STALE, "there is no attempt to report")
        told = results.Result(scene.target.id, found.id, found.number, how, output="another", error_code="BAR")
        (receipt,) = results.report(scene.hand.holder, [told])
        if not receipt.accepted:
            raise Refusal(receipt.code or "", "late")

    return act


def expire(scene: Scene) -> None:
    scene.clock.advance(settings.RECOURSE_LEASE_SECONDS)
    sweeps.expire_leases()


def undeliver(scene: Scene) -> None:
    scene.clock.advance(settings.RECOURSE_VISIBILITY_SECONDS)
    sweeps.return_undelivered()


def time_out(scene: Scene) -> None:
    Attempt.objects.filter(stage=scene.target, state="running").update(timeout_at=scene.clock.now())
    sweeps.time_out_attempts()


def expire_gate(scene: Scene) -> None:
    scene.clock.advance(1001)
    sweeps.expire_gates()


def end_by_deadline(scene: Scene) -> None:
    scene.clock.advance(100_000)
    sweeps.enforce_deadlines()


def decide(approved: bool) -> Callable[[Scene], None]:
    return lambda scene: decide_gate(scene.target.id, actor=scene.application, approved=approved) and None


def retry(scope: str) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        retry_stage(scene.target.id, actor=scene.operator, reason="again", scope=scope, acknowledge_effects=True)

    return act


def skip(scene: Scene) -> None:
    skip_stage(scene.target.id, actor=scene.operator, reason="not needed")


def pause(scene: Scene) -> None:
    pause_run(scene.run.id, actor=scene.operator)


def resume(scene: Scene) -> None:
    resume_run(scene.run.id, actor=scene.operator)


def cancel(scene: Scene) -> None:
    cancel_run(scene.run.id, actor=scene.operator)


ENDS_THE_RUN = ("deadline", "cancel")
ACTIONS: dict[str, tuple[Callable[[Scene], None], str, str | None]] = {
    "pull": (pull, "dispatch", None),
    "acquire": (acquire, "acquire", None),
    "renew": (renew, "", None),
    "release": (release, "take_back", STALE),
    "succeed": (report("succeeded"), "succeed", STALE),
    "fail": (report("failed"), "fail", STALE),
    "wait": (report("waiting"), "wait", STALE),
    "lease ends": (expire, "recover", None),
    "visibility ends": (undeliver, "undeliver", None),
    "time limit ends": (time_out, "fail", None),
    "gate ends": (expire_gate, "deny", None),
    "deadline": (end_by_deadline, "cancel", None),
    "approve": (decide(True), "approve_after", "stage_state_invalid"),
    "reject": (decide(False), "deny", "stage_state_invalid"),
    "retry": (retry("stage"), "retry", "stage_state_invalid"),
    "retry downstream": (retry("stage_and_downstream"), "retry", "stage_state_invalid"),
    "skip": (skip, "skip", "stage_state_invalid"),
    "pause": (pause, "take_back", None),
    "resume": (resume, "", "execution_state_invalid"),
    "cancel": (cancel, "cancel", None),
}


def expectation(stand: str, action: str) -> tuple[str, str | None]:
    """(the row of the table that moves this cell, or "") and (the code of its refusal, or None)."""
    state = STANDS[stand][0]
    _, row, refusal = ACTIONS[action]
    if action == "approve" and stand == "waiting before":
        row = "approve_before"
    takes = state in STAGE_MOVES.get(row, {})
    if (action, state) in {("release", S.DISPATCHED), ("pause", S.RUNNING)}:
        takes = False  # only a holder of the lease releases; a pause lets what runs finish
    if takes:
        return row, None
    if state == S.CANCELLED and action in ("approve", "reject", "retry", "retry downstream", "skip", "pause"):
        return "", "execution_state_invalid"
    if state == S.NEEDS_RECONCILIATION and action.startswith("retry"):
        return "", "needs_reconciliation"
    return "", refusal


@pytest.fixture
def scene(
    start_run: StartRun,
    hand: Hand,
    clock: Clock,
    people: dict[str, Person],
    application_actor: Actor,
    request: pytest.FixtureRequest,
) -> Scene:
    state, declared, stand = STANDS[request.param]
    run = start_run(
        {"name": "sibling", "approval": {"when": "before"}},
        {"name": "target", **declared},
        {"name": "after", "depends_on": ["target"], "handler": "Later"},
        deadline_seconds=90_000,
    )
    built = Scene(run, hand, clock, people["operator"].actor, application_actor)
    stand(built)
    assert states(run)["target"] == state
    return built


CELLS = [(stand, action) for stand in STANDS for action in ACTIONS]


@pytest.mark.parametrize(("scene", "action"), CELLS, indirect=["scene"], ids=[f"{s}-{a}" for s, a in CELLS])
def test_each_cell_moves_as_the_table_says_or_is_refused_and_changes_nothing(
    scene: Scene, action: str, request: pytest.FixtureRequest
) -> None:
    """F47, R11, R12, R13, P62, P76: never a 500, never a half move."""
    stand = request.node.callspec.params["scene"]
    row, refusal = expectation(stand, action)
    origin, before, told = scene.target.state, everything(), len(kinds(scene.run, "target"))
    siblings = {name: kinds(scene.run, name) for name in ("sibling", "after")}
    code = None
    try:
        ACTIONS[action][0](scene)
    except Refusal as refused:
        code = refused.code
    assert code == refusal
    assert code is None or STATUS[code] == 409
    state = scene.target.state
    events = list(Event.objects.filter(stage=scene.target.id).order_by("id"))
    moved = [event for event in events[told:] if event.kind.startswith("stage.")]
    if row:
        assert state == STAGE_MOVES[row][S(origin)]
        assert [(event.kind, event.from_state, event.to_state) for event in moved] == [(f"stage.{row}", origin, state)]
    else:
        assert (state, moved) == (origin, [])
        if action not in ("pause", "resume", *ENDS_THE_RUN):
            assert everything() == before
    if action not in ENDS_THE_RUN:
        assert kinds(scene.run, "sibling") == siblings["sibling"]
        if state not in ("completed", "skipped"):
            assert [kind for kind in kinds(scene.run, "after") if kind not in siblings["after"]] in (
                [],
                ["stage.fall_back"],
                ["stage.rewind"],
            )
    elif origin != S.CANCELLED:
        assert set(states(scene.run).values()) <= {"cancelled", *TERMINAL_STAGE}
        assert not Attempt.objects.filter(run=scene.run, state__in=sorted(ACTIVE_STAGE)).exists()
    assert_invariants()


# runs


def run_in(wanted: RunStatus, start_run: StartRun, hand: Hand, clock: Clock, operator: Actor) -> Run:
    """A run in each status."""
    options: dict[str, Any] = {}
    if wanted == R.WAITING:
        options = {"approval": {"when": "before"}}
    elif wanted == R.BLOCKED:
        options = {"effect_mode": "external"}
    run = start_run({"name": "first", **options}, "second")
    if wanted in (R.RUNNING, R.PAUSING, R.FAILED, R.BLOCKED):
        job = hand.take()
        if wanted == R.FAILED:
            hand.report(job, "failed", error_code="FOO")
        if wanted == R.BLOCKED:
            clock.advance(settings.RECOURSE_LEASE_SECONDS)
            sweeps.expire_leases()
    if wanted in (R.PAUSING, R.PAUSED):
        pause_run(run.id, actor=operator)
    if wanted == R.COMPLETED:
        hand.finish()
    if wanted == R.CANCELLED:
        cancel_run(run.id, actor=operator)
    assert status(run) == wanted
    return run


VERBS = {"pause": pause_run, "resume": resume_run, "cancel": cancel_run}


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("wanted", RunStatus.values)
def test_each_run_status_takes_a_verb_or_refuses_it(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person], wanted: str, verb: str
) -> None:
    """P62, P63, P73, P76, F47; another run beside it never moves."""
    operator = people["operator"].actor
    run = run_in(R(wanted), start_run, hand, clock, operator)
    other = start_run("first")
    before, others = everything(), kinds(other)
    if R(wanted) in RUN_VERBS[verb]:
        VERBS[verb](run.id, actor=operator)
        after = {"pause": {"pausing", "paused"}, "cancel": {"cancelled"}}
        after["resume"] = {"queued", "running", "waiting", "blocked"}
        assert status(run) in after[verb]
    elif R(wanted) in RUN_NO_OPS.get(verb, frozenset()):
        VERBS[verb](run.id, actor=operator)
        assert everything() == before
    else:
        with pytest.raises(Refusal) as refused:
            VERBS[verb](run.id, actor=operator)
        assert refused.value.code == "execution_state_invalid"
        assert everything() == before
    assert kinds(other) == others
    assert_invariants()


# the one way to move: what the tables do not have, it does not do


@pytest.mark.parametrize("state", StageState.values)
def test_a_move_that_the_table_lacks_cannot_be_made(start_run: StartRun, state: str) -> None:
    """The last guard in the code: a fault of a caller, not a refusal."""
    run = start_run("first")
    moves = Moves.lock([run.id])
    (found,) = moves.stages.values()
    for action, table in STAGE_MOVES.items():
        found.state = S(state)
        if found.state in table:
            moves.stage(found, action)
            assert found.state == table[S(state)]
        else:
            with pytest.raises(IllegalMove):
                moves.stage(found, action)
            assert found.state == state


@pytest.mark.parametrize("state", AttemptState.values)
def test_an_ended_attempt_cannot_be_moved(start_run: StartRun, hand: Hand, state: str) -> None:
    """I6."""
    run = start_run("first")
    hand.take()
    moves = Moves.lock([run.id])
    (found,) = moves.active_attempts(list(moves.stages))
    for action, table in ATTEMPT_MOVES.items():
        found.state = AttemptState(state)
        if found.state not in table:
            with pytest.raises(IllegalMove):
                moves.attempt(found, action)


def test_an_attempt_does_not_end_without_its_stage(start_run: StartRun, hand: Hand) -> None:
    """I2, I5: saving one without the other is a fault that is met before anything is written."""
    run = start_run("first")
    hand.take()
    moves = Moves.lock([run.id])
    (found,) = moves.active_attempts(list(moves.stages))
    moves.attempt(found, "succeed")
    before = everything()
    with pytest.raises(IllegalMove):
        moves.save()
    assert everything() == before


def test_whatever_is_decided_apart_is_taken_up_unless_it_is_named(start_run: Callable[..., Run]) -> None:
    """A list that is added to `Moves` is written with the others; those that each keeps for itself are there."""
    first, second = start_run("a"), start_run("a")
    with transaction.atomic():
        whole = Moves.lock([first.id, second.id])
        gathered = {name for name, one in vars(whole).items() if name[0] == "_" and isinstance(one, list | set | dict)}
        assert set(vars(whole)) >= OF_EACH
        apart = whole.apart()[first.id]
        for name in gathered - OF_EACH:
            match getattr(apart, name):
                case list() as part:
                    part.append("mark")
                case set() as part:
                    part.add("mark")
                case part:
                    part["mark"] = "mark"
        whole.take_up(apart)
        assert {name for name in gathered if "mark" in getattr(whole, name)} == gathered - OF_EACH
