"""The screen of one tick: what made it, what became of it, and why it does not move. A ledger's row opens to it."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import trigger_queries
from pipelines.console import whys
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.models import Run, Tick
from pipelines.states import SkipReason, TickState
from pipelines.tick_blockers import tick_blockers


@require_safe
@screen
def tick_page(request: ScreenRequest, trigger_id: uuid.UUID, tick_id: uuid.UUID) -> HttpResponse:
    """One tick of a visible trigger; HTMX gets it as the row that opens."""
    trigger = trigger_queries.find_trigger(request.visit.actor, trigger_id)
    tick = Tick.objects.filter(trigger=trigger, id=tick_id).first()
    if tick is None:
        raise Refusal("not_found", "the trigger has no such tick")
    run = Run.objects.filter(id=tick.run).first() if tick.run and tick.state == TickState.DISPATCHED else None
    missed = tick.state in (TickState.SKIPPED, TickState.FAILED) and tick.reason != SkipReason.EXISTING
    told = whys.tell(
        tick_blockers(tick, trigger),
        subject="Its run" if run else "The tick",
        run_id=run.id if run else None,
        trigger_id=trigger.id,
        backfill_id=tick.backfill,
    )
    context = {
        "tick": tick,
        "trigger": trigger,
        "run": run,
        "whys": told,
        "says": trigger_queries.says(tick),
        "refilled": missed,
        "tab": "triggers",
    }
    return show(request, "ticks/tick.html", context, part="ticks/_tick_row.html")
