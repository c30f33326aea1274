"""What recovery leaves goes with its run; what somebody must still decide or find out keeps it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from approvals.models import ApprovalRequest, RequestDecision
from approvals.requests import decide_request
from pipelines import retention
from pipelines.handler_checkpoints import add_evidence
from pipelines.models import AuditEvent, Checkpoint, CheckpointEvidence, Effect, Run
from pipelines.postures import Left
from pipelines.sql import query
from recovery import bulk_work, bulks, forks
from recovery.models import BulkItem, BulkOperation, EffectEvidence, Operation, Reconciliation
from recovery.states import OperationKind
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.recovery.bulked import begun, failing, letters_of, of, work_through
from tests.recovery.stories import EXTERNAL, clear, effect_of, in_review, leave_uncertain
from tests.verbs import cancel_as_operation

StartRun = Callable[..., Run]
POSTURE = {
    "committed_side_effects": [{"effect_class": "external_http", "step_id": "pay", "key": "k-1", "committed": True}]
}


@pytest.fixture
def approver(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["approver"])


def in_doubt(start_run: StartRun, hand: Hand) -> Run:
    """A run that failed after it had committed something outside, and left a posture and a state."""
    run = start_run({"name": "pay", **EXTERNAL})
    job = hand.take()
    hand.report(job, "failed", error_code="BUSINESS_REJECTED", checkpoint=Left({"page": 1}, POSTURE))
    return run


def months_later(clock: Clock) -> int:
    clock.advance(days=31)
    return retention.remove_older_than(30)


def test_all_that_recovery_leaves_goes_with_its_run(
    start_run: StartRun, hand: Hand, people: dict[str, Person], approver: Api, clock: Clock
) -> None:
    """Model §3.13: checkpoints with their evidence, effects with theirs, findings, operations and their decisions."""
    run = in_doubt(start_run, hand)
    clear(Effect.objects.get(run=run), approver)
    checkpoint = Checkpoint.objects.filter(run=run).latest("sequence")
    add_evidence(checkpoint.id, {"seen": True}, "0" * 64, "a service")
    effect_of(run, "pay", key="k-2")
    operation = in_review(run)
    decide_request(operation.id, actor=people["approver"].actor, approved=False, reason="no")
    left = (Checkpoint, CheckpointEvidence, Effect, EffectEvidence, Reconciliation, Operation, ApprovalRequest)
    assert all(model.objects.exists() for model in (*left, RequestDecision))
    told = AuditEvent.objects.count()
    assert months_later(clock) == 1
    for dependent in retention.DEPENDENTS:
        assert query(f"SELECT count(*) FROM {dependent.table}") == [(0,)], dependent.table
    assert AuditEvent.objects.count() == told + 1


def test_what_waits_for_somebody_keeps_its_run(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """Model §2 Operation: one in review stays until somebody decides."""
    operation = in_review(in_doubt(start_run, hand))
    assert months_later(clock) == 0
    decide_request(operation.id, actor=people["approver"].actor, approved=False, reason="no")
    assert retention.remove_older_than(30) == 1
    assert not Operation.objects.exists()


def test_what_nobody_knows_keeps_its_run_also_when_it_was_cancelled(
    start_run: StartRun, hand: Hand, people: dict[str, Person], approver: Api, clock: Clock
) -> None:
    """Model §2 Cancel, §3.13: effects stay open, and the run is kept until somebody finds out."""
    run = start_run({"name": "pay", **EXTERNAL})
    (effect,) = leave_uncertain(run, hand, clock)
    cancel_as_operation(run.id, actor=people["operator"].actor, reason="stop")
    assert months_later(clock) == 0
    path = f"/v1/executions/{run.id}/effects/{effect.id}/reconciliation"
    assert approver.post(path, {"outcome": "absent", "note": "not there"}).status_code == 201
    assert retention.remove_older_than(30) == 1


def test_a_source_stays_with_its_fork_and_goes_after_it(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """Model §3.13: what a live fork came from is kept."""
    run = start_run("first", "second")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    actor = people["operator"].actor
    asked = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=actor)
    forks.fork(asked, actor=actor)
    assert months_later(clock) == 0
    assert hand.finish() == 1
    assert months_later(clock) == 2, "the fork first, then its source"
    assert not Run.objects.exists()


def test_a_bulk_that_has_not_ended_keeps_its_runs(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """F162, model §3.13: what it is to deal with is there when its turn comes; once it has ended they go, and it."""
    runs = failing(start_run, hand, 3)
    actor = people["operator"].actor
    bulk = begun(of(OperationKind.DISCARD, letters_of(runs)), actor)
    bulks.pause(bulk.id, actor=actor)
    assert months_later(clock) == 0
    assert BulkItem.objects.filter(bulk=bulk, state="pending").count() == 3
    bulks.abort(bulk.id, actor=actor)
    bulk_work.carry_on()
    assert months_later(clock) == 3
    assert not BulkOperation.objects.exists()
    assert not BulkItem.objects.exists()


def test_a_bulk_that_ended_goes_after_the_same_days_as_runs(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """Model §3.13: with its targets, told once in the audit; not before, and not while nobody has compared them."""
    actor = people["operator"].actor
    bulk = begun(of(OperationKind.DISCARD, letters_of(failing(start_run, hand, 2))), actor)
    assert work_through(bulk, clock).state == "completed"
    months_later(clock)
    assert BulkItem.objects.filter(bulk=bulk).count() == 2, "not yet compared"
    bulks.verify(bulk.id)
    assert retention.remove_older_than(60) == 0
    assert BulkItem.objects.filter(bulk=bulk).count() == 2, "not so old"
    retention.remove_older_than(30)
    assert not BulkOperation.objects.exists()
    assert not BulkItem.objects.exists()
    event = AuditEvent.objects.get(action="bulk.remove")
    assert event.data["bulk"] == str(bulk.id)
    assert event.data["total"] == 2
