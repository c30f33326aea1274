"""Whether a run retries itself: on its page, and calling that off."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import queries
from pipelines.access import RECOVER, Actor
from pipelines.blackouts import Active
from pipelines.console.acts import Act, Step, perform, short
from pipelines.console.offers import Offer, explain, missing_right
from pipelines.console.screens import ScreenRequest, screen
from pipelines.models import Run
from recovery import run_retry_rows, run_retry_work
from recovery.models import RunRetry
from recovery.states import RunRetryState

SHOWN = 6
# state → the state whose glyph it gets, and a word
BADGES: Mapping[str, tuple[str, str]] = {
    RunRetryState.DUE: ("retry_scheduled", "Due"),
    RunRetryState.DECLINED: ("skipped", "Not retried"),
    RunRetryState.DONE: ("completed", "Retried"),
    RunRetryState.REFUSED: ("blocked", "Refused"),
    RunRetryState.CALLED_OFF: ("cancelled", "Called off"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One decision in a line."""

    retry: RunRetry

    @property
    def state(self) -> str:
        return BADGES[self.retry.state][0]

    @property
    def word(self) -> str:
        return BADGES[self.retry.state][1]


@dataclass(frozen=True, slots=True)
class Look:
    """What a run's page shows: the newest first. `ahead`: what will happen by itself, in a sentence; `offers`: to call
    it off."""

    lines: Sequence[Line]
    ahead: str = ""
    held: Active | None = None
    offers: Sequence[Offer] = ()

    @property
    def reasons(self) -> list[str]:
        """Why it cannot be called off."""
        return explain(self.offers)


def of_run(actor: Actor, run: Run) -> Look | None:
    """None for a run that no policy for whole runs ever ruled as it failed."""
    found = run_retry_rows.history(run)[:SHOWN]
    if not found:
        return None
    first = found[0]
    lines = [Line(one) for one in found]
    if not run_retry_rows.is_ahead(first, run):
        return Look(lines)
    refusal = "" if actor.may(RECOVER) else missing_right(actor, RECOVER, "call it off")
    told = run_retry_rows.sentence(first)
    offer = Offer("run-retry-stop", "Call it off…", run.id, refusal)
    return Look(lines, told[:1].upper() + told[1:], run_retry_rows.holding(first, run), (offer,))


@require_http_methods(["GET", "HEAD", "POST"])
@screen
def stop(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Calls off that a run retries itself."""
    actor = request.visit.actor
    run = queries.run_detail(actor, run_id)
    retry = run_retry_rows.newest(run)
    ahead = run_retry_rows.sentence(retry) if retry and run_retry_rows.is_ahead(retry, run) else ""
    steps = [Step(run.status, "Stays", "the run, until somebody does something about it")]
    if ahead:
        steps.insert(0, Step("cancelled", "Called off", f"that it {ahead}"))
    act = Act(
        title=f"Call off that {short(run.name)} retries itself",
        needs=RECOVER,
        steps=steps,
        facts=[("Decided", retry.explanation)] if retry else [],
        help="What you write is kept with it and told to who looks at the run.",
        button="Call it off",
        back=reverse("console:run", args=[run.id]),
    )

    def carry_out(reason: str) -> str:
        run_retry_work.stop(run.id, actor=actor, reason=reason)
        messages.success(request, "Called off: the run does not retry itself.", "cancelled")
        return act.back

    return perform(request, act, carry_out)
