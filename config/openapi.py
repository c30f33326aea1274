"""What the APIs say of themselves: OpenAPI 3 written from the routes, and a page to browse it.

The document is the same for everybody, so each process writes it once.
"""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, URLResolver, include, path
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator

from pipelines.api.imports import application_urls as application_imports
from pipelines.api.serializers import Camel
from pipelines.api.shapes import Shape

OPERATIONS: list[URLPattern | URLResolver] = [
    path("v1/", include("pipelines.api.operations")),
    path("v1/", include("pipelines.api.checkpoints")),
    path("v1/", include("pipelines.api.effects")),
    path("v1/", include("pipelines.api.artifacts")),
    path("v1/", include("pipelines.api.store")),
    path("v1/", include("pipelines.api.guarantees")),
    path("v1/", include("pipelines.api.aftermath")),
    path("v1/", include("pipelines.api.imports")),
    path("v1/", include("pipelines.api.account")),
    path("v1/", include("pipelines.api.signing_keys")),
    path("v1/", include("pipelines.api.blackouts")),
    path("v1/", include("approvals.inbox_api")),
    path("v1/", include("approvals.rules_api")),
    path("v1/", include("recovery.api")),
    path("v1/", include("recovery.evidence_graph_api")),
    path("v1/", include("recovery.budget_api")),
    path("v1/", include("recovery.backfill_api")),
    path("v1/", include("recovery.bulk_api")),
    path("v1/", include("pipelines.api.triggers")),  # after what is below `triggers/` and no trigger
]
APPLICATION: list[URLPattern | URLResolver] = [
    path("", include("pipelines.api.application")),
    path("", include("pipelines.api.workers")),
    path("", include("pipelines.api.worker_artifacts")),
    path("", include("pipelines.api.worker_store")),
    path("", include("pipelines.api.worker_runs")),
    path("", include(application_imports)),
    path("", include("approvals.api")),
]

RULES = re.compile(r" \([A-Z]\d+(?:(?:–|, )[A-Z]\d+)*\)")  # which rules a docstring serves: for who reads the code
NOTHING_TO_SAY = {inspect.getdoc(Shape), inspect.getdoc(Camel)}  # what a shape without words of its own would say

PROBLEM = {
    "type": "object",
    "description": "Why a request was refused (RFC 9457).",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    },
}
REFUSED = {
    "description": "Refused; `code` says why.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
PERSON = {"person": {"type": "http", "scheme": "bearer"}}
KEY = {"application": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
SESSION = {"worker": {"type": "apiKey", "in": "header", "name": "X-Worker-Session"}}


@cache
def operations_schema() -> dict[str, Any]:
    """The operations API (`/v1`)."""
    return _document(OPERATIONS, "Recourse operations API", PERSON | KEY, [{"person": []}, {"application": []}])


@cache
def application_schema() -> dict[str, Any]:
    """The application API, for applications and their workers."""
    schemes = KEY | SESSION
    return _document(APPLICATION, "Recourse application API", schemes, [{"application": [], "worker": []}])


@require_safe
def schema(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_text(), content_type="application/json")


@require_safe
def application(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_application_text(), content_type="application/json")


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html")


@cache
def _text() -> str:
    return json.dumps(operations_schema())


@cache
def _application_text() -> str:
    return json.dumps(application_schema())


def _document(
    routes: list[URLPattern | URLResolver], title: str, schemes: dict[str, Any], security: list[dict[str, Any]]
) -> dict[str, Any]:
    generator: Any = SchemaGenerator
    document: dict[str, Any] = generator(patterns=routes, api_version="1").get_schema(public=True)
    document["info"] = {"title": title, "version": "1"}
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    components["securitySchemes"] = schemes
    for shape in components["schemas"].values():
        if shape.get("description") in NOTHING_TO_SAY:
            del shape["description"]
        elif "description" in shape:
            shape["description"] = RULES.sub("", shape["description"])
    document["security"] = security
    for operations in document["paths"].values():
        for operation in operations.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"]["default"] = REFUSED
                operation.pop("security", None)
                operation["description"] = RULES.sub("", operation.get("description", ""))
                operation["summary"] = operation["description"].partition("\n")[0]
    return document
