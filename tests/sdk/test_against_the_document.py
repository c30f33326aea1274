"""What the SDK sends is what the OpenAPI documents allow: paths, methods and the names in bodies."""

from __future__ import annotations

import inspect
import re
import uuid
from typing import Any

import pytest
from recourse import Job, Registry, StageContext, execution
from recourse.calls import Approvals, Artifacts, Call, Executions, Operations, Runs, Stages
from recourse.links import Recorder

from config.openapi import application_schema, operations_schema
from pipelines.api.serializers import EffectsTold, Leaving
from pipelines.api.worker_artifacts import ArtifactGiven

TRUE = {"approved", "acknowledge_effects", "sealed", "clean", "freeze_release"}
ANSWERS = dict.fromkeys(TRUE, True) | {
    "output": {"a": 1},
    "summary": {"a": 1},
    "evidence": {},
    "answer": {"request_digest": "0" * 64, "status": "failed", "output": 1, "error_code": "X", "source": "the desk"},
    "dry_run": False,
    "data": b"x",
}
LATER = {"limits"}  # named by the contract, refused by this version


def calls() -> list[Call]:
    """Every call that a client has, with everything said that may be said."""
    made: list[Call] = []
    for kind in (Runs, Stages, Executions, Operations, Approvals, Artifacts):
        group = kind(made.append)
        for name, method in inspect.getmembers(group, inspect.ismethod):
            if not name.startswith("_"):
                method(**{one: said(one) for one in inspect.signature(method).parameters if one not in LATER})
    return made


def said(name: str) -> Any:
    if name in ANSWERS:
        return ANSWERS[name]
    if name.endswith("_id"):
        return str(uuid.UUID(int=1))
    if name in ("stages",):
        return [{"stageName": "one", "stageHandlerName": "H"}]
    if name in ("context", "keywords"):
        return {"order": "7"}
    return 60 if name == "deadline_seconds" else None if name in ("pipeline", "input") else "text"


def described(method: str, path: str) -> dict[str, Any]:
    """The operation of the documents that a request would reach."""
    for document in (application_schema(), operations_schema()):
        for template, operations in document["paths"].items():
            pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, "/" + path.split("?", maxsplit=1)[0].lstrip("/")) and method.lower() in operations:
                return {"document": document, **operations[method.lower()]}
    raise AssertionError(f"no document has {method} /{path}")


def names_of_body(operation: dict[str, Any]) -> set[str]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = operation["document"]["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return set(schema["properties"])


def test_every_call_of_the_clients_is_in_the_documents_with_its_fields() -> None:
    made = calls()
    assert len(made) >= 31
    for call in made:
        operation = described(call.method, call.path)
        if call.body:
            assert set(call.body) <= names_of_body(operation), call.path


@pytest.mark.parametrize(
    "path",
    [
        "workers/bootstrap",
        "workers/shutdown",
        "jobs/pull",
        "leases/renew",
        "results",
        f"stages/{uuid.UUID(int=1)}/release",
        f"stages/{uuid.UUID(int=1)}/effects",
        f"stages/{uuid.UUID(int=1)}/checkpoints",
        f"stages/{uuid.UUID(int=1)}/artifacts",
        f"stages/{uuid.UUID(int=1)}/progress",
        f"stages/{uuid.UUID(int=1)}/logs",
    ],
)
def test_every_route_that_a_worker_calls_is_in_the_documents(path: str) -> None:
    assert described("POST", path)["responses"]


def test_what_a_worker_reports_of_an_attempt_has_the_documents_names() -> None:
    registry = Registry()

    @registry.handler("H")
    def fails(ctx: Any) -> None:
        ctx.log("info", "about to fail")
        ctx.context.set("order", "7")
        raise RuntimeError("no")

    ids = {"stageId": str(uuid.UUID(int=1)), "executionId": str(uuid.UUID(int=2)), "attempt": 1}
    report = execution.run(Job({**ids, "stageHandlerName": "H", "requestDigest": "0" * 64}), registry)
    names = names_of_body(described("POST", f"stages/{ids['stageId']}/result"))
    assert set(report.body) - {"stageId"} <= names
    assert {"errorCode", "traceback", "contextItems", "logs"} <= set(report.body)


def test_what_a_handler_tells_of_its_effects_and_state_has_the_documents_names() -> None:
    ids = {"stageId": str(uuid.UUID(int=1)), "executionId": str(uuid.UUID(int=2)), "attempt": 1, "idempotencyKey": "k"}
    ctx = StageContext(Job({**ids, "stageHandlerName": "H"}))
    with ctx.effect("external_http", step="charge", request="body") as effect:
        effect.external_ref, effect.detail = "ref", {"a": 1}
    ctx.checkpoint({"a": 1}, posture={"sideEffects": []})
    ctx.artifact("report", b"x", "text/plain")
    assert isinstance(ctx.link, Recorder)
    for what, body in ctx.link.written:
        assert set(body) <= names_of_body(described("POST", f"stages/{ids['stageId']}/{what}"))
    _, settled, left, artifact = (body for _, body in ctx.link.written)
    assert EffectsTold.clean(settled)["effects"][0]["external_ref"] == "ref"
    assert Leaving.clean(left)["state"] == {"a": 1}
    assert ArtifactGiven.clean(artifact)["content"] == b"x"
    assert described("GET", f"artifacts/{uuid.UUID(int=1)}")["responses"]


def test_a_call_that_no_document_has_would_be_found_out() -> None:
    with pytest.raises(AssertionError, match="no document has"):
        described("POST", "pipelines/unheard-of/really")
