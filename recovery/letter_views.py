"""Screens of acts on dead letters: acknowledge, redrive, discard. Consequences first, then the verb (F162)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import queries
from pipelines.access import RECOVER
from pipelines.console.acts import Act, Step, perform
from pipelines.console.screens import ScreenRequest, screen
from pipelines.errors import Refusal
from pipelines.models import DeadLetter
from recovery import answers, consequences, dead_letters

acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def acknowledge(request: ScreenRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Says that somebody deals with it; the stage stays failed."""
    letter = _find(request, letter_id)
    act = _act(
        letter,
        "Acknowledge",
        steps=[
            Step("acknowledged", "Marked", f"you deal with {letter.stage.name}; others see that, and by whom"),
            Step("failed", "Stays", f"{letter.stage.name} is failed until it is retried or skipped"),
        ],
    )
    return perform(request, act, lambda reason: _marked(request, letter, dead_letters.acknowledge, reason))


@acting
@screen
def redrive(request: ScreenRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Shows what runs again, asks for the checks where the stage acts outside, then redrives."""
    letter = _find(request, letter_id)
    stage = letter.stage
    act = _act(
        letter,
        "Redrive",
        steps=[
            *consequences.of_retry(stage, queries.stages(stage.run), alone=True),
            Step("redriven", "Closed", "the dead letter, together with the retry or not at all"),
        ],
        fields="recovery/_check_fields.html" if stage.effect_mode == "external" else "",
        answers={"stage": stage, "checks": answers.asked(request.POST), "given": request.POST},
    )
    return perform(request, act, lambda reason: _redriven(request, letter, reason))


@acting
@screen
def discard(request: ScreenRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Says, with a reason, that it will not be done; the stage stays failed."""
    letter = _find(request, letter_id)
    act = _act(
        letter,
        "Discard",
        steps=[
            Step("discarded", "Closed", "the dead letter, for good; it leaves the list of those that wait"),
            Step("failed", "Stays", f"{letter.stage.name} is failed; what depends on it is not done"),
        ],
        reason_required=True,
        danger=True,
    )
    return perform(request, act, lambda reason: _marked(request, letter, dead_letters.discard, reason))


def _find(request: ScreenRequest, letter_id: uuid.UUID) -> DeadLetter:
    letter = queries.dead_letters(request.visit.actor).filter(id=letter_id).first()
    if letter is None:
        raise Refusal("not_found", "there is no such dead letter")
    return letter


def _act(letter: DeadLetter, verb: str, *, steps: Sequence[Step], **more: Any) -> Act:
    return Act(
        title=f"{verb} the dead letter of {letter.stage.name} in {letter.run.name}",
        needs=RECOVER,
        steps=steps,
        button=f"{verb} it",
        back=reverse("console:dead-letters"),
        **more,
    )


def _marked(request: ScreenRequest, letter: DeadLetter, verb: Callable[..., Any], reason: str) -> str:
    done = verb(letter.id, actor=request.visit.actor, reason=reason)
    state = done.result["dead_letter_status"]
    messages.success(request, f"The dead letter of {letter.stage.name} in {letter.run.name} is {state}.", state)
    return _back(request, letter)


def _redriven(request: ScreenRequest, letter: DeadLetter, reason: str) -> str:
    given = answers.read_retry(letter.stage, request.POST)
    done = dead_letters.redrive(
        letter.id,
        actor=request.visit.actor,
        reason=given.reason(reason),
        acknowledge_effects=bool(given.notes),
    )
    told = f"{letter.stage.name} in {letter.run.name} runs again, in epoch {done.result['epoch']}."
    messages.success(request, told, "redriven")
    return _back(request, letter)


def _back(request: ScreenRequest, letter: DeadLetter) -> str:
    """The list as it was narrowed, or the run's page, when a dialog was opened there; else the whole list."""
    letters = reverse("console:dead-letters")
    here = (request.htmx.current_url_abs_path if request.htmx else None) or letters
    homes = (letters, reverse("console:run", args=[letter.run_id]))
    return here if here.split("?", maxsplit=1)[0] in homes else letters
