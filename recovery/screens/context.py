"""What every page of the console says of recovery: how much waits for a decision."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from recovery.decisions import waiting

MOST = 99


def waiting_approvals(request: HttpRequest) -> dict[str, Any]:
    """`waiting_approvals`: counted where a page says it, to one beyond `MOST` at most; nothing before a log-in."""
    visit = getattr(request, "visit", None)
    if visit is None:
        return {}
    return {"waiting_approvals": waiting(visit.actor).order_by()[: MOST + 1].count}
