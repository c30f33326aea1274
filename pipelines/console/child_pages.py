"""What the pages of runs show of runs that stages start: who started this one, and which ones this one started."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.access import Actor
from pipelines.console.run_page import Section
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.models import ChildRun, Run
from pipelines.paging import page_of, read_cut

SHOWN = 8
PARENTS = 6


@dataclass(frozen=True, slots=True)
class Children:
    """The newest runs that the stages of a run started, or took over."""

    rows: Sequence[ChildRun]
    more: bool


@dataclass(frozen=True, slots=True)
class StartedBy:
    """The stages to which a run is a child, the one that started it first. Without any, who started it is gone, or a
    person forked it and the fork is not followed."""

    links: Sequence[ChildRun]
    parent: Run | None


def sections(actor: Actor, run: Run) -> list[Section]:
    """None for a run that has neither; one or two statements for each that it has."""
    found = []
    if run.has_children:
        rows = list(queries.children(run).order_by("-created_at", "-id")[: SHOWN + 1])
        found.append(Section("main", "runs/_children.html", Children(rows[:SHOWN], len(rows) > SHOWN)))
    if run.parent_id is not None:
        links = list(queries.started_by(run)[:PARENTS])
        parent = None if links else queries.visible_runs(actor).filter(id=run.parent_id).first()
        found.append(Section("aside", "runs/_started_by.html", StartedBy(links, parent)))
    return found


@require_safe
@screen
def child_list(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """All runs that a run's stages started, newest first."""
    run = queries.run_detail(request.visit.actor, run_id)
    page = page_of(queries.children(run), read_cut(request.GET))
    return show(request, "runs/children.html", {"run": run, "page": page})
