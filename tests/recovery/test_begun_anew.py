"""What children of a stage did outside, where somebody would have it done again: judged and told as its own acts."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.requests import decide_request
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.intents import tell_effects
from pipelines.models import DeadLetter, Effect, Run, Stage
from recovery import bulk_world, world
from recovery.models import Operation
from recovery.screens import plan_lines
from recovery.states import OperationKind
from recovery.transitions import ask_retry, preview
from tests.cast import Api, Hand, Person, stage_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.test_children import spawn
from tests.recovery.bulked import begun, counted, item_of, letters_of, of, work_through
from tests.recovery.stories import clear
from tests.verbs import retry_stage

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]
REVIEW = "operator_review_required"


@pytest.fixture(autouse=True)
def sound(transactional_db: None) -> Any:
    yield
    assert_invariants()


@pytest.fixture
def helper(new_hand: Callable[..., Hand]) -> Hand:
    return new_hand("helper", "Child")


@pytest.fixture
def api(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def approver(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["approver"])


def charge(hand: Hand, job: Any, *states: str) -> None:
    for state in states:
        tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", state, "charge", "k")])


@pytest.fixture
def failed(start_run: StartRun, hand: Hand, helper: Hand) -> Callable[..., tuple[Run, Run]]:
    """A parent that failed, and its child that failed after it had done this outside."""

    def make(*states: str, key: str = "", end: str = "failed") -> tuple[Run, Run]:
        parent = start_run(**({"key": key} if key else {}))
        job = hand.take()
        child = spawn(hand, job).child
        work = helper.take()
        charge(helper, work, *states)
        helper.report(work, end, **({"error_code": "VALIDATION_ERROR"} if end == "failed" else {}))
        hand.report(job, "failed", error_code="VALIDATION_ERROR")
        return parent, Run.objects.get(id=child.run_id)

    return make


def stage(run: Run) -> Stage:
    return Stage.objects.get(run=run)


def verb(api: Api, kind: str, parent: Run, **body: Any) -> Any:
    match kind:
        case "retry":
            return api.post(f"/v1/stages/{stage(parent).id}/retry", body)
        case "redrive":
            return api.post(f"/v1/dead-letters/{DeadLetter.objects.get(stage__run=parent).id}/redrive", body)
        case "rerun":
            return api.post(f"/v1/executions/{parent.id}/rerun", {"from_step_id": "first", **body})
        case _:
            return api.post(f"/v1/executions/{parent.id}/{kind}", body)


@pytest.mark.parametrize("kind", ["retry", "redrive", "rerun", "replay"])
def test_what_a_failed_child_committed_is_told_and_judged_before_it_is_begun_anew(
    failed: Callable[..., tuple[Run, Run]], api: Api, hand: Hand, kind: str
) -> None:
    """R5, O44, I11: the stage itself did nothing outside; its child has charged somebody, and would do it again."""
    parent, child = failed("declared", "committed")
    runs = Run.objects.count()
    answer = verb(api, kind, parent, dry_run=True)
    assert answer.status_code == 200, answer.content
    plan = answer.json()
    plan = plan.get("plan", plan)
    name = f"work of run {child.id} (begun anew with first)"
    assert plan["disposition"] == REVIEW
    assert [(one["stage"], one["state"], one["idempotency_key"]) for one in plan["may_repeat"]] == [
        (name, "committed", "k")
    ]
    assert {one["code"] for one in plan["reasons"]} == {"evidence_missing", "reconciliation_missing"}
    assert any(step.word == "May repeat" and name in step.text for step in plan_lines.lines(plan))
    answer = verb(api, kind, parent)
    assert (answer.status_code, answer.json()["code"]) == (409, REVIEW)
    assert hand.pull() == []
    assert (stage(parent).epoch, Run.objects.count()) == (1, runs)


@pytest.mark.parametrize("kind", ["retry", "replay"])
def test_what_is_cleared_goes_on_and_is_told_all_the_same(
    failed: Callable[..., tuple[Run, Run]], api: Api, approver: Api, kind: str
) -> None:
    """O45: key, clean sealed evidence and a matching reconciliation are there."""
    parent, child = failed("declared", "committed")
    clear(Effect.objects.get(run=child), approver)
    answer = verb(api, kind, parent)
    assert answer.status_code in (200, 201), answer.content
    operation = Operation.objects.get(kind=kind)
    assert operation.disposition == "recovery_allowed_reconciled"
    assert operation.plan["may_repeat"][0]["stage"] == f"work of run {child.id} (begun anew with first)"


def test_a_child_that_completed_is_found_and_holds_nothing_back(
    failed: Callable[..., tuple[Run, Run]], people: dict[str, Person]
) -> None:
    """F129: what it did is not done again."""
    parent, _ = failed("declared", "committed", end="completed")
    plan = preview(ask_retry(parent.id, stage(parent).id), actor=people["operator"].actor)
    assert (plan.may_repeat, plan.verdict.disposition) == ((), "recovery_allowed")
    retry_stage(stage(parent).id, actor=people["operator"].actor)


def test_what_a_grandchild_did_is_done_again_with_its_parent(
    start_run: StartRun, hand: Hand, helper: Hand, new_hand: Callable[..., Hand], people: dict[str, Person]
) -> None:
    """R5: even one that completed: the child that begins anew knows nothing of it."""
    parent = start_run()
    job = hand.take()
    spawn(hand, job)
    middle = helper.take()
    deep = spawn(helper, middle, "deep", stages=[stage_of({"name": "pay", "handler": "Grandchild"})]).child
    last = new_hand("last", "Grandchild")
    work = last.take()
    charge(last, work, "declared", "committed")
    last.report(work)
    helper.report(middle, "failed", error_code="VALIDATION_ERROR")
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    with pytest.raises(Refusal) as refused:
        retry_stage(stage(parent).id, actor=people["operator"].actor)
    assert refused.value.code == REVIEW
    assert refused.value.extra["reasons"][0]["stage"] == f"pay of run {deep.run_id} (begun anew with first)"


def test_what_a_child_may_have_done_unseen_is_cleared_by_who_has_looked(
    start_run: StartRun, hand: Hand, helper: Hand, people: dict[str, Person]
) -> None:
    """P59: as of the stage itself; the plan tells of it still."""
    parent = start_run()
    job = hand.take()
    spawn(hand, job, stages=[stage_of({"name": "work", "handler": "Child", "effect_mode": "external"})])
    helper.report(helper.take(), "failed", error_code="VALIDATION_ERROR")
    hand.report(job, "failed", error_code="VALIDATION_ERROR")
    actor = people["operator"].actor
    before = preview(ask_retry(parent.id, stage(parent).id), actor=actor)
    assert [reason.code for reason in before.verdict.reasons] == ["undeclared_effects"]
    after = preview(ask_retry(parent.id, stage(parent).id, acknowledge_effects=True), actor=actor)
    assert after.verdict.lets_go_on
    assert [one.state for one in after.may_repeat] == [one.state for one in before.may_repeat] == ["undeclared"]


def test_what_is_found_out_between_the_plan_and_the_verb_makes_another_plan(
    failed: Callable[..., tuple[Run, Run]], people: dict[str, Person], approver: Api
) -> None:
    """F51: the digest covers what children did; it is judged again under the lock."""
    parent, child = failed("declared", "committed")
    actor = people["operator"].actor
    plan = preview(ask_retry(parent.id, stage(parent).id), actor=actor)
    clear(Effect.objects.get(run=child), approver)
    with pytest.raises(Refusal) as refused:
        retry_stage(stage(parent).id, actor=actor, plan_digest=plan.digest)
    assert refused.value.code == "plan_changed"
    assert stage(parent).epoch == 1


@pytest.mark.parametrize("kind", [OperationKind.RETRY, OperationKind.REDRIVE, OperationKind.REPLAY])
def test_a_bulk_counts_what_children_did_and_denies_it(
    failed: Callable[..., tuple[Run, Run]], people: dict[str, Person], clock: Clock, kind: OperationKind
) -> None:
    """I11: each target is judged, and the others go on."""
    charged, _ = failed("declared", "committed", key="a")
    fine, _ = failed(key="b")
    targets = letters_of([charged, fine]) if kind == OperationKind.REDRIVE else [charged, fine]
    bulk = begun(of(kind, targets), people["operator"].actor)
    assert bulk_world.plan_now(bulk, actor=people["operator"].actor).may_repeat == 1
    work_through(bulk, clock)
    assert counted(bulk) == {"done": 1, "denied": 1}
    assert item_of(bulk, charged.id).code == REVIEW
    assert stage(charged).epoch == 1


def test_a_fork_is_judged_by_the_keys_that_it_has_from_its_source(
    failed: Callable[..., tuple[Run, Run]], people: dict[str, Person], api: Api, hand: Hand
) -> None:
    """F37: the fork itself has started nothing, and would find nothing of what its source's child came to."""
    parent, child = failed("declared", "committed")
    answer = verb(api, "replay", parent)
    decide_request(uuid.UUID(answer.json()["operation_id"]), actor=people["approver"].actor, approved=True)
    fork = Run.objects.get(recovered_from=parent)
    hand.report(hand.take(), "failed", error_code="VALIDATION_ERROR")
    plan = preview(ask_retry(fork.id, stage(fork).id), actor=people["operator"].actor)
    assert (plan.verdict.disposition, [one.effect_id for one in plan.may_repeat]) == (
        REVIEW,
        [str(Effect.objects.get(run=child).id)],
    )


def test_a_run_without_children_costs_no_statement_and_many_with_them_as_many_as_one(
    failed: Callable[..., tuple[Run, Run]], start_run: StartRun
) -> None:
    parents = [failed("declared", "committed", key=key)[0] for key in "abc"]
    counts = []
    for asked in ([start_run(key="alone")], parents[:1], parents):
        with CaptureQueriesContext(connection) as told:
            found = world.read_many([run.id for run in asked])
        assert len(found) == len(asked)
        counts.append((len(told), len([one for one in told if "pipelines_childrun" in one["sql"]])))
    (_, of_none), of_one, of_many = counts
    assert of_none == 0
    assert of_one == of_many
