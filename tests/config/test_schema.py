"""The OpenAPI documents are true: what they allow is answered as they say, and nothing makes the console stumble."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from django.contrib.staticfiles import finders
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from approvals.models import ApprovalRule
from config.openapi import application_schema, operations_schema
from config.security import POLICY
from config.wsgi import application
from pipelines import catalog, keyring, keys, releases, triggers
from pipelines.models import Application, Checkpoint, DeadLetter, Environment, Gate, KeyScope, Run
from tests.cast import Hand, Person, Worker, stages_of
from tests.kept import table_of
from tests.pipelines.blackout_nights import on_dates
from tests.recovery.stories import effect_of, in_review

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BOUNDED = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def _api(document: dict[str, Any]) -> Any:
    api = schemathesis.openapi.from_dict(document)
    api.app = application
    return api


operations = _api(operations_schema())
# a shut down session would be of no use to the calls after it
applications = _api(application_schema()).exclude(path="/workers/shutdown")


@pytest.fixture
def things(
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    application: Application,
    environment: Environment,
) -> dict[str, str]:
    """One of each thing that a path may name, so that calls get past 404."""
    run = start_run("first", "second")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    effect = effect_of(run, "first")
    admin = people["admin"].actor
    pipeline, _ = catalog.save_pipeline(actor=admin, slug="nightly", name="Nightly")
    definition = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}]}
    release, _ = releases.register_release(
        actor=admin, pipeline=pipeline, environment=environment, definition=definition, activate=False
    )
    policy = catalog.add_policy(
        actor=admin, name="calm", kind="timeout", match={}, rule={"seconds": 5}, status="paused"
    )
    trigger = triggers.create(
        actor=admin,
        wanted={
            "pipeline": "nightly",
            "environment": environment.slug,
            "application": application.name,
            "cron": "0 8 * * *",
            "timezone": "UTC",
        },
    )
    return {
        "execution_id": str(run.id),
        "run_id": str(run.id),
        "stage_id": str(stages_of(run)[0].id),
        "effect_id": str(effect.id),
        "approval_id": str(in_review(run).id),
        "letter_id": str(DeadLetter.objects.get().id),
        "application_id": str(application.id),
        "release_id": str(release.id),
        "policy_id": str(policy.id),
        "trigger_id": str(trigger.id),
        "blackout_id": str(on_dates(run.workspace, "2020-01-01").id),
        "rule_id": str(ApprovalRule.objects.create(workspace_id=run.workspace_id, name="x", kinds=["retry"]).id),
        "key_id": str(keyring.read(run.workspace_id).active),
        "checkpoint_id": str(Checkpoint.objects.filter(run=run).latest("sequence").id),
        "table_id": str(table_of(run).id),
    }


@operations.parametrize()
@BOUNDED
def test_the_operations_api_answers_as_it_says(case: Any, things: dict[str, str], people: dict[str, Person]) -> None:
    """Never a 500; status, content type and shape as documented."""
    call(case, things, {"Authorization": f"Bearer {people['admin'].token}"})


@operations.include(path_regex="/checkpoints").parametrize()
@BOUNDED
def test_the_runtime_routes_answer_a_service_as_they_say(
    case: Any, things: dict[str, str], application: Application, environment: Environment
) -> None:
    """Never a 500; status, content type and shape as documented."""
    call(case, things, {"X-API-Key": keys.issue_key(application, environment, scope=KeyScope.RUNTIME)[1]})


@operations.include(path_regex="/approvals").parametrize()
@BOUNDED
def test_the_routes_of_approvals_answer_about_gates_as_they_say(
    case: Any, things: dict[str, str], start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    """Never a 500; status, content type and shape as documented."""
    run = start_run({"name": "scope", "approval": {"when": "before"}})
    gate = {"approval_id": str(Gate.objects.get(run=run).id)}
    call(case, things | gate, {"Authorization": f"Bearer {people['admin'].token}"})


@applications.parametrize()
@BOUNDED
def test_the_application_api_answers_as_it_says(case: Any, things: dict[str, str], worker: Worker) -> None:
    """Never a 500; status, content type and shape as documented."""
    if isinstance(case.body, dict) and "waitSeconds" in case.body:
        case.body["waitSeconds"] = 0
    call(case, things, worker.headers)


def call(case: Any, things: dict[str, str], headers: dict[str, str]) -> None:
    for name in case.path_parameters or {}:
        case.path_parameters[name] = things.get(name, case.path_parameters[name])
    # the console is called in this process: the end of a request must not close the test's own transaction
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    response = case.call(headers=headers)
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
    case.validate_response(response, checks=CHECKS)


def test_the_document_names_every_route_of_v1(client: Client) -> None:
    answer = client.get("/v1/schema")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    document = answer.json()
    assert document["openapi"].startswith("3.")
    assert document["info"]["title"] == "Recourse operations API"
    assert document == json.loads(json.dumps(operations_schema()))
    assert "/v1/executions/{execution_id}/pause" in document["paths"]
    assert document["components"]["securitySchemes"]["person"] == {"type": "http", "scheme": "bearer"}


def test_who_writes_a_worker_finds_its_document_too(client: Client) -> None:
    answer = client.get("/v1/application-schema")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    document = answer.json()
    assert document["info"]["title"] == "Recourse application API"
    assert {"/jobs/pull", "/workers/bootstrap", "/pipelines/idempotent"} <= document["paths"].keys()
    assert document["components"]["securitySchemes"]["worker"]["name"] == "X-Worker-Session"


def test_the_documents_speak_of_no_rule_by_its_number() -> None:
    """Docstrings name the rules that they serve; whoever calls has never seen those."""
    for document in (operations_schema(), application_schema()):
        assert not re.findall(r"[^\"]*\b[PRONFI]\d{1,3}\b[^\"]*", json.dumps(document, ensure_ascii=False))


def test_the_page_runs_only_scripts_of_this_server(client: Client) -> None:
    """The policy is the strict one, and nothing on the page needs more."""
    answer = client.get("/v1/docs")
    assert answer.status_code == 200
    assert answer.headers["Content-Security-Policy"] == POLICY
    page = answer.content.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert not re.search(r"\son\w+=|\sstyle=", page)
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sources
    assert all(source.startswith("/") and not source.startswith("//") for source in sources)


def test_what_the_page_loads_is_there(client: Client) -> None:
    page = client.get("/v1/docs").content.decode()
    for source in re.findall(r'(?:src|href)="/static/([^"]+)"', page):
        assert finders.find(source), source


@pytest.mark.parametrize("path", ["/v1/schema", "/v1/application-schema", "/v1/docs"])
def test_the_documents_are_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405
