"""Checkpoints read back: what a run left written, and whether it may be believed.

A checkpoint is believed only when everything about it agrees: the run's own workspace, release and environment, a stage
that is the run's, columns that say what the payload says, the payload's digest, and the signature by a key that is in
the keyring and not revoked at this moment. Nothing is loaded from one that is not. Serves O13–O16, O25, O34, O36, R44,
F148, F149.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

import orjson
from django.db.models import QuerySet

from pipelines import signing
from pipelines.checkpoints import HANDLER_STATE, Identity
from pipelines.errors import Refusal
from pipelines.models import Checkpoint, Stage
from pipelines.signing import Envelope, Verdict
from pipelines.sql import query, recordset
from pipelines.states import lets_go_on

CANNOT_CHECK = "its signature cannot be checked now, since the keyring cannot be read; try again once it can"
BATCH = 50  # how many are verified at a time on the way down


@dataclass(frozen=True, slots=True)
class Done:
    """A stage that a checkpoint says is done. `output_id` is the kept output whose body has that digest."""

    stage_id: uuid.UUID
    stage: str
    state: str
    epoch: int
    output_id: uuid.UUID | None
    output_digest: str


@dataclass(frozen=True, slots=True)
class Covering:
    """The checkpoint that a rerun may use. `done` by stage name; `posture`: the effects that were declared by then."""

    checkpoint: Checkpoint
    done: Mapping[str, Done]
    posture: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class HandlerState:
    """What a handler left for its next attempt."""

    checkpoint_id: uuid.UUID
    sequence: int
    state: Any
    posture: Mapping[str, Any] | None


class HasState(Protocol):
    """A stage as far as its handler's state goes."""

    @property
    def id(self) -> uuid.UUID: ...
    @property
    def run_id(self) -> uuid.UUID: ...
    @property
    def epoch(self) -> int: ...
    @property
    def checkpoint(self) -> uuid.UUID | None: ...


def snapshot(run_id: uuid.UUID) -> tuple[Checkpoint, Verdict] | None:
    """The run's newest checkpoint and what it is worth now; None when the run has none.

    Invalid also when others are missing from the row, or it does not say what the run's stages say.
    """
    stages, latest = _stages_with_latest(run_id)
    checkpoint = _by_sequence(run_id, latest)
    if checkpoint is None:
        return None
    verdict = verify(checkpoint)
    if verdict == Verdict.VALID and _why_incomplete(checkpoint, stages):
        verdict = Verdict.INVALID
    return checkpoint, verdict


def newest_valid(run_id: uuid.UUID) -> Checkpoint:
    """The run's newest checkpoint, to be used. `checkpoint_not_found`, or `checkpoint_integrity_invalid`."""
    stages, latest = _stages_with_latest(run_id)
    checkpoint = _by_sequence(run_id, latest)
    if checkpoint is None:
        raise Refusal("checkpoint_not_found", "the run has no checkpoint yet")
    _require(checkpoint, verify(checkpoint))
    if why := _why_incomplete(checkpoint, stages):
        raise _invalid(checkpoint, why)
    return checkpoint


def verify(checkpoint: Checkpoint) -> Verdict:
    """Whether this checkpoint may be believed now."""
    return verify_all([checkpoint])[0]


def verify_all(checkpoints: Sequence[Checkpoint]) -> list[Verdict]:
    """As `verify`, for many: the stages are looked up once, and the keyring is read once for each workspace."""
    owners = _owners(checkpoint.stage for checkpoint in checkpoints)
    sound = [_is_consistent(checkpoint, owners) for checkpoint in checkpoints]
    asked = [
        (one.run.workspace_id, Envelope(one.algorithm, one.key_id, one.signature), message_of(one))
        for one, is_sound in zip(checkpoints, sound, strict=True)
        if is_sound
    ]
    verdicts = iter(signing.verify_all(asked))
    return [next(verdicts) if is_sound else Verdict.INVALID for is_sound in sound]


def newest_covering(run_id: uuid.UUID, needed: Collection[str]) -> Covering:
    """The newest checkpoint that says all stages named in `needed` are done; for an empty `needed`, simply the newest.

    Refused: `checkpoint_not_found` when the run has none, or none that covers. `checkpoint_integrity_invalid` when the
    one to be used, or any newer one, is not to be believed; when one is missing from the row, or the newest does not
    say what the run's stages say (its end was cut off); when a kept output is gone or is not what was signed. So
    tampering is never passed over by falling back to an older one. Nothing is loaded before all of that holds.
    """
    stages, latest = _stages_with_latest(run_id)
    if not latest:
        raise Refusal("checkpoint_not_found", "the run has no checkpoint")
    rows = Checkpoint.objects.filter(run_id=run_id).select_related("run").order_by("-sequence")
    for batch in _batches(rows):
        for checkpoint, verdict in zip(batch, verify_all(batch), strict=True):
            _require(checkpoint, verdict)
            done = payload_of(checkpoint)["done"]
            if checkpoint.sequence == latest and (why := _why_incomplete(checkpoint, stages)):
                raise _invalid(checkpoint, why)
            if set(needed) <= {item["stage"] for item in done}:
                return Covering(checkpoint, _kept(checkpoint, stages, done), _posture(checkpoint))
    raise Refusal("checkpoint_not_found", f"no checkpoint says that these are done: {', '.join(sorted(needed))}")


def handler_state(run_id: uuid.UUID, stage_name: str) -> HandlerState | None:
    """What the stage's handler left in the stage's present epoch; None when it left nothing.

    Refused with `checkpoint_integrity_invalid` when that is not to be believed, or is not the newest that it left.
    """
    stage = Stage.objects.get(run_id=run_id, name=stage_name)
    left, problems = handler_states([stage])
    if stage.id in problems:
        raise Refusal("checkpoint_integrity_invalid", problems[stage.id])
    return left.get(stage.id)


def handler_states(stages: Iterable[HasState]) -> tuple[dict[uuid.UUID, HandlerState], dict[uuid.UUID, str]]:
    """By stage id: the states that may be handed over, and why those that may not be are not.

    A stage names its handler's newest state in `checkpoint`: it must be that run's, stage's and epoch's newest.
    """
    expecting = {stage.id: stage for stage in stages}
    ids: dict[uuid.UUID, uuid.UUID] = dict(
        query(
            "SELECT DISTINCT ON (c.stage) c.stage, c.id FROM json_to_recordset(%s::json) AS"
            " s(id uuid, run_id uuid, epoch int) JOIN pipelines_checkpoint c ON c.run_id = s.run_id"
            " AND c.stage = s.id AND c.epoch = s.epoch AND c.moment = ANY(%s) ORDER BY c.stage, c.sequence DESC",
            [
                recordset([{"id": one.id, "run_id": one.run_id, "epoch": one.epoch} for one in expecting.values()]),
                sorted(HANDLER_STATE),
            ],
        )
    )
    rows = Checkpoint.objects.select_related("run").in_bulk(list(ids.values()))
    found = {stage_id: rows[checkpoint_id] for stage_id, checkpoint_id in ids.items()}
    verdicts = dict(zip(found, verify_all(list(found.values())), strict=True))
    states: dict[uuid.UUID, HandlerState] = {}
    problems: dict[uuid.UUID, str] = {}
    for stage_id, stage in expecting.items():
        if stage.checkpoint is None and stage_id not in found:
            continue
        checkpoint = found.get(stage_id)
        if checkpoint is None or checkpoint.id != stage.checkpoint:
            problems[stage_id] = "the handler's newest checkpoint is missing, or is another stage's or epoch's"
        elif verdicts[stage_id] != Verdict.VALID:
            why = _why(verdicts[stage_id])
            problems[stage_id] = f"the handler's checkpoint {checkpoint.sequence} is not to be believed: {why}"
        else:
            payload = payload_of(checkpoint)
            states[stage_id] = HandlerState(
                checkpoint.id, checkpoint.sequence, payload.get("state"), payload.get("recovery_posture")
            )
    return states, problems


def latest_sequence(run_id: uuid.UUID) -> int:
    """The sequence of the run's newest checkpoint, 0 when it has none."""
    return query("SELECT coalesce(max(sequence), 0) FROM pipelines_checkpoint WHERE run_id = %s", [run_id])[0][0]


def shown(checkpoint: Checkpoint) -> Any:
    """What it says, to be shown beside its verdict; None where it is no JSON, or nested deeper than any ever was."""
    try:
        said = orjson.loads(checkpoint.payload)
        orjson.dumps(said)
    except (ValueError, TypeError):
        return None
    return said


def identity_of(checkpoint: Checkpoint) -> Identity:
    """What it is of, by its run's own columns."""
    run = checkpoint.run
    return Identity(
        workspace=run.workspace_id,
        run=run.id,
        release=run.release_id,
        environment=run.environment_id,
        stage=checkpoint.stage,
        epoch=checkpoint.epoch,
        sequence=checkpoint.sequence,
    )


def payload_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What it says. Only for one that was verified."""
    said: dict[str, Any] = orjson.loads(checkpoint.payload)
    return said


# below: how


def _owners(stage_ids: Iterable[uuid.UUID | None]) -> dict[uuid.UUID, uuid.UUID]:
    wanted = list({stage_id for stage_id in stage_ids if stage_id is not None})
    return dict(query("SELECT id, run_id FROM pipelines_stage WHERE id = ANY(%s)", [wanted])) if wanted else {}


def _is_consistent(checkpoint: Checkpoint, owners: Mapping[uuid.UUID, uuid.UUID]) -> bool:
    """Whether the row agrees with itself and with its run, before any key is asked."""
    if checkpoint.stage is not None and owners.get(checkpoint.stage) != checkpoint.run_id:
        return False
    if sha256(checkpoint.payload.encode()).hexdigest() != checkpoint.payload_digest:
        return False
    payload = shown(checkpoint)
    columns = {
        "moment": checkpoint.moment,
        "attempt": str(checkpoint.attempt) if checkpoint.attempt else None,
        "current_step_id": checkpoint.current_step_id,
        "previous_step_id": checkpoint.previous_step_id,
    }
    return isinstance(payload, dict) and columns == {name: payload.get(name) for name in columns}


def message_of(checkpoint: Checkpoint) -> bytes:
    return identity_of(checkpoint).message(checkpoint.payload_digest)


def _stages_with_latest(run_id: uuid.UUID) -> tuple[list[Stage], int]:
    """The run's stages and its newest sequence, of one moment: no checkpoint was written while the stages were read."""
    before = latest_sequence(run_id)
    while True:
        stages = list(Stage.objects.filter(run_id=run_id).order_by("position"))
        latest = latest_sequence(run_id)
        if latest == before:
            return stages, latest
        before = latest


def _by_sequence(run_id: uuid.UUID, sequence: int) -> Checkpoint | None:
    return Checkpoint.objects.filter(run_id=run_id, sequence=sequence).select_related("run").first()


def _why_incomplete(newest: Checkpoint, stages: Iterable[Stage]) -> str:
    """Why this verified checkpoint is not the end of a whole row; blank when it is."""
    find = "SELECT count(*) FROM pipelines_checkpoint WHERE run_id = %s AND sequence BETWEEN 1 AND %s"
    if query(find, [newest.run_id, newest.sequence])[0][0] != newest.sequence:
        return "some of those before it are missing"
    if payload_of(newest)["done"] != _done_now(stages):
        return "it does not say what the run's stages say: newer ones are missing"
    return ""


def _done_now(stages: Iterable[Stage]) -> list[dict[str, Any]]:
    return [
        {"epoch": stage.epoch, "output": stage.output_digest or None, "stage": stage.name, "state": stage.state}
        for stage in stages
        if lets_go_on(stage)
    ]


def _kept(checkpoint: Checkpoint, stages: Iterable[Stage], done: Iterable[Mapping[str, Any]]) -> dict[str, Done]:
    """The done stages with their outputs, whose bodies are hashed anew."""
    by_name = {stage.name: stage for stage in stages}
    kept: dict[str, Done] = {}
    for item in done:
        stage = by_name.get(item["stage"])
        if stage is None:
            raise _invalid(checkpoint, f"the run has no stage called {item['stage']!r}")
        kept[stage.name] = Done(stage.id, stage.name, item["state"], item["epoch"], None, item["output"] or "")
    outputs = _outputs([one for one in kept.values() if one.output_digest])
    for name, one in kept.items():
        if one.output_digest and name not in outputs:
            raise _invalid(checkpoint, f"the output of {name!r} that was signed for is gone or was altered")
        kept[name] = replace(one, output_id=outputs.get(name))
    return kept


def _outputs(done: Sequence[Done]) -> dict[str, uuid.UUID]:
    """By stage name: the stage's output of that epoch whose body has the digest that was signed for."""
    wanted = [
        {"stage": one.stage, "stage_id": one.stage_id, "epoch": one.epoch, "digest": one.output_digest} for one in done
    ]
    return dict(
        query(
            "SELECT w.stage, o.id FROM json_to_recordset(%s::json) AS"
            " w(stage text, stage_id uuid, epoch int, digest text) JOIN pipelines_stageoutput o"
            " ON o.stage_id = w.stage_id AND o.epoch = w.epoch AND o.digest = w.digest"
            " WHERE encode(sha256(convert_to(o.body, 'UTF8')), 'hex') = w.digest ORDER BY o.at, o.id",
            [recordset(wanted)],
        )
    )


def _posture(checkpoint: Checkpoint) -> tuple[Mapping[str, Any], ...]:
    """What each stage declared last by then, the newest first: no stage speaks for another, and the engine's own
    checkpoints declare nothing and take nothing back."""
    declared = Checkpoint.objects.filter(
        run_id=checkpoint.run_id, sequence__lte=checkpoint.sequence, moment__in=HANDLER_STATE
    )
    silent = set(declared.values_list("stage", flat=True).distinct())
    entries: list[Mapping[str, Any]] = []
    for batch in _batches(declared.select_related("run").order_by("-sequence")):
        for one, verdict in zip(batch, verify_all(batch), strict=True):
            _require(one, verdict)
            posture = payload_of(one).get("recovery_posture")
            if posture is not None and one.stage in silent:
                silent.discard(one.stage)
                entries += posture["side_effects"]
        if not silent:
            break
    return tuple(entries)


def _batches(rows: QuerySet[Checkpoint]) -> Iterator[list[Checkpoint]]:
    """The rows, which are ordered by falling sequence: the first alone, as it mostly suffices, then more at a time."""
    batch = list(rows[:1])
    while batch:
        yield batch
        batch = list(rows.filter(sequence__lt=batch[-1].sequence)[:BATCH])


def _require(checkpoint: Checkpoint, verdict: Verdict) -> None:
    if verdict != Verdict.VALID:
        unread = verdict == Verdict.INVALID and not signing.can_check(checkpoint.run.workspace_id)
        raise _invalid(checkpoint, CANNOT_CHECK if unread else _why(verdict), verdict)


def _invalid(checkpoint: Checkpoint, why: str, verdict: Verdict = Verdict.INVALID) -> Refusal:
    told = {"checkpoint_id": str(checkpoint.id), "sequence": checkpoint.sequence, "integrity": verdict.value}
    return Refusal(
        "checkpoint_integrity_invalid", f"checkpoint {checkpoint.sequence} is not to be believed: {why}", extra=told
    )


def _why(verdict: Verdict) -> str:
    if verdict == Verdict.REVOKED_KEY:
        return "it was signed with a key that is revoked"
    return "its signature is missing, or does not fit what it says and what it is of"
