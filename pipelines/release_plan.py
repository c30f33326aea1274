"""What registering a definition would change, before anybody does: told beside what is in force, and nothing is kept.

The definition is compared as the console would keep it, defaults filled in, so that what is the same is told as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines import baselines, material
from pipelines.access import Actor
from pipelines.console import differences
from pipelines.console.differences import Change
from pipelines.models import Environment, Pipeline, Release
from pipelines.releases import canonical, last_in_force
from pipelines.states import ReleaseStatus

Definition = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two definitions of one pipeline. `stages` are those that both have and that differ, with their places; `other`
    are places outside stages and code. `code` is a unified difference, None where too much of it differs.
    """

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    stages: dict[str, list[Change]] = field(default_factory=dict)
    other: list[Change] = field(default_factory=list)
    code: list[str] | None = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """`known`: the definition is registered there already. `before`: the release in force, or that was last; compared
    is with that. `changes`: of recipients, which another person must review first.
    """

    digest: str
    known: Release | None
    before: Release | None
    compared: Compared
    changes: list[dict[str, str]]


def plan(
    *, actor: Actor, pipeline: Pipeline | None, environment: Environment, definition: dict[str, Any]
) -> ReleasePlan:
    """What `register_release` would do with a checked definition, of a pipeline that need not be there yet."""
    baselines.check_definition(definition, workspace_id=actor.workspace_id, environment_id=environment.id)
    _, digest = canonical(definition)
    if pipeline is None:
        return ReleasePlan(digest, None, None, compare(None, definition), [])
    known = Release.objects.filter(pipeline=pipeline, environment=environment, digest=digest).first()
    before = last_in_force(pipeline, environment)
    former = json.loads(before.definition) if before else None
    changes = material.changes(former, definition)
    if known is not None and (known.status == ReleaseStatus.ACTIVE or not known.needs_review):
        changes = []
    return ReleasePlan(digest, known, before, compare(former, definition), changes)


def compare(before: Definition | None, after: Definition) -> Compared:
    """What is otherwise in the second; of a first definition everything is added."""
    old = {stage["name"]: stage for stage in (before or {}).get("stages", ())}
    new = {stage["name"]: stage for stage in after["stages"]}
    places = {name: _differing(old[name], stage) for name, stage in new.items() if name in old}
    return Compared(
        added=[name for name in new if name not in old],
        removed=[name for name in old if name not in new],
        stages={name: found for name, found in places.items() if found},
        other=[] if before is None else _differing(_outside(before), _outside(after)),
        code=differences.unified(code_of(before or {}), code_of(after)),
    )


def code_of(definition: Definition) -> str:
    """The text that it was deployed from; blank where it was not."""
    return str((definition.get("source") or {}).get("text", ""))


def without_code(definition: Definition) -> dict[str, Any]:
    """The definition with the name and the digest of its code, without its text."""
    told = dict(definition)
    if source := told.get("source"):
        told["source"] = {name: value for name, value in source.items() if name != "text"}
    return told


def _outside(definition: Definition) -> dict[str, Any]:
    told = {name: value for name, value in definition.items() if name not in ("stages", "source")}
    if source := definition.get("source"):
        told["source"] = {"file": source["file"]}
    return told


def _differing(before: Any, after: Any) -> list[Change]:
    return [change for change in differences.compare(before, after) if change.kind != "same"]
