"""Whether a run still stands on what it pinned: the text of its release and the bytes of its baseline.

Asked before anything of it is dispatched. When either is another by now, the run is blocked and says what differs; only
a fork goes on. The release's digest is computed by the database from the text as it stands, so it tells of every
change, whoever made it. Serves R16, R17.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

import orjson
import structlog

from pipelines.artifact_places import Away, Damaged
from pipelines.errors import Refusal
from pipelines.models import Artifact
from pipelines.moves import Moves
from pipelines.sql import query

Differences = list[dict[str, Any]]

log = structlog.get_logger(__name__)


def differences(run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Differences]:
    """What is no longer as these runs pinned it, by run: [{what, name, pinned, found}]. Runs that are well have none.

    A storage that does not answer tells nothing of a baseline: `Away` goes on up, and nothing is dispatched meanwhile.
    """
    found: dict[uuid.UUID, Differences] = {}
    rows = query(
        "SELECT r.id, r.release_digest, e.text_digest, coalesce(p.slug, r.name), r.baseline::text"
        " FROM pipelines_run r JOIN pipelines_release e ON e.id = r.release_id"
        " LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE r.id = ANY(%s)",
        [list(run_ids)],
    )
    for run_id, pinned, text_digest, name, baseline in rows:
        differing = []
        if pinned not in ("", text_digest):
            differing.append({"what": "definition", "name": name, "pinned": pinned, "found": text_digest})
        differing += [item for told in orjson.loads(baseline) if (item := _of_baseline(told))]
        if differing:
            found[run_id] = differing
    return found


def found(run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Differences]:
    """What is no longer as these runs pinned it, by run: looked for now, or as it was once found, which stays for good.
    Runs that are well have none."""
    rows = query(
        "SELECT r.id, r.changed::text, r.release_digest IN ('', e.text_digest) AND r.baseline = '[]'"
        " FROM pipelines_run r JOIN pipelines_release e ON e.id = r.release_id WHERE r.id = ANY(%s)",
        [list(run_ids)],
    )
    known: dict[uuid.UUID, Differences] = {run_id: orjson.loads(told) for run_id, told, _ in rows if told is not None}
    doubtful = [run_id for run_id, told, is_as_pinned in rows if told is None and not is_as_pinned]
    return known | (differences(doubtful) if doubtful else {})


def refusal(differing: Differences) -> Refusal:
    """Of whatever would go on in such a run: `definition_changed`, saying what differs."""
    detail = f"{in_words(differing)}; only a fork of the run goes on"
    return Refusal("definition_changed", detail, extra={"changed": differing, "instead": "fork"})


def require(run_id: uuid.UUID) -> None:
    """Refuses with `definition_changed` a run that no longer stands on what it pinned."""
    if differing := found([run_id]).get(run_id):
        raise refusal(differing)


def stop_changed(run_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Blocks those of these runs, which the caller's transaction may hold, that no longer stand on what they pinned.

    Says of which nothing may be dispatched: those, and the ones whose baseline cannot be looked at just now.
    """
    changed: dict[uuid.UUID, Differences] = {}
    unknown = set()
    for run_id in run_ids:
        try:
            changed |= differences([run_id])
        except Away as error:
            unknown.add(run_id)
            log.warning("pinned.baseline_out_of_reach", run=str(run_id), error=error.detail)
    if changed:
        moves = Moves.lock(changed)
        for run in moves.runs.values():
            if not run.changed and not run.is_terminal:
                moves.mark_changed(run, changed[run.id])
        moves.settle()
        moves.save()
    return unknown | set(changed)


def in_words(differing: Differences) -> str:
    """What differs, in a sentence."""
    told = [
        f"{item['what']} {item['name']} is {_short(item['found'])}, not {_short(item['pinned'])}" for item in differing
    ]
    return "; ".join(told)


def _of_baseline(told: dict[str, Any]) -> dict[str, Any] | None:
    # imported here: it stands above leases, which ask this module
    from pipelines import artifacts

    item = {"what": "baseline", "name": told["name"], "pinned": told["sha256"]}
    artifact = Artifact.objects.filter(id=told["artifact_id"]).first()
    if artifact is None:
        return item | {"found": "gone"}
    if artifact.digest != told["sha256"]:
        return item | {"found": artifact.digest}
    try:
        artifacts.whole(artifact)
    except Damaged as damaged:
        return item | {"found": f"damaged: {damaged}"}
    return None


def _short(digest: str) -> str:
    is_digest = len(digest) == 64 and all(letter in "0123456789abcdef" for letter in digest)
    return f"{digest[:12]}…" if is_digest else digest
