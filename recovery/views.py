"""Screens of acts on runs and stages: pause, resume, cancel, retry, skip. The plan first, then the verb."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import queries
from pipelines.access import CANCEL, RECOVER, STEER
from pipelines.console.acts import Act, Step, short
from pipelines.console.screens import ScreenRequest, screen
from pipelines.graph import descendants
from pipelines.models import Run, Stage
from pipelines.sql import database_now
from recovery import answers, transitions
from recovery.operations import Done
from recovery.plans import Asked
from recovery.screens import histories
from recovery.screens.planned import in_place, perform, with_checks

acting = require_http_methods(["GET", "HEAD", "POST"])


@acting
@screen
def pause(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Shows what may still finish, asks for reason and end, then pauses (P60, P61)."""
    run = queries.run_detail(request.visit.actor, run_id)
    act = Act(
        title=f"Pause {short(run.name)}",
        needs=STEER,
        steps=[
            Step("paused", "Stops", "nothing more of this run is handed out"),
            Step("waiting", "Counts on", "gates and the deadline; due retries become ready and wait"),
        ],
        button="Pause the run",
        back=_run_page(run),
        fields="recovery/_pause_fields.html",
        answers={"given": request.POST},
    )

    def ask(reason: str, looking: bool) -> Asked:
        until = answers.read_until(request.POST, database_now(), looking=looking)
        return transitions.ask_pause(run.id, until=until, reason=reason)

    def told(done: Done) -> str:
        status = done.result["run_status"]
        messages.success(request, f"The run is {status}.", extra_tags=status)
        return _run_page(run)

    return perform(request, act, in_place(request, ask, told))


@acting
@screen
def resume(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Asks for a reason, then resumes (P63)."""
    run = queries.run_detail(request.visit.actor, run_id)
    act = Act(
        title=f"Resume {short(run.name)}",
        needs=STEER,
        steps=[Step("ready", "Goes on", "what is ready is handed out again; nothing that is done is run again")],
        button="Resume the run",
        back=_run_page(run),
    )

    def told(done: Done) -> str:
        status = done.result["run_status"]
        messages.success(request, f"The run was resumed; it is {status}.", extra_tags=status)
        return _run_page(run)

    def ask(reason: str, looking: bool) -> Asked:
        return transitions.ask_resume(run.id, reason=reason)

    return perform(request, act, in_place(request, ask, told))


@acting
@screen
def cancel(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Shows what ends and what may go on outside, asks for the reason, cancels; the run page lists what remains."""
    run = queries.run_detail(request.visit.actor, run_id)
    act = Act(
        title=f"Cancel {short(run.name)}",
        needs=CANCEL,
        steps=(),
        warning="A cancelled run stays so. Cancel stops our work; it cannot undo or stop what already began outside.",
        button="Cancel the run",
        back=_run_page(run),
        danger=True,
        reason_required=True,
    )

    def ask(reason: str, looking: bool) -> Asked:
        return transitions.ask_cancel(run.id, reason=reason)

    def told(done: Done) -> str:
        left = len(done.result.get("reconciliation", []))
        said = f"{left} to look after outside, listed below." if left else "Nothing was in flight outside."
        messages.success(request, f"The run is cancelled. {said}", extra_tags="blocked" if left else "cancelled")
        return _run_page(run)

    return perform(request, act, in_place(request, ask, told))


@acting
@screen
def retry(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """Shows what is kept and what runs again, asks for scope, input and checks, then retries (P65–P68, P86–P88)."""
    stage = queries.stage_detail(request.visit.actor, stage_id)
    act = Act(
        title=f"Retry {short(stage.name)} of {short(stage.run.name)}",
        needs=RECOVER,
        steps=[Step("superseded", "Not erased", "earlier attempts, outputs and decisions stay readable")],
        button=f"Retry {short(stage.name)}",
        back=_stage_page(stage),
        reason_required=stage.state != "failed",
        facts=histories.facts(stage),
        fields="recovery/_retry_fields.html",
        answers={
            "stage": stage,
            "later": _later_than(stage),
            "checks": answers.asked(request.POST),
            "given": request.POST,
        },
    )

    def ask(reason: str, looking: bool) -> Asked:
        given = answers.read_retry(request.POST, looking=looking)
        asked = transitions.ask_retry(
            stage.run_id, stage.id, scope=given.scope, new_input=given.new_input, reason=reason
        )
        return asked if looking else with_checks(request, asked)

    def told(done: Done) -> str:
        messages.success(request, f"{stage.name} runs again, in epoch {stage.epoch + 1}.", extra_tags="ready")
        return _stage_page(stage)

    return perform(request, act, in_place(request, ask, told))


@acting
@screen
def skip(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """Shows what goes on without the stage, asks for the reason and perhaps an output, then skips (P69–P71)."""
    stage = queries.stage_detail(request.visit.actor, stage_id)
    act = Act(
        title=f"Skip {short(stage.name)} of {short(stage.run.name)}",
        needs=RECOVER,
        steps=(),
        warning="Skip only when the process can do without this result.",
        button=f"Skip {short(stage.name)}",
        back=_stage_page(stage),
        reason_required=True,
        facts=histories.facts(stage),
        fields="recovery/_skip_fields.html",
        answers={"stage": stage, "given": request.POST},
    )

    def ask(reason: str, looking: bool) -> Asked:
        output, has_output = (None, False) if looking else answers.read_output(request.POST)
        return transitions.ask_skip(stage.run_id, stage.id, output=output, has_output=has_output, reason=reason)

    def told(done: Done) -> str:
        messages.success(request, f"{stage.name} is skipped.", extra_tags="skipped")
        return _stage_page(stage)

    return perform(request, act, in_place(request, ask, told))


def _later_than(stage: Stage) -> bool:
    """Whether anything depends on the stage."""
    needs = dict(Stage.objects.filter(run=stage.run_id).values_list("position", "depends_on"))
    return bool(descendants(stage.position, needs))


def _run_page(run: Run) -> str:
    return reverse("console:run", args=[run.id])


def _stage_page(stage: Stage) -> str:
    return f"{reverse('console:run', args=[stage.run_id])}?stage={stage.position}"
