"""A page for people who open what only takes forms: Django's own answer has no body, and browsers then show theirs."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from config.api import is_page


class MethodPageMiddleware:
    """Gives an empty 405 of a page's address a body that says what happened; its status and `Allow` stay."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        if answer.status_code != 405 or answer.content or not is_page(request):
            return answer
        told = render(request, "405.html", status=405)
        told.headers["Allow"] = answer.headers["Allow"]
        return told
