"""What the plans of backfills and bulks are told with alike: pure, from their JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from approvals.screens.plans import Teller
from pipelines.console.acts import Step

Json = Mapping[str, Any]


def teller(lines: Callable[[Json], list[Step]], gist: Callable[[Json], str]) -> Teller:
    """Tells what somebody asks others to agree to by its plan; nothing of what has none."""
    return Teller(
        lambda asked: lines(asked.plan) if asked.plan is not None else [],
        lambda asked: gist(asked.plan) if asked.plan is not None else "",
    )


def blackout(plan: Json) -> Iterator[Step]:
    """What holds all of it now."""
    if held := plan.get("blackout"):
        why = f": {held['reason']}" if held.get("reason") else ""
        until = f", until {_utc(held['until'])}" if held.get("until") else ""
        word = "Frozen now" if held.get("is_freeze") else "Blackout now"
        yield Step("blocked", word, f"{held['name']}{why}{until}; nothing starts without a reason of its own")


def _utc(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"
