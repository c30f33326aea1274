"""Screens of acts on runs and stages: pause, resume, cancel, retry, skip. Consequences first, then the verb."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import queries
from pipelines.access import RECOVER, STEER
from pipelines.console.acts import Act, Step, perform
from pipelines.console.screens import ScreenRequest, screen
from pipelines.models import Run, Stage
from recovery import answers, consequences, transitions

acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def pause(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Asks for the reason, then pauses."""
    run = queries.run_detail(request.visit.actor, run_id)
    active = [stage.name for stage in queries.stages(run) if stage.state == "running"]
    going_on = ", ".join(active) or "nothing runs now"
    act = Act(
        title=f"Pause {run.name}",
        needs=STEER,
        steps=[
            Step("paused", "Stops", "nothing more of this run is handed out"),
            Step("running", "Goes on", f"running attempts finish or give back: {going_on}"),
            Step("waiting", "Counts on", "gates and the deadline; due retries become ready and wait"),
        ],
        button="Pause the run",
        back=reverse("console:run", args=[run_id]),
    )
    return perform(request, act, lambda reason: _paused(request, run_id, reason))


@acting
@screen
def resume(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Asks for a reason, then resumes."""
    run = queries.run_detail(request.visit.actor, run_id)
    ready = [stage.name for stage in queries.stages(run) if stage.state in ("ready", "retry_scheduled")]
    act = Act(
        title=f"Resume {run.name}",
        needs=STEER,
        steps=[
            Step("ready", "Goes on", f"handed out again: {', '.join(ready) or 'whatever becomes ready'}"),
            Step("completed", "Kept", "everything completed stays as it is; nothing is run again"),
        ],
        button="Resume the run",
        back=reverse("console:run", args=[run_id]),
    )
    return perform(request, act, lambda reason: _resumed(request, run_id, reason))


@acting
@screen
def cancel(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Shows what ends and what may go on outside, asks for the reason, cancels; the run page lists what remains."""
    run = queries.run_detail(request.visit.actor, run_id)
    act = Act(
        title=f"Cancel {run.name}",
        needs=STEER,
        steps=consequences.of_cancel(queries.stages(run)),
        warning="A cancelled run stays so. Cancel stops our work; it cannot undo or stop what already began outside.",
        button="Cancel the run",
        back=reverse("console:run", args=[run_id]),
        danger=True,
        reason_required=True,
    )
    return perform(request, act, lambda reason: _cancelled(request, run, reason))


@acting
@screen
def retry(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """Shows what is kept and what runs again, asks for scope, input and checks, then retries (P65–P68, P86–P88)."""
    stage = queries.stage_detail(request.visit.actor, stage_id)
    stages = queries.stages(stage.run)
    behind = consequences.acting_behind(stage, stages)
    act = Act(
        title=f"Retry {stage.name} of {stage.run.name}",
        needs=RECOVER,
        steps=consequences.of_retry(stage, stages),
        button=f"Retry {stage.name}",
        back=_page_of(stage),
        reason_required=stage.state != "failed",
        fields="recovery/_retry_fields.html",
        answers={
            "stage": stage,
            "later": consequences.later_than(stage, stages),
            "behind": behind,
            "checks": answers.asked(request.POST),
            "given": request.POST,
        },
    )
    return perform(request, act, lambda reason: _retried(request, stage, behind, reason))


@acting
@screen
def skip(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """Shows what goes on without the stage, asks for the reason and perhaps an output, then skips (P69–P71)."""
    stage = queries.stage_detail(request.visit.actor, stage_id)
    act = Act(
        title=f"Skip {stage.name} of {stage.run.name}",
        needs=RECOVER,
        steps=consequences.of_skip(stage, queries.stages(stage.run)),
        warning="Skip only when the process can do without this result.",
        button=f"Skip {stage.name}",
        back=_page_of(stage),
        reason_required=True,
        fields="recovery/_skip_fields.html",
        answers={"stage": stage, "given": request.POST},
    )
    return perform(request, act, lambda reason: _skipped(request, stage, reason))


def _paused(request: ScreenRequest, run_id: uuid.UUID, reason: str) -> str:
    status = transitions.pause_run(run_id, actor=request.visit.actor, reason=reason).result["run_status"]
    messages.success(request, f"The run is {status}.", extra_tags=status)
    return reverse("console:run", args=[run_id])


def _resumed(request: ScreenRequest, run_id: uuid.UUID, reason: str) -> str:
    status = transitions.resume_run(run_id, actor=request.visit.actor, reason=reason).result["run_status"]
    messages.success(request, f"The run was resumed; it is {status}.", extra_tags=status)
    return reverse("console:run", args=[run_id])


def _cancelled(request: ScreenRequest, run: Run, reason: str) -> str:
    done = transitions.cancel_as_operation(run.id, actor=request.visit.actor, reason=reason)
    left = len(done.result.get("reconciliation", []))
    told = f"{left} to look after outside, listed below." if left else "Nothing was in flight outside."
    messages.success(request, f"The run is cancelled. {told}", extra_tags="blocked" if left else "cancelled")
    return reverse("console:run", args=[run.id])


def _retried(request: ScreenRequest, stage: Stage, behind: list[str], reason: str) -> str:
    given = answers.read_retry(stage, request.POST, behind)
    transitions.retry_stage(
        stage.id,
        actor=request.visit.actor,
        scope=given.scope,
        reason=given.reason(reason),
        new_input=given.new_input,
        acknowledge_effects=bool(given.notes),
    )
    messages.success(request, f"{stage.name} runs again, in epoch {stage.epoch + 1}.", extra_tags="ready")
    return _page_of(stage)


def _skipped(request: ScreenRequest, stage: Stage, reason: str) -> str:
    output, has_output = answers.read_output(request.POST)
    transitions.skip_stage(stage.id, actor=request.visit.actor, reason=reason, output=output, has_output=has_output)
    messages.success(request, f"{stage.name} is skipped.", extra_tags="skipped")
    return _page_of(stage)


def _page_of(stage: Stage) -> str:
    return f"{reverse('console:run', args=[stage.run_id])}?stage={stage.position}"
