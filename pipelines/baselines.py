"""What runs build on: artifacts that they are given by name, pinned with their digests when they are created (R17).

A request may name what its application may load: artifacts of its own environment, and the workspace's baselines. A
definition names the workspace's baselines alone, since it belongs to no application. Resolving asks one statement.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.errors import Refusal
from pipelines.sql import query

Pinned = list[dict[str, Any]]  # [{name, artifact_id, sha256}]
NOT_THERE = "there is no such artifact here"

_ONES_OWN = (
    "(application_id = %(application)s OR run_id IS NULL AND application_id IS NULL)"
    " AND (environment_id = %(environment)s OR run_id IS NULL AND environment_id IS NULL)"
)
_OF_WORKSPACE = (
    "run_id IS NULL AND application_id IS NULL AND (environment_id IS NULL OR environment_id = %(environment)s)"
)


def of_request(
    named: Sequence[Mapping[str, Any]],
    *,
    workspace_id: uuid.UUID,
    application_id: uuid.UUID,
    environment_id: uuid.UUID,
    already: Sequence[Mapping[str, Any]] = (),
) -> Pinned:
    """Pins what a request names beside what its release does; refused by the path of what there is not."""
    if not named:
        return []
    wanted = {"workspace": workspace_id, "application": application_id, "environment": environment_id}
    known = _digests(named, _ONES_OWN, wanted)
    taken = {one["name"] for one in already}
    errors = {}
    for at, one in enumerate(named):
        if one["name"] in taken:
            errors[f"baseline[{at}].name"] = ["is pinned by the release"]
        elif uuid.UUID(str(one["artifact_id"])) not in known:
            errors[f"baseline[{at}].artifactId"] = [NOT_THERE]
    _refuse(errors)
    return _pinned(named, known)


def of_definition(definition: Mapping[str, Any], *, workspace_id: uuid.UUID, environment_id: uuid.UUID) -> Pinned:
    """Pins what the definition of a release names; `definition_changed` where some of it is gone."""
    named = definition.get("baseline") or []
    if not named:
        return []
    known = _digests(named, _OF_WORKSPACE, {"workspace": workspace_id, "environment": environment_id})
    gone = [one["name"] for one in named if uuid.UUID(one["artifact_id"]) not in known]
    if gone:
        detail = f"the release names a baseline that is gone: {', '.join(gone)}"
        raise Refusal("definition_changed", detail, extra={"baseline": gone})
    return _pinned(named, known)


def check_definition(definition: Mapping[str, Any], *, workspace_id: uuid.UUID, environment_id: uuid.UUID) -> None:
    """Refuses a definition for an environment by the path of a baseline that is not there for all applications."""
    named = definition.get("baseline") or []
    known = _digests(named, _OF_WORKSPACE, {"workspace": workspace_id, "environment": environment_id}) if named else {}
    _refuse(
        {
            f"definition.baseline[{at}].artifact_id": [NOT_THERE]
            for at, one in enumerate(named)
            if uuid.UUID(one["artifact_id"]) not in known
        }
    )


def anew(
    source: Sequence[Mapping[str, Any]],
    definition: Mapping[str, Any],
    *,
    workspace_id: uuid.UUID,
    application_id: uuid.UUID,
    environment_id: uuid.UUID,
) -> Pinned:
    """Of a fork: what the release that will run names, and beside that what the source was given, as they are now."""
    named = {one["name"]: one for one in source}
    named |= {one["name"]: one for one in definition.get("baseline") or []}
    if not named:
        return []
    wanted = {"workspace": workspace_id, "application": application_id, "environment": environment_id}
    known = _digests(list(named.values()), _ONES_OWN, wanted)
    gone = [name for name, one in named.items() if uuid.UUID(str(one["artifact_id"])) not in known]
    if gone:
        raise Refusal("definition_changed", f"the baseline is gone: {', '.join(gone)}", extra={"baseline": gone})
    return _pinned(list(named.values()), known)


def _digests(named: Sequence[Mapping[str, Any]], whose: str, wanted: Mapping[str, Any]) -> dict[uuid.UUID, str]:
    rows = query(
        "SELECT id, digest FROM pipelines_artifact WHERE id = ANY(%(ids)s::uuid[])"  # noqa: S608 - our own text
        f" AND workspace_id = %(workspace)s AND {whose}",
        {**wanted, "ids": [str(one["artifact_id"]) for one in named]},
    )
    return dict(rows)


def _pinned(named: Sequence[Mapping[str, Any]], known: Mapping[uuid.UUID, str]) -> Pinned:
    return [
        {
            "name": one["name"],
            "artifact_id": str(one["artifact_id"]),
            "sha256": known[uuid.UUID(str(one["artifact_id"]))],
        }
        for one in named
    ]


def _refuse(errors: Mapping[str, list[str]]) -> None:
    if errors:
        path, messages = next(iter(errors.items()))
        raise Refusal("validation_error", f"{path} {messages[0]}", errors=dict(errors))
