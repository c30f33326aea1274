"""Releases: immutable versions of a pipeline, known by the SHA-256 of their canonical JSON (RFC 8785)."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import rfc8785
from django.db import transaction
from django.db.models import Case, When

from pipelines import baselines, material
from pipelines.access import RELEASE, Actor
from pipelines.audit import NO_OP, audited
from pipelines.baselines import Pinned
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.models import Environment, Pipeline, Release
from pipelines.sql import execute, query
from pipelines.states import ReleaseStatus


def canonical(definition: Any) -> tuple[str, str]:
    """A definition as canonical JSON text and that text's SHA-256 in hex."""
    encoded = rfc8785.dumps(definition)
    return encoded.decode(), sha256(encoded).hexdigest()


def register_release(
    *, actor: Actor, pipeline: Pipeline, environment: Environment, definition: dict[str, Any], activate: bool
) -> tuple[Release, bool]:
    """Registers a validated definition for an environment; the second value says whether it is new.

    The same definition again is the same release. With `activate` it becomes the one in force, unless its recipients
    are otherwise than there (R41): then it says so in `material_changes` and waits as a draft for `review_release`.
    """
    with audited(actor, "release.register", pipeline=pipeline.slug, environment=environment.slug) as entry:
        actor.require(RELEASE)
        baselines.check_definition(definition, workspace_id=actor.workspace_id, environment_id=environment.id)
        text, digest = canonical(definition)
        release, created = Release.objects.get_or_create(
            pipeline=pipeline,
            environment=environment,
            digest=digest,
            defaults={
                "workspace_id": actor.workspace_id,
                "definition": text,
                "source_digest": (definition.get("source") or {}).get("sha256", ""),
                "created_by_id": actor.user_id,
            },
        )
        entry.data |= {"digest": digest, "release": str(release.id)}
        changed = False
        if _needs_review(release):
            entry.data["needs_review"] = len(release.material_changes or ())
        elif activate:
            changed = _put_in_force(release)
            entry.after = {"status": ReleaseStatus.ACTIVE}
        if not created and not changed:
            entry.outcome = NO_OP
    return release, created


def activate_release(release_id: uuid.UUID, *, actor: Actor, reason: str = "") -> Release:
    """Puts a release in force; the one before it becomes superseded. Already in force: nothing changes.

    A revoked or retired release is refused with `release_not_active`; with `operator_review_required` one whose
    recipients are otherwise than in force, while nobody has reviewed just that.
    """
    refusal = None
    with audited(actor, "release.activate", reason=reason, release=str(release_id)) as entry:
        actor.require(RELEASE)
        release = Release.objects.filter(id=release_id, workspace_id=actor.workspace_id, pipeline__isnull=False).first()
        if release is None:
            raise Refusal("not_found", "there is no such release")
        entry.data |= {"pipeline": str(release.pipeline), "environment": str(release.environment)}
        entry.before, entry.after = {"status": release.status}, {"status": ReleaseStatus.ACTIVE}
        if _needs_review(release):
            entry.after = entry.before
            refusal = _review_required(release)
            entry.keep_refused(refusal)
        elif not _put_in_force(release):
            entry.outcome = NO_OP
    if refusal is not None:
        raise refusal
    return release


def review_release(release_id: uuid.UUID, *, actor: Actor, reason: str) -> Release:
    """A person's word that a release may send to whom it names, as `material_changes` tells (R41).

    Never of who registered it (`self_approval`), whoever they are, nor of an application; with a reason. It holds for
    these changes alone. Refused with `release_not_active` where nothing waits for a review. The same person again
    changes nothing.
    """
    with audited(actor, "release.review", reason=reason, release=str(release_id)) as entry:
        actor.require(RELEASE)
        release = (
            Release.objects.select_for_update(no_key=True, of=("self",))
            .filter(id=release_id, workspace_id=actor.workspace_id, pipeline__isnull=False)
            .first()
        )
        if release is None:
            raise Refusal("not_found", "there is no such release")
        entry.data |= {"pipeline": str(release.pipeline), "environment": str(release.environment)}
        if not actor.is_person:
            raise Refusal("permission_denied", "only a person reviews to whom a release sends")
        if not release.material_changes:
            raise Refusal("release_not_active", "it sends to nobody else than what is in force: no review is needed")
        if release.created_by_id == actor.user_id:
            raise Refusal("self_approval", "who registered a release does not review to whom it sends")
        if not reason.strip():
            raise Refusal("validation_error", "a review needs a reason", errors={"reason": ["must not be blank"]})
        if release.reviewed_at is not None:
            entry.outcome = NO_OP
            return release
        entry.data["material"] = release.material_changes  # what it was given for: `audit_decisions` compares it
        entry.data["changes"] = [material.sentence(one) for one in release.material_changes]
        execute(
            "UPDATE pipelines_release SET reviewed_by_id = %s, reviewed_at = recourse_now(), review_note = %s"
            " WHERE id = %s",
            [actor.user_id, reason, release.id],
        )
        release.refresh_from_db()
    return release


def _needs_review(release: Release) -> bool:
    """Whether its recipients are otherwise than in force, and nobody reviewed just that; noted with the release.

    Against what was in force last, where nothing is now. Locks the pipeline, so that what is in force stays so.
    """
    pipeline = release.pipeline
    if pipeline is None:
        return False
    with transaction.atomic():
        Pipeline.objects.select_for_update(no_key=True).get(id=pipeline.id)
        release.refresh_from_db()
        if release.status in (ReleaseStatus.ACTIVE, ReleaseStatus.REVOKED, ReleaseStatus.RETIRED):
            return False
        before = last_in_force(pipeline, release.environment)
        found = material.changes(json.loads(before.definition) if before else None, json.loads(release.definition))
        if found != (release.material_changes or []):
            execute(
                "UPDATE pipelines_release SET material_changes = %s, reviewed_by_id = NULL, reviewed_at = NULL,"
                " review_note = '' WHERE id = %s",
                [json.dumps(found) if found else None, release.id],
            )
            release.refresh_from_db()
        return release.needs_review


def last_in_force(pipeline: Pipeline, environment: Environment | None) -> Release | None:
    """The release in force there, else the one that was last."""
    return (
        Release.objects.filter(pipeline=pipeline, environment=environment, activated_at__isnull=False)
        .order_by(Case(When(status=ReleaseStatus.ACTIVE, then=0), default=1), "-activated_at")
        .first()
    )


def _review_required(release: Release) -> Refusal:
    changes = release.material_changes or []
    told = "; ".join(material.sentence(one) for one in changes)
    detail = f"another person than who registered it must review to whom it sends: {told}"
    return Refusal("operator_review_required", detail, extra={"changes": changes})


def inline_release(workspace_id: uuid.UUID, definition: dict[str, Any]) -> uuid.UUID:
    """The release of an inline stage list: found again by its digest, made when it is new."""
    text, digest = canonical(definition)
    find = "SELECT id FROM pipelines_release WHERE workspace_id = %s AND digest = %s AND pipeline_id IS NULL"
    found = query(find, [workspace_id, digest])
    if not found:
        found = query(
            "INSERT INTO pipelines_release (id, workspace_id, definition, digest, status, created_at)"
            " VALUES (%s, %s, %s, %s, 'active', recourse_now())"
            " ON CONFLICT (workspace_id, digest) WHERE pipeline_id IS NULL DO NOTHING RETURNING id",
            [new_id(), workspace_id, text, digest],
        ) or query(find, [workspace_id, digest])
    return found[0][0]


@dataclass(frozen=True, slots=True)
class Managed:
    """What a pipeline runs by now in an environment."""

    release_id: uuid.UUID
    pipeline_id: uuid.UUID
    name: str
    slug: str
    definition: dict[str, Any]
    _pinned: list[Pinned] = field(default_factory=list, compare=False)

    def baseline(self, workspace_id: uuid.UUID, environment_id: uuid.UUID) -> Pinned:
        """What it names of baselines, as they are now; asked once however many runs are made of it."""
        if not self._pinned:
            told = baselines.of_definition(self.definition, workspace_id=workspace_id, environment_id=environment_id)
            self._pinned.append(told)
        return self._pinned[0]


def release_in_force(workspace_id: uuid.UUID, slug: str, environment_id: uuid.UUID) -> Managed:
    """The active release of a pipeline known by its slug.

    An unknown pipeline is an input error; a pipeline with none in force is `release_not_active`.
    """
    found = _in_force(workspace_id, environment_id, slug=slug)
    if found is None:
        message = f"no pipeline is called {slug!r}"
        raise Refusal("validation_error", message, errors={"pipeline": [message]})
    return found


def managed(workspace_id: uuid.UUID, pipeline_id: uuid.UUID, environment_id: uuid.UUID) -> Managed:
    """The active release of a pipeline of the workspace; with none in force it is `release_not_active`."""
    found = _in_force(workspace_id, environment_id, pipeline_id=pipeline_id)
    if found is None:
        raise Refusal("release_not_active", "there is no such pipeline")
    return found


def _in_force(
    workspace_id: uuid.UUID, environment_id: uuid.UUID, *, slug: str | None = None, pipeline_id: uuid.UUID | None = None
) -> Managed | None:
    find = (
        "SELECT r.id, p.id, p.name, p.slug, r.definition FROM pipelines_pipeline p LEFT JOIN pipelines_release r"
        " ON r.pipeline_id = p.id AND r.environment_id = %s AND r.status = 'active' WHERE p.workspace_id = %s"
    )
    if slug is not None:
        rows = query(f"{find} AND p.slug = %s", [environment_id, workspace_id, slug])
    else:
        rows = query(f"{find} AND p.id = %s", [environment_id, workspace_id, pipeline_id])
    if not rows:
        return None
    release_id, pipeline_id, name, slug, definition = rows[0]
    if release_id is None:
        raise Refusal("release_not_active", f"pipeline {slug!r} has no active release in this environment")
    return Managed(release_id, pipeline_id, name, slug, json.loads(definition))


def _put_in_force(release: Release) -> bool:
    """Whether that changed anything."""
    pipeline, environment = release.pipeline, release.environment
    if pipeline is None or environment is None:
        raise Refusal("release_not_active", "an inline release belongs to its runs; it is never put in force")
    with transaction.atomic():
        # the pipeline's row serialises activations, so that two at once leave one in force
        Pipeline.objects.select_for_update(no_key=True).get(id=pipeline.id)
        release.refresh_from_db()
        if release.status == ReleaseStatus.ACTIVE:
            return False
        if release.status in (ReleaseStatus.REVOKED, ReleaseStatus.RETIRED):
            raise Refusal("release_not_active", f"a {release.status} release cannot be put in force")
        Release.objects.filter(pipeline=pipeline, environment=environment, status=ReleaseStatus.ACTIVE).update(
            status=ReleaseStatus.SUPERSEDED
        )
        execute(
            "UPDATE pipelines_release SET status = 'active', activated_at = recourse_now(),"
            " policy_digest = recourse_policy_digest(workspace_id) WHERE id = %s",
            [release.id],
        )
        release.refresh_from_db()
    return True
