"""What browsers get is compressed; what programs get is not: an answer to a worker costs no time for it."""

from __future__ import annotations

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

FOR_BROWSERS = ("/console/", "/admin/", "/static/")


class PageCompressionMiddleware(GZipMiddleware):
    """Compresses pages, parts of pages and assets for whoever accepts it.

    A page holds its reader's CSRF token beside text of others, so its length must not tell (BREACH): Django pads by
    chance, and masks the token anew each time.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        return super().process_response(request, response) if request.path.startswith(FOR_BROWSERS) else response
