"""Screens of acts on dead letters: acknowledge, redrive, discard. Consequences first, then the verb (F162)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import queries
from pipelines.access import RECOVER
from pipelines.console.acts import Act, Step, short
from pipelines.console.screens import ScreenRequest, screen
from pipelines.errors import Refusal
from pipelines.models import DeadLetter
from recovery import answers, dead_letters
from recovery.operations import Done
from recovery.plans import Asked
from recovery.screens import histories
from recovery.screens.planned import in_place, perform, with_checks
from recovery.states import OperationKind

acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def acknowledge(request: ScreenRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Says that somebody deals with it; the stage stays failed."""
    letter = _find(request, letter_id)
    said = Step("acknowledged", "Marked", f"you deal with {letter.stage.name}; others see that, and by whom")
    return _mark(request, letter, OperationKind.ACKNOWLEDGE, _act(letter, "Acknowledge", steps=[said]))


@acting
@screen
def discard(request: ScreenRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Says, with a reason, that it will not be done; the stage stays failed."""
    letter = _find(request, letter_id)
    said = Step("discarded", "Closed", "the dead letter, for good; it leaves the list of those that wait")
    act = _act(letter, "Discard", steps=[said], reason_required=True, danger=True)
    return _mark(request, letter, OperationKind.DISCARD, act)


@acting
@screen
def redrive(request: ScreenRequest, letter_id: uuid.UUID) -> HttpResponse:
    """Shows what runs again, asks for the checks where something outside may repeat, then redrives."""
    letter = _find(request, letter_id)
    act = _act(
        letter,
        "Redrive",
        steps=[Step("superseded", "Not erased", "earlier attempts, outputs and decisions stay readable")],
        facts=histories.facts(letter.stage),
        fields="recovery/_check_fields.html",
        answers={"stage": letter.stage, "checks": answers.asked(request.POST), "given": request.POST},
    )

    def ask(reason: str, looking: bool) -> Asked:
        asked = dead_letters.ask_redrive(letter, reason=reason)
        return asked if looking else with_checks(request, asked)

    def told(done: Done) -> str:
        said = f"{letter.stage.name} in {letter.run.name} runs again, in epoch {done.result['epoch']}."
        messages.success(request, said, "redriven")
        return _back(request, letter)

    return perform(request, act, in_place(request, ask, told))


def _mark(request: ScreenRequest, letter: DeadLetter, kind: OperationKind, act: Act) -> HttpResponse:
    def told(done: Done) -> str:
        state = done.result["dead_letter_status"]
        messages.success(request, f"The dead letter of {letter.stage.name} in {letter.run.name} is {state}.", state)
        return _back(request, letter)

    def ask(reason: str, looking: bool) -> Asked:
        return dead_letters.ask_mark(kind, letter, reason=reason)

    return perform(request, act, in_place(request, ask, told))


def _find(request: ScreenRequest, letter_id: uuid.UUID) -> DeadLetter:
    letter = queries.dead_letters(request.visit.actor).filter(id=letter_id).first()
    if letter is None:
        raise Refusal("not_found", "there is no such dead letter")
    return letter


def _act(letter: DeadLetter, verb: str, *, steps: Sequence[Step], **more: Any) -> Act:
    return Act(
        title=f"{verb} the dead letter of {short(letter.stage.name)} in {short(letter.run.name)}",
        needs=RECOVER,
        steps=steps,
        button=f"{verb} it",
        back=reverse("console:dead-letters"),
        **more,
    )


def _back(request: ScreenRequest, letter: DeadLetter) -> str:
    """The list as it was narrowed, or the run's page, when a dialog was opened there; else the whole list."""
    letters = reverse("console:dead-letters")
    here = (request.htmx.current_url_abs_path if request.htmx else None) or letters
    homes = (letters, reverse("console:run", args=[letter.run_id]))
    return here if here.split("?", maxsplit=1)[0] in homes else letters
