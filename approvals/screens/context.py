"""What every page of the console says of approvals: how much waits for whoever looks."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from django.http import HttpRequest

from approvals import inbox
from pipelines.access import DECIDE

MOST = 99


def waiting_approvals(request: HttpRequest) -> dict[str, Any]:
    """`waiting_approvals`: what the person may decide, counted where a page says it and to one beyond `MOST` at most;
    nothing before a log-in, and nothing is looked for where their role decides nothing."""
    visit = getattr(request, "visit", None)
    if visit is None or not visit.actor.may(DECIDE):
        return {}
    return {"waiting_approvals": cache(partial(inbox.count_mine, visit.actor, MOST))}  # a page may say it twice
