"""Settling what happened outside: effects first, then the stage, with the three outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Effect, Event, Gate, Run, StageOutput
from pipelines.transitions import cancel_run
from recovery.models import EffectEvidence, Operation, Reconciliation
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.stories import EXTERNAL, effect_of, leave_uncertain, sealed

StartRun = Callable[..., Run]
FOUND = "looked at the provider"


@pytest.fixture
def approver(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def run(start_run: StartRun) -> Run:
    return start_run({"name": "charge", **EXTERNAL}, "notify")


def settle(api: Api, effect: Effect, outcome: str, **more: Any) -> Any:
    path = f"/v1/executions/{effect.run_id}/effects/{effect.id}/reconciliation"
    return api.post(path, {"outcome": outcome, "note": FOUND, **more})


def reconcile(api: Api, run: Run, outcome: str, **more: Any) -> Any:
    return api.post(f"/v1/stages/{stages_of(run)[0].id}/reconcile", {"outcome": outcome, "note": FOUND, **more})


def states(run: Run) -> tuple[str, ...]:
    return (Run.objects.get(id=run.id).status, *(stage.state for stage in stages_of(run)))


@pytest.mark.parametrize(
    ("outcome", "effect_state", "more", "after"),
    [
        ("committed", "reconciled_committed", {"output": {"charge": "ch_1"}}, ("running", "completed", "ready")),
        ("committed", "reconciled_committed", {"output": ""}, ("running", "completed", "ready")),
        ("absent", "reconciled_absent", {}, ("running", "ready", "pending")),
        ("contradicted", "contradicted", {}, ("failed", "failed", "pending")),
    ],
)
def test_a_stage_is_settled_after_its_effect_with_each_outcome(
    run: Run,
    hand: Hand,
    clock: Clock,
    approver: Api,
    outcome: str,
    effect_state: str,
    more: dict[str, Any],
    after: tuple[str, ...],
) -> None:
    """R5, R13, F62: needs_reconciliation → completed, ready, failed; nothing moves before the effect is settled."""
    (effect,) = leave_uncertain(run, hand, clock)
    assert states(run) == ("blocked", "needs_reconciliation", "pending")
    refused = reconcile(approver, run, outcome, **more)
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_reconciliation")
    assert refused.json()["effects"] == [str(effect.id)]
    assert states(run) == ("blocked", "needs_reconciliation", "pending")
    told = settle(approver, effect, outcome)
    assert (told.status_code, told.json()["effect_state"]) == (201, effect_state), told.content
    assert states(run)[1] == "needs_reconciliation"
    done = reconcile(approver, run, outcome, **more)
    assert done.status_code == 200, done.content
    assert done.json()["stage_status"] == after[1]
    assert states(run) == after
    kinds = list(Event.objects.filter(run=run, kind__startswith="effect.").values_list("kind", flat=True))
    action = {"committed": "reconcile_committed", "absent": "reconcile_absent", "contradicted": "contradict"}[outcome]
    assert kinds[-1] == f"effect.{action}"
    assert Reconciliation.objects.filter(run=run, outcome=outcome, note=FOUND).count() == 2
    if outcome == "committed":
        assert StageOutput.objects.get(stage__run=run).attempt is None
        assert stages_of(run)[0].last_error_code == ""


def test_what_was_found_committed_is_offered_at_the_gate_after_the_work_and_not_past_it(
    start_run: StartRun, hand: Hand, clock: Clock, approver: Api, people: dict[str, Person]
) -> None:
    """F131, F132, I2: whoever asked for the run finds its result themselves, and still does not decide about it."""
    gated = start_run({"name": "charge", **EXTERNAL, "approval": {"when": "after"}}, "notify")
    Run.objects.filter(id=gated.id).update(requesters=[people["release_manager"].user.pk])
    (effect,) = leave_uncertain(gated, hand, clock)
    asker = Api({"Authorization": f"Bearer {people['release_manager'].token}"})
    settle(asker, effect, "committed")
    looked = reconcile(asker, gated, "committed", output={"charge": "ch_1"}, dry_run=True).json()
    assert looked["then"][0]["stage"] == "charge"
    assert looked["then"][0]["to"] == "waiting"
    done = reconcile(asker, gated, "committed", output={"charge": "ch_1"}, plan_digest=looked["plan_digest"])
    assert (done.status_code, done.json()["stage_status"]) == (200, "waiting"), done.content
    assert states(gated) == ("waiting", "waiting", "pending")
    gate = Gate.objects.get(run=gated)
    output = StageOutput.objects.get(stage__run=gated)
    assert (gate.state, gate.moment, gate.output, output.body) == ("open", "after", output.id, '{"charge":"ch_1"}')
    path = f"/v1/approvals/{gate.id}/decision"
    refused = asker.post(path, {"approved": True, "reason": "I looked"})
    assert (refused.status_code, refused.json()["code"]) == (403, "self_approval")
    assert states(gated) == ("waiting", "waiting", "pending")
    assert approver.post(path, {"approved": True}).json()["stage_status"] == "completed"
    assert (states(gated), stages_of(gated)[0].output_id) == (("running", "completed", "ready"), output.id)


def test_an_absent_stage_runs_again_in_its_epoch_and_completes(
    run: Run, hand: Hand, clock: Clock, approver: Api
) -> None:
    (effect,) = leave_uncertain(run, hand, clock)
    settle(approver, effect, "absent")
    reconcile(approver, run, "absent")
    job = hand.take()
    assert (job.number, job.stage.epoch) == (2, 1)
    assert hand.report(job, output=1).accepted
    hand.finish()
    assert states(run) == ("completed", "completed", "completed")


def test_committed_needs_an_output(run: Run, hand: Hand, clock: Clock, approver: Api) -> None:
    (effect,) = leave_uncertain(run, hand, clock)
    settle(approver, effect, "committed")
    refused = reconcile(approver, run, "committed")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["output"])
    assert states(run)[1] == "needs_reconciliation"


def test_absent_is_refused_while_an_effect_of_the_stage_is_committed(
    run: Run, hand: Hand, clock: Clock, approver: Api
) -> None:
    """Contract §3: a stage that did one thing outside and perhaps another is never simply done again."""
    open_one, done = leave_uncertain(run, hand, clock, {"key": "k-1"}, {"key": "k-2", "state": "committed"})
    settle(approver, open_one, "absent")
    refused = reconcile(approver, run, "absent")
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_reconciliation")
    assert refused.json()["effects"] == [str(done.id)]
    assert states(run)[1] == "needs_reconciliation"
    assert reconcile(approver, run, "committed", output="").status_code == 200


def test_internal_state_holds_up_no_stage(run: Run, hand: Hand, clock: Clock, approver: Api) -> None:
    """O43."""
    outside, _ = leave_uncertain(run, hand, clock, {}, {"effect_class": "internal_state", "key": ""})
    settle(approver, outside, "absent")
    assert reconcile(approver, run, "absent").status_code == 200


def test_with_an_effect_named_the_stage_route_settles_that_effect(
    run: Run, hand: Hand, clock: Clock, approver: Api, start_run: StartRun
) -> None:
    (effect,) = leave_uncertain(run, hand, clock)
    answer = reconcile(approver, run, "committed", effect_id=str(effect.id), evidence=sealed({"outcome": "committed"}))
    assert answer.status_code == 200, answer.content
    assert answer.json()["effect_state"] == "reconciled_committed"
    assert states(run)[1] == "needs_reconciliation"
    kept = Reconciliation.objects.get()
    assert kept.evidence == EffectEvidence.objects.get()
    other = stages_of(start_run("first"))[0]
    body = {"outcome": "absent", "note": FOUND, "effect_id": str(effect.id)}
    assert approver.post(f"/v1/stages/{other.id}/reconcile", body).status_code == 404


def test_a_dry_run_tells_what_settling_would_do(
    run: Run, hand: Hand, clock: Clock, approver: Api, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Contract §3: every verb can be planned first, by a viewer too, and is held to the plan that it names."""
    (effect,) = leave_uncertain(run, hand, clock)
    viewer = as_person(people["viewer"])
    assert reconcile(viewer, run, "absent", dry_run=True).json()["code"] == "needs_reconciliation"
    plan = settle(viewer, effect, "absent", dry_run=True).json()
    assert (plan["choices"]["was"], plan["choices"]["to"]) == ("unknown", "reconciled_absent")
    effect.refresh_from_db()
    assert effect.state == "unknown"
    assert settle(approver, effect, "absent", plan_digest="0" * 64).json()["code"] == "plan_changed"
    assert settle(approver, effect, "absent", plan_digest=plan["plan_digest"]).status_code == 201
    plan = reconcile(viewer, run, "committed", output=1, dry_run=True).json()
    assert [(line["stage"], line["to"]) for line in plan["then"]] == [("charge", "completed"), ("notify", "ready")]
    assert states(run)[1] == "needs_reconciliation"
    assert not Operation.objects.filter(stage=stages_of(run)[0]).exclude(result__has_key="effect_id").exists()
    done = reconcile(approver, run, "committed", output=1, plan_digest=plan["plan_digest"])
    assert (done.status_code, done.json()["plan_digest"]) == (200, plan["plan_digest"])
    assert states(run) == ("running", "completed", "ready")


@pytest.mark.parametrize("outcome", ["absent", "contradicted"])
def test_a_finding_against_a_committed_effect_is_kept_and_changes_nothing_else(
    run: Run, hand: Hand, approver: Api, outcome: str
) -> None:
    """O46: verdicts that come later read it; the effect itself only moves forward."""
    hand.take()
    effect = effect_of(run, "charge", "committed")
    answer = settle(approver, effect, outcome)
    assert (answer.status_code, answer.json()["effect_state"]) == (201, "committed")
    assert Reconciliation.objects.get().outcome == outcome


def test_an_effect_of_an_attempt_that_still_runs_is_its_workers_to_tell(run: Run, hand: Hand, approver: Api) -> None:
    hand.take()
    effect = effect_of(run, "charge", "declared")
    answer = settle(approver, effect, "absent")
    assert (answer.status_code, answer.json()["code"]) == (409, "stage_state_invalid")
    effect.refresh_from_db()
    assert effect.state == "declared"
    assert not Reconciliation.objects.exists()


def test_an_effect_without_a_key_is_never_told_as_committed(run: Run, hand: Hand, clock: Clock, approver: Api) -> None:
    """O48."""
    (effect,) = leave_uncertain(run, hand, clock, {"key": ""})
    answer = settle(approver, effect, "committed")
    assert (answer.status_code, answer.json()["code"]) == (422, "effect_key_required")
    assert settle(approver, effect, "absent").status_code == 201


def test_effects_of_a_cancelled_run_are_still_settled_as_evidence(
    run: Run, hand: Hand, clock: Clock, approver: Api, people: dict[str, Person]
) -> None:
    """Model §2: the stage stays cancelled, whatever is found out (I8)."""
    (effect,) = leave_uncertain(run, hand, clock)
    cancel_run(run.id, actor=people["operator"].actor)
    assert settle(approver, effect, "committed").json()["effect_state"] == "reconciled_committed"
    refused = reconcile(approver, run, "committed", output="")
    assert (refused.status_code, refused.json()["code"]) == (409, "execution_state_invalid")
    assert states(run) == ("cancelled", "cancelled", "cancelled")


@pytest.mark.parametrize("ending", ["nothing", "completed"])
def test_a_stage_that_is_certain_has_nothing_to_reconcile(run: Run, hand: Hand, approver: Api, ending: str) -> None:
    if ending == "completed":
        hand.finish()
    before = states(run)
    answer = reconcile(approver, run, "committed", output="")
    assert (answer.status_code, answer.json()["code"]) == (409, "stage_state_invalid")
    assert states(run) == before


def test_past_the_deadline_nothing_is_reconciled(start_run: StartRun, hand: Hand, clock: Clock, approver: Api) -> None:
    """R31."""
    run = start_run({"name": "charge", **EXTERNAL}, deadline_seconds=300)
    leave_uncertain(run, hand, clock)
    clock.advance(300)
    answer = reconcile(approver, run, "absent")
    assert (answer.status_code, answer.json()["code"]) == (409, "deadline_exceeded")


def test_the_same_key_gives_the_first_answer(run: Run, hand: Hand, clock: Clock, approver: Api) -> None:
    (effect,) = leave_uncertain(run, hand, clock)
    key = {"client_request_id": "0b7e3d1c-1111-4222-8333-444455556666"}
    first = settle(approver, effect, "absent", **key)
    again = settle(approver, effect, "absent", **key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["reconciliation_id"] == first.json()["reconciliation_id"]
    assert again.json()["replayed"] is True
    other = settle(approver, effect, "committed", **key)
    assert (other.status_code, other.json()["code"]) == (409, "recovery_idempotency_conflict")
    assert Reconciliation.objects.count() == Operation.objects.count() == 1


def test_who_may_not_resolve_settles_nothing(
    run: Run,
    hand: Hand,
    clock: Clock,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
    outsider: Person,
) -> None:
    (effect,) = leave_uncertain(run, hand, clock)
    for role in ("viewer", "operator"):
        assert settle(as_person(people[role]), effect, "absent").status_code == 403
        assert reconcile(as_person(people[role]), run, "contradicted").status_code == 403
    assert settle(as_person(outsider), effect, "absent").status_code == 404
    assert reconcile(as_person(outsider), run, "absent").status_code == 404
    assert not Reconciliation.objects.exists()


def test_what_was_contradicted_is_not_said_to_be_retried(run: Run, hand: Hand, clock: Clock, approver: Api) -> None:
    """The blocker sends nobody to a retry that evidence forbids for good (O46)."""
    (effect,) = leave_uncertain(run, hand, clock)
    settle(approver, effect, "contradicted")
    assert reconcile(approver, run, "contradicted").status_code == 200
    told = approver.get(f"/v1/executions/{run.id}/blockers").json()["results"]
    assert [one["stage"] for one in told] == ["charge", "notify"]
    assert all("skip it, as a retry may be denied for good" in one["cause"] for one in told)
