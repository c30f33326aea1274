"""What is asked of pipelines and their releases, for screens: what is in force where, since when, and how it went.

A page of pipelines costs the same few statements however many there are, and of each no more than its newest runs are
looked at, from the index in the order of their making.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet

from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.filters import Parameters
from pipelines.list_filters import PipelineFilter, ReleaseFilter
from pipelines.models import Environment, Pipeline, Release, Trigger
from pipelines.paging import Cut, Page, page_of
from pipelines.sql import planned
from pipelines.states import ReleaseStatus

LAST_RUNS = 50  # of a pipeline in an environment that are told by state
MOST_ENVIRONMENTS = 20
BY_SLUG = ("slug",)
SLUG = re.compile(r"[\w-]{1,100}", re.ASCII)


@dataclass
class Place:
    """A pipeline in one environment: the release in force there, and its newest runs by state, at most `LAST_RUNS`."""

    environment: Environment
    release: Release | None = None
    runs: dict[str, int] = field(default_factory=dict)
    newest: datetime | None = None

    @property
    def counted(self) -> int:
        return sum(self.runs.values())


@dataclass
class Standing:
    """Where a pipeline stands. `applications` made its newest runs, or have triggers of it."""

    places: list[Place]
    applications: list[str] = field(default_factory=list)
    triggers: int = 0
    triggers_on: int = 0


def slug(text: str) -> str:
    """What a cursor of pipelines holds."""
    if not SLUG.fullmatch(text):
        raise ValueError("not a slug")
    return text


def visible(actor: Actor) -> QuerySet[Pipeline]:
    return Pipeline.objects.filter(workspace_id=actor.workspace_id)


def pipeline_list(actor: Actor, params: Parameters, cut: Cut) -> Page[Pipeline]:
    """One page of pipelines, by slug."""
    return page_of(PipelineFilter.narrow(visible(actor), params), cut, BY_SLUG, descending=False)


def find_pipeline(actor: Actor, pipeline_id: uuid.UUID) -> Pipeline:
    """The pipeline; 404 when the actor may not know of it."""
    found = visible(actor).filter(id=pipeline_id).first()
    if found is None:
        raise Refusal("not_found", "there is no such pipeline")
    return found


def environments(actor: Actor) -> list[Environment]:
    """The ladder of the workspace, its lowest rungs first."""
    rows = Environment.objects.filter(workspace_id=actor.workspace_id).order_by("rank", "slug")
    return list(rows[:MOST_ENVIRONMENTS])


def standing(pipelines: Collection[Pipeline], ladder: Sequence[Environment]) -> dict[uuid.UUID, Standing]:
    """Where each of them stands in each environment, in three statements for all of them."""
    ids = [one.id for one in pipelines]
    found = {one: Standing([Place(environment) for environment in ladder]) for one in ids}
    places = {(one, place.environment.id): place for one in ids for place in found[one].places}
    active = Release.objects.filter(pipeline__in=ids, status=ReleaseStatus.ACTIVE)
    for release in active.select_related("created_by").defer("definition"):
        if (place := places.get((release.pipeline_id, release.environment_id))) is not None:  # type: ignore[arg-type]
            place.release = release
    for pipeline_id, environment_id, application, status, count, newest in _last_runs(ids, ladder):
        place, whose = places[pipeline_id, environment_id], found[pipeline_id]
        place.runs[status] = place.runs.get(status, 0) + count
        place.newest = max(newest, place.newest or newest)
        if application not in whose.applications:
            whose.applications.append(application)
    rows = Trigger.objects.filter(pipeline__in=ids).values_list("pipeline_id", "application__name")
    for pipeline_id, application, count, on in rows.annotate(Count("id"), on=Count("id", filter=Q(enabled=True))):
        whose = found[pipeline_id]
        whose.triggers, whose.triggers_on = whose.triggers + count, whose.triggers_on + on
        if application not in whose.applications:
            whose.applications.append(application)
    return found


def releases_of(pipeline: Pipeline) -> QuerySet[Release]:
    """All of its releases, without their definitions."""
    rows = Release.objects.filter(pipeline=pipeline).select_related("environment", "created_by")
    return rows.defer("definition")


def release_list(pipeline: Pipeline, params: Parameters, cut: Cut) -> Page[Release]:
    """One page of its releases, newest first."""
    return page_of(ReleaseFilter.narrow(releases_of(pipeline), params), cut)


def find_release(actor: Actor, release_id: uuid.UUID) -> tuple[Release, Pipeline, Environment]:
    """A release with its definition, its pipeline and where it belongs; 404 when the actor may not know of it."""
    rows = Release.objects.filter(workspace_id=actor.workspace_id, pipeline__isnull=False, id=release_id)
    found = rows.select_related("pipeline", "environment", "created_by", "reviewed_by").first()
    if found is None or found.pipeline is None or found.environment is None:
        raise Refusal("not_found", "there is no such release")
    return found, found.pipeline, found.environment


def in_force(pipeline: Pipeline, environment: Environment) -> Release | None:
    """The release that is in force there, with its definition."""
    rows = Release.objects.filter(pipeline=pipeline, environment=environment, status=ReleaseStatus.ACTIVE)
    return rows.select_related("environment", "created_by").first()


def definition_of(release: Release) -> dict[str, Any]:
    return json.loads(release.definition)


def handlers_of(definition: dict[str, Any]) -> list[str]:
    """The handlers that its stages name, each once, in the order of the stages."""
    return list(dict.fromkeys(stage["handler"] for stage in definition["stages"]))


def _last_runs(ids: list[uuid.UUID], ladder: Sequence[Environment]) -> list[tuple[Any, ...]]:
    return planned(
        """
        SELECT p.id, e.id, a.name, r.status, count(*), max(r.created_at)
        FROM unnest(%(pipelines)s::uuid[]) p(id) CROSS JOIN unnest(%(environments)s::uuid[]) e(id)
        CROSS JOIN LATERAL (
            SELECT run.status, run.created_at, run.application_id FROM pipelines_run run
            WHERE run.pipeline_id = p.id AND run.environment_id = e.id
            ORDER BY run.created_at DESC, run.id DESC LIMIT %(most)s
        ) r
        JOIN pipelines_application a ON a.id = r.application_id
        GROUP BY p.id, e.id, a.name, r.status ORDER BY count(*) DESC, a.name, r.status
        """,
        {"pipelines": ids, "environments": [one.id for one in ladder], "most": LAST_RUNS},
    )
