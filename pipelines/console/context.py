"""What every page of the console says of freezes: who froze what, why and since when."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from django.http import HttpRequest

from pipelines import blackout_rows


def frozen(request: HttpRequest) -> dict[str, Any]:
    """`frozen`: the freezes that hold in the workspace, looked for once and only where a page says them; nothing before
    a log-in."""
    visit = getattr(request, "visit", None)
    return {} if visit is None else {"frozen": cache(partial(blackout_rows.freezes, visit.actor.workspace_id))}
