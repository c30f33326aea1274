"""Steering a bulk operation: pause, go on, abort; what goes on and what stops is told first."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse
from django.views.decorators.http import require_http_methods

from pipelines.console.acts import Act, Step, perform
from pipelines.console.screens import ScreenRequest, screen
from recovery import bulks
from recovery.bulk_plans import counted
from recovery.bulk_progress import BulkProgress
from recovery.models import BulkOperation
from recovery.screens import bulk_words
from recovery.screens.bulk_drafts import address
from recovery.states import BulkState

acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def pause(request: ScreenRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Says what stays to be done, then begins no more of it."""
    bulk, found = _find(request, bulk_id)
    act = Act(
        title=f"Pause: {_title(bulk)}",
        needs=bulks.capability_of(bulk.kind),
        steps=[*_dealt_with(bulk, found), *_left(bulk, found, "pending", "Wait", "until somebody resumes it")],
        button="Pause the bulk",
        back=address(bulk.id),
    )
    return perform(request, act, _carry_out(request, bulk, bulks.pause, "It is paused: no more targets are begun."))


@acting
@screen
def resume(request: ScreenRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Says how the first ones went, or what halted it, then goes on exactly where it stopped."""
    bulk, found = _find(request, bulk_id)
    act = Act(
        title=f"Go on: {_title(bulk)}",
        needs=bulks.capability_of(bulk.kind),
        steps=[*_dealt_with(bulk, found), *_left(bulk, found, "ready", "Dealt with", f"at {bulk.rate:,} a second")],
        button="Go on",
        back=address(bulk.id),
        warning=bulk.held_reason if bulk.state == BulkState.HALTED else "",
    )
    return perform(request, act, _carry_out(request, bulk, bulks.resume, "It goes on where it stopped."))


@acting
@screen
def abort(request: ScreenRequest, bulk_id: uuid.UUID) -> HttpResponse:
    """Says what stays done and what is left alone, asks for the reason, then ends it for good."""
    bulk, found = _find(request, bulk_id)
    act = Act(
        title=f"Abort: {_title(bulk)}",
        needs=bulks.capability_of(bulk.kind),
        steps=[*_dealt_with(bulk, found), *_left(bulk, found, "cancelled", "Left alone", "as they stand")],
        button="Abort the bulk",
        back=address(bulk.id),
        warning="What was done stays done, and an aborted bulk stays so.",
        danger=True,
        reason_required=True,
    )
    return perform(request, act, _carry_out(request, bulk, bulks.abort, "It is aborted; what was done stays done."))


def _find(request: ScreenRequest, bulk_id: uuid.UUID) -> tuple[BulkOperation, BulkProgress]:
    bulk = bulks.find(request.visit.actor, bulk_id)
    return bulk, bulks.progress(bulk)


def _carry_out(
    request: ScreenRequest, bulk: BulkOperation, verb: Callable[..., bulks.Answer], told: str
) -> Callable[[str], str]:
    def carry_out(reason: str) -> str:
        done = verb(bulk.id, actor=request.visit.actor, reason=reason)
        messages.success(request, told, done.status)
        return address(bulk.id)

    return carry_out


def _dealt_with(bulk: BulkOperation, found: BulkProgress) -> list[Step]:
    steps = [Step("done", "Stay done", counted(bulk.kind, found.done))] if found.done else []
    if found.failed_again:
        steps.append(Step("failed", "Failed again", f"{found.failed_again:,} of those that were done"))
    nothing = found.failed + found.denied
    return [*steps, Step("failed", "Came to nothing", f"{nothing:,}")] if nothing else steps


def _left(bulk: BulkOperation, found: BulkProgress, status: str, word: str, how: str) -> list[Step]:
    return [Step(status, word, f"{counted(bulk.kind, found.pending)}, {how}")] if found.pending else []


def _title(bulk: BulkOperation) -> str:
    told = bulk_words.title(bulk, bulk.plan)
    return told[:1].lower() + told[1:]
