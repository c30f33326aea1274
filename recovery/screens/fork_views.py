"""Screens of rerun and replay: what a new run would keep and do again, and on which release (O57, O58)."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from pipelines import queries, signing
from pipelines.access import FORK
from pipelines.checkpoint_reading import CANNOT_CHECK, snapshot
from pipelines.console.acts import Act, Step, short
from pipelines.console.screens import ScreenRequest, screen
from pipelines.models import Release, Run
from pipelines.signing import Verdict
from pipelines.sql import query
from pipelines.states import ReleaseStatus
from recovery import answers, forks
from recovery.fork_choices import choices
from recovery.forks import Wish
from recovery.operations import Done
from recovery.plans import Asked
from recovery.screens.planned import Planned, checked, perform
from recovery.states import OperationKind

acting = require_http_methods(["GET", "HEAD", "POST"])
LONGEST_NAME = 255
HELP = (
    "A rerun goes on from a checkpoint that is known to be good: what it says is done is kept, the rest runs. It is the"
    " safer one. A replay starts from the beginning, for an investigation or to reproduce what happened under control."
    " Both make a new run and leave this one as it is. To go on in this run itself, retry or skip a stage."
)


@acting
@screen
def rerun(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Goes on from a checkpoint in a new run: from the stage where it stood, or from a named one with a clean start."""
    run = queries.run_detail(request.visit.actor, run_id)
    wanted = request.POST.get("from_step_id", "")[:LONGEST_NAME] or None
    act = _act(
        run,
        request,
        title=f"Rerun {short(run.name)} as a new run",
        fields="recovery/_rerun_fields.html",
        told={"names": _starts(run), "wanted": wanted},
    )
    return perform(request, act, _planned(request, run, OperationKind.RERUN, Wish(from_step_id=wanted)))


@acting
@screen
def replay(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """Starts the whole of it anew in a new run, on the release that is in force now."""
    run = queries.run_detail(request.visit.actor, run_id)
    freeze = bool(request.POST.get("freeze_release"))
    act = _act(
        run,
        request,
        title=f"Replay {short(run.name)} from the beginning as a new run",
        fields="recovery/_replay_fields.html",
        told={"freeze": freeze},
    )
    return perform(request, act, _planned(request, run, OperationKind.REPLAY, Wish(freeze_release=freeze)))


def _planned(request: ScreenRequest, run: Run, kind: OperationKind, wish: Wish) -> Planned:
    actor = request.visit.actor

    def ask(reason: str, looking: bool) -> Asked:
        asked = forks.ask_fork(kind, run, wish, actor=actor, reason=reason)
        return asked if looking else checked(request, asked, forks.preview)

    def told(done: Done) -> str:
        messages.success(request, f"This is the new run; {run.name} stays as it was.", done.status)
        return reverse("console:run", args=[done.result["execution_id"]])

    return Planned(
        ask=ask,
        preview=lambda asked: forks.preview(asked, actor=actor),
        carry_out=lambda asked, key, digest: forks.fork(asked, actor=actor, key=key, plan_digest=digest),
        told=told,
    )


def _act(run: Run, request: ScreenRequest, *, title: str, fields: str, told: dict[str, object]) -> Act:
    return Act(
        title=title,
        needs=FORK,
        steps=[
            Step("superseded", "Untouched", f"this run: it stays {run.status}, with everything in it"),
            Step(
                "valid", "Afterwards", "the new run links to its evidence: what it came out of, the verdict, who agreed"
            ),
        ],
        button="Make the new run",
        back=reverse("console:run", args=[run.id]),
        fields=fields,
        answers={**told, "checks": answers.asked(request.POST)},
        facts=_facts(run),
        help=HELP,
    )


def _starts(run: Run) -> list[tuple[str, str]]:
    """The stages to start from, each with where it leads, as (name, words)."""
    found = {one.stage: one for one in choices(run)}
    told = []
    for name in [stage.name for stage in queries.stages(run)]:
        one = found.get(name)
        leads = "" if one is None else one.problem or f"keeps {one.keeps}, runs {one.runs}"
        told.append((name, leads))
    return told


def _facts(run: Run) -> list[tuple[str, str]]:
    """The operator's checklist of source 002: what to look at before recovering."""
    found = snapshot(run.id)
    stood = "none was written"
    if found is not None:
        checkpoint, verdict = found
        signature = f"its signature is {verdict.value.replace('_', ' ')}"
        if verdict == Verdict.INVALID and not signing.can_check(run.workspace_id):
            signature = CANNOT_CHECK
        stood = f"checkpoint {checkpoint.sequence}, at {checkpoint.current_step_id}; {signature}"
    protected = ", protected: an operator's request waits for approval" if run.environment.protected else ""
    return [
        ("Status", run.status),
        ("Workload", f"{run.application.name}, {run.pipeline.slug if run.pipeline else 'an inline run'}"),
        ("Workspace", f"{run.workspace.slug}, environment {run.environment.slug}{protected}"),
        ("Snapshot", stood),
        ("Release", _release(run)),
        ("Policies", _policies(run)),
    ]


def _release(run: Run) -> str:
    was = f"{run.release.digest[:12]}, {run.release.status}"
    if run.pipeline is None:
        return f"{was}: an inline run is made anew on its own release"
    now = Release.objects.filter(
        pipeline=run.pipeline, environment=run.environment, status=ReleaseStatus.ACTIVE
    ).first()
    if now is None:
        return f"{was}; none is in force in {run.environment.slug} now"
    if now.id == run.release_id:
        return f"{was}: the same is in force now"
    return f"{was}; {now.digest[:12]} is in force now and will run"


def _policies(run: Run) -> str:
    """The digest of the policies in force: when the run was made, and now."""
    now = query("SELECT recourse_policy_digest(%s)", [run.workspace_id])[0][0] or ""
    if now == run.policy_digest:
        return f"{now[:12] or 'none'}, as when it was made"
    return f"{run.policy_digest[:12] or 'unknown'} when it was made, {now[:12]} now"
