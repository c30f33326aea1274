"""Finding runs again: by the key after an unknown outcome, by id; and never anybody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import keys
from pipelines.models import Application, Environment, KeyScope, Run
from tests.cast import Api, unknown_id

CREATE = {"idempotencyKey": "k", "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "Handler"}]}


def test_a_known_key_finds_the_bare_run(api: Api) -> None:
    """P28: trimmed like at creation."""
    created = api.post("/pipelines/idempotent", CREATE).json()["pipeline"]
    for key in ("k", "  k "):
        found = api.post("/pipelines/by-idempotency-key", {"idempotencyKey": key})
        assert (found.status_code, found.json()) == (200, created)


def test_after_an_unknown_outcome_looking_up_tells_whether_to_create(api: Api) -> None:
    """P29, P27: not found, so the creation did not happen; the same key makes it, and is found from then on."""
    lookup = {"idempotencyKey": "k"}
    assert api.post("/pipelines/by-idempotency-key", lookup).status_code == 404
    assert api.post("/pipelines/idempotent", CREATE).status_code == 201
    assert api.post("/pipelines/by-idempotency-key", lookup).status_code == 200
    assert api.post("/pipelines/idempotent", CREATE).status_code == 200
    assert Run.objects.count() == 1


def test_another_application_s_key_finds_nothing(api: Api, sibling_key: str, foreign_key: str) -> None:
    """P28, I16."""
    api.post("/pipelines/idempotent", CREATE)
    for secret in (sibling_key, foreign_key):
        answer = Api({"X-API-Key": secret}).post("/pipelines/by-idempotency-key", {"idempotencyKey": "k"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_key_sees_its_own_environment_only(
    api: Api, application: Application, environments: dict[str, Environment]
) -> None:
    """Contract §2: the same application with a key of another environment sees nothing of this one."""
    created = api.post("/pipelines/idempotent", CREATE).json()["pipeline"]
    staging = Api({"X-API-Key": keys.issue_key(application, environments["staging"])[1]})
    assert staging.post("/pipelines/by-idempotency-key", {"idempotencyKey": "k"}).status_code == 404
    assert staging.get(f"/pipelines/{created['id']}").status_code == 404
    assert staging.post("/pipelines/idempotent", CREATE).status_code == 409  # the environment is part of the intent


APPLICATION_ROUTES = [
    ("get", "/pipelines/{run}", None),
    ("post", "/pipelines/{run}/cancel", {}),
    ("post", "/stages/{stage}/resume", {"approved": True}),
]
WORKER_ROUTES = [
    ("post", "/stages/{stage}/lease/acquire", {"executionId": "{attempt}"}),
    ("post", "/stages/{stage}/lease/renew", {"executionId": "{attempt}"}),
    ("post", "/stages/{stage}/release", {"executionId": "{attempt}"}),
    ("post", "/stages/{stage}/result", {"executionId": "{attempt}", "attempt": 1, "status": "succeeded"}),
    ("post", "/stages/{stage}/progress", {"executionId": "{attempt}"}),
    ("post", "/stages/{stage}/logs", {"executionId": "{attempt}", "lines": [{"level": "info", "message": "m"}]}),
    ("post", "/jobs/ack", {"deliveryId": "{attempt}"}),
]


def filled(body: Any, names: dict[str, str]) -> Any:
    if not isinstance(body, dict):
        return body
    return {name: value.format(**names) if isinstance(value, str) else value for name, value in body.items()}


@pytest.mark.parametrize("whose", ["sibling", "foreign", "nobody"])
@pytest.mark.parametrize(("method", "path", "body"), APPLICATION_ROUTES + WORKER_ROUTES)
def test_what_is_not_one_s_own_does_not_exist(
    whose: str,
    method: str,
    path: str,
    body: Any,
    start_run: Callable[..., Run],
    hand: Any,
    new_worker: Callable[..., Any],
    api_key: str,
    sibling_key: str,
    foreign_key: str,
) -> None:
    """I16: ids of another application, of another workspace and of nobody all answer 404, and nothing changes.

    Also when the body is wrong: a foreign id is looked for first.
    """
    run = start_run("first")
    job = hand.take()
    names = {"run": str(run.id), "stage": str(job.stage.id), "attempt": str(job.attempt_id)}
    secret = {"sibling": sibling_key, "foreign": foreign_key, "nobody": api_key}[whose]
    if whose == "nobody":
        names = {name: unknown_id() for name in names}
    caller = new_worker("w", "Handler", key=secret)
    send = getattr(caller, method)
    bodies = [filled(body, names)] + ([{"nonsense": 1}, b"{"] if "/jobs" not in path and body is not None else [])
    for sent in bodies:
        answer = send(path.format(**names), *([sent] if method == "post" else []))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), sent
    run.refresh_from_db()
    assert run.status == "running"
    assert run.attempts.get().state == "running"


@pytest.mark.parametrize("path", ["/pipelines/1", "/pipelines/none/cancel", "/stages/x/result", "/nope", "/pipelines/"])
def test_what_is_no_id_and_no_route_is_404_in_the_api_s_own_words(worker: Api, path: str) -> None:
    answer = worker.post(path, {})
    assert answer.status_code in (404, 405)
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(("method", "path", "body"), APPLICATION_ROUTES + WORKER_ROUTES)
def test_without_a_live_key_nothing_is_told(method: str, path: str, body: Any, db: None) -> None:
    """P9: 401 before anything is looked for."""
    names = {"run": unknown_id(), "stage": unknown_id(), "attempt": unknown_id()}
    for headers in ({}, {"X-API-Key": "rk_nonsense"}, {"X-API-Key": "ü"}):
        answer = getattr(Api(headers), method)(
            path.format(**names), *([filled(body, names)] if method == "post" else [])
        )
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer["WWW-Authenticate"]


def test_a_key_of_scope_runtime_serves_none_of_these_routes(
    application: Application, environment: Environment, worker: Any
) -> None:
    """Contract §3: it is for the runtime checkpoint routes."""
    runtime = keys.issue_key(application, environment, scope=KeyScope.RUNTIME)[1]
    refused = Api({"X-API-Key": runtime}).post("/pipelines/idempotent", CREATE)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert worker.post("/jobs/pull", {}, X_API_Key=runtime).status_code == 403
    assert not Run.objects.exists()


@pytest.mark.parametrize("change", ["revoked_at", "expires_at"])
def test_a_revoked_or_expired_key_is_401_at_once(api: Api, application: Application, change: str, clock: Any) -> None:
    assert api.post("/pipelines/idempotent", CREATE).status_code == 201
    application.keys.update(**{change: clock.now()})
    assert api.post("/pipelines/idempotent", CREATE).status_code == 401
