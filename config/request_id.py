"""The id by which one request is found again: in its answer, in its log lines, and in the audit."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from structlog.contextvars import bound_contextvars

HEADER = "X-Request-Id"
SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,99}")


class RequestIdMiddleware:
    """Takes the caller's `X-Request-Id` where it is 1 to 100 plain characters, else makes one; answers with it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get(HEADER, "")
        request_id = given if SANE.fullmatch(given) else str(uuid.uuid4())
        with bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response.headers[HEADER] = request_id
        return response
