"""The evidence graph of a run: what it came out of, what was asked for on it, who agreed, what came of it (O59).

Most operations here are rows as the verbs leave them; the verbs themselves are proved elsewhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.gates import Planned
from approvals.models import ApprovalRequest, RequestDecision
from approvals.requests import ask as put_before_others
from approvals.rules import Requirement
from pipelines import queries
from pipelines.creation import Place
from pipelines.models import Checkpoint, Environment, Run
from pipelines.sql import database_now
from recovery import evidence_graph as graphs
from recovery import forks, operations
from recovery.models import Operation
from recovery.states import Disposition, OperationKind, OperationState
from tests.cast import Api, Hand, Person
from tests.recovery.stories import EXTERNAL, effect_of, in_review

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
Ask = Callable[..., Operation]


@pytest.fixture
def ask(people: dict[str, Person]) -> Ask:
    """An operation on a run, asked for by the operator."""

    def make(run: Run, kind: OperationKind = OperationKind.RERUN, **more: Any) -> Operation:
        told = {"state": OperationState.DISPATCHED, "disposition": Disposition.RECOVERY_ALLOWED, **more}
        asker = people["operator"].user
        return Operation.objects.create(
            workspace_id=run.workspace_id, kind=kind, run=run, requested_by=asker, channel="api", **told
        )

    return make


@pytest.fixture
def fork(start_run: StartRun, ask: Ask) -> Callable[..., tuple[Run, Operation]]:
    """A run made out of another by a rerun from its newest checkpoint."""

    def make(source: Run, **more: Any) -> tuple[Run, Operation]:
        run = start_run("load", name="again", key=str(uuid.uuid4()))
        Run.objects.filter(id=run.id).update(recovered_from=source, recovery={"type": "rerun"})
        newest = Checkpoint.objects.filter(run=source).latest("sequence")
        return Run.objects.get(id=run.id), ask(source, target=run.id, checkpoint=newest.id, **more)

    return make


def requested(operation: Operation, requirement: Requirement | None = None) -> ApprovalRequest:
    """It was put before somebody else."""
    return put_before_others(operations.matter_of(operation), Planned({}, "", requirement or Requirement()))


def test_a_rerun_is_seen_whole_from_its_source_and_from_its_target(
    start_run: StartRun, fork: Any, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """O57, O59: source, checkpoint, operation, disposition, approval, target, whichever end one looks from."""
    source = start_run("load", name="nightly")
    target, operation = fork(source, disposition=Disposition.OPERATOR_REVIEW_REQUIRED)
    request = requested(operation)
    approver = people["approver"]
    told = {"member": 1, "role": "approver", "approved": True, "reason": "checked"}
    RequestDecision.objects.create(request=request, user=approver.user, **told)
    ApprovalRequest.objects.filter(id=request.id).update(state="approved")
    for run in (source, target):
        answer = as_person(people["viewer"]).get(f"/v1/executions/{run.id}/evidence")
        assert answer.status_code == 200
        graph = answer.json()
        assert graph["complete"] is True
        assert {node["kind"] for node in graph["nodes"]} == set(graphs.KINDS)
        assert {
            (_kind(graph, edge["from_id"]), edge["kind"], _kind(graph, edge["to_id"])) for edge in graph["edges"]
        } == {
            ("source", "asked_on", "operation"),
            ("source", "recorded", "checkpoint"),
            ("checkpoint", "starts_from", "operation"),
            ("operation", "judged", "disposition"),
            ("disposition", "decided_by", "approval"),
            ("operation", "made", "target"),
        }
        by_kind = {node["kind"]: node for node in graph["nodes"]}
        assert by_kind["source"]["facts"]["execution_id"] == str(source.id)
        assert by_kind["target"]["facts"]["execution_id"] == str(target.id)
        assert by_kind["checkpoint"]["status"] == "valid"
        assert by_kind["disposition"]["status"] == "operator_review_required"
        assert by_kind["approval"]["facts"] == {
            "decided_by": "approver-acme",
            "role": "approver",
            "reason": "checked",
            "round": 1,
        }


def test_a_target_that_is_only_reserved_is_told_as_such(
    start_run: StartRun, ask: Ask, people: dict[str, Person]
) -> None:
    """O30, I10: its id is known before the run is."""
    reserved = uuid.uuid4()
    source = start_run("load")
    ask(source, state=OperationState.RESERVED, target=reserved)
    graph = graphs.evidence_graph(people["viewer"].actor, source)
    (target,) = [node for node in graph.nodes if node.kind == "target"]
    assert (target.status, target.facts) == ("reserved", {"execution_id": str(reserved)})


def test_what_waits_for_somebody_has_an_open_approval(start_run: StartRun, ask: Ask, people: dict[str, Person]) -> None:
    source = start_run("load")
    requested(ask(source, state=OperationState.AWAITING_APPROVAL))
    graph = graphs.evidence_graph(people["viewer"].actor, source)
    (approval,) = [node for node in graph.nodes if node.kind == "approval"]
    assert (approval.status, approval.facts["decided_by"]) == ("open", None)
    assert "target" not in {node.kind for node in graph.nodes}


def test_a_fork_of_a_fork_shows_the_whole_line_and_no_siblings(
    start_run: StartRun, fork: Any, people: dict[str, Person]
) -> None:
    first = start_run("load")
    second, _ = fork(first)
    sibling, _ = fork(first)
    third, _ = fork(second)
    runs = _runs(graphs.evidence_graph(people["viewer"].actor, third))
    assert runs == {str(first.id): "source", str(second.id): "target", str(third.id): "target"}
    assert str(sibling.id) in _runs(graphs.evidence_graph(people["viewer"].actor, first))


def test_every_edge_has_both_ends_and_every_node_is_there_once(
    start_run: StartRun, fork: Any, ask: Ask, hand: Hand, people: dict[str, Person]
) -> None:
    source = start_run("load")
    hand.finish()
    for kind in OperationKind:
        ask(source, kind, state=OperationState.SUCCEEDED)
    target, _ = fork(source)
    for run in (source, target):
        graph = graphs.evidence_graph(people["viewer"].actor, run)
        ids = [node.id for node in graph.nodes]
        assert len(ids) == len(set(ids))
        assert {end for edge in graph.edges for end in (edge.from_id, edge.to_id)} <= set(ids)


def test_a_run_that_nothing_was_asked_of_is_its_own_source(start_run: StartRun, people: dict[str, Person]) -> None:
    run = start_run("load")
    graph = graphs.evidence_graph(people["viewer"].actor, run)
    assert [(node.kind, node.id) for node in graph.nodes] == [("source", f"run:{run.id}")]
    assert graph.edges == ()


def test_old_pauses_are_left_out_before_any_fork_and_that_is_said(
    start_run: StartRun, fork: Any, ask: Ask, people: dict[str, Person]
) -> None:
    source = start_run("load")
    target, _ = fork(source)
    for _ in range(graphs.MOST + 5):
        ask(source, OperationKind.PAUSE, state=OperationState.SUCCEEDED)
    graph = graphs.evidence_graph(people["viewer"].actor, source)
    assert graph.complete is False
    assert str(target.id) in _runs(graph)
    assert sum(node.kind == "operation" for node in graph.nodes) == graphs.MOST


def test_nobody_else_sees_it(
    start_run: StartRun, outsider: Person, sibling_key: str, as_person: Callable[[Person], Api], api: Api
) -> None:
    """I16: another workspace's and another application's id is 404; the run's own key may read."""
    path = f"/v1/executions/{start_run('load').id}/evidence"
    assert as_person(outsider).get(path).status_code == 404
    assert Api({"X-API-Key": sibling_key}).get(path).status_code == 404
    assert api.get(path).status_code == 200


def test_the_number_of_queries_does_not_grow_with_the_operations(
    start_run: StartRun, fork: Any, people: dict[str, Person]
) -> None:
    few, many = start_run("load", key="few"), start_run("load", key="many")
    fork(few)
    for _ in range(12):
        fork(many)
    actor = people["viewer"].actor
    counts = []
    for run in (few, many):
        found = queries.run_detail(actor, run.id)
        with CaptureQueriesContext(connection) as captured:
            graphs.evidence_graph(actor, found)
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 8


@pytest.mark.parametrize(
    ("state", "ends_in", "told"),
    [
        ("withdrawn", None, "withdrawn by who asked for it"),
        ("superseded", None, "asked anew: the world had moved"),
        ("expired", -1, "expired: nobody decided in time"),
        ("expired", 3600, "expired: the run was over first"),
        ("expired", None, "expired: the run was over first"),
    ],
)
def test_a_request_that_no_decision_closed_says_how_it_ended(
    start_run: StartRun, ask: Ask, people: dict[str, Person], state: str, ends_in: int | None, told: str
) -> None:
    source = start_run("load")
    request = requested(ask(source, state=OperationState.AWAITING_APPROVAL), Requirement(expires_in=ends_in))
    ApprovalRequest.objects.filter(id=request.id).update(state=state, closed_at=database_now())
    (approval,) = [
        node for node in graphs.evidence_graph(people["viewer"].actor, source).nodes if node.kind == "approval"
    ]
    assert (approval.title, approval.status) == (told, state)


def test_a_run_says_which_operations_somebody_must_still_do_something_about(
    start_run: StartRun, ask: Ask, hand: Hand
) -> None:
    """I10, O30: waiting for approval, in review, or reserved and not dispatched; what is done holds nothing."""
    run = start_run("load")
    hand.finish()
    for state in (OperationState.SUCCEEDED, OperationState.DENIED, OperationState.DISPATCHED):
        ask(run, state=state)
    assert queries.blockers(run) == []
    target = uuid.uuid4()
    asked = requested(ask(run, state=OperationState.AWAITING_APPROVAL), Requirement("admin", 2, 3600))
    unclear = [{"code": "no_seal", "text": "charge has no sealed evidence"}]
    requested(ask(run, state=OperationState.REVIEW_REQUIRED, reasons=unclear))
    ask(run, state=OperationState.RESERVED, target=target)
    approval, review, reserved = queries.blockers(run)
    assert (approval.holder, approval.next_look) == ("a person", asked.expires_at)
    assert approval.cause.startswith("the rerun that operator-acme asked for at ")
    assert "waits for approval of 2 admins other than who asked, 0 so far; it expires at " in approval.cause
    assert (review.holder, review.next_look) == ("a person", None)
    assert "is in review: charge has no sealed evidence; it goes on with the approval of 1 approver" in review.cause
    assert reserved.holder == "the engine"
    assert reserved.next_look is not None
    assert f"has reserved run {target}, which is not dispatched yet" in reserved.cause


def test_a_review_an_approval_and_a_crash_before_dispatch_are_told_as_they_really_are(
    start_run: StartRun,
    hand: Hand,
    place: Place,
    environments: dict[str, Environment],
    people: dict[str, Person],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O30, O45, I10: left by the verbs themselves, each with its holder."""
    actor = people["operator"].actor
    paid = start_run({"name": "pay", **EXTERNAL})
    job = hand.take()
    effect_of(paid, "pay")
    hand.report(job, "failed", error_code="DECLINED", retryable=False)
    in_review(Run.objects.get(id=paid.id), actor, from_step_id="pay")
    _, review = queries.blockers(Run.objects.get(id=paid.id))
    assert review.holder == "a person"
    assert "is in review: " in review.cause

    production = environments["production"]
    there = replace(place, environment_id=production.id, environment_slug=production.slug)
    protected = start_run("load", in_place=there)
    worker = Hand(there, "prod-1", ["Handler"])
    worker.report(worker.take(), "failed", error_code="X", retryable=False)
    asked = forks.ask_fork(OperationKind.RERUN, Run.objects.get(id=protected.id), forks.Wish(), actor=actor)
    assert forks.fork(asked, actor=actor).status == "awaiting_approval"
    waiting = queries.blockers(Run.objects.get(id=protected.id))[-1]
    assert "waits for approval of 1 approver other than who asked, 0 so far" in waiting.cause

    crashed = start_run("load")
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    with monkeypatch.context() as killed:
        killed.setattr(forks, "dispatch", _die)
        with pytest.raises(KeyboardInterrupt):
            forks.fork(
                forks.ask_fork(OperationKind.RERUN, Run.objects.get(id=crashed.id), forks.Wish(), actor=actor),
                actor=actor,
            )
    target = Operation.objects.get(run=crashed).target
    assert target is not None
    reserved = queries.blockers(Run.objects.get(id=crashed.id))[-1]
    assert reserved.holder == "the engine"
    assert f"has reserved run {target}, which is not dispatched yet" in reserved.cause
    forks.carry_on_reserved(quiet_seconds=0)
    assert Run.objects.filter(id=target).exists()
    assert [one.holder for one in queries.blockers(Run.objects.get(id=crashed.id))] == ["a person"]


def _die(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def _kind(graph: dict[str, Any], node_id: str) -> str:
    (kind,) = [node["kind"] for node in graph["nodes"] if node["id"] == node_id]
    return kind


def _runs(graph: graphs.Graph) -> dict[str, str]:
    return {node.facts["execution_id"]: node.kind for node in graph.nodes if node.id.startswith("run:")}
