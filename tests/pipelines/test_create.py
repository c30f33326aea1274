"""Creating runs through the application API: once for each key, whatever is repeated, reordered or left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.access import Actor
from pipelines.catalog import save_pipeline
from pipelines.keys import issue_key
from pipelines.models import Environment, Gate, Pipeline, Release, Run, RunIdentity, Stage
from pipelines.releases import register_release
from tests.cast import Api, Person
from tests.clock import Clock
from tests.factories import PipelineFactory


def request(**changes: Any) -> dict[str, Any]:
    body = {
        "idempotencyKey": "invoice-42:validate:v1",
        "name": "validate-invoice",
        "stages": [
            {"stageName": "validate", "stageHandlerName": "Validate", "input": '{"invoiceId":"invoice-42"}'},
            {"stageName": "send", "stageHandlerName": "Send"},
        ],
    }
    return {name: value for name, value in {**body, **changes}.items() if value is not ...}


def create(api: Api, **changes: Any) -> Any:
    return api.post("/pipelines/idempotent", request(**changes))


def test_a_new_key_makes_a_run_and_the_same_request_finds_it(api: Api) -> None:
    """P18, P19: 201 with the run, then 200 with the same run, told apart by `created` and `wasExisting`."""
    first = create(api)
    assert first.status_code == 201
    run = first.json()["pipeline"]
    assert first.json() | {"pipeline": None} == {"created": True, "wasExisting": False, "pipeline": None}
    again = create(api)
    assert again.status_code == 200
    assert again.json() == {"created": False, "wasExisting": True, "pipeline": run}
    assert Run.objects.count() == 1
    assert Stage.objects.count() == 2


def test_the_answer_shows_the_whole_run_in_the_contract_s_words(api: Api) -> None:
    """Contract §2: every field of the pipeline and of its stages, P16 input byte for byte."""
    odd = '{"invoiceId":  "invoice-42",\n\t"ü": "\\u00e9\\\\"}'
    stage = {"stageName": "validate", "stageHandlerName": "Validate", "input": odd, "effectMode": "external"}
    run = create(api, stages=[stage], traceId="t-1", deadlineSeconds=60).json()["pipeline"]
    assert set(run) == {
        "id", "name", "status", "isTerminal", "applicationId", "environment", "releaseId", "idempotencyKey", "traceId",
        "createdAt", "startedAt", "finishedAt", "deadlineAt", "contextItems", "keywords", "stages",
    }  # fmt: skip
    assert (run["status"], run["isTerminal"], run["environment"]) == ("queued", False, "development")
    assert (run["traceId"], run["startedAt"], run["finishedAt"]) == ("t-1", None, None)
    assert run["deadlineAt"] > run["createdAt"]
    (shown,) = run["stages"]
    assert set(shown) == {
        "id", "pipelineId", "stageName", "stageHandlerName", "status", "epoch", "attempt", "retryAttempt",
        "recoveryCount", "nextRetryAt", "startedAt", "finishedAt", "input", "output", "lastErrorCode",
        "lastErrorMessage", "failureDisposition", "dependsOn", "options", "effectMode", "requestDigest", "isTerminal",
    }  # fmt: skip
    assert (shown["input"], shown["effectMode"], shown["status"], shown["epoch"]) == (odd, "external", "ready", 1)
    assert shown["options"] == {"backoff": "fixed", "jitter": False, "maxRecoveries": 3, "maxOutputBytes": 262144}


def test_without_dependencies_stages_run_one_after_another(api: Api) -> None:
    """Contract §2: the order is the dependency, unless any stage names its own."""
    chain = create(api).json()["pipeline"]["stages"]
    assert [(stage["status"], stage["dependsOn"]) for stage in chain] == [("ready", []), ("pending", ["validate"])]
    named = [
        {"stageName": "a", "stageHandlerName": "H"},
        {"stageName": "b", "stageHandlerName": "H"},
        {"stageName": "c", "stageHandlerName": "H", "dependsOn": ["a", "b"]},
    ]
    graph = create(api, idempotencyKey="graph", stages=named).json()["pipeline"]["stages"]
    assert [(stage["status"], stage["dependsOn"]) for stage in graph] == [
        ("ready", []),
        ("ready", []),
        ("pending", ["a", "b"]),
    ]


def test_a_handler_nobody_has_leaves_the_stage_waiting_for_one(api: Api) -> None:
    """P15: queued, not failed."""
    run = create(api).json()["pipeline"]
    assert api.get(f"/pipelines/{run['id']}").json()["status"] == "queued"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "validate-invoices"},
        {"stages": request()["stages"][::-1]},
        {"stages": request()["stages"][:1]},
        {"contextItems": [{"key": "invoice", "value": "42"}]},
        {"contextItems": [{"key": "invoice", "value": "42", "isSensitive": True}]},
        {"keywords": [{"key": "customer", "value": "7"}]},
        {"deadlineSeconds": 60},
        {"stages": [{**request()["stages"][0], "input": '{"invoiceId":"invoice-43"}'}, request()["stages"][1]]},
        {"stages": [{**request()["stages"][0], "options": {"maxRetries": 1}}, request()["stages"][1]]},
    ],
)
def test_the_key_with_another_intent_conflicts(api: Api, changes: dict[str, Any]) -> None:
    """P20, P23: 409, naming the run that has the key; nothing is made or changed."""
    first = create(api).json()["pipeline"]
    refused = create(api, **changes)
    assert refused.status_code == 409
    assert (refused.json()["code"], refused.json()["keyUsed"]) == ("idempotency_conflict", True)
    assert Run.objects.count() == 1
    assert api.get(f"/pipelines/{first['id']}").json() == first


@pytest.mark.parametrize(
    "changes",
    [
        {"traceId": "other", "traceparent": "00-1-2-01", "tracestate": "a=b"},
        {"idempotencyKey": "  invoice-42:validate:v1\t"},
        {"environment": "development"},
        {"contextItems": [], "keywords": None, "deadlineSeconds": None},
        {"stages": [{**stage, "dependsOn": []} for stage in request()["stages"]]},
        {
            "stages": [
                {
                    **stage,
                    "mode": "execute",
                    "effectMode": "idempotent",
                    "effectProtocol": "none",
                    "description": "",
                    "runNextIfFailed": False,
                    "options": {"backoff": "fixed", "jitter": False, "maxRecoveries": 3, "maxOutputBytes": 262144},
                }
                for stage in request()["stages"]
            ]
        },
    ],
)
def test_trace_fields_and_spelled_out_defaults_are_the_same_request(api: Api, changes: dict[str, Any]) -> None:
    """P24, model §3.6: the fingerprint is taken after defaults are filled in, without trace fields."""
    first = create(api)
    assert first.status_code == 201
    again = create(api, **changes)
    assert again.status_code == 200, again.content
    assert again.json()["pipeline"] == first.json()["pipeline"]


def test_the_order_of_keywords_and_context_does_not_count(api: Api) -> None:
    """Contract §2."""
    pairs = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    assert create(api, contextItems=pairs, keywords=pairs).status_code == 201
    assert create(api, contextItems=pairs[::-1], keywords=pairs[::-1]).status_code == 200


def test_the_scope_of_a_key_is_its_application(api: Api, sibling_key: str, foreign_key: str) -> None:
    """P21: the same key and body under another application is a run of its own."""
    ids = {create(api).json()["pipeline"]["id"]}
    for secret in (sibling_key, foreign_key):
        answer = create(Api({"X-API-Key": secret}))
        assert answer.status_code == 201
        ids.add(answer.json()["pipeline"]["id"])
    assert len(ids) == 3


def test_a_conflict_tells_a_key_nothing_of_another_environment(
    api: Api, application: Any, environments: dict[str, Environment]
) -> None:
    """I16: the environment is part of the intent, so the key conflicts; the other run's id stays unknown."""
    first = create(api).json()["pipeline"]["id"]
    assert create(api, name="other").json()["pipelineId"] == first
    staging = Api({"X-API-Key": issue_key(application, environments["staging"])[1]})
    refused = create(staging)
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
    assert first not in refused.content.decode()
    assert (
        staging.post("/pipelines/by-idempotency-key", {"idempotencyKey": request()["idempotencyKey"]}).status_code
        == 404
    )


def test_a_key_whose_run_has_ended_finds_it_and_says_so(api: Api) -> None:
    """F121: a repeat gets the run as it stands, and nothing is started."""
    first = create(api).json()["pipeline"]["id"]
    api.post(f"/pipelines/{first}/cancel")
    again = create(api)
    assert (again.status_code, again.json()["created"], again.json()["wasExisting"]) == (200, False, True)
    assert (again.json()["pipeline"]["status"], again.json()["pipeline"]["isTerminal"]) == ("cancelled", True)
    assert Run.objects.count() == 1


def test_a_key_stays_with_its_run(api: Api, clock: Clock) -> None:
    """P22: no time limit of its own."""
    first = create(api).json()["pipeline"]["id"]
    clock.advance(days=400)
    again = create(api)
    assert (again.status_code, again.json()["pipeline"]["id"]) == (200, first)


def test_a_refused_request_keeps_no_key(api: Api) -> None:
    """F127: after a definite refusal the key is free for the mended request, and the answer says so."""
    cycle = [
        {**stage, "dependsOn": [other]} for stage, other in zip(request()["stages"], ["send", "validate"], strict=True)
    ]
    for refused in (create(api, stages=cycle), create(api, stages=[]), create(api, environment="production")):
        assert refused.status_code in (400, 409)
        assert refused.json()["keyUsed"] is False
    assert not RunIdentity.objects.exists()
    assert create(api).status_code == 201


def test_the_older_route_makes_a_run_each_time_and_takes_no_key(api: Api) -> None:
    """P8: not idempotent, marked deprecated, and nobody can rely on a key there."""
    body = request(idempotencyKey=...)
    first, second = api.post("/pipelines", body), api.post("/pipelines", body)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first["Deprecation"]
    assert first.json()["id"] != second.json()["id"]
    assert first.json()["idempotencyKey"] is None
    refused = api.post("/pipelines", request())
    assert refused.status_code == 400
    assert "idempotencyKey" in refused.json()["errors"]
    assert Run.objects.count() == 2


def test_another_environment_than_the_key_s_is_refused(api: Api) -> None:
    """Contract §2."""
    for route, body in (("/pipelines/idempotent", request()), ("/pipelines", request(idempotencyKey=...))):
        refused = api.post(route, {**body, "environment": "production"})
        assert (refused.status_code, refused.json()["code"]) == (409, "recovery_environment_mismatch")
    assert not Run.objects.exists()


def test_sensitive_values_are_shown_to_nobody_but_the_worker(api: Api, worker: Any) -> None:
    """P89: identifiers are visible; sensitive ones read [REDACTED] wherever people look."""
    items = [{"key": "invoice", "value": "42"}, {"key": "iban", "value": "DE02", "isSensitive": True}]
    stage = {"stageName": "a", "stageHandlerName": "Handler"}
    answer = create(api, stages=[stage], contextItems=items)
    shown = [
        {"key": "invoice", "value": "42", "isSensitive": False},
        {"key": "iban", "value": "[REDACTED]", "isSensitive": True},
    ]
    assert answer.json()["pipeline"]["contextItems"] == shown
    assert b"DE02" not in api.get(f"/pipelines/{answer.json()['pipeline']['id']}").content
    assert worker.take()["contextItems"][1] == {"key": "iban", "value": "DE02", "isSensitive": True}


@pytest.fixture
def managed(workspace: Any, environment: Environment, people: dict[str, Person]) -> str:
    """A pipeline `daily` with a release in force in development."""
    pipeline = PipelineFactory(workspace=workspace, slug="daily", name="Daily rates")
    stages = [{"name": "fetch", "handler": "Fetch"}, {"name": "store", "handler": "Store", "input": "fixed"}]
    actor: Actor = people["admin"].actor
    definition = {"slug": "daily", "name": "Daily rates", "stages": stages}
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)
    return "daily"


def test_a_managed_run_takes_its_stages_from_the_release_in_force(api: Api, managed: str) -> None:
    """Contract §2: named like the pipeline; the input goes as canonical JSON to stages that have none of their own."""
    body = {"idempotencyKey": "today", "pipeline": managed, "input": {"b": 1, "a": "ü"}}
    first = api.post("/pipelines/idempotent", body)
    assert first.status_code == 201, first.content
    run = first.json()["pipeline"]
    assert run["name"] == "Daily rates"
    assert [(stage["stageName"], stage["input"]) for stage in run["stages"]] == [
        ("fetch", '{"a":"ü","b":1}'),
        ("store", "fixed"),
    ]
    again = api.post("/pipelines/idempotent", {**body, "input": {"a": "ü", "b": 1}})
    assert again.status_code == 200
    assert again.json()["pipeline"]["id"] == run["id"]


def test_a_managed_run_without_input_has_an_empty_one(api: Api, managed: str) -> None:
    """Model §3.6: leaving the input out and sending the empty one are the same request."""
    body = {"idempotencyKey": "today", "pipeline": managed}
    first = api.post("/pipelines/idempotent", body)
    assert first.json()["pipeline"]["stages"][0]["input"] == "{}"
    again = api.post("/pipelines/idempotent", {**body, "input": {}})
    assert (again.status_code, again.json()["pipeline"]) == (200, first.json()["pipeline"])
    assert api.post("/pipelines/idempotent", {**body, "input": {"day": 1}}).status_code == 409


def test_a_managed_run_s_default_name_told_or_left_out_is_the_same_request(
    api: Api, managed: str, people: dict[str, Person]
) -> None:
    """Model §3.6, also when the pipeline is renamed in between; any other name is another request."""

    def ask(key: str, **more: str) -> int:
        return api.post("/pipelines/idempotent", {"idempotencyKey": key, "pipeline": managed, **more}).status_code

    assert (ask("left out"), ask("left out", name="Daily rates")) == (201, 200)
    assert (ask("told", name="Daily rates"), ask("told")) == (201, 200)
    assert (ask("own", name="Mine"), ask("own"), ask("own", name="Daily rates")) == (201, 409, 409)
    assert ask("left out", name="Mine") == 409
    save_pipeline(actor=people["admin"].actor, slug="daily", name="Renamed")
    assert (ask("left out"), ask("left out", name="Daily rates"), ask("left out", name="Renamed")) == (200, 200, 409)
    assert (ask("told", name="Daily rates"), ask("told")) == (200, 409)


def test_a_repeat_finds_its_run_whatever_is_in_force_by_then(
    api: Api, managed: str, people: dict[str, Person], environment: Environment
) -> None:
    """Model §3.6: never over the release it resolved to."""
    body = {"idempotencyKey": "today", "pipeline": managed}
    first = api.post("/pipelines/idempotent", body).json()["pipeline"]
    definition = {"slug": "daily", "name": "Daily rates", "stages": [{"name": "other", "handler": "Other"}]}
    pipeline = Pipeline.objects.get(slug="daily")
    admin = people["admin"].actor
    register_release(actor=admin, pipeline=pipeline, environment=environment, definition=definition, activate=True)
    again = api.post("/pipelines/idempotent", body)
    assert (again.status_code, again.json()["pipeline"]) == (200, first)
    Release.objects.filter(pipeline=pipeline).update(status="retired")
    assert api.post("/pipelines/idempotent", body).status_code == 200
    assert api.post("/pipelines/idempotent", {**body, "idempotencyKey": "tomorrow"}).json()["code"] == (
        "release_not_active"
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pipeline": "unknown"}, "pipeline"),
        ({"pipeline": "daily", "stages": [{"stageName": "a", "stageHandlerName": "H"}]}, "stages"),
        ({"pipeline": "daily", "input": "text"}, "input"),
        ({"pipeline": "daily", "input": {"n": 2**53}}, "input"),
        ({"pipeline": ..., "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "H"}], "input": {}}, "input"),
    ],
)
def test_a_managed_run_s_request_is_checked(api: Api, managed: str, changes: dict[str, Any], field: str) -> None:
    body = {name: value for name, value in {"idempotencyKey": "k", **changes}.items() if value is not ...}
    refused = api.post("/pipelines/idempotent", body)
    assert refused.status_code == 400
    assert list(refused.json()["errors"]) == [field]
    assert not Run.objects.exists()


STAGE = {"stageName": "a", "stageHandlerName": "H"}


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({}, ("", 1, False)),
        ({"approverRole": "approver"}, ("approver", 1, True)),
        ({"approverRole": "release_manager", "count": 20}, ("release_manager", 20, True)),
        ({"approverRole": "admin", "requirePerson": False}, ("admin", 1, True)),
        ({"count": 2}, ("", 2, True)),
        ({"count": 1, "requirePerson": False}, ("", 1, False)),
        ({"requirePerson": True}, ("", 1, True)),
    ],
)
def test_a_gate_asks_for_the_people_that_its_stage_names(
    api: Api, asked: dict[str, Any], fields: tuple[str, int, bool]
) -> None:
    """Model §2: a role, or more than one approver, asks for people by itself."""
    assert create(api, stages=[{**STAGE, "approval": {"when": "before", **asked}}]).status_code == 201
    gate = Gate.objects.get()
    assert (gate.approver_role, gate.count, gate.require_person) == fields


@pytest.mark.parametrize(
    ("asked", "field", "message"),
    [
        ({"approverRole": "cfo"}, "approverRole", "must be one of: approver, release_manager, admin"),
        ({"approverRole": "operator"}, "approverRole", "must be one of: approver, release_manager, admin"),
        ({"approverRole": ""}, "approverRole", "must be one of: approver, release_manager, admin"),
        ({"count": 0}, "count", "from 1 to 20"),
        ({"count": 21}, "count", "from 1 to 20"),
        ({"count": True}, "count", "whole number"),
        ({"count": 1.5}, "count", "whole number"),
        ({"requirePerson": "true"}, "requirePerson", "must be true or false"),
        ({"requirePerson": 1}, "requirePerson", "must be true or false"),
        ({"approver_role": "admin"}, "approver_role", "there is no such field"),
    ],
)
def test_what_no_gate_can_ask_is_refused_with_its_limit(
    api: Api, asked: dict[str, Any], field: str, message: str
) -> None:
    """F135: a role that nobody has must not become a gate that anybody may decide."""
    refused = create(api, stages=[{**STAGE, "approval": {"when": "before", **asked}}])
    path = f"stages[0].approval.{field}"
    assert (refused.status_code, list(refused.json()["errors"])) == (400, [path])
    assert message in refused.json()["errors"][path][0]
    assert not Run.objects.exists()


def test_leaving_out_what_a_gate_asks_for_and_saying_its_default_is_one_request(api: Api) -> None:
    """P20: also to a key that was used before gates could ask for more."""
    told = [{"when": "before"}, {"when": "before", "count": 1, "requirePerson": False}]
    answers = [create(api, stages=[{**STAGE, "approval": approval}]) for approval in told]
    assert [answer.json()["created"] for answer in answers] == [True, False]
    other = create(api, stages=[{**STAGE, "approval": {"when": "before", "count": 2}}])
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


def test_reading_a_run_costs_the_same_whatever_it_holds(
    api: Api, start_run: Callable[..., Run], django_assert_num_queries: Any
) -> None:
    """Style 14: no query per stage or item."""
    many = [{"name": f"s{number}"} for number in range(60)]
    items = [{"key": f"k{number}", "value": "v"} for number in range(50)]
    run = start_run(*many, context_items=items)
    with django_assert_num_queries(3):
        body = api.get(f"/pipelines/{run.id}").json()
    assert (len(body["stages"]), len(body["contextItems"])) == (60, 50)
