"""What the SDK sends is what the OpenAPI documents allow: paths, methods and the names in bodies."""

from __future__ import annotations

import inspect
import re
import typing
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from recourse import Job, Registry, StageContext, execution
from recourse.calls import Call, Groups
from recourse.calls.methods import Sync, asks, lists, plans
from recourse.links import Recorder

from config.client_models import answers_of, either, is_page
from config.openapi import application_schema, operations_schema
from pipelines.api.serializers import EffectsTold, Leaving
from pipelines.api.worker_artifacts import ArtifactGiven

NO_METHOD = {
    (
        "POST",
        "/pipelines",
    ): "it is older, is not safe to repeat, and has been replaced: `runs.create` is what makes runs",
}
ANSWERS: dict[str, Any] = {
    "answer": dict.fromkeys(("request_digest", "status", "output", "error_code", "error_message", "source"), "x"),
    "data": b"x",
    "next": None,
    "dry_run": False,
    "as_person": False,
    "wait_seconds": 1,
    "attempt": 1,
    "deadline_seconds": 60,
}
MAPPINGS = {"definition", "match", "rule", "filter", "metadata", "evidence", "usage", "termination", "recovery_posture"}


class Noted(Sync):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []

    def send(self, call: Call[Any]) -> Any:
        self.calls.append(call)


def methods() -> Iterator[tuple[str, Any, Any]]:
    """Every method that both clients have: its name, what defines it, and it itself."""
    groups = {name: group for name, group in vars(Groups(Noted())).items() if not name.startswith("_")}
    for group_name, group in groups.items():
        for name, defined in vars(type(group)).items():
            if isinstance(defined, asks | plans | lists):
                yield f"{group_name}.{name}", defined, getattr(group, name)


def calls_of(defined: Any, bound: Any) -> list[Call[Any]]:
    """What a method sends when everything is said that may be; its dry run besides, and each way that it has."""
    sender: Noted = bound.__wrapped__.__self__._sender
    sender.calls.clear()
    words = {name: said(name) for name in inspect.signature(bound).parameters}
    bound(**words)
    if isinstance(defined, plans):
        bound.plan(**words)
    if "as_person" in words:
        bound(**words | {"as_person": True})
    return list(sender.calls)


def calls() -> list[tuple[str, Any, Call[Any]]]:
    return [(name, defined, call) for name, defined, bound in methods() for call in calls_of(defined, bound)]


def said(name: str) -> Any:
    if name in ANSWERS:
        return ANSWERS[name]
    if name.endswith("_id"):
        return str(uuid.UUID(int=1))
    if name in ("context", "keywords", *MAPPINGS):
        return {"order": "7"}
    return [{"a": "b"}] if name in ("stages", "effects", "lines", "leases", "results", "recipients") else "text"


def described(method: str, path: str) -> dict[str, Any]:
    """The operation of the documents that a request would reach."""
    wanted = "/" + path.split("?", maxsplit=1)[0].lstrip("/")
    found: dict[str, dict[str, Any]] = {}
    for document in (application_schema(), operations_schema()):
        for template, operations in document["paths"].items():
            pattern = re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template))
            if re.fullmatch(pattern, wanted) and method.lower() in operations:
                found[template] = {"document": document, "template": template, **operations[method.lower()]}
    if not found:
        raise AssertionError(f"no document has {method} /{path}")
    return found[min(found, key=lambda template: template.count("{"))]


def names_of_body(operation: dict[str, Any]) -> set[str]:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    while "$ref" in schema:
        schema = operation["document"]["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return set(schema.get("properties", ()))


def names_of_query(operation: dict[str, Any]) -> set[str]:
    return {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"}


def taken(defined: Any, call: Call[Any]) -> set[str]:
    """The names that a call says something by; a list's `next` stands for where a page begins."""
    query = set(parse_qs(urlsplit(call.path).query))
    cursor = {"cursor"} if "next" in inspect.signature(defined.define).parameters else set()
    return query | cursor | set(call.body or ())


def test_every_call_of_the_clients_is_in_the_documents_with_its_fields() -> None:
    """O11: a client says nothing that the API would refuse by name."""
    for name, defined, call in calls():
        operation = described(call.method, call.path)
        known = names_of_body(operation) | names_of_query(operation)
        assert taken(defined, call) <= known, f"client.{name} says what {call.method} {operation['template']} has not"


def test_every_route_of_the_documents_has_a_method_that_takes_all_that_it_takes() -> None:
    """O11: the whole API. A new route, parameter or field is named here until `recourse/calls/` has it."""
    said_of: dict[tuple[str, str], set[str]] = {}
    names: dict[tuple[str, str], str] = {}
    for name, defined, call in calls():
        route = (call.method, described(call.method, call.path)["template"])
        said_of[route] = said_of.get(route, set()) | taken(defined, call)
        names[route] = name
    missing = []
    for method, template, operation in operations_of_documents():
        if (method, template) in NO_METHOD:
            continue
        if (method, template) not in said_of:
            missing.append(f"no method for {method} {template}: add one in sdk/recourse/calls/")
            continue
        known = names_of_body(operation) | (names_of_query(operation) - path_names(template))
        if lacking := known - said_of[method, template]:
            missing.append(f"client.{names[method, template]} does not take {sorted(lacking)} of {method} {template}")
    assert not missing, "\n".join(missing)


def operations_of_documents() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for document in (operations_schema(), application_schema()):
        for template, operations in document["paths"].items():
            for method, operation in operations.items():
                if "responses" in operation:
                    yield method.upper(), template, {"document": document, **operation}


def path_names(template: str) -> set[str]:
    return set(re.findall(r"{(\w+)}", template))


def test_what_has_no_method_is_there() -> None:
    assert set(NO_METHOD) <= {(method, template) for method, template, _ in operations_of_documents()}


def test_every_write_has_a_key_or_says_what_the_same_again_does() -> None:
    """O29, P27: whatever its outcome was, a call may be repeated."""
    keyed = 0
    for name, _, call in calls():
        body: Mapping[str, Any] = call.body or {}
        if call.method == "GET" or body.get("dry_run"):
            assert (call.key, call.again) == (None, "")
            continue
        assert bool(call.key) != bool(call.again), f"client.{name}: either a key, or `again`"
        if "client_request_id" in names_of_body(described(call.method, call.path)):
            assert call.key == body["client_request_id"], f"client.{name} sends no key"
            keyed += 1
    assert keyed >= 30


def test_a_token_goes_to_the_operations_api_and_to_nothing_else() -> None:
    """O12: the application API takes the application's key, also where a person's token is set."""
    for name, _, call in calls():
        assert not call.person or call.path.startswith("v1/"), f"client.{name} sends a token to {call.path}"


def test_a_write_without_a_key_of_the_callers_gets_one_of_its_own_each_time() -> None:
    """O29, O31."""
    for name, _, bound in methods():
        parameters = inspect.signature(bound).parameters
        if "client_request_id" in parameters:
            bound.__wrapped__.__self__._sender.calls.clear()
            words = {one: said(one) for one in parameters if one != "client_request_id"}
            bound(**words)
            bound(**words)
            first, second = (call.key for call in bound.__wrapped__.__self__._sender.calls)
            assert uuid.UUID(first) != uuid.UUID(second), name
            assert first == str(uuid.UUID(first))


def test_every_method_promises_what_the_documents_promise() -> None:
    """O11: the models of the answers, of dry runs, and of the items of lists."""
    for name, defined, call in calls():
        operation = described(call.method, call.path)
        told = typing.get_type_hints(defined.define)["return"]
        answer = typing.get_args(told)[0]
        if call.bytes_with_digest:
            assert answer.__name__ == "Content"
            continue
        shapes = operation["document"]["components"]["schemas"] | dict(either(operation["document"]))
        (expected,) = (
            answers_of(operation, shapes)
            if len(answers_of(operation, shapes)) == 1
            else ["Or".join(answers_of(operation, shapes))]
        )
        if call.inside:
            expected = shapes[expected]["properties"][call.inside]["$ref"].rsplit("/", 1)[1]
        if is_page(expected, shapes[expected]):
            item = shapes[expected]["properties"]["results"]["items"]["$ref"].rsplit("/", 1)[1]
            assert typing.get_args(answer)[0].__name__ == item, name
            assert isinstance(defined, lists), f"client.{name} is a list: let it be iterated over"
        else:
            assert answer.__name__ == expected, name


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
        f"stages/{uuid.UUID(int=1)}/store/table",
        f"stages/{uuid.UUID(int=1)}/store/insert",
        f"stages/{uuid.UUID(int=1)}/store/upsert",
        f"stages/{uuid.UUID(int=1)}/store/read",
        f"stages/{uuid.UUID(int=1)}/store/delete",
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
