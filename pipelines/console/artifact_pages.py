"""Screens of artifacts: all of them, those of a run on its page, their bytes, and the form that adds a baseline."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from pipelines import artifact_storing, artifacts, queries
from pipelines import pipeline_queries as workspaces
from pipelines.access import RELEASE, Actor
from pipelines.api.artifacts import ORDER, ArtifactFilter
from pipelines.api.downloads import download
from pipelines.artifacts import Given
from pipelines.console.acts import check_length
from pipelines.console.offers import missing_right
from pipelines.console.run_page import Section
from pipelines.console.screens import ScreenRequest, go_on, of_form, screen, show, typed
from pipelines.errors import Refusal
from pipelines.models import Application, Artifact, Run
from pipelines.paging import page_of, read_cut

OF_RUN = 8
MOST_APPLICATIONS = 500


@dataclass(frozen=True, slots=True)
class Line:
    """An artifact in a list; `number` is its attempt's, none of a baseline."""

    artifact: Artifact
    number: int | None


@dataclass(frozen=True, slots=True)
class OfRun:
    """The newest artifacts of a run."""

    lines: Sequence[Line]
    more: bool


def sections(actor: Actor, run: Run) -> list[Section]:
    """What a run's attempts stored, on its page; nothing where they stored nothing."""
    rows = list(artifacts.listed(actor, run).order_by("-at", "-id")[: OF_RUN + 1])
    return [Section("main", "artifacts/_of_run.html", OfRun(_lines(rows[:OF_RUN]), len(rows) > OF_RUN))] if rows else []


@require_safe
@screen
def artifact_list(request: ScreenRequest) -> HttpResponse:
    """The artifacts of the workspace, newest first, narrowed by the address."""
    actor = request.visit.actor
    params = request.GET.copy()
    if not params.get("name"):
        params.pop("name", None)
    page = page_of(ArtifactFilter.narrow(artifacts.listed(actor), params), read_cut(params), ORDER)
    context = {"page": page, "lines": _lines(page.rows), "refusal": _refusal(actor)}
    return show(request, "artifacts/list.html", context)


@require_safe
@screen
def artifact_content(request: ScreenRequest, artifact_id: uuid.UUID) -> HttpResponse:
    """The bytes, to be saved; a page that says so where they are not what was stored."""
    actor = request.visit.actor
    artifact = artifacts.find(actor, artifact_id)
    return download(artifact, artifacts.load(actor, artifact))


@require_http_methods(["GET", "HEAD", "POST"])
@screen
def baseline_new(request: ScreenRequest) -> HttpResponse:
    """Lays down a file that runs build on, for all of the workspace or one application or environment."""
    actor = request.visit.actor
    actor.require(RELEASE)
    ladder = workspaces.environments(actor)
    applications = list(
        Application.objects.filter(workspace_id=actor.workspace_id).order_by("name", "id")[:MOST_APPLICATIONS]
    )
    given = {name: typed(request.POST, name) for name in ("name", "media_type", "application", "environment", "reason")}
    refusal: Refusal | None = None
    if request.method == "POST":
        try:
            check_length(given["reason"])
            stored = artifact_storing.add_baseline(
                actor,
                _uploaded(request, given),
                application_id=_chosen("application", given, {str(one.id): one.id for one in applications}),
                environment_id=_chosen("environment", given, {one.slug: one.id for one in ladder}),
                reason=given["reason"],
            )
            said = "is kept" if stored.is_new else "was kept already; it is the same file"
            messages.success(request, f"{stored.name} {said}.", "completed" if stored.is_new else "no_op")
            return go_on(request, f"{reverse('console:artifacts')}?is_baseline=true")
        except Refusal as refused:
            refusal = of_form(request, refused)
    context = {
        "ladder": ladder,
        "applications": applications,
        "given": given,
        "refusal": refusal,
        "errors": dict(refusal.errors or {}) if refusal else {},
        "most": settings.RECOURSE_ARTIFACT_MAX_BYTES,
    }
    return show(request, "artifacts/baseline_form.html", context, status=refusal.status if refusal else 200)


def _lines(rows: Sequence[Artifact]) -> list[Line]:
    numbers = queries.attempt_numbers(one.attempt for one in rows if one.attempt is not None)
    return [Line(one, numbers.get(one.attempt) if one.attempt else None) for one in rows]


def _refusal(actor: Actor) -> str:
    return "" if actor.may(RELEASE) else missing_right(actor, RELEASE, "lay down a baseline")


def _uploaded(request: ScreenRequest, given: dict[str, str]) -> Given:
    """What was uploaded; called like its file where nothing else was typed."""
    file: Any = request.FILES.get("content")
    if file is None:
        message = "choose a file"
        raise Refusal("validation_error", f"content: {message}", errors={"content": [message]})
    most = settings.RECOURSE_ARTIFACT_MAX_BYTES
    if file.size > most:
        message = f"an artifact has at most {most:,} bytes; this file has {file.size:,}"
        raise Refusal("payload_too_large", message, errors={"content": [message]})
    data = file.read()
    given["name"] = given["name"] or str(file.name)
    return Given(given["name"], data, sha256(data).hexdigest(), given["media_type"])


def _chosen(field: str, given: dict[str, str], known: dict[str, uuid.UUID]) -> uuid.UUID | None:
    if not given[field]:
        return None
    if given[field] not in known:
        message = f"there is no such {field}"
        raise Refusal("validation_error", f"{field}: {message}", errors={field: [message]})
    return known[given[field]]
