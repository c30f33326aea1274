"""What Django leaves open: response headers that it does not set, and charsets that it would take from a client."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

# Nothing inline and nothing from elsewhere: a script smuggled into a page by any field does not run.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ]
)


class AnswerHeadersMiddleware:
    """Sends the strict policy with every answer, and keeps answers out of all caches; what a view sets itself stays.

    Static files set a time of their own. Whoever has logged out, or shares a proxy, finds nothing in a cache.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("Cache-Control", "no-store")
        return response


class OneCharsetMiddleware:
    """Reads addresses and forms as UTF-8, as every browser sends ours, whatever charset the client claims.

    Django takes the client's word for it, and some of Python's codecs yield what no text of the database may hold.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "charset" in (request.content_params or {}):
            request.encoding = "utf-8"
        return self.get_response(request)
