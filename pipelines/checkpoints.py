"""Where a run stands, written down and signed at every turn; read back only when the signature holds.

The engine writes one when a run starts, when stages end, at skips, gates, pauses and retries: one for each run and
transaction, in that transaction. A handler writes its own state. The payload holds which stages are done, with digests
of their outputs, never the outputs. Serves O13–O16, O25, O34, O36.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

import orjson
import rfc8785

from pipelines import signing
from pipelines.ids import new_id
from pipelines.sql import execute, query, recordset
from pipelines.states import CheckpointMoment, RunStatus, lets_go_on

HANDLER_STATE = frozenset({CheckpointMoment.HANDLER, CheckpointMoment.RESTORED})


class StageFacts(Protocol):
    """A stage as far as a checkpoint tells of it."""

    @property
    def id(self) -> uuid.UUID: ...
    @property
    def position(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def output_digest(self) -> str: ...
    @property
    def depends_on(self) -> Sequence[int]: ...
    @property
    def run_next_if_failed(self) -> bool: ...
    @property
    def finished_at(self) -> datetime | str | None: ...


class RunFacts(Protocol):
    """A run as far as a checkpoint tells of it."""

    @property
    def id(self) -> uuid.UUID: ...
    @property
    def workspace_id(self) -> uuid.UUID: ...
    @property
    def environment_id(self) -> uuid.UUID: ...
    @property
    def release_id(self) -> uuid.UUID: ...
    @property
    def status(self) -> str: ...
    @property
    def pause_reason(self) -> str: ...
    @property
    def stages(self) -> Sequence[StageFacts]: ...


@dataclass(frozen=True, slots=True)
class NewStage:
    """A stage of a run that is being made; in a fork it may be done already."""

    id: uuid.UUID
    position: int
    name: str
    state: str
    depends_on: Sequence[int] = ()
    output_digest: str = ""
    epoch: int = 1
    run_next_if_failed: bool = False
    finished_at: str | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is being made."""

    id: uuid.UUID
    workspace_id: uuid.UUID
    environment_id: uuid.UUID
    release_id: uuid.UUID
    stages: Sequence[NewStage]
    status: str = RunStatus.QUEUED
    pause_reason: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """What exactly a checkpoint is of; another run's, stage's or epoch's never passes for it."""

    workspace: uuid.UUID
    run: uuid.UUID
    release: uuid.UUID
    environment: uuid.UUID
    stage: uuid.UUID | None
    epoch: int
    sequence: int

    def message(self, payload_digest: str) -> bytes:
        """The bytes that are signed: the canonical JSON of `as_json`, whose names are in canonical order."""
        return orjson.dumps(self.as_json(payload_digest))

    def as_json(self, payload_digest: str) -> dict[str, Any]:
        """The identity and the payload's digest."""
        return {
            "environment": str(self.environment),
            "epoch": self.epoch,
            "payload_digest": payload_digest,
            "release": str(self.release),
            "run": str(self.run),
            "sequence": self.sequence,
            "stage": str(self.stage) if self.stage else None,
            "workspace": str(self.workspace),
        }


@dataclass(slots=True)
class Mark:
    """That a checkpoint is due for a run, and why; `id` is the one it will have."""

    moment: CheckpointMoment
    stage: StageFacts | None = None
    attempt: uuid.UUID | str | None = None
    state: Any = None
    posture: Mapping[str, Any] | None = None
    id: uuid.UUID = field(default_factory=new_id)

    @property
    def has_state(self) -> bool:
        """Whether a handler's state goes with it; it may be null."""
        return self.moment in HANDLER_STATE


@dataclass(frozen=True, slots=True)
class Written:
    checkpoint_id: uuid.UUID
    sequence: int


def write(marks: Iterable[tuple[RunFacts, Mark]]) -> list[Written]:
    """Signs and adds these checkpoints of locked runs, in this order, in the caller's transaction, in few statements.

    The caller holds the runs' locks, so that sequences rise without a gap; the rows must say already what is told here.
    """
    due = list(marks)
    if not due:
        return []
    newest: dict[uuid.UUID, int] = dict(
        query(
            "SELECT run_id, max(sequence) FROM pipelines_checkpoint WHERE run_id = ANY(%s) GROUP BY run_id",
            [[run.id for run, _ in due]],
        )
    )
    rows = []
    for run, mark in due:
        newest[run.id] = newest.get(run.id, 0) + 1
        rows.append(checkpoint_row(run, mark, newest[run.id]))
    insert(rows)
    return [Written(row["id"], row["sequence"]) for row in rows]


def write_first(runs: Sequence[NewRun]) -> None:
    """The checkpoints of runs' starts, in the transaction that makes the runs."""
    insert([checkpoint_row(run, Mark(CheckpointMoment.RUN_START), 1) for run in runs])


def checkpoint_row(run: RunFacts, mark: Mark, sequence: int) -> dict[str, Any]:
    """One signed checkpoint, as a row ready for `insert`."""
    stage = mark.stage
    current, previous = steps(run.stages)
    payload = payload_text(run, mark, current, previous)
    digest = sha256(payload.encode()).hexdigest()
    epoch = stage.epoch if stage else 1
    identity = Identity(
        run.workspace_id, run.id, run.release_id, run.environment_id, stage.id if stage else None, epoch, sequence
    )
    envelope = signing.sign(run.workspace_id, identity.message(digest))
    return {
        "id": mark.id,
        "run_id": run.id,
        "sequence": sequence,
        "moment": mark.moment,
        "stage": identity.stage,
        "epoch": epoch,
        "attempt": mark.attempt,
        "current_step_id": current,
        "previous_step_id": previous,
        "payload": payload,
        "payload_digest": digest,
        "algorithm": envelope.algorithm,
        "key_id": envelope.key_id,
        "signature": envelope.signature,
    }


def steps(stages: Sequence[StageFacts]) -> tuple[str, str]:
    """(current, previous): the first stage in graph order that is not finished, the last when all are; the one that
    finished last, or none.

    A list may name a stage before what it waits for: then it is not the first in the graph's order.
    """
    unfinished = {stage.position: stage for stage in stages if not lets_go_on(stage)}
    finished = [stage for stage in stages if lets_go_on(stage)]
    current = next(
        (stage.name for stage in unfinished.values() if unfinished.keys().isdisjoint(stage.depends_on)), stages[-1].name
    )
    previous = max(finished, key=lambda stage: (str(stage.finished_at or ""), stage.position)).name if finished else ""
    return current, previous


def payload_text(run: RunFacts, mark: Mark, current: str, previous: str) -> str:
    """The payload as canonical JSON (RFC 8785)."""
    payload: dict[str, Any] = {
        "attempt": str(mark.attempt) if mark.attempt else None,
        "current_step_id": current,
        "done": [
            {
                "epoch": stage.epoch,
                "output": stage.output_digest or None,
                "stage": stage.name,
                "state": stage.state,
            }
            for stage in run.stages
            if lets_go_on(stage)
        ],
        "moment": mark.moment,
        "pause_reason": run.pause_reason,
        "previous_step_id": previous,
        "status": run.status,
    }
    if not mark.has_state:
        # names are fixed and plain here, and values are texts and whole numbers: sorting them is the whole canon
        return orjson.dumps(payload, option=orjson.OPT_SORT_KEYS).decode()
    payload["state"] = mark.state
    payload["recovery_posture"] = mark.posture
    return rfc8785.dumps(json.loads(json.dumps(payload))).decode()


def insert(rows: Sequence[Mapping[str, Any]]) -> None:
    execute(
        "INSERT INTO pipelines_checkpoint (id, run_id, sequence, moment, stage, epoch, attempt, current_step_id,"
        " previous_step_id, payload, payload_digest, algorithm, key_id, signature, recorded_at)"
        " SELECT id, run_id, sequence, moment, stage, epoch, attempt, current_step_id, previous_step_id, payload,"
        " payload_digest, algorithm, key_id, signature, recourse_now() FROM json_to_recordset(%s::json) AS r(id uuid,"
        " run_id uuid, sequence int, moment text, stage uuid, epoch int, attempt uuid, current_step_id text,"
        " previous_step_id text, payload text, payload_digest text, algorithm text, key_id text, signature text)",
        [recordset(rows)],
    )
