"""`/v1/approvals`: the inbox, deciding and withdrawing through HTTP, gates and requests alike (contract §3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRequest, RequestDecision
from approvals.transitions import decide_gate
from pipelines.creation import Place
from pipelines.models import AuditEvent, Environment, Gate, GateDecision, Run
from recovery.models import Operation
from tests.approvals.test_inbox import gate_of, gated, requested_by
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
People = dict[str, Person]
FAILED = {"error_code": "BUSINESS_REJECTED"}


@pytest.fixture
def operator(people: People, as_person: AsPerson) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def approver(people: People, as_person: AsPerson) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def in_production(start_run: StartRun, place: Place, environments: dict[str, Environment]) -> Run:
    """A run of the protected environment that failed: an operator's rerun of it waits for an approver."""
    production = Place(place.workspace_id, place.application_id, environments["production"].id, "production")
    run = start_run("first", in_place=production)
    hand = Hand(production, "hand-2", ["Handler"])
    hand.report(hand.take(), "failed", **FAILED)
    return run


@pytest.fixture
def asked(in_production: Run, operator: Api) -> str:
    """The id under which an operator's rerun in production waits."""
    answer = operator.post(f"/v1/executions/{in_production.id}/rerun", {"reason": "a passing fault"})
    assert answer.status_code == 202, answer.content
    return str(answer.json()["operation_id"])


@pytest.fixture
def gate(start_run: StartRun, people: People) -> Gate:
    """Opened after everybody had their role."""
    return gate_of(start_run(gated(), "last"))


def decide(api: Api, item: Any, approved: Any = True, **more: Any) -> Any:
    return api.post(f"/v1/approvals/{getattr(item, 'id', item)}/decision", {"approved": approved, **more})


def withdraw(api: Api, item: Any, **body: Any) -> Any:
    return api.post(f"/v1/approvals/{getattr(item, 'id', item)}/withdraw", body)


def listed(api: Api, query: str = "") -> list[dict[str, Any]]:
    answer = api.get(f"/v1/approvals{query}")
    assert answer.status_code == 200, answer.content
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


# the list


def test_gates_and_requests_stand_in_one_list(gate: Gate, asked: str, approver: Api, in_production: Run) -> None:
    """P84, contract §3."""
    request, found = listed(approver)
    assert (request["id"], request["operation_id"], request["type"], request["kind"]) == (
        asked,
        asked,
        "operation",
        "rerun",
    )
    assert (request["status"], request["state"], request["cause"]) == ("awaiting_approval", "open", "approval")
    assert (request["execution_id"], request["environment"]) == (str(in_production.id), "production")
    assert request["plan"]["plan_digest"] == request["plan_digest"]
    assert (request["requested_by"], request["reason"]) == ("operator-acme", "a passing fault")
    assert (request["approver_role"], request["need"], request["have"], request["round"]) == ("approver", 1, 0, 1)
    assert request["why"]
    assert (found["id"], found["operation_id"], found["type"], found["kind"]) == (str(gate.id), None, "gate", "gate")
    assert (found["status"], found["stage_id"], found["stage"]) == ("open", str(gate.stage_id), "scope")
    assert (found["moment"], found["epoch"], found["plan"], found["cause"]) == ("before", 1, None, None)
    assert request["may_decide"] is found["may_decide"] is True
    assert set(request) == set(found)


def test_the_views_and_types_narrow_it(gate: Gate, asked: str, approver: Api, operator: Api) -> None:
    def ids(api: Api, query: str) -> list[str]:
        return [item["id"] for item in listed(api, query)]

    assert ids(approver, "?type=gate") == [str(gate.id)]
    assert ids(approver, "?type=operation&view=mine") == [asked]
    assert ids(approver, "?type=operation&type=gate&view=waiting") == [asked, str(gate.id)]
    assert ids(operator, "?view=asked") == [asked]
    assert ids(operator, "?view=decided") == []
    assert decide(approver, gate).status_code == 200
    (item,) = listed(operator, "?view=decided")
    assert (item["id"], item["state"], item["have"]) == (str(gate.id), "approved", 1)
    (made,) = item["decisions"]
    assert (made["decided_by"], made["role"], made["approved"], made["counts"]) == (
        "approver-acme",
        "approver",
        True,
        True,
    )
    assert item["why_not"]["code"] == "gate_decision_conflict"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?view=everything", "view"),
        ("?view=mine&view=asked", "view"),
        ("?type=run", "type"),
        ("?status=open", "status"),
        ("?view=waiting%00", "view"),
        ("?cursor=abc", "cursor"),
        ("?page_size=0", "page_size"),
        ("?page_size=201", "page_size"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused_by_name(approver: Api, gate: Gate, query: str, field: str) -> None:
    answer = approver.get(f"/v1/approvals{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert list(answer.json()["errors"]) == [field]


def test_a_missing_right_is_said_and_not_shown_as_an_empty_list(
    gate: Gate, operator: Api, api: Api, people: People, as_person: AsPerson
) -> None:
    """Model §5."""
    for client in (operator, as_person(people["viewer"])):
        answer = client.get("/v1/approvals?view=mine")
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
        assert "needs one of" in answer.json()["detail"]
    for view in ("mine", "asked"):
        assert api.get(f"/v1/approvals?view={view}").status_code == 403


def test_an_applications_key_reads_what_concerns_its_runs_and_decides_nothing_here(
    gate: Gate, asked: str, api: Api, sibling_key: str
) -> None:
    """Contract §3: it decides by `POST /stages/{id}/resume`; a request in another environment is not its own."""
    (item,) = listed(api)
    assert (item["id"], item["may_decide"]) == (str(gate.id), True)
    assert decide(api, gate).status_code == 403
    assert withdraw(api, gate).status_code == 403
    assert decide(api, asked).status_code == 404
    assert decide(api, gate, dry_run=True).json()["stage_status"] == "ready"
    assert listed(Api({"X-API-Key": sibling_key})) == []
    assert Gate.objects.get(id=gate.id).state == "open"


def test_the_list_is_walked_page_by_page(start_run: StartRun, asked: str, approver: Api) -> None:
    expected = [*reversed([str(gate_of(start_run(gated())).id) for _ in range(4)]), asked]
    seen, path = [], "/v1/approvals?page_size=2&view=mine"
    while path:
        page = approver.get(path).json()
        assert len(page["results"]) <= 2
        seen += [item["id"] for item in page["results"]]
        path = page["next"]
    assert seen == expected


def test_a_longer_list_takes_no_more_queries(start_run: StartRun, asked: str, approver: Api, people: People) -> None:
    """N+1: through the route as a whole."""
    listed(approver)  # the first use of a token is noted
    counts = []
    for _ in range(2):
        for _ in range(4):
            run = requested_by(start_run(gated(count=2)), people["operator"])
            decide_gate(gate_of(run).stage_id, actor=people["admin"].actor, approved=True)
        with CaptureQueriesContext(connection) as captured:
            assert listed(approver)
        counts.append(len(captured))
    assert counts[0] == counts[1]


# deciding


def test_a_person_decides_a_gate(gate: Gate, approver: Api) -> None:
    """P79, P83: the stage goes on, and who decided is kept."""
    answer = decide(approver, gate, reason="looks right")
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["id"], told["type"], told["state"], told["status"]) == (str(gate.id), "gate", "approved", "approved")
    assert (told["stage_id"], told["stage_status"], told["have"], told["need"]) == (str(gate.stage_id), "ready", 1, 1)
    assert (told["approved"], told["replayed"], told["operation_id"]) == (True, False, None)
    assert stages_of(gate.run)[0].state == "ready"
    event = AuditEvent.objects.get(action="gate.approve")
    assert (event.actor, event.reason, event.outcome) == ("approver-acme", "looks right", "allowed")


def test_the_same_decision_again_changes_nothing_and_another_is_refused(gate: Gate, approver: Api) -> None:
    """P81, P82, F138."""
    assert decide(approver, gate, reason="yes").status_code == 200
    again = decide(approver, gate, reason="yes")
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    for approved, reason in ((False, "no"), (True, "because")):
        refused = decide(approver, gate, approved, reason=reason)
        assert (refused.status_code, refused.json()["code"]) == (409, "gate_decision_conflict")
    assert GateDecision.objects.filter(gate=gate).count() == 1


def test_a_gate_that_needs_two_stays_open_after_one(
    start_run: StartRun, approver: Api, people: People, as_person: AsPerson
) -> None:
    gate = gate_of(start_run(gated(count=2)))
    first = decide(approver, gate).json()
    assert (first["state"], first["stage_status"], first["have"], first["need"]) == ("open", "waiting", 1, 2)
    second = decide(as_person(people["admin"]), gate).json()
    assert (second["state"], second["stage_status"], second["have"]) == ("approved", "ready", 2)


def test_approving_a_request_carries_it_out(asked: str, approver: Api, in_production: Run) -> None:
    """Contract §3: with the digest of the plan that was looked at."""
    (item,) = listed(approver)
    answer = decide(approver, asked, reason="agreed", plan_digest=item["plan_digest"])
    assert answer.status_code == 200, answer.content
    told = answer.json()
    target = Run.objects.get(recovered_from=in_production)
    assert (told["status"], told["state"], told["target_execution_id"]) == ("dispatched", "approved", str(target.id))
    assert (told["operation_id"], told["execution_id"], told["round"]) == (asked, str(in_production.id), 1)
    assert (told["have"], told["need"], told["stage_status"]) == (1, 1, None)
    (done,) = listed(approver, "?view=decided")
    assert (done["id"], done["state"], done["status"]) == (asked, "approved", "dispatched")
    assert listed(approver) == []


def test_another_digest_is_refused_with_the_plan_that_waits(asked: str, approver: Api, in_production: Run) -> None:
    refused = decide(approver, asked, plan_digest="0" * 64)
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_changed")
    (item,) = listed(approver)
    assert refused.json()["plan"] == item["plan"]
    assert not Run.objects.filter(recovered_from=in_production).exists()


def test_a_rejection_needs_a_reason_and_is_final(gate: Gate, asked: str, approver: Api) -> None:
    for item in (gate, asked):
        for reason in ({}, {"reason": ""}, {"reason": " \n"}):
            refused = decide(approver, item, False, **reason)
            assert (refused.status_code, list(refused.json()["errors"])) == (400, ["reason"])
        answer = decide(approver, item, False, reason="not today")
        assert (answer.status_code, answer.json()["state"]) == (200, "rejected")
        assert decide(approver, item).json()["code"] == "gate_decision_conflict"
    assert stages_of(gate.run)[0].state == "failed"
    assert Operation.objects.get(id=asked).state == "denied"


@pytest.mark.parametrize(
    "answer", ["maybe", "", "true ", "true", "yes", 1, 0, 1.0, None, [], [True], {"approved": True}]
)
def test_an_unclear_answer_is_none(gate: Gate, asked: str, approver: Api, answer: Any) -> None:
    """F135: 400, and nothing is decided."""
    for item in (gate, asked):
        refused = decide(approver, item, answer, reason="x")
        assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
        assert list(refused.json()["errors"]) == ["approved"]
    assert approver.post(f"/v1/approvals/{gate.id}/decision", {"reason": "x"}).status_code == 400
    assert not GateDecision.objects.exists()
    assert not RequestDecision.objects.exists()


@pytest.mark.parametrize("item", ["gate", "asked"])
def test_who_may_not_decide_is_told_which_right_is_missing(
    item: str, request: pytest.FixtureRequest, people: People, as_person: AsPerson
) -> None:
    """F145: and stands in the audit, under what they tried."""
    found = request.getfixturevalue(item)
    for role in ("viewer", "operator"):
        refused = decide(as_person(people[role]), found)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        assert "needs one of" in refused.json()["detail"]
        event = AuditEvent.objects.get(outcome="denied", user=people[role].user)
        assert event.action == ("gate.decide" if item == "gate" else "operation.decide")
        assert event.run is not None


def test_who_asked_does_not_decide(start_run: StartRun, people: People, as_person: AsPerson) -> None:
    """F130."""
    admin = people["admin"]
    gate = gate_of(requested_by(start_run(gated()), admin))
    refused = decide(as_person(admin), gate)
    assert (refused.status_code, refused.json()["code"]) == (403, "self_approval")
    (item,) = listed(as_person(admin))
    assert (item["may_decide"], item["why_not"]["code"]) == (False, "self_approval")
    assert item["why_not"]["detail"] == refused.json()["detail"]
    assert Gate.objects.get(id=gate.id).state == "open"


def test_what_expired_is_stale(start_run: StartRun, clock: Clock, approver: Api, asked: str) -> None:
    """F136: also before a sweep has looked; nothing is shown as decidable any more."""
    gate = gate_of(start_run(gated(expires_in=60)))
    clock.advance(days=8)
    for item in (gate, asked):
        for body in ({}, {"dry_run": True}):
            refused = decide(approver, item, **body)
            assert (refused.status_code, refused.json()["code"]) == (409, "approval_stale")
    assert [item["may_decide"] for item in listed(approver)] == [False, False]
    assert listed(approver, "?view=mine") == []


# looking first


def test_a_dry_run_of_a_gate_says_what_its_stage_would_become(
    start_run: StartRun, people: People, as_person: AsPerson, hand: Hand
) -> None:
    """Nothing changes, and looking needs no more than the right to view."""
    viewer = as_person(people["viewer"])
    before = gate_of(start_run(gated()))
    told = decide(viewer, before, dry_run=True).json()
    assert (told["stage_status"], told["state"], told["have"], told["need"]) == ("ready", "approved", 1, 1)
    told = decide(viewer, before, False, dry_run=True).json()
    assert (told["stage_status"], told["state"], told["have"]) == ("failed", "rejected", 0)
    two = gate_of(start_run(gated(count=2)))
    told = decide(viewer, two, dry_run=True).json()
    assert (told["stage_status"], told["state"], told["have"], told["need"]) == ("waiting", "open", 1, 2)
    run = start_run({"name": "a", "approval": {"when": "after"}})
    assert hand.report(hand.take(), output={"draft": 1}).accepted
    told = decide(viewer, gate_of(run, "a"), dry_run=True).json()
    assert (told["stage_status"], told["state"]) == ("completed", "approved")
    assert not GateDecision.objects.exists()
    assert not AuditEvent.objects.filter(action__startswith="gate.").exists()


def test_a_dry_run_of_a_request_tells_the_plan_of_now(
    asked: str, approver: Api, people: People, as_person: AsPerson
) -> None:
    (item,) = listed(approver)
    told = decide(as_person(people["viewer"]), asked, dry_run=True)
    assert (told.status_code, told.json()) == (200, item["plan"])
    assert ApprovalRequest.objects.get().state == "open"


# withdrawing


def test_who_asked_takes_it_back(asked: str, operator: Api, approver: Api, in_production: Run) -> None:
    answer = withdraw(operator, asked, reason="not needed")
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["id"], told["status"], told["state"], told["replayed"]) == (asked, "withdrawn", "withdrawn", False)
    assert withdraw(operator, asked, reason="not needed").json()["replayed"] is True
    assert decide(approver, asked).json()["code"] == "approval_stale"
    (item,) = listed(operator, "?view=asked")
    assert (item["state"], item["may_withdraw"]) == ("withdrawn", False)
    assert not Run.objects.filter(recovered_from=in_production).exists()


def test_others_do_not_withdraw_it(asked: str, people: People, as_person: AsPerson) -> None:
    for role in ("viewer", "approver", "admin"):
        refused = withdraw(as_person(people[role]), asked)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert ApprovalRequest.objects.get().state == "open"


def test_a_gate_is_not_withdrawn(gate: Gate, people: People, as_person: AsPerson) -> None:
    refused = withdraw(as_person(people["admin"]), gate)
    assert (refused.status_code, refused.json()["code"]) == (409, "stage_state_invalid")
    assert "cancel the run" in refused.json()["detail"]
    assert Gate.objects.get(id=gate.id).state == "open"


# whose they are


@pytest.mark.parametrize(
    "hostile",
    ["x", "0", "null", "00000000-0000-0000-0000-000000000000", "../runs", "%00", "' OR 1=1 --", "é" * 40, "a" * 3000],
)
def test_what_is_no_id_is_not_found(approver: Api, hostile: str) -> None:
    for verb, body in (("decision", {"approved": True}), ("withdraw", {})):
        answer = approver.post(f"/v1/approvals/{hostile}/{verb}", body)
        assert answer.status_code == 404


def test_another_workspace_finds_nothing(gate: Gate, asked: str, outsider: Person, as_person: AsPerson) -> None:
    """I16: an admin elsewhere, whatever the body says."""
    client = as_person(outsider)
    assert listed(client) == []
    for item in (gate.id, asked, uuid.uuid4()):
        for body in ({"approved": True}, {"approved": "maybe"}, {"approved": True, "dry_run": True}):
            assert client.post(f"/v1/approvals/{item}/decision", body).status_code == 404
        assert withdraw(client, item).status_code == 404
    assert Gate.objects.get(id=gate.id).state == "open"
