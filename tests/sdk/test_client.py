"""Both clients: the same calls, the same rules for repeating, typed refusals."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import recourse
from recourse import (
    ApiError,
    ApprovalStale,
    CheckpointInvalid,
    Client,
    ConfigurationError,
    Conflict,
    EnvironmentMismatch,
    EnvironmentUnknown,
    GateDecisionConflict,
    IdempotencyConflict,
    InvalidRequest,
    NeedsReconciliation,
    NotFound,
    OperatorReviewRequired,
    OutcomeUnknown,
    PayloadTooLarge,
    PermissionDenied,
    PlanChanged,
    RateLimited,
    RecoveryDenied,
    ResultNotConfirmed,
    SelfApproval,
    StateInvalid,
    SyncClient,
    Unauthorized,
    Unsupported,
)
from recourse.errors import api_error, codes

from pipelines.errors import STATUS
from tests.sdk.protocol_server import API_KEY, TOKEN, ProtocolServer, problem

STAGES = [
    {"stageName": "validate", "stageHandlerName": "ValidateInvoiceHandler", "input": '{"invoiceId":"invoice-42"}'}
]
Ask = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, server: ProtocolServer) -> Ask:
    """Calls something of a client of either kind, and returns its answer."""
    options: dict[str, Any] = {"timeout": 0.5, "attempts": 4, "first_wait": 0.01}

    def sync(call: Callable[[Any], Any]) -> Any:
        with SyncClient(server.url, API_KEY, TOKEN, **options) as client:
            return call(client)

    async def by_loop(call: Callable[[Any], Any]) -> Any:
        async with Client(server.url, API_KEY, TOKEN, **options) as client:
            answer = call(client)
            assert inspect.isawaitable(answer)
            return await answer

    return sync if request.param == "sync" else lambda call: asyncio.run(by_loop(call))


def create(client: Any, **more: Any) -> Any:
    return client.runs.create(**({"idempotency_key": "k", "name": "n", "stages": STAGES} | more))


def test_a_run_is_created_once_for_its_key(server: ProtocolServer, ask: Ask) -> None:
    """P18, P19, P28."""
    first = ask(create)
    second = ask(create)
    assert (first["created"], second["created"], second["wasExisting"]) == (True, False, True)
    assert first["pipeline"]["id"] == second["pipeline"]["id"] == ask(lambda c: c.runs.lookup("k"))["id"]
    assert server.bodies("/pipelines/idempotent")[0] == {"idempotencyKey": "k", "name": "n", "stages": STAGES}


@pytest.mark.parametrize("how", ["cut", "cut_after", 503, 500, 429])
def test_an_unknown_outcome_is_followed_by_the_same_request(server: ProtocolServer, ask: Ask, how: int | str) -> None:
    """P27, F118: one run, whether or not the server had acted."""
    server.fail("/idempotent", how, times=3)
    answer = ask(create)
    assert answer["created"] is (how != "cut_after")
    assert len(server.runs) == 1
    assert len({str(body) for body in server.bodies("/idempotent")}) == 1


def test_a_timeout_is_an_unknown_outcome(server: ProtocolServer, ask: Ask) -> None:
    """P27, P29."""
    server.fail("/idempotent", "hang", times=1)
    assert ask(create)["created"] is True


def test_repeating_is_bounded_and_says_to_keep_the_key(server: ProtocolServer, ask: Ask) -> None:
    """P29, F127."""
    server.fail("/idempotent", "cut_after")
    with pytest.raises(OutcomeUnknown, match="4 tries") as caught:
        ask(create)
    assert caught.value.key == "k"
    assert server.count("idempotent") == 4
    server.heal()
    assert ask(lambda c: c.runs.lookup("k"))["id"] == ask(create)["pipeline"]["id"]


def test_another_intent_under_the_same_key_is_a_conflict(ask: Ask) -> None:
    """P20, F127: the key is taken."""
    ask(create)
    with pytest.raises(IdempotencyConflict) as caught:
        ask(lambda c: create(c, name="other"))
    assert caught.value.key_used


def test_a_definite_refusal_is_not_repeated_and_uses_no_key(server: ProtocolServer, ask: Ask) -> None:
    """F127."""
    with pytest.raises(InvalidRequest) as caught:
        ask(lambda c: create(c, idempotency_key=" "))
    error = caught.value
    assert (error.status, error.code, error.errors) == (
        400,
        "validation_error",
        {"idempotencyKey": ["may not be blank"]},
    )
    assert error.detail == "because of validation_error"
    assert not error.key_used
    assert server.count("idempotent") == 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthorized", Unauthorized),
        (403, "permission_denied", PermissionDenied),
        (403, "self_approval", SelfApproval),
        (404, "not_found", NotFound),
        (409, "stage_state_invalid", StateInvalid),
        (409, "execution_state_invalid", StateInvalid),
        (409, "gate_decision_conflict", GateDecisionConflict),
        (409, "approval_stale", ApprovalStale),
        (409, "recovery_idempotency_conflict", IdempotencyConflict),
        (409, "plan_changed", PlanChanged),
        (409, "operator_review_required", OperatorReviewRequired),
        (409, "recovery_denied", RecoveryDenied),
        (409, "needs_reconciliation", NeedsReconciliation),
        (409, "recovery_environment_mismatch", EnvironmentMismatch),
        (409, "checkpoint_integrity_invalid", CheckpointInvalid),
        (409, "unheard_of", Conflict),
        (413, "payload_too_large", PayloadTooLarge),
        (422, "environment_unknown", EnvironmentUnknown),
        (405, "unsupported", Unsupported),
    ],
)
def test_each_code_has_its_class(
    server: ProtocolServer, ask: Ask, status: int, code: str, kind: type[ApiError]
) -> None:
    server.answers["/pipelines/x"] = problem(status, code)
    with pytest.raises(kind) as caught:
        ask(lambda c: c.runs.get("x"))
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code) == (status, code)
    assert server.count("x") == 1


def test_every_code_of_the_console_has_a_class_and_no_other_has() -> None:
    """Model §6: the console's codes, by a class that says what their status says, and that applications can import."""
    assert set(codes()) == set(STATUS), "give it a class in sdk/recourse/errors.py"
    families = {400: InvalidRequest, 413: InvalidRequest, 422: InvalidRequest, 403: PermissionDenied, 404: NotFound}
    for code, kind in codes().items():
        assert issubclass(kind, families.get(STATUS[code], Conflict if STATUS[code] == 409 else ApiError)), code
        assert getattr(recourse, kind.__name__) is kind, f"{kind.__name__} is not offered"
        assert type(api_error(STATUS[code], {"code": code})) is kind
        assert str(STATUS[code]) in (kind.__doc__ or ""), f"{kind.__name__} does not say when"
    shared = [kind for kind in codes().values() if list(codes().values()).count(kind) > 1]
    assert set(shared) == {IdempotencyConflict, StateInvalid}, "else each has one of its own"


def test_too_many_requests_alone_are_a_refusal_and_with_anything_else_unknown(server: ProtocolServer, ask: Ask) -> None:
    """F127: nothing was done for a 429; of a broken connection nobody knows."""
    server.fail("/idempotent", 429)
    with pytest.raises(RateLimited):
        ask(create)
    assert len(server.runs) == 0
    server.answers["/pipelines/x"] = problem(503, "result_not_confirmed")
    with pytest.raises(OutcomeUnknown) as caught:
        ask(lambda c: c.runs.get("x"))
    assert isinstance(caught.value.__cause__, ResultNotConfirmed)


def test_an_answer_keeps_what_this_version_does_not_know(server: ProtocolServer, ask: Ask) -> None:
    server.answers["/v1/executions/r"] = (200, {"execution_id": "r", "status": "hibernating", "newer": {"a": [1]}})
    assert ask(lambda c: c.executions.get("r")) == {
        "execution_id": "r",
        "status": "hibernating",
        "newer": {"a": [1]},
    }


def test_a_link_to_another_place_is_followed_to_none(server: ProtocolServer, ask: Ask) -> None:
    """A token goes to the console alone: of links only the query counts."""
    server.answers["/v1/operations"] = (200, {"next": None, "previous": None, "results": [{"id": "o"}]})
    link = "http://elsewhere.example/v1/steal?cursor=abc"
    assert ask(lambda c: c.operations.list(next=link))["results"] == [{"id": "o"}]
    assert server.requests == [("/v1/operations?cursor=abc", {})]


def test_moments_and_truths_may_be_pythons_own(server: ProtocolServer, ask: Ask) -> None:
    server.answers["/v1/blackouts"] = (200, {"next": None, "previous": None, "results": []})
    server.answers["/v1/executions/r/pause"] = (200, {})
    at = datetime(2026, 6, 1, 8, tzinfo=UTC)
    ask(lambda c: c.blackouts.list(is_freeze=False))
    ask(lambda c: c.executions.pause("r", until=at, client_request_id="i"))
    assert server.requests == [
        ("/v1/blackouts?is_freeze=false", {}),
        ("/v1/executions/r/pause", {"until": "2026-06-01T08:00:00+00:00", "client_request_id": "i"}),
    ]


def test_help_says_what_a_method_takes_and_does() -> None:
    with SyncClient("http://localhost:8000", API_KEY, TOKEN) as client:
        told = pydoc.render_doc(client.executions.pause, renderer=pydoc.plaintext)
    assert "pause(execution_id: 'str', reason: 'str | None' = None, *, until" in told
    assert "Stops further dispatch; what runs may finish." in told


def test_a_refusal_that_is_not_ours_is_an_api_error_too(server: ProtocolServer, ask: Ask) -> None:
    server.answers["/pipelines/x"] = (404, ["odd"])  # type: ignore[assignment]
    with pytest.raises(NotFound) as caught:
        ask(lambda c: c.runs.get("x"))
    assert caught.value.code == "http_404"


CALLS: list[tuple[Callable[[Any], Any], str, dict[str, Any]]] = [
    (lambda c: c.runs.cancel("r", "bad file"), "/pipelines/r/cancel", {"reason": "bad file"}),
    (lambda c: c.stages.resume("s", True), "/stages/s/resume", {"approved": True}),
    (
        lambda c: c.stages.resume("s", False, "no"),
        "/stages/s/resume",
        {"approved": False, "rejectionReason": "no"},
    ),
    (
        lambda c: c.stages.retry("s", reason="again", client_request_id="i"),
        "/v1/stages/s/retry",
        {"scope": "stage", "reason": "again", "client_request_id": "i"},
    ),
    (
        lambda c: c.stages.skip("s", reason="not needed", output=0, client_request_id="i"),
        "/v1/stages/s/skip",
        {"reason": "not needed", "output": 0, "client_request_id": "i"},
    ),
    (lambda c: c.executions.pause("r", client_request_id="i"), "/v1/executions/r/pause", {"client_request_id": "i"}),
    (lambda c: c.executions.resume("r", client_request_id="i"), "/v1/executions/r/resume", {"client_request_id": "i"}),
    (
        lambda c: c.executions.cancel("r", "stop", plan_digest="d", client_request_id="i"),
        "/v1/executions/r/cancel",
        {"reason": "stop", "plan_digest": "d", "client_request_id": "i"},
    ),
    (
        lambda c: c.executions.cancel("r", dry_run=True),
        "/v1/executions/r/cancel",
        {"dry_run": True},
    ),
    (lambda c: c.executions.get("r/../x"), "/v1/executions/r%2F..%2Fx", {}),
    (lambda c: c.executions.list(), "/v1/executions", {}),
    (
        lambda c: c.executions.list(status=["failed", "blocked"], search="ü 42", page_size=5),
        "/v1/executions?search=%C3%BC+42&status=failed&status=blocked&page_size=5",
        {},
    ),
    (
        lambda c: c.executions.list(next="http://elsewhere.example/v1/executions?cursor=abc"),
        "/v1/executions?cursor=abc",
        {},
    ),
    (lambda c: c.executions.snapshot("r"), "/v1/executions/r/snapshot", {}),
    (lambda c: c.executions.checkpoints("r", moment="pause"), "/v1/executions/r/checkpoints?moment=pause", {}),
    (
        lambda c: c.executions.effects("r", next="http://elsewhere.example/?cursor=a"),
        "/v1/executions/r/effects?cursor=a",
        {},
    ),
    (lambda c: c.executions.evidence("r"), "/v1/executions/r/evidence", {}),
    (lambda c: c.executions.blockers("r"), "/v1/executions/r/blockers", {}),
    (lambda c: c.operations.list(kind="rerun"), "/v1/operations?kind=rerun", {}),
    (lambda c: c.approvals.list(view="mine", type="gate"), "/v1/approvals?type=gate&view=mine", {}),
    (
        lambda c: c.approvals.decide("a", False, "no", plan_digest="d", client_request_id="u"),
        "/v1/approvals/a/decision",
        {"approved": False, "reason": "no", "plan_digest": "d", "client_request_id": "u"},
    ),
    (
        lambda c: c.approvals.decide("a", True, dry_run=True),
        "/v1/approvals/a/decision",
        {"approved": True, "dry_run": True},
    ),
    (
        lambda c: c.approvals.withdraw("a", "not needed", client_request_id="u"),
        "/v1/approvals/a/withdraw",
        {"reason": "not needed", "client_request_id": "u"},
    ),
    (
        lambda c: c.executions.rerun("r", from_step_id="s", environment="production", client_request_id="u"),
        "/v1/executions/r/rerun",
        {"from_step_id": "s", "environment": "production", "client_request_id": "u"},
    ),
    (
        lambda c: c.executions.replay("r", flow_slug="f", freeze_release=True, dry_run=True),
        "/v1/executions/r/replay",
        {"flow_slug": "f", "freeze_release": True, "dry_run": True},
    ),
    (
        lambda c: c.executions.pause("r", until="2026-06-01T08:00:00Z", plan_digest="d", client_request_id="u"),
        "/v1/executions/r/pause",
        {"until": "2026-06-01T08:00:00Z", "plan_digest": "d", "client_request_id": "u"},
    ),
    (
        lambda c: c.stages.reconcile("s", outcome="committed", note="seen", output="", client_request_id="u"),
        "/v1/stages/s/reconcile",
        {"outcome": "committed", "note": "seen", "output": "", "client_request_id": "u"},
    ),
    (
        lambda c: c.executions.add_evidence(
            "r", "e", summary={"outcome": "committed"}, source="bank", clean=True, client_request_id="u"
        ),
        "/v1/executions/r/effects/e/evidence",
        {"summary": {"outcome": "committed"}, "source": "bank", "clean": True, "client_request_id": "u"},
    ),
    (
        lambda c: c.executions.reconcile_effect("r", "e", outcome="absent", note="asked", client_request_id="u"),
        "/v1/executions/r/effects/e/reconciliation",
        {"outcome": "absent", "note": "asked", "client_request_id": "u"},
    ),
]


@pytest.mark.parametrize(("call", "path", "body"), CALLS)
def test_each_verb_has_its_path_and_body(
    server: ProtocolServer, ask: Ask, call: Callable[[Any], Any], path: str, body: dict[str, Any]
) -> None:
    """O9–O12, P78–P80."""
    server.answers[path.partition("?")[0]] = (200, {"ok": True})
    assert ask(call) == {"ok": True}
    assert server.requests == [(path, body)]


def test_a_changed_plan_comes_with_the_new_one_and_a_verdict_with_its_reasons(server: ProtocolServer, ask: Ask) -> None:
    """O27, O28."""
    server.answers["/v1/executions/r/rerun"] = problem(409, "plan_changed", plan={"plan_digest": "d"})
    with pytest.raises(PlanChanged) as changed:
        ask(lambda c: c.executions.rerun("r", plan_digest="e"))
    assert changed.value.plan["plan_digest"] == "d"
    told = {"operation_id": "o", "disposition": "operator_review_required", "reasons": [{"code": "open"}]}
    server.answers["/v1/executions/r/rerun"] = problem(409, "operator_review_required", **told)
    with pytest.raises(OperatorReviewRequired) as review:
        ask(lambda c: c.executions.rerun("r"))
    assert {name: getattr(review.value, name) for name in told} == told
    assert review.value.key_used


def test_a_verb_repeated_after_an_unknown_outcome_bears_the_same_id_and_a_new_one_another(
    server: ProtocolServer, ask: Ask
) -> None:
    """O29, O31: automatic repeats act once, two calls are two acts."""
    server.answers["/v1/stages/s/retry"] = (200, {})
    server.fail("/retry", "cut_after", times=2)
    ask(lambda c: c.stages.retry("s", reason="again"))
    ask(lambda c: c.stages.retry("s", reason="again"))
    ids = [body["client_request_id"] for body in server.bodies("/retry")]
    assert len(ids) == 4
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert ids[0] == ids[0].lower()


def test_context_and_keywords_may_be_mappings(server: ProtocolServer, ask: Ask) -> None:
    """P89, P24."""
    ask(
        lambda c: create(c, context={"a": "1"}, keywords=[{"key": "b", "value": "2"}], trace_id="t", deadline_seconds=5)
    )
    body = server.bodies("/idempotent")[0]
    assert body["contextItems"] == [{"key": "a", "value": "1"}]
    assert body["keywords"] == [{"key": "b", "value": "2"}]
    assert (body["traceId"], body["deadlineSeconds"]) == ("t", 5)


def test_a_managed_run_sends_its_input_as_an_object(server: ProtocolServer, ask: Ask) -> None:
    ask(lambda c: c.runs.create(idempotency_key="k", pipeline="invoices", input={"n": 1}))
    assert server.bodies("/idempotent") == [{"idempotencyKey": "k", "pipeline": "invoices", "input": {"n": 1}}]


def test_the_example_of_the_operations_guide_runs(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """O12: address alone; the token comes from the environment."""
    monkeypatch.setenv("RECOURSE_TOKEN", TOKEN)
    monkeypatch.delenv("RECOURSE_API_KEY", raising=False)
    execution_id = "r"
    for verb in ("pause", "resume"):
        server.answers[f"/v1/executions/r/{verb}"] = (200, {"execution_id": "r", "status": f"{verb}_signal_sent"})

    async def example() -> list[Any]:
        async with Client(server.url) as client:
            return [await client.executions.pause(execution_id), await client.executions.resume(execution_id)]

    paused, resumed = asyncio.run(example())
    assert paused == {"execution_id": "r", "status": "pause_signal_sent"}
    assert resumed == {"execution_id": "r", "status": "resume_signal_sent"}


def test_the_key_may_stand_in_either_variable(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10."""
    monkeypatch.delenv("RECOURSE_API_KEY", raising=False)
    monkeypatch.setenv("PIPELOGIQ_API_KEY", API_KEY)
    with SyncClient(server.url) as client:
        assert create(client)["created"] is True
    monkeypatch.setenv("RECOURSE_API_KEY", "another")
    with SyncClient(server.url) as client, pytest.raises(Unauthorized):
        create(client)


def test_what_is_missing_is_named_before_anything_is_sent(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RECOURSE_API_KEY", "PIPELOGIQ_API_KEY", "RECOURSE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with SyncClient(server.url) as client:
        with pytest.raises(ConfigurationError, match="RECOURSE_API_KEY"):
            create(client)
        with pytest.raises(ConfigurationError, match="RECOURSE_TOKEN"):
            client.executions.pause("r")
    assert server.requests == []
