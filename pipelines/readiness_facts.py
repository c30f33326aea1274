"""What a checklist is made of: releases in force, the policies that rule them, and what their newest runs told.

The same few statements however many pipelines are asked about. Of each pipeline in an environment no more than its
newest `LAST_RUNS` runs are looked at, of each run no more than its newest `LAST_EFFECTS` effects, of each stage no more
than its newest `LAST_ATTEMPTS` attempts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from pipelines import policies
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.limits import Limits
from pipelines.models import Pipeline
from pipelines.pipeline_queries import MOST_ENVIRONMENTS, SLUG, visible
from pipelines.readiness import PlaceFacts
from pipelines.repeating import Act, Seen, StageFacts
from pipelines.retries import PolicyFact, RetryRule, Target
from pipelines.sql import planned

LAST_RUNS = 20
LAST_EFFECTS = 200
LAST_ATTEMPTS = 3
LONGEST_NAME = 60  # of what a worker calls its connectors and acts
INSIDE = "internal_state"  # the one class of effects that is not outside


@dataclass(frozen=True, slots=True)
class Place:
    """A pipeline in an environment, with the release in force there."""

    pipeline_id: uuid.UUID
    environment: str
    release_id: uuid.UUID
    digest: str
    facts: PlaceFacts


@dataclass(frozen=True, slots=True)
class _Ruling:
    """The active policies of a workspace that a checklist asks."""

    retries: Sequence[PolicyFact]
    timeouts: Sequence[PolicyFact]
    run_retries: Sequence[PolicyFact]

    @classmethod
    def of(cls, workspace_id: uuid.UUID) -> _Ruling:
        return cls(
            policies.active("retry", [workspace_id]).get(workspace_id, ()),
            policies.active("timeout", [workspace_id]).get(workspace_id, ()),
            policies.active("run_retry", [workspace_id]).get(workspace_id, ()),
        )


@dataclass(slots=True)
class _Told:
    """What the newest runs of a release told, by stage."""

    runs: int = 0
    stages: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    acts: dict[str, list[Act]] = field(default_factory=dict)

    def of(self, stage: str) -> Seen:
        runs, with_state, longest = self.stages.get(stage, (0, 0, 0.0))
        return Seen(runs, with_state, longest, tuple(self.acts.get(stage, ())))


def find(actor: Actor, slug: str) -> Pipeline:
    """The pipeline of that slug; 404 when the actor may not know of it."""
    found = visible(actor).filter(slug=slug).first() if SLUG.fullmatch(slug) else None
    if found is None:
        raise Refusal("not_found", "there is no such pipeline")
    return found


def places(pipelines: Collection[Pipeline]) -> list[Place]:
    """Where each of these pipelines of one workspace has a release in force: by slug, the lowest environment first."""
    rows = _in_force([one.id for one in pipelines])
    if not rows:
        return []
    ruling = _Ruling.of(next(iter(pipelines)).workspace_id)
    told = _told([(row["release"], row["pipeline"], row["environment_id"]) for row in rows])
    slugs = {one.id: one.slug for one in pipelines}
    found = [_place(row, slugs[row["pipeline"]], ruling, told.get(row["release"], _Told())) for row in rows]
    return sorted(found, key=lambda one: slugs[one.pipeline_id])  # stable: environments stay in their order


def _place(row: Mapping[str, Any], slug: str, ruling: _Ruling, told: _Told) -> Place:
    ruled = policies.winner(ruling.run_retries, Target("", "", slug, row["environment"]))
    facts = PlaceFacts(
        stages=tuple(_stage(one, slug, row["environment"], ruling, told) for one in row["stages"]),
        limits=Limits.of(row["limits"]),
        has_input_schema=row["has_schema"],
        runs=told.runs,
        run_retry=ruled.name if ruled and RetryRule.from_options(ruled.rule).max_retries > 0 else "",
        retention_days=settings.RECOURSE_RETENTION_DAYS,
    )
    return Place(row["pipeline"], row["environment"], row["release"], row["digest"], facts)


def _stage(stage: Mapping[str, Any], slug: str, environment: str, ruling: _Ruling, told: _Told) -> StageFacts:
    options = stage["options"] or {}
    target = Target(stage["name"], stage["handler"], slug, environment)
    policy = policies.winner(ruling.retries, target)
    rule = RetryRule.from_options(policy.rule if policy else options)
    timeout = policies.winner(ruling.timeouts, target)
    return StageFacts(
        name=stage["name"],
        handler=stage["handler"],
        mode=stage["mode"] or "execute",
        effect_mode=stage["effect_mode"] or "idempotent",
        effect_protocol=stage["effect_protocol"] or "none",
        gate=stage["gate"] or "",
        retries=rule.max_retries if rule.interval > 0 else 0,
        retry_source=f"policy {policy.name}" if policy else "options",
        has_timeout=bool(timeout.rule.get("seconds") if timeout else options.get("timeout")),
        seen=told.of(stage["name"]),
    )


def _in_force(pipelines: list[uuid.UUID]) -> list[dict[str, Any]]:
    """What is needed of each definition, taken apart in the database: inputs and code may be large."""
    rows = planned(
        """
        SELECT r.id, r.pipeline_id, e.id, e.slug, r.digest, d.body->'limits',
            d.body->'input_schema' IS NOT NULL,
            (SELECT json_agg(json_build_object(
                'name', s->>'name', 'handler', s->>'handler', 'mode', s->>'mode', 'effect_mode', s->>'effect_mode',
                'effect_protocol', s->>'effect_protocol', 'gate', s->'approval'->>'when', 'options', s->'options'))
             FROM json_array_elements(d.body->'stages') s)
        FROM pipelines_release r
        JOIN pipelines_environment e ON e.id = r.environment_id
        CROSS JOIN LATERAL (SELECT r.definition::json AS body) d
        WHERE r.pipeline_id = ANY(%(pipelines)s) AND r.status = 'active' AND e.id IN (
            SELECT rung.id FROM pipelines_environment rung WHERE rung.workspace_id = r.workspace_id
            ORDER BY rung.rank, rung.slug LIMIT %(most)s)
        ORDER BY e.rank, e.slug, r.pipeline_id
        """,
        {"pipelines": pipelines, "most": MOST_ENVIRONMENTS},
    )
    names = ("release", "pipeline", "environment_id", "environment", "digest", "limits", "has_schema", "stages")
    return [{**dict(zip(names, row, strict=True)), "limits": _json(row[5]), "stages": _json(row[7])} for row in rows]


def _told(releases: list[tuple[uuid.UUID, uuid.UUID, uuid.UUID]]) -> dict[uuid.UUID, _Told]:
    """What the newest runs of these (release, pipeline, environment) told."""
    runs = planned(
        """
        SELECT place.release, r.id FROM unnest(%(releases)s::uuid[], %(pipelines)s::uuid[], %(environments)s::uuid[])
            place(release, pipeline, environment)
        CROSS JOIN LATERAL (
            SELECT run.id, run.release_id FROM pipelines_run run
            WHERE run.pipeline_id = place.pipeline AND run.environment_id = place.environment
            ORDER BY run.created_at DESC, run.id DESC LIMIT %(most)s
        ) r WHERE r.release_id = place.release
        """,
        {
            "releases": [one[0] for one in releases],
            "pipelines": [one[1] for one in releases],
            "environments": [one[2] for one in releases],
            "most": LAST_RUNS,
        },
    )
    found: dict[uuid.UUID, _Told] = {}
    for release, _ in runs:
        found.setdefault(release, _Told()).runs += 1
    if not runs:
        return found
    asked = {"releases": [release for release, _ in runs], "runs": [run for _, run in runs]}
    for release, name, count, with_state, longest in planned(
        """
        SELECT looked.release, s.name, count(*), count(*) FILTER (WHERE s.checkpoint IS NOT NULL),
            coalesce(max(extract(epoch FROM tried.longest)), 0)::float
        FROM unnest(%(releases)s::uuid[], %(runs)s::uuid[]) looked(release, run)
        JOIN pipelines_stage s ON s.run_id = looked.run
        CROSS JOIN LATERAL (
            SELECT max(coalesce(a.finished_at, recourse_now()) - a.started_at) AS longest FROM (
                SELECT started_at, finished_at FROM pipelines_attempt WHERE stage_id = s.id
                ORDER BY number DESC LIMIT %(most)s
            ) a
        ) tried
        WHERE s.attempt_number > 0 GROUP BY looked.release, s.name
        """,
        {**asked, "most": LAST_ATTEMPTS},
    ):
        found[release].stages[name] = (count, with_state, longest)
    for release, name, effect_class, connector, act, count, open_ones in planned(
        """
        SELECT looked.release, s.name, e.effect_class, coalesce(left(e.detail->>'connector', %(long)s), ''),
            coalesce(left(e.detail->>'act', %(long)s), ''), count(*),
            count(*) FILTER (WHERE e.state IN ('declared', 'unknown'))
        FROM unnest(%(releases)s::uuid[], %(runs)s::uuid[]) looked(release, run)
        CROSS JOIN LATERAL (
            SELECT stage_id, effect_class, detail, state FROM pipelines_effect
            WHERE run_id = looked.run AND effect_class <> %(inside)s
            ORDER BY declared_at DESC, id DESC LIMIT %(most)s
        ) e
        JOIN pipelines_stage s ON s.id = e.stage_id
        WHERE e.state NOT IN ('absent', 'reconciled_absent')
        GROUP BY looked.release, s.name, e.effect_class, 4, 5 ORDER BY count(*) DESC, 2, 3, 4, 5
        """,
        {**asked, "most": LAST_EFFECTS, "long": LONGEST_NAME, "inside": INSIDE},
    ):
        found[release].acts.setdefault(name, []).append(Act(effect_class, connector, act, count, open_ones))
    return found


def _json(value: Any) -> Any:
    """A JSON value of a cursor of Django's, which may hand it over as text."""
    return json.loads(value) if isinstance(value, str) else value
