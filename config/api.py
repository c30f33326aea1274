"""The one place where an error becomes an answer: application/problem+json (RFC 9457), for every API route.

Views of both APIs raise; `handle_error` (DRF's exception handler) and Django's own error views answer. What is not
known here is a fault of ours: it is logged with its traceback and answered as a plain 500.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views import defaults
from rest_framework import exceptions
from rest_framework.parsers import JSONParser
from rest_framework.request import Request

from pipelines.api.bodies import MIB, read_body
from pipelines.errors import Refusal

log = structlog.get_logger(__name__)

# The pages for people answer in HTML; everything else here is an API.
PAGES = ("/console", "/admin", "/static")
OUTAGE_SECONDS = 1  # when to ask again after an outage


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    errors: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """The answer to a refusal: type, title, status, detail, code, and errors by field path when the input is wrong."""
    body: dict[str, Any] = {
        "type": f"urn:recourse:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if errors:
        body["errors"] = errors
    body.update(extra or {})
    return HttpResponse(json.dumps(body), content_type="application/problem+json", status=status, headers=headers)


def handle_error(error: Exception, context: Mapping[str, Any]) -> HttpResponse | None:
    """DRF's exception handler. None leaves the error to Django, which logs it and answers through `server_error`."""
    if isinstance(error, Refusal):
        headers = {}
        if error.status == 401:
            headers["WWW-Authenticate"] = "ApiKey"
        if error.status == 405:
            headers["Allow"] = ", ".join(context["view"].allowed_methods)
        return problem(error.status, error.code, error.detail, errors=error.errors, extra=error.extra, headers=headers)
    if isinstance(error, exceptions.ValidationError):
        errors = flat(error.detail)
        path, messages = next(iter(errors.items()))
        return problem(400, "validation_error", f"{path}: {messages[0]}" if path else messages[0], errors=errors)
    if isinstance(error, exceptions.APIException):
        status = error.status_code
        headers = {}
        if getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = str(error.auth_header)  # type: ignore[attr-defined]
        if isinstance(error, exceptions.MethodNotAllowed):
            headers["Allow"] = ", ".join(context["view"].allowed_methods)
        return problem(status, CODES.get(status, "validation_error"), str(error.detail), headers=headers)
    if isinstance(error, Http404):
        return problem(404, "not_found", "there is no such thing, or it is not yours to see")
    if isinstance(error, PermissionDenied):
        return problem(403, "permission_denied", str(error) or "this is not allowed to you")
    if isinstance(error, RequestDataTooBig):
        return problem(413, "payload_too_large", "the body is too large")
    if isinstance(error, OperationalError | InterfaceError):
        log.warning("api.database_unavailable", error=str(error).strip(), path=context["request"].path)
        code = getattr(context.get("view"), "outage_code", "unavailable")
        return problem(503, code, OUTAGES[code], headers={"Retry-After": str(OUTAGE_SECONDS)})
    return None


def flat(detail: Any, path: str = "") -> dict[str, list[str]]:
    """DRF's nested messages as lists by path: {"stages[0].options.backoff": ["…"]}."""
    if isinstance(detail, dict):
        found: dict[str, list[str]] = {}
        for name, inner in detail.items():
            here = "" if name in ("", "non_field_errors") else str(name)
            found.update(flat(inner, f"{path}.{here}" if path and here else path or here))
        return found
    if isinstance(detail, list):
        if all(isinstance(item, str) for item in detail):
            return {path: [str(item) for item in detail]} if detail else {}
        found = {}
        for index, item in enumerate(detail):
            found.update(flat(item, f"{path}[{index}]"))
        return found
    return {path: [str(detail)]}


class StrictJSONParser(JSONParser):
    """The parser of DRF's own views: the strict reading that all bodies get."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        request = (parser_context or {})["request"]
        return read_body(request._request if isinstance(request, Request) else request, MIB)  # noqa: SLF001


# Django's error views: for what no view has caught, and for routes that do not exist.


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_page(request):
        return render(request, "400.html", status=400)
    if isinstance(exception, RequestDataTooBig):
        return problem(413, "payload_too_large", "the body is too large")
    detail = "the request is malformed"
    if isinstance(exception, SuspiciousOperation):
        detail = "the request names a host, or holds a value, that is not accepted"
    return problem(400, "validation_error", detail)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_page(request):
        return defaults.permission_denied(request, exception)
    return problem(403, "permission_denied", str(exception) or "this is not allowed to you")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_page(request):
        return defaults.page_not_found(request, exception)
    return problem(404, "not_found", "there is no such route or thing")


def server_error(request: HttpRequest) -> HttpResponse:
    if is_page(request):
        return defaults.server_error(request)
    return problem(500, "internal_error", "this is a fault of the console; it has been logged")


def is_page(request: HttpRequest) -> bool:
    """Whether people look at what stands there, so that errors are told as pages too."""
    return request.path == "/" or request.path.startswith(PAGES)


CODES = {
    400: "validation_error",
    401: "unauthorized",
    403: "permission_denied",
    404: "not_found",
    405: "unsupported",
    406: "unsupported",
    413: "payload_too_large",
    415: "unsupported",
    429: "rate_limited",
}
OUTAGES = {
    "unavailable": "the database does not answer; whether this took effect is unknown: repeat it with the same key",
    "result_not_confirmed": "the result could not be stored for certain; send the same result again, do not run the "
    "work again",
}
