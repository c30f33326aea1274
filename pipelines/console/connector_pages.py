"""The screen of connectors: what adapters can do with each kind of outside system, and what they cannot (N13).

Which connectors there are is the workers' own: their file is beside them, and the console never sees it.
"""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_safe
from recourse.adapters import matrix

from pipelines.console.screens import ScreenRequest, screen, show


@require_safe
@screen
def connector_matrix(request: ScreenRequest) -> HttpResponse:
    """Each kind with its capabilities."""
    return show(request, "pipelines/connectors.html", {"kinds": matrix.KINDS, "headings": matrix.HEADINGS})
