"""Screens of imports: what is awaited and what was refused on the run's page, the request as a file, and its answer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import imports, queries
from pipelines.access import IMPORT, Actor
from pipelines.console.acts import check_length
from pipelines.console.offers import missing_right
from pipelines.console.run_page import Section
from pipelines.console.screens import ScreenRequest, go_on, of_form, screen, show, typed
from pipelines.errors import Refusal
from pipelines.import_files import MOST_BYTES, read_answer, request_document
from pipelines.imports import Answer, Taken
from pipelines.models import Attempt, Event, Run, Stage
from pipelines.models.runs import StageMode
from pipelines.moves import NO_END
from pipelines.states import ACTIVE_ATTEMPT, StageState

AWAITED, REFUSED = 20, 6  # that a run's page lists
CARRIED = 512 * 1024  # bytes of an answer that a form carries from the look to the act


@dataclass(frozen=True, slots=True)
class Awaited:
    """A stage whose answer is made elsewhere, and its request. `until`: none where time is not bounded."""

    stage: Stage
    attempt: Attempt
    until: datetime | None


@dataclass(frozen=True, slots=True)
class OfRun:
    """What a run's page tells of its imports. `refused`: the newest answers that were not taken, each with the name of
    its stage; `refusal`: why this person may import nothing, or blank."""

    awaited: Sequence[Awaited]
    refused: Sequence[tuple[Event, str]]
    refusal: str


def sections(actor: Actor, run: Run) -> list[Section]:
    """The imports of a run on its page; nothing where it has none. Three queries."""
    stages = {one.id: one for one in Stage.objects.filter(run=run, mode=StageMode.IMPORT).defer("input")}
    if not stages:
        return []
    waiting = [one.id for one in stages.values() if one.state == StageState.WAITING]
    attempts = Attempt.objects.filter(stage__in=waiting, state__in=sorted(ACTIVE_ATTEMPT)).order_by("dispatched_at")
    awaited = [
        Awaited(stages[one.stage_id], one, one.expires_at if one.expires_at < NO_END else None)
        for one in attempts[:AWAITED]
    ]
    events = Event.objects.filter(run=run, kind="stage.import_refused").order_by("-id")[:REFUSED]
    refused = [(event, stages[event.stage].name if event.stage in stages else "") for event in events]
    if not awaited and not refused:
        return []
    return [Section("main", "imports/_of_run.html", OfRun(awaited, refused, _refusal(actor)))]


@require_safe
@screen
def import_request(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """The request that is awaited now, as a file for whoever makes the answer."""
    document = request_document(request.visit.actor, stage_id)
    response = HttpResponse(json.dumps(document, indent=2) + "\n", content_type="application/json")
    name = f"import-request-{document['stage_id']}-{document['attempt']}.json"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@require_http_methods(["GET", "HEAD", "POST"])
@screen
def import_answer(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """Takes an answer as a file or as text: first looked at, then done as it was seen."""
    actor = request.visit.actor
    stage = queries.stage_detail(actor, stage_id)
    actor.require(IMPORT)
    given: dict[str, Any] = {"answer": request.POST.get("answer", ""), "reason": typed(request.POST, "reason")}
    refusal: Refusal | None = None
    seen: Taken | None = None
    if request.method == "POST":
        try:
            check_length(given["reason"])
            answer = _given(request, given)
            if "look" in request.POST:
                seen = _look(stage, answer, actor, given["reason"])
            else:
                digest = request.POST.get("plan_digest", "")
                taken = imports.take(stage.id, answer, actor=actor, reason=given["reason"], plan_digest=digest)
                return _told(request, stage, taken)
        except Refusal as refused:
            refusal = of_form(request, refused)
    context = {
        "stage": stage,
        "run": stage.run,
        "awaited": _awaited(stage),
        "given": given,
        "seen": seen,
        "refusal": refusal,
        "most": MOST_BYTES,
    }
    return show(request, "imports/answer.html", context, status=refusal.status if refusal else 200)


def _look(stage: Stage, answer: Answer, actor: Actor, reason: str) -> Taken:
    """Where it would lead. A look leaves nothing behind, but what is refused is to be kept: it is handed in then."""
    try:
        return imports.preview(stage.id, answer, actor=actor)
    except Refusal as refused:
        if refused.code == "stale_request":
            imports.take(stage.id, answer, actor=actor, reason=reason)
        raise


def _told(request: ScreenRequest, stage: Stage, taken: Taken) -> HttpResponse:
    if taken.replayed:
        messages.info(request, "This answer had been taken before; nothing changed.", "no_op")
    else:
        messages.success(request, f"The answer is taken: {stage.name} is {taken.state}.", taken.state)
    return go_on(request, reverse("console:run", args=[stage.run_id]))


def _given(request: ScreenRequest, given: dict[str, Any]) -> Answer:
    """What was uploaded, else what was pasted. A file of moderate size goes on as text, so that it is chosen once."""
    file: Any = request.FILES.get("file")
    if file is None and not given["answer"].strip():
        message = "choose a file, or paste the answer"
        raise Refusal("validation_error", message, errors={"file": [message]})
    if file is None:
        return read_answer(given["answer"].encode("utf-8", "surrogatepass"))
    if file.size > MOST_BYTES:
        message = f"an answer has at most {MOST_BYTES:,} bytes; this file has {file.size:,}"
        raise Refusal("payload_too_large", message, errors={"file": [message]})
    raw: bytes = file.read()
    given["answer"] = ""
    answer = read_answer(raw)
    if len(raw) <= CARRIED:
        given["answer"] = raw.decode()
    return answer


def _awaited(stage: Stage) -> Awaited | None:
    if stage.mode != StageMode.IMPORT or stage.state != StageState.WAITING:
        return None
    found = Attempt.objects.filter(stage=stage, state__in=sorted(ACTIVE_ATTEMPT)).first()
    return Awaited(stage, found, found.expires_at if found.expires_at < NO_END else None) if found else None


def _refusal(actor: Actor) -> str:
    return "" if actor.may(IMPORT) else missing_right(actor, IMPORT, "import an answer")
