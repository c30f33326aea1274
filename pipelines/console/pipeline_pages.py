"""Screens of pipelines: all of them with what is in force and how it went; one with its releases; one release, beside
any other of its pipeline.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import material, readiness_facts, recipients, trigger_queries, unserved
from pipelines import pipeline_queries as queries
from pipelines.access import RELEASE, Actor
from pipelines.console import differences, guarantee_pages
from pipelines.console.offers import Offer, missing_right
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.console.trigger_pages import lines_of
from pipelines.creation import OPTION_DEFAULTS
from pipelines.errors import Refusal
from pipelines.filters import identifiers
from pipelines.models import Environment, Pipeline, Release
from pipelines.paging import read_cut
from pipelines.release_plan import code_of, without_code
from pipelines.states import ReleaseStatus

SIZE = "25"  # pipelines of a page
TRIGGERS = 20
OTHERS = 50  # releases to compare with
MOST_CHANGES = 300
MOST_LINES = 600  # of what differs in code


@dataclass(frozen=True, slots=True)
class Shown:
    """A stage of a definition as a line. `options` are those that are otherwise than their defaults; `recipients` are
    in words, in their order."""

    stage: dict[str, Any]
    options: list[tuple[str, Any]]
    is_unserved: bool
    recipients: list[str]


@require_safe
@screen
def pipeline_list(request: ScreenRequest) -> HttpResponse:
    """The pipelines of the workspace by slug."""
    actor = request.visit.actor
    params = request.GET.copy()
    params.setdefault("page_size", SIZE)
    page = queries.pipeline_list(actor, request.GET, read_cut(params, (queries.slug,)))
    standing = queries.standing(page.rows, queries.environments(actor)) if page.rows else {}
    context = {
        "page": page,
        "lines": [(pipeline, standing[pipeline.id]) for pipeline in page.rows],
        "refusal": refusal(actor, "make or change a pipeline"),
        "most": queries.LAST_RUNS,
    }
    return show(request, "pipelines/list.html", context)


@require_safe
@screen
def pipeline_page(request: ScreenRequest, pipeline_id: uuid.UUID) -> HttpResponse:
    """One pipeline: what is in force in each environment and what that lacks, its releases newest first, triggers."""
    actor = request.visit.actor
    pipeline = queries.find_pipeline(actor, pipeline_id)
    ladder = queries.environments(actor)
    page = queries.release_list(pipeline, request.GET, read_cut(request.GET))
    triggers = list(trigger_queries.visible(actor).filter(pipeline=pipeline).order_by("name", "id")[:TRIGGERS])
    context = {
        "pipeline": pipeline,
        "standing": queries.standing([pipeline], ladder)[pipeline.id],
        "page": page,
        "releases": [(release, offers(release, actor)) for release in page.rows],
        "ladder": ladder,
        "states": ReleaseStatus.values,
        "triggers": lines_of(triggers),
        "offers": [
            Offer("release-new", "Register a release…", pipeline.id, refusal(actor, "register a release")),
            Offer("pipeline-change", "Change…", pipeline.id, refusal(actor, "change a pipeline")),
        ],
        "most": queries.LAST_RUNS,
        "places": guarantee_pages.shown([pipeline]),
        "most_seen": readiness_facts.LAST_RUNS,
    }
    return show(request, "pipelines/pipeline.html", context)


@require_safe
@screen
def release_page(request: ScreenRequest, release_id: uuid.UUID) -> HttpResponse:
    """One release: its stages, and what is otherwise than in another of its pipeline; `against` names that one."""
    actor = request.visit.actor
    release, pipeline, environment = queries.find_release(actor, release_id)
    definition = queries.definition_of(release)
    others = list(queries.releases_of(pipeline).exclude(id=release.id).order_by("-created_at", "-id")[:OTHERS])
    other = _other(request, (release, pipeline, environment), others)
    before = queries.definition_of(other) if other else None
    changes = differences.compare(without_code(before), without_code(definition)) if before else []
    lines = differences.unified(code_of(before), code_of(definition)) if before else []
    differing = [change for change in changes if change.kind != "same"]
    lacking = missing_handlers(actor, environment, definition)
    context = {
        "release": release,
        "pipeline": pipeline,
        "definition": without_code(definition),
        "code": code_of(definition),
        "code_lines": differences.signed((lines or [])[:MOST_LINES]),
        "code_left_out": max(0, len(lines or []) - MOST_LINES),
        "is_code_too_long": lines is None,
        "stages": [_shown(stage, lacking) for stage in definition["stages"]],
        "lacking": lacking,
        "others": others,
        "other": other,
        "changes": differing[:MOST_CHANGES],
        "left_out": max(0, len(differing) - MOST_CHANGES),
        "offers": offers(release, actor),
        "sentences": [material.sentence(one) for one in release.material_changes or ()],
    }
    return show(request, "pipelines/release.html", context)


def offers(release: Release, actor: Actor) -> list[Offer]:
    """Putting a release in force, and why that is not possible."""
    why_not = refusal(actor, "put a release in force")
    if not why_not and release.status == ReleaseStatus.ACTIVE:
        why_not = "It is in force."
    if not why_not and release.status in (ReleaseStatus.REVOKED, ReleaseStatus.RETIRED):
        why_not = f"A {release.status} release is never put in force again."
    if not release.needs_review:
        return [Offer("release-activate", "Put in force…", release.id, why_not)]
    why_not = why_not or "Another person than who registered it must review first to whom it sends."
    return [
        Offer("release-activate", "Put in force…", release.id, why_not),
        Offer("release-review", "Review recipients…", release.id, why_no_review(release, actor)),
    ]


def why_no_review(release: Release, actor: Actor) -> str:
    """Why this person does not review to whom a release sends; blank when they may."""
    if not actor.may(RELEASE):
        return missing_right(actor, RELEASE, "review a release")
    if not release.needs_review:
        return "Nothing in it waits for a review."
    if release.created_by_id == actor.user_id:
        return "You registered it: another person reviews to whom it sends."
    return ""


def refusal(actor: Actor, what: str) -> str:
    return "" if actor.may(RELEASE) else missing_right(actor, RELEASE, what)


def missing_handlers(actor: Actor, environment: Environment, definition: dict[str, Any]) -> list[str]:
    """Handlers of a definition that no live worker of the workspace has in the environment."""
    handlers = queries.handlers_of(definition)
    return unserved.lacking(handlers, workspace_id=actor.workspace_id, environment_id=environment.id)


def _other(
    request: ScreenRequest, shown: tuple[Release, Pipeline, Environment], others: list[Release]
) -> Release | None:
    """What to compare with: what was asked for, else what is in force there, else the one registered before it."""
    release, pipeline, environment = shown
    asked = identifiers(request.GET, "against")
    if asked:
        found, whose, _ = queries.find_release(request.visit.actor, asked[0])
        if whose != pipeline:
            raise Refusal("not_found", "that release is of another pipeline")
        return found
    current = queries.in_force(pipeline, environment)
    if current is not None and current.id != release.id:
        return current
    before = [one for one in others if one.created_at <= release.created_at]
    same = [one for one in before if one.environment_id == release.environment_id]
    return next(iter([*same, *before]), None)


def _shown(stage: dict[str, Any], lacking: list[str]) -> Shown:
    options = stage.get("options") or {}
    told = [(name, value) for name, value in options.items() if OPTION_DEFAULTS.get(name) != value]
    named = [recipients.in_words(one) for one in stage.get("recipients") or ()]
    return Shown(stage, told, stage["handler"] in lacking, named)
