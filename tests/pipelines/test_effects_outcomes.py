"""What the end of an attempt means while effects of it are open: model §2, the table of stages, row by row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.transitions import decide_gate
from pipelines import intents, leases, retention, sweeps
from pipelines.access import Actor
from pipelines.effects import Told
from pipelines.jobs import Job
from pipelines.models import Effect, LateEvidence, Run
from pipelines.retries import recompute
from pipelines.sql import database_now
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person, Worker
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import attempt, attempts, kinds, last_event, letters, refused, stage, states, status
from tests.verbs import retry_stage, skip_stage

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]

INTENT = {"effect_mode": "external", "effect_protocol": "intent"}
RETRIES = {"options": {"max_retries": 3, "retry_interval": 1}}
LEASE = 60


def tell(hand: Hand, job: Job, *states: str, effect_class: str = "external_http") -> None:
    """One effect, told of in these states one after the other."""
    for state in states:
        assert intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, [_told(state, effect_class)])


def _told(state: str, effect_class: str = "external_http") -> Told:
    return Told(effect_class, state, key="invoice-42")


def effects(run: Run) -> list[str]:
    """The states of the run's effects, oldest first."""
    return list(Effect.objects.filter(run=run).order_by("declared_at", "id").values_list("state", flat=True))


def lose(clock: Clock) -> None:
    clock.advance(LEASE)
    assert sweeps.expire_leases() == 1


def let_time_out(clock: Clock) -> None:
    clock.advance(10)
    assert sweeps.time_out_attempts() == 1


# lost and timed out, effect mode `external`


@pytest.mark.parametrize(("end", "ended"), [(lose, "lost"), (let_time_out, "timed_out")])
def test_a_stage_that_dies_before_any_intent_goes_back_to_the_queue(
    start_run: StartRun, hand: Hand, clock: Clock, end: Callable[[Clock], None], ended: str
) -> None:
    """R5, F62: nothing had been started; recoveries count, retries do not, and above the limit it is given up."""
    run = start_run({"name": "pay", **INTENT, "options": {"timeout": 10, "max_recoveries": 1, **RETRIES["options"]}})
    hand.take()
    end(clock)
    assert states(run) == {"pay": "ready"}
    found = stage(run, "pay")
    assert (found.recovery_count, found.retry_count) == (1, 0)
    assert kinds(run, "pay")[-1] == "stage.recover"
    hand.take()
    end(clock)
    assert attempts(run, "pay") == [ended, ended]
    assert letters(run) == {"pay": ("recoveries_exhausted", "open")}
    assert status(run) == "failed"
    assert_invariants()


@pytest.mark.parametrize("told", [["declared"], ["declared", "committed"], ["declared", "absent"], ["unknown"]])
@pytest.mark.parametrize(("end", "ended"), [(lose, "lost"), (let_time_out, "timed_out")])
def test_a_stage_that_dies_after_an_intent_waits_for_reconciliation(
    start_run: StartRun, hand: Hand, clock: Clock, end: Callable[[Clock], None], ended: str, told: list[str]
) -> None:
    """F62, R3, R4: whatever came of the intent; what was only declared is unknown from then on, and stays."""
    run = start_run({"name": "pay", **INTENT, "options": {"timeout": 10, **RETRIES["options"]}}, "then")
    job = hand.take()
    tell(hand, job, *told)
    end(clock)
    assert states(run) == {"pay": "needs_reconciliation", "then": "pending"}
    assert (status(run), attempts(run, "pay"), letters(run)) == ("blocked", [ended], {})
    assert effects(run) == ["unknown" if told[-1] == "declared" else told[-1]]
    clock.advance(days=3)
    assert not any(sweeps.sweep().values())
    assert hand.pull() == []
    assert_invariants()


def test_what_was_only_declared_becomes_unknown_with_an_event_of_its_own(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """I5, I15."""
    run = start_run({"name": "pay", **INTENT})
    job = hand.take()
    tell(hand, job, "declared")
    lose(clock)
    event = last_event(run, "effect.doubt")
    effect = Effect.objects.get(run=run)
    assert (event.from_state, event.to_state, event.attempt) == ("declared", "unknown", job.attempt_id)
    assert event.data == {
        "effect": str(effect.id),
        "class": "external_http",
        "step": "pay",
        "key": "invoice-42",
        "number": 1,
    }
    assert event.reason != ""
    assert effect.settled_at is None


def test_what_happens_inside_the_run_leaves_no_doubt(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """O43: effects of class `internal_state` make no stage uncertain."""
    run = start_run({"name": "pay", **INTENT, **RETRIES})
    tell(hand, hand.take(), "declared", effect_class="internal_state")
    lose(clock)
    assert (states(run), effects(run)) == ({"pay": "ready"}, ["unknown"])
    job = hand.take()
    tell(hand, job, "declared", effect_class="internal_state")
    hand.report(job, "failed", error_code="FOO")
    assert states(run) == {"pay": "retry_scheduled"}
    assert_invariants()


def test_without_the_protocol_nobody_knows_what_was_begun(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """R4: effect mode `external` alone is in doubt, intents or not."""
    run = start_run({"name": "pay", "effect_mode": "external", "effect_protocol": "none"})
    hand.take()
    lose(clock)
    assert states(run) == {"pay": "needs_reconciliation"}
    assert_invariants()


# lost and timed out, the other modes


@pytest.mark.parametrize("mode", ["none", "idempotent"])
@pytest.mark.parametrize("protocol", ["none", "intent"])
def test_a_stage_that_may_be_repeated_is_repeated_and_its_open_effect_is_kept(
    start_run: StartRun, hand: Hand, clock: Clock, mode: str, protocol: str
) -> None:
    run = start_run({"name": "load", "effect_mode": mode, "effect_protocol": protocol})
    tell(hand, hand.take(), "declared")
    lose(clock)
    assert (states(run), effects(run)) == ({"load": "ready"}, ["unknown"])
    assert_invariants()


@pytest.mark.parametrize(("told", "then"), [([], "retry_scheduled"), (["declared"], "needs_reconciliation")])
def test_a_time_limit_is_a_failure_like_any_other(
    start_run: StartRun, hand: Hand, clock: Clock, told: list[str], then: str
) -> None:
    """As a failure with code TIMEOUT, so an effect that is open then leaves it in doubt."""
    run = start_run({"name": "load", "options": {"timeout": 10, **RETRIES["options"]}})
    job = hand.take()
    tell(hand, job, *told)
    let_time_out(clock)
    assert (states(run), attempts(run, "load")) == ({"load": then}, ["timed_out"])
    assert stage(run, "load").last_error_code == "TIMEOUT"
    assert_invariants()


# reported


@pytest.mark.parametrize("mode", ["none", "idempotent", "external"])
@pytest.mark.parametrize("told", ["declared", "unknown"])
@pytest.mark.parametrize(("code", "retry"), [("UPSTREAM_ERROR", True), ("VALIDATION_ERROR", False)])
def test_a_failure_while_an_effect_is_open_leaves_it_in_doubt_whatever_the_code(
    start_run: StartRun, hand: Hand, clock: Clock, mode: str, told: str, code: str, retry: bool
) -> None:
    """R5, F166: the retry decision is stored as one that was not applied, and can be computed again."""
    run = start_run({"name": "pay", "effect_mode": mode, **RETRIES}, "then")
    job = hand.take()
    tell(hand, job, told)
    first = hand.report(job, "failed", error_code=code)
    assert (first.accepted, first.stage_state) == (True, "needs_reconciliation")
    assert states(run) == {"pay": "needs_reconciliation", "then": "pending"}
    assert (effects(run), letters(run), status(run)) == (["unknown"], {}, "blocked")
    decision = attempt(job).decision
    assert decision is not None
    assert (decision["retry"], decision["applied"]) == (retry, False)
    assert recompute(decision).retry == retry
    assert (stage(run, "pay").retry_count, stage(run, "pay").last_error_code) == (0, code)
    again = hand.report(job, "failed", error_code=code)
    assert (again.accepted, again.stage_state) == (True, "needs_reconciliation")
    clock.advance(days=1)
    assert hand.pull() == []
    assert_invariants()


@pytest.mark.parametrize("told", [["committed"], ["declared", "absent"]])
def test_a_failure_whose_effects_are_settled_goes_by_the_retry_decision(
    start_run: StartRun, hand: Hand, told: list[str]
) -> None:
    run = start_run({"name": "pay", **INTENT, **RETRIES})
    job = hand.take()
    tell(hand, job, *told)
    assert hand.report(job, "failed", error_code="FOO").stage_state == "retry_scheduled"
    assert "applied" not in (attempt(job).decision or {})
    assert effects(run) == [told[-1]]
    assert_invariants()


def test_open_effects_of_an_earlier_attempt_do_not_hold_up_a_later_one(
    start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """The row of the table speaks of this attempt's effects."""
    run = start_run({"name": "load", **RETRIES})
    tell(hand, hand.take(), "declared")
    lose(clock)
    assert hand.report(hand.take(), "failed", error_code="FOO").stage_state == "retry_scheduled"
    assert effects(run) == ["unknown"]


@pytest.mark.parametrize(("how", "then"), [("succeeded", "completed"), ("waiting", "waiting")])
def test_a_stage_that_succeeds_goes_on_and_the_outcome_it_did_not_tell_stays_open(
    start_run: StartRun, hand: Hand, application_actor: Actor, how: str, then: str
) -> None:
    """The worker answers for its work; the effect can still be settled as evidence."""
    run = start_run({"name": "pay", **INTENT})
    job = hand.take()
    tell(hand, job, "declared")
    assert hand.report(job, how, output=1).stage_state == then
    assert effects(run) == ["unknown"]
    if how == "waiting":
        decide_gate(stage(run, "pay").id, actor=application_actor, approved=True)
    assert (states(run), status(run)) == ({"pay": "completed"}, "completed")
    assert_invariants()


def test_an_output_that_is_too_large_is_a_failure_too(start_run: StartRun, hand: Hand) -> None:
    run = start_run({"name": "pay", **INTENT, "options": {"max_output_bytes": 10}})
    job = hand.take()
    tell(hand, job, "declared")
    assert hand.report(job, output="a" * 20).stage_state == "needs_reconciliation"
    assert stage(run, "pay").last_error_code == "OUTPUT_TOO_LARGE"
    assert_invariants()


# effects in a result


def test_effects_in_a_result_count_before_its_end_is_decided(start_run: StartRun, hand: Hand) -> None:
    """One transaction: the outcome that comes with a failure settles what was open."""
    settled = start_run({"name": "pay", **INTENT, **RETRIES})
    job = hand.take()
    tell(hand, job, "declared")
    assert hand.report(job, "failed", error_code="FOO", effects=[_told("absent")]).stage_state == "retry_scheduled"
    assert effects(settled) == ["absent"]
    opened = start_run({"name": "pay", **INTENT, **RETRIES})
    job = hand.take()
    told = [Told("external_http", "unknown", key="a"), Told("tool_side_effect", "declared", key="b")]
    assert hand.report(job, "failed", error_code="FOO", effects=told).stage_state == "needs_reconciliation"
    assert effects(opened) == ["unknown", "unknown"]
    assert kinds(opened).index("effect.doubt") < kinds(opened).index("stage.doubt")
    assert_invariants()


def test_a_result_over_the_wire_may_carry_effects(start_run: StartRun, worker: Worker) -> None:
    run = start_run({"name": "pay", **INTENT})
    job = worker.take()
    effect = {"class": "external_http", "idempotencyKey": "a", "state": "committed", "externalRef": "ch_1"}
    for _ in range(2):
        assert worker.report(job, effects=[effect]).status_code == 202
    assert (states(run), effects(run)) == ({"pay": "completed"}, ["committed"])
    assert worker.report(job, effects=[effect | {"externalRef": "ch_2"}]).json()["code"] == "stale_execution"
    assert "ch_2" in LateEvidence.objects.get().body
    assert_invariants()


@pytest.mark.parametrize(
    ("effect", "status_code", "code", "field"),
    [
        ({"class": "payment", "state": "declared"}, 422, "effect_class_unknown", "effects[0].class"),
        ({"class": "retrieval", "state": "committed"}, 422, "effect_key_required", "effects[0].idempotencyKey"),
        ({"class": "retrieval", "state": "done"}, 400, "validation_error", "effects[0].state"),
        (
            {"class": "external_http", "state": "declared", "idempotencyKey": "a"},
            409,
            "stage_state_invalid",
            "effects[0].state",
        ),
    ],
)
def test_a_result_whose_effects_cannot_be_kept_is_refused_whole_and_spoils_no_other(
    start_run: StartRun, worker: Worker, effect: dict[str, Any], status_code: int, code: str, field: str
) -> None:
    """All or nothing: the attempt goes on, so that its worker can correct itself."""
    run, other = start_run({"name": "pay", **INTENT}), start_run("first")
    job, sibling = worker.pull(maxJobs=2)
    committed = {"class": "external_http", "state": "committed", "idempotencyKey": "a"}
    path = f"/stages/{job['stageId']}/effects"
    assert worker.post(path, {"executionId": job["executionId"], "effects": [committed]}).status_code == 201
    answer = worker.report(job, effects=[effect])
    assert (answer.status_code, answer.json()["code"]) == (status_code, code)
    assert list(answer.json()["errors"]) == [field]
    items = [
        {"stageId": one["stageId"], "executionId": one["executionId"], "attempt": 1, "status": "succeeded"} | more
        for one, more in ((job, {"effects": [effect]}), (sibling, {}))
    ]
    refusal, accepted = worker.post("/results", {"results": items}).json()["results"]
    assert (refusal["accepted"], refusal["code"], list(refusal["errors"])) == (False, code, [field])
    assert accepted["accepted"]
    assert (states(run), states(other)) == ({"pay": "running"}, {"first": "completed"})
    assert effects(run) == ["committed"]
    assert worker.report(job).status_code == 202
    assert_invariants()


def test_results_without_effects_read_none(start_run: StartRun, hand: Hand) -> None:
    """The hot path: a batch of successes costs no statement for effects."""
    for _ in range(3):
        start_run({"name": "pay", **INTENT})
    jobs = hand.pull(3)
    with CaptureQueriesContext(
        connection,
    ) as told:
        for job in jobs:
            hand.report(job)
    assert [one["sql"] for one in told.captured_queries if "FROM pipelines_effect" in one["sql"]] == []


# released, taken back, fenced


@pytest.mark.parametrize(
    ("mode", "told", "then"),
    [
        ("external", [], "ready"),
        ("external", ["declared"], "needs_reconciliation"),
        ("external", ["unknown"], "needs_reconciliation"),
        ("external", ["committed"], "ready"),
        ("idempotent", ["declared"], "ready"),
        ("none", ["declared"], "ready"),
    ],
)
def test_a_worker_cannot_give_back_what_it_may_have_done(
    start_run: StartRun, hand: Hand, mode: str, told: list[str], then: str
) -> None:
    """R4: a release with an open effect in mode `external` is a question, not permission to do it again."""
    run = start_run({"name": "pay", "effect_mode": mode, "effect_protocol": "intent"})
    job = hand.take()
    tell(hand, job, *told)
    for _ in range(2):
        assert leases.release(hand.holder, job.stage.id, job.attempt_id) == then
    assert (states(run), attempts(run, "pay")) == ({"pay": then}, ["released"])
    assert stage(run, "pay").recovery_count == 0
    assert "declared" not in effects(run)
    assert_invariants()


def test_a_cancel_leaves_effects_open_for_whoever_looks_later(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """P75: uncertain stages and what ran are cancelled; what is open is listed, and only what is open."""
    both = {"name": "join", "depends_on": ["pay", "mail"]}
    run = start_run({"name": "pay", **INTENT}, {"name": "mail", **INTENT}, both)
    first, second = hand.pull(2)
    tell(hand, first, "declared")
    hand.report(first, "failed", error_code="FOO")
    tell(hand, second, "declared", "committed")
    listed = cancel_run(run.id, actor=people["operator"].actor).reconciliation
    assert sorted(item["kind"] for item in listed) == ["open_effect", "running_attempt", "uncertain_effect"]
    assert [item["stageId"] for item in listed if item["kind"] == "open_effect"] == [str(first.stage.id)]
    assert (set(states(run).values()), effects(run)) == ({"cancelled"}, ["unknown", "committed"])
    assert_invariants()


# afterwards


def test_an_uncertain_stage_is_refused_a_retry_and_may_be_skipped_on_purpose(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """F62, R13; the effect stays open."""
    run = start_run({"name": "pay", **INTENT}, "then")
    tell(hand, hand.take(), "declared")
    lose(clock)
    with refused("needs_reconciliation"):
        retry_stage(stage(run, "pay").id, actor=people["operator"].actor, reason="again", acknowledge_effects=True)
    skip_stage(stage(run, "pay").id, actor=people["operator"].actor, reason="paid by hand")
    assert (states(run), effects(run)) == ({"pay": "skipped", "then": "ready"}, ["unknown"])
    assert_invariants()


def test_a_run_with_an_open_effect_outlives_retention(start_run: StartRun, hand: Hand) -> None:
    """Model §3.13: open reconciliation items are kept; an open effect of the run's own state is none."""
    kept, gone, settled = (start_run({"name": "pay", **INTENT}) for _ in range(3))
    for told, effect_class in (
        (["declared"], "external_http"),
        (["declared"], "internal_state"),
        (["declared", "committed"], "external_http"),
    ):
        job = hand.take()
        tell(hand, job, *told, effect_class=effect_class)
        hand.report(job)
    assert retention.remove(database_now() + timedelta(days=1)) == 2
    assert set(Run.objects.filter(id__in=[kept.id, gone.id, settled.id])) == {kept}
    assert list(Effect.objects.values_list("run_id", flat=True)) == [kept.id]
