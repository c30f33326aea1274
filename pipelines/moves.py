"""The one way to change runs, stages, attempts and gates: locked, decided in memory, written set-based with its events.

Lock order: run rows first, in id order; whoever writes a stage, attempt or gate holds its run's row. Claims and the
sweeps take run rows with SKIP LOCKED, so they never wait and never deadlock with this.

    with transaction.atomic():
        moves = Moves.lock(run_ids, actor="dana")
        moves.stage(stage, "skip", reason="not needed")
        moves.settle()
        moves.save()

Guarantees I2, I4, I5, I6 together with the constraints and triggers of the tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
import structlog

from pipelines import budgets, checkpoints, context, effects, failures, notices, places, remains, wake
from pipelines.checkpoints import Mark, Written
from pipelines.ids import new_id
from pipelines.limits import Limits
from pipelines.models.runs import NO_THROTTLE, StageMode
from pipelines.sql import Row, database_now, execute, query, recordset
from pipelines.states import (
    ACTIVE_STAGE,
    ATTEMPT_MOVES,
    CLAIMABLE_STAGE,
    GATE_MOVES,
    STAGE_MOVES,
    TERMINAL_RUN,
    TERMINAL_STAGE,
    AttemptState,
    CheckpointMoment,
    EffectState,
    GateState,
    NoticeKind,
    RunStatus,
    StageFact,
    StageState,
    derive_run_status,
    what_is_due,
)

DEADLINE_EXCEEDED = "deadline_exceeded"  # a run's failure code that no stage can give it
LONGEST_CAUSE = 255
NO_END = datetime(9999, 12, 31, tzinfo=UTC)  # of the attempt of an import for which nobody set a time

# After which moves of a stage a run's checkpoint is written (model §2).
CHECKPOINTS: dict[str, CheckpointMoment] = {
    **dict.fromkeys(
        (
            *("succeed", "fail", "give_up_delivery", "give_up_recovery", "doubt", "reconcile_committed", "contradict"),
            *("take_import", "fail_import", "exhaust"),
        ),
        CheckpointMoment.STAGE_END,
    ),
    **dict.fromkeys(
        ("wait", "reconcile_offered", "offer_import", "open_gate_before", "approve_after", "approve_before", "deny"),
        CheckpointMoment.GATE,
    ),
    "skip": CheckpointMoment.SKIP,
    "retry": CheckpointMoment.RETRY,
    "rewind": CheckpointMoment.RETRY,
}


log = structlog.get_logger(__name__)

# what moves know for themselves; all else that they gather is decided, and taken up by those that hold all the runs
OF_EACH = frozenset({"_active", "_ended", "_lacking", "_open_effects", "_queued"})


class IllegalMove(RuntimeError):
    """A move that the tables do not have: a fault in the caller, which must check first."""


class Owner(NamedTuple):
    """Whose runs may be locked; None where it does not matter."""

    workspace_id: uuid.UUID | None = None
    application_id: uuid.UUID | None = None
    environment_id: uuid.UUID | None = None


ANYBODY = Owner()


class HasEnd:
    """What is asked of a run's end, by whoever holds these facts of it."""

    __slots__ = ()
    status: RunStatus
    failure_code: str
    deadline_at: datetime | None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_RUN

    @property
    def is_final(self) -> bool:
        """Terminal for good: neither retry nor skip reopens it (I8)."""
        return self.status == RunStatus.CANCELLED or self.failure_code == DEADLINE_EXCEEDED

    def is_past_deadline(self, now: datetime) -> bool:
        """By the clock, whether or not a sweep has come by to say so."""
        return self.deadline_at is not None and self.deadline_at <= now


@dataclass(slots=True, eq=False)
class RunRow(HasEnd):
    """A locked run."""

    id: uuid.UUID
    workspace_id: uuid.UUID
    application_id: uuid.UUID
    environment_id: uuid.UUID
    pipeline_id: uuid.UUID | None
    release_id: uuid.UUID
    name: str
    status: RunStatus
    paused: bool
    pause_reason: str
    paused_until: datetime | None
    started_at: datetime | str | None  # as the database wrote it, until a move sets it
    finished_at: datetime | str | None
    deadline_at: datetime | None
    failure_code: str
    failure_message: str
    failure_stage: uuid.UUID | None
    held: bool  # its lane has not let it in
    deadline_seconds: float | None  # while it is held
    through_blackout: bool
    lane_id: uuid.UUID | None
    trigger_id: uuid.UUID | None
    limits: Limits
    changed: bool  # its definition or baseline is no longer what it pinned: nothing more begins
    parent_id: uuid.UUID | None  # the run whose stage started it; only of such a run does anybody wait for the end
    has_children: bool  # only of such a run does an end concern others
    stages: list[StageRow] = field(default_factory=list)

    @property
    def is_background(self) -> bool:
        """Whether it leaves live work its share: it stands in another lane than its trigger's own."""
        return self.lane_id != self.trigger_id


@dataclass(slots=True, eq=False)
class StageRow:
    """A stage of a locked run; everything that a move may change, and what deciding needs."""

    id: uuid.UUID
    run_id: uuid.UUID
    position: int
    name: str
    handler: str
    depends_on: list[int]
    run_next_if_failed: bool
    mode: str
    effect_mode: str
    effect_protocol: str
    approval: dict[str, Any] | None
    options: dict[str, Any]
    state: StageState
    available_at: datetime | str | None  # as the database wrote it, until a move sets it
    epoch: int
    attempt_number: int
    retry_count: int
    recovery_count: int
    started_at: datetime | str | None
    finished_at: datetime | str | None
    output_id: uuid.UUID | None
    output_digest: str
    checkpoint: uuid.UUID | None  # the newest handler state of this epoch
    last_error_code: str
    last_error_message: str
    failure_disposition: str
    stale: bool

    @property
    def max_recoveries(self) -> int:
        value = self.options.get("max_recoveries")
        return 3 if value is None else int(value)

    @property
    def awaits_import(self) -> bool:
        """Whether its answer is made elsewhere. While it waits for that it has an attempt that is dispatched."""
        return self.mode == StageMode.IMPORT


@dataclass(slots=True, eq=False)
class AttemptRow:
    """An attempt of a locked run."""

    id: uuid.UUID
    stage_id: uuid.UUID
    run_id: uuid.UUID
    number: int
    epoch: int
    state: AttemptState
    session_id: uuid.UUID | None
    worker: str
    request_digest: str
    expires_at: datetime
    timeout_seconds: float | None
    timeout_at: datetime | None
    result_digest: str
    slot: uuid.UUID | None


STAGE_COLUMNS = (
    "id, run_id, position, name, handler, depends_on, run_next_if_failed, mode, effect_mode, effect_protocol, approval,"
    " options, state, available_at::text, epoch, attempt_number, retry_count, recovery_count, started_at::text,"
    " finished_at::text, output_id, output_digest, checkpoint, last_error_code, last_error_message,"
    " failure_disposition, stale"
)
ATTEMPT_COLUMNS = (
    "id, stage_id, run_id, number, epoch, state, session_id, worker, request_digest, expires_at, timeout_seconds,"
    " timeout_at, result_digest, slot"
)


_OPEN_EFFECTS = (
    "SELECT e.run_id, e.id, e.stage_id, a.number, e.effect_class, e.step_id, e.key, e.external_ref"
    " FROM pipelines_effect e JOIN pipelines_attempt a ON a.id = e.attempt"
    " WHERE e.run_id = ANY(%s) AND e.state IN ('declared', 'unknown') AND e.effect_class <> 'internal_state'"
    " ORDER BY e.run_id, e.declared_at, e.id"
)


def read_stage(row: Sequence[Any]) -> StageRow:
    stage = StageRow(*row)
    stage.approval = orjson.loads(stage.approval) if stage.approval else None  # type: ignore[arg-type]
    stage.options = orjson.loads(stage.options)  # type: ignore[arg-type]
    stage.state = StageState(stage.state)
    return stage


@lru_cache(maxsize=1_000)
def limits_of(text: str) -> Limits:
    """What a run pinned, from its column's text."""
    return Limits.of(orjson.loads(text))


class Moves:
    """Runs locked in this transaction, and the changes decided on them so far; `save` writes all at once."""

    def __init__(self, now: datetime, runs: list[RunRow], actor: str) -> None:
        self.now = now
        self.actor = actor
        self.runs = {run.id: run for run in runs}
        self.stages = {stage.id: stage for run in runs for stage in run.stages}
        self.effects = effects.Book(self)
        self.ledger = budgets.Ledger(self)
        self._lacking: dict[uuid.UUID, frozenset[str]] = {}  # by run: handlers that no live worker has
        self._queued = self._standing()
        self._active: list[AttemptRow] | None = None
        self._open_effects: dict[uuid.UUID, list[Row]] | None = None
        self._dirty_runs: set[uuid.UUID] = set()
        self._failed: set[uuid.UUID] = set()  # runs that failed by their stages
        self._dirty_stages: set[uuid.UUID] = set()
        self._ready: set[wake.Queue] = set()
        self._lanes: set[uuid.UUID] = set()  # in which there may be room now
        self._slots: set[uuid.UUID] = set()  # policies of which slots are given back
        self._awaits: dict[uuid.UUID, Sequence[uuid.UUID]] = {}  # by stage: the links of the runs it begins to wait for
        self._awaited: set[uuid.UUID] = set()  # stages that wait for their runs no longer
        self._ended_runs: set[uuid.UUID] = set()  # those of which others are to learn: parents, and children
        self._events: list[dict[str, Any]] = []
        self._ended: dict[uuid.UUID, dict[str, Any]] = {}  # by stage: the attempt whose end its next move tells
        self._attempts: list[dict[str, Any]] = []
        self._outputs: list[dict[str, Any]] = []
        self._digests: dict[uuid.UUID, str] = {}  # of the outputs kept here
        self._marks: dict[uuid.UUID, Mark] = {}  # by run: the checkpoint that is due
        self._left: list[tuple[RunRow, Mark]] = []  # what handlers leave
        self.written: dict[uuid.UUID, Written] = {}  # by checkpoint id, once saved
        self._changes: dict[uuid.UUID, list[dict[str, Any]]] = {}  # by run: what is no longer as it was pinned
        self._imports: dict[uuid.UUID, dict[str, Any]] = {}  # by stage: the attempt that begins to be awaited
        self._gates: list[dict[str, Any]] = []
        self._gate_ends: list[dict[str, Any]] = []
        self._dead_letters: list[dict[str, Any]] = []
        self._closed_letters: list[dict[str, Any]] = []
        self._notices: list[dict[str, Any]] = []
        self._requesters: list[dict[str, Any]] = []
        self._remains: list[dict[str, Any]] = []  # what may still go on outside

    @classmethod
    def lock(
        cls, run_ids: Iterable[uuid.UUID], *, actor: str = "", skip_locked: bool = False, owner: Owner = ANYBODY
    ) -> Moves:
        """Locks the runs in id order and loads their stages. With `skip_locked`, runs that others hold are left out.

        Runs that are not `owner`'s are left out too, untouched: nobody can hold up, or wait for, what is another's.
        """
        wanted = list(set(run_ids))
        runs = [
            RunRow(*row)
            for row in query(
                "SELECT id, workspace_id, application_id, environment_id, pipeline_id, release_id, name, status,"
                " paused, pause_reason, paused_until, started_at::text, finished_at::text, deadline_at, failure_code,"
                " failure_message, failure_stage, held, deadline_seconds, through_blackout,"
                " lane_id, trigger_id, limits::text, changed IS NOT NULL, parent_id, has_children"
                " FROM pipelines_run WHERE id = ANY(%s) AND workspace_id = coalesce(%s, workspace_id)"
                " AND application_id = coalesce(%s, application_id) AND environment_id = coalesce(%s, environment_id)"
                " ORDER BY id FOR NO KEY UPDATE" + (" SKIP LOCKED" if skip_locked else ""),
                [wanted, *owner],
            )
        ]
        by_id = {run.id: run for run in runs}
        # a statement of its own, after the lock: its snapshot sees what the lock's last holder committed
        rows = query(
            f"SELECT recourse_now()::text, {STAGE_COLUMNS} FROM pipelines_stage WHERE run_id = ANY(%s)"
            " ORDER BY run_id, position",
            [list(by_id)],
        )
        for row in rows:
            by_id[row[2]].stages.append(read_stage(row[1:]))
        for run in runs:
            run.status = RunStatus(run.status)
            run.limits = limits_of(run.limits)
        # told as text, so that one time is read and not one a stage
        now = datetime.fromisoformat(rows[0][0]) if rows else database_now()
        return cls(now, runs, actor)

    def apart(self) -> dict[uuid.UUID, Moves]:
        """For each run moves of its own, as if it had been locked alone; what they save is written as this is saved."""
        return {run.id: _Part(self, run) for run in self.runs.values()}

    def take_up(self, other: Moves) -> None:
        """Has what was decided there, on runs that are locked here, written with what was decided here."""
        if other._ended:
            raise IllegalMove(f"attempts ended while their stages stayed: {list(other._ended)}")
        for name, mine in vars(self).items():
            if not name.startswith("_") or name in OF_EACH:
                continue
            if isinstance(mine, list):
                mine.extend(getattr(other, name))
            elif isinstance(mine, set | dict):
                mine.update(getattr(other, name))

    def active_attempts(self, stage_ids: Iterable[uuid.UUID]) -> list[AttemptRow]:
        """The attempts of these stages that hold, or are about to hold, a lease."""
        wanted = list(stage_ids)
        return self.attempts("stage_id = ANY(%s) AND state IN ('dispatched', 'running')", wanted) if wanted else []

    def all_active_attempts(self) -> list[AttemptRow]:
        """Those of every locked run, locked when first asked for; moves made of them since show in them."""
        if self._active is None:
            busy = [stage.id for stage in self.stages.values() if stage.state in ACTIVE_STAGE or stage.awaits_import]
            self._active = self.active_attempts(busy)
        return self._active

    def open_effects(self, run: RunRow) -> list[Row]:
        """What is open outside of what its attempts told of when this was first asked of any run that is locked here:
        (id, stage_id, attempt's number, effect_class, step_id, key, external_ref), oldest first."""
        if self._open_effects is None:
            self._open_effects = {}
            tried = {stage.run_id for stage in self.stages.values() if stage.attempt_number}
            for run_id, *rest in query(_OPEN_EFFECTS, [list(tried)]) if tried else ():
                self._open_effects.setdefault(run_id, []).append(tuple(rest))
        return self._open_effects.get(run.id, [])

    def attempts(self, condition: str, *params: Any) -> list[AttemptRow]:
        """Attempts of the locked runs, locked themselves: a renewal under way is waited for and seen."""
        found = [
            AttemptRow(*row)
            for row in query(
                f"SELECT {ATTEMPT_COLUMNS} FROM pipelines_attempt WHERE {condition} ORDER BY id FOR NO KEY UPDATE",
                params,
            )
        ]
        for attempt in found:
            attempt.state = AttemptState(attempt.state)
        self.effects.watch(found)
        return found

    # moves

    def stage(
        self,
        stage: StageRow,
        action: str,
        *,
        reason: str = "",
        data: Any = None,
        attempt_id: uuid.UUID | str | None = None,
        **changes: Any,
    ) -> None:
        """Moves a stage as the table says and notes its event. Leaving for a terminal state stamps `finished_at`."""
        try:
            to = STAGE_MOVES[action][stage.state]
        except KeyError:
            raise IllegalMove(f"stage {stage.id} cannot {action} from {stage.state}") from None
        origin, stage.state = stage.state, to
        self._change(stage, changes)
        if to == StageState.READY:
            stage.available_at = self.now
        stage.finished_at = self.now if to in TERMINAL_STAGE else None
        self._dirty_stages.add(stage.id)
        ended = self._ended.pop(stage.id, None)
        if ended is not None:
            data, attempt_id = {**ended, **(data or {})}, ended["attempt"]
        self.event(f"stage.{action}", stage.run_id, stage.id, attempt_id, origin, to, reason=reason, data=data)
        moment = CHECKPOINTS.get(action)
        if moment is not None:
            self._marks[stage.run_id] = Mark(moment, stage, attempt_id)

    def newly_ready(self) -> list[StageRow]:
        """Stages that became ready in this transaction and may be handed out."""
        return [
            stage
            for stage_id in self._queue()
            if stage_id not in self._queued and (stage := self.stages[stage_id]).state == StageState.READY
        ]

    def queue_of(self, stage: StageRow) -> wake.Queue:
        run = self.runs[stage.run_id]
        return wake.Queue(run.application_id, run.environment_id, stage.handler)

    def touch(self, stage: StageRow, **changes: Any) -> None:
        """Changes fields of a stage that are not its state."""
        self._change(stage, changes)
        self._dirty_stages.add(stage.id)

    def attempt(self, attempt: AttemptRow, action: str, *, cause: str = "", **changes: Any) -> None:
        """Ends an attempt; the event of its stage's move, which must follow, tells of it too (I5).

        `changes` may hold error_code, error_message, traceback, result_digest, decision, usage.
        """
        try:
            to = ATTEMPT_MOVES[action][attempt.state]
        except KeyError:
            raise IllegalMove(f"attempt {attempt.id} cannot {action} from {attempt.state}") from None
        origin, attempt.state = attempt.state, to
        if attempt.slot is not None:
            self._slots.add(attempt.slot)
        self._attempts.append({"id": attempt.id, "state": to, "cause": cause[:LONGEST_CAUSE], **changes})
        self._ended[attempt.stage_id] = {
            "attempt": str(attempt.id),
            "number": attempt.number,
            "worker": attempt.worker,
            "was": origin,
            "is": to,
        }
        for name, value in (("cause", cause), ("error_code", changes.get("error_code"))):
            if value:
                self._ended[attempt.stage_id][name] = value

    def acquire(
        self, attempt: AttemptRow, stage: StageRow, session_id: uuid.UUID, worker: str, expires_at: datetime
    ) -> None:
        """The session takes the lease of a dispatched attempt; its timeout starts to run."""
        execute(
            "UPDATE pipelines_attempt SET state = 'running', session_id = %s, worker = %s, started_at = %s,"
            " expires_at = %s, timeout_at = %s + make_interval(secs => timeout_seconds) WHERE id = %s",
            [session_id, worker, self.now, expires_at, self.now, attempt.id],
        )
        attempt.state, attempt.session_id, attempt.worker = AttemptState.RUNNING, session_id, worker
        data = {"number": attempt.number, "worker": worker}
        self.stage(stage, "acquire", data=data, attempt_id=attempt.id, started_at=stage.started_at or self.now)

    def fence(self, stages: Iterable[StageRow], cause: str) -> list[AttemptRow]:
        """Ends the active attempts of these stages from outside; their late results will be evidence only."""
        fenced = self.active_attempts([stage.id for stage in stages])
        for attempt in fenced:
            self.attempt(attempt, "fence", cause=cause)
        return fenced

    def output(self, stage: StageRow, body: str, *, attempt: uuid.UUID | None) -> uuid.UUID:
        """Keeps an output (JSON text) and returns its id; setting it on the stage is the caller's move."""
        encoded = body.encode()
        output = new_id()
        self._digests[output] = sha256(encoded).hexdigest()
        self._outputs.append(
            {
                "id": output,
                "stage_id": stage.id,
                "epoch": stage.epoch,
                "attempt": attempt,
                "body": body,
                "size": len(encoded),
                "digest": self._digests[output],
            }
        )
        return output

    def begin_import(self, stage: StageRow) -> None:
        """An import stage waits: its attempt is made at once, with the digest that the answer must carry (R18, R19)."""
        attempt, reserved = new_id(), self.runs[stage.run_id].limits.allowance(stage.options)
        number = stage.attempt_number + 1
        seconds = stage.options.get("timeout")
        self._imports[stage.id] = {
            "id": attempt,
            "stage_id": stage.id,
            "run_id": stage.run_id,
            "number": number,
            "epoch": stage.epoch,
            "reserved": reserved,
            "expires_at": self.now + timedelta(seconds=seconds) if seconds else NO_END,
            "timeout_seconds": seconds or None,
        }
        self.ledger.begun(stage, reserved)
        self.stage(
            stage,
            "begin_import",
            data={"number": number},
            attempt_id=attempt,
            attempt_number=number,
            started_at=stage.started_at or self.now,
            available_at=None,
        )

    def await_runs(self, stage: StageRow, links: Sequence[uuid.UUID]) -> None:
        """The stage begins to wait for the runs of these links."""
        self._awaits[stage.id] = links

    def runs_ended(self, stage: StageRow) -> None:
        """Every run for which the stage waited has ended: it goes on in the same epoch."""
        self._awaited.add(stage.id)
        self.stage(stage, "runs_ended", reason="the runs that it waited for have ended")

    def checkpoint(
        self,
        stage: StageRow,
        attempt_id: uuid.UUID | None,
        state: Any,
        posture: Mapping[str, Any] | None = None,
        moment: CheckpointMoment = CheckpointMoment.HANDLER,
    ) -> uuid.UUID:
        """Keeps what a handler leaves for the stage's next attempt in this epoch; the id of the checkpoint to be."""
        mark = Mark(moment, stage, attempt_id, state, posture)
        self._left.append((self.runs[stage.run_id], mark))
        self.touch(stage, checkpoint=mark.id)
        self.event("stage.checkpoint", stage.run_id, stage.id, attempt_id, data={"checkpoint": str(mark.id)})
        return mark.id

    def open_gate(
        self, stage: StageRow, moment: str, *, attempt: AttemptRow | None = None, output: uuid.UUID | None = None
    ) -> None:
        """Opens the gate for which the stage now waits; a role, or more than one of them, asks for people."""
        asked = stage.approval or {}
        seconds, role, count = asked.get("expires_in"), asked.get("approver_role") or "", asked.get("count") or 1
        gate = new_id()
        self._gates.append(
            {
                "id": gate,
                "stage_id": stage.id,
                "run_id": stage.run_id,
                "workspace_id": self.runs[stage.run_id].workspace_id,
                "approver_role": role,
                "count": count,
                "require_person": bool(asked.get("require_person") or role or count > 1),
                "moment": moment,
                "epoch": stage.epoch,
                "attempt": attempt.id if attempt else None,
                "request_digest": attempt.request_digest if attempt else "",
                "output": output,
                "expires_at": self.now + timedelta(seconds=seconds) if seconds else None,
            }
        )
        self.event("gate.open", stage.run_id, stage.id, None, "", GateState.OPEN, data={"gate": str(gate)})
        self.notice(NoticeKind.GATE_OPENED, stage.run_id, stage.id, gate, {"moment": moment, "count": count})

    def close_gate(self, gate_id: uuid.UUID, stage: StageRow, action: str, *, reason: str = "") -> None:
        """Ends an open gate: approve, reject, expire or cancel."""
        to = GATE_MOVES[action][GateState.OPEN]
        self._gate_ends.append({"id": gate_id, "state": to})
        data = {"gate": str(gate_id)}
        self.event(f"gate.{action}", stage.run_id, stage.id, None, GateState.OPEN, to, reason=reason, data=data)

    def cancel_gates(self, stages: Iterable[StageRow], reason: str) -> None:
        waiting = [stage.id for stage in stages]
        find = "SELECT id, stage_id FROM pipelines_gate WHERE stage_id = ANY(%s) AND state = 'open'"
        for gate_id, stage_id in query(find, [waiting]) if waiting else ():
            self.close_gate(gate_id, self.stages[stage_id], "cancel", reason=reason)

    def waits_to_begin(self, stage: StageRow) -> bool:
        """Whether the gate for which the stage waits stands before its work."""
        find = "SELECT 1 FROM pipelines_gate WHERE stage_id = %s AND state = 'open' AND moment = 'before'"
        return stage.state == StageState.WAITING and bool(query(find, [stage.id]))

    def dead_letter(self, stage: StageRow, reason: str) -> None:
        """The machine gives up on the stage and asks for a person."""
        letter = new_id()
        self._dead_letters.append(
            {
                "id": letter,
                "stage_id": stage.id,
                "run_id": stage.run_id,
                "workspace_id": self.runs[stage.run_id].workspace_id,
                "epoch": stage.epoch,
                "reason": reason,
                "error_code": stage.last_error_code,
                "handler": stage.handler,
            }
        )
        self.event("dead_letter.open", stage.run_id, stage.id, None, "", "open", reason=reason)
        told = {"reason": reason, "error_code": stage.last_error_code}
        self.notice(NoticeKind.DEAD_LETTER, stage.run_id, stage.id, letter, told)

    def close_dead_letters(self, stage: StageRow, state: str, reason: str = "") -> None:
        """Closes what is open for the stage: it was done again, skipped, or ended with its run."""
        self._closed_letters.append({"stage_id": stage.id, "state": state, "reason": reason})

    def event(
        self,
        kind: str,
        run_id: uuid.UUID,
        stage_id: uuid.UUID | None = None,
        attempt_id: uuid.UUID | str | None = None,
        from_state: str = "",
        to_state: str = "",
        *,
        reason: str = "",
        data: Any = None,
    ) -> None:
        self._events.append(
            event_row(run_id, kind, from_state, to_state, stage_id, attempt_id, self.actor, reason, data)
        )

    def notice(
        self,
        kind: NoticeKind,
        run_id: uuid.UUID,
        stage_id: uuid.UUID | None = None,
        subject: uuid.UUID | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Something that people may want to be told of; it is taken up after this has committed."""
        workspace_id = self.runs[run_id].workspace_id
        self._notices.append(notices.row(workspace_id, kind, run_id, stage_id, subject, data))

    # runs

    def asked_by(self, run: RunRow, user_id: int) -> None:
        """Keeps who retried the run: they decide none of its gates."""
        self._requesters.append({"run_id": run.id, "user_id": user_id})

    def pause(self, run: RunRow, reason: str, until: datetime | None = None) -> None:
        run.paused, run.pause_reason, run.paused_until = True, reason[:LONGEST_CAUSE], until
        self._dirty_runs.add(run.id)

    def resume(self, run: RunRow) -> None:
        run.paused, run.pause_reason, run.paused_until = False, "", None
        self._dirty_runs.add(run.id)
        if run.held and run.lane_id is not None:
            self._lanes.add(run.lane_id)  # it was passed over, and may be next

    def stand_in_lane(self, run: RunRow) -> None:
        """An ended run that is reopened waits for its turn in its lane, which looks at it once this has committed.

        To be said before its stages move: then none of them begins. Its deadline stays as it is (F52).
        """
        if run.lane_id is None or not run.is_terminal:
            raise IllegalMove(f"run {run.id} is {run.status}, in lane {run.lane_id}: it does not come back to one")
        run.held = True
        self._lanes.add(run.lane_id)
        self._dirty_runs.add(run.id)
        self.event("run.stand_in_lane", run.id)

    def let_in(self, run: RunRow) -> None:
        """The run's lane lets it in: a deadline that has waited for that begins, and settling begins its stages."""
        run.held = False
        if run.deadline_seconds is not None:
            run.deadline_at = self.now + timedelta(seconds=run.deadline_seconds)
        run.deadline_seconds = None
        self._dirty_runs.add(run.id)
        self.event("run.let_in", run.id)

    def mark_changed(self, run: RunRow, differing: list[dict[str, Any]]) -> None:
        """The run no longer stands on what it pinned: nothing more of it begins, for good."""
        run.changed = True
        self._changes[run.id] = differing
        self._dirty_runs.add(run.id)
        self.event("run.definition_changed", run.id, data=differing)

    def start_through_blackout(self, run: RunRow) -> None:
        """Nothing of this run waits for the end of a blackout: somebody gave a reason."""
        run.through_blackout = True
        self._dirty_runs.add(run.id)

    def end_run(
        self, run: RunRow, status: RunStatus, *, code: str = "", message: str = "", reason: str = ""
    ) -> list[dict[str, Any]]:
        """Ends a run from outside (cancel, deadline) with every unfinished stage, gate and attempt; the rows that list
        what may still go on outside."""
        left = remains.listed(self, run)
        unfinished = [stage for stage in run.stages if stage.state not in TERMINAL_STAGE]
        under_way = [stage for stage in unfinished if stage.state in ACTIVE_STAGE or stage.awaits_import]
        self.fence(under_way, cause=code or "run cancelled")
        self.cancel_gates([stage for stage in unfinished if stage.state == StageState.WAITING], reason)
        for stage in unfinished:
            self.stage(stage, "cancel", reason=reason)
        for stage in run.stages:
            self.close_dead_letters(stage, "resolved", reason or code)
        run.failure_code, run.failure_message, run.failure_stage = code, message, None
        self._set_status(run, status, reason)
        if left:
            self._remains += left
            told = [{"item": str(item["id"]), "kind": item["kind"]} for item in left]
            self.event("run.reconciliation_list", run.id, data=told)
        return left

    def end_overdue(self) -> int:
        """Unfinished runs past their deadline → failed, `deadline_exceeded`, for good (R30, R31). Says how many."""
        overdue = [run for run in self.runs.values() if not run.is_terminal and run.is_past_deadline(self.now)]
        for run in overdue:
            message = f"not finished by {run.deadline_at:%Y-%m-%d %H:%M:%S} UTC"
            self.end_run(run, RunStatus.FAILED, code=DEADLINE_EXCEEDED, message=message, reason=message)
        return len(overdue)

    def settle(self) -> None:
        """After stages moved: makes ready what may go on, and gives every run the status that its stages imply."""
        for run in self.runs.values():
            if run.is_final and run.is_terminal:
                continue
            while not run.held and not run.changed:
                self._advance(run)
                if not self._exhaust(run) and not self._begin_imports(run):
                    break
            facts = [StageFact(stage.state, stage.run_next_if_failed) for stage in run.stages]
            status = derive_run_status(
                facts, started=run.started_at is not None, paused=run.paused, held=run.held, changed=run.changed
            )
            if status != run.status:
                self._set_status(run, status)
                if status == RunStatus.FAILED:
                    self._failed.add(run.id)
            elif status == RunStatus.FAILED:
                self._explain_failure(run)

    def save(self) -> None:
        """Writes everything decided, in a fixed number of statements however many rows there are."""
        if self._ended:
            raise IllegalMove(f"attempts ended while their stages stayed: {list(self._ended)}")
        self._save_outputs()
        self.effects.save()
        self._save_attempts()
        self._save_imports()
        self._save_stages()
        self._save_queue()
        self._save_gates()
        self._save_dead_letters()
        self._save_runs()
        self._save_requesters()
        self._save_words()
        remains.insert(self._remains)
        self._tell_failures()
        insert_events(self._events)
        notices.insert(self._notices)
        # what handlers left goes first, so that the newest checkpoint is the one that tells of the turn
        due = [*self._left, *((self.runs[run_id], mark) for run_id, mark in self._marks.items())]
        self.written = {one.checkpoint_id: one for one in checkpoints.write(due)}
        wake.announce(self._ready)
        self._save_children()
        self._save_lanes()
        self._save_slots()

    # below: how

    def _change(self, stage: StageRow, changes: dict[str, Any]) -> None:
        for name, value in changes.items():
            setattr(stage, name, value)
        if "output_id" in changes:
            stage.output_digest = self._digest_of(stage.output_id)

    def _digest_of(self, output: uuid.UUID | None) -> str:
        if output is None:
            return ""
        if output not in self._digests:  # kept by an earlier transaction: what a gate was opened with
            found = query("SELECT digest FROM pipelines_stageoutput WHERE id = %s", [output])
            self._digests[output] = found[0][0]
        return self._digests[output]

    def _advance(self, run: RunRow) -> None:
        by_position = {stage.position: stage for stage in run.stages}
        for stage in run.stages:
            due = what_is_due(stage, by_position)
            if due == "wait":
                self.stage(stage, "fall_back", reason="an earlier stage is done again", available_at=None)
            if due != "begin":
                continue
            if stage.stale and not any(by_position[position].stale for position in stage.depends_on):
                self.touch(stage, stale=False)  # its next attempt gets what the earlier stages have by now
            if stage.state != StageState.PENDING:
                continue
            if (stage.approval or {}).get("when") == "before" and not self._was_approved(stage):
                self.stage(stage, "open_gate_before")
                self.open_gate(stage, "before")
            else:
                self.stage(stage, "make_ready")

    def _exhaust(self, run: RunRow) -> bool:
        """Fails what has become claimable and may not be dispatched. Says whether anything failed: what waits for it
        may then go on, or not."""
        refused = self.ledger.refused(run)
        for stage, shortage in refused:
            self.close_dead_letters(stage, "resolved")
            tried = bool(stage.last_error_code) and stage.retry_count + stage.recovery_count > 0
            trouble = {} if tried else {"last_error_code": shortage.code, "last_error_message": shortage.message}
            self.stage(
                stage,
                "exhaust",
                reason=shortage.message,
                available_at=None,
                failure_disposition=shortage.code,
                **trouble,
            )
            self.dead_letter(stage, "retries_exhausted" if tried else "terminal_error")
        return bool(refused)

    def _begin_imports(self, run: RunRow) -> bool:
        """Lets imports that have become due be awaited, if the run still stands on what it pinned; says whether not.

        Where that cannot be looked at just now they stay ready, so that whatever made them so is kept: the run's next
        move, or the sweep, looks again.
        """
        due = [stage for stage in run.stages if stage.awaits_import and stage.state == StageState.READY]
        if not due:
            return False
        # imported here: it stands above moves
        from pipelines.artifact_places import Away
        from pipelines.pinned import differences

        try:
            changed = differences([run.id])
        except Away as error:
            log.warning("moves.baseline_out_of_reach", run=str(run.id), error=error.detail)
            return False
        if changed:
            self.mark_changed(run, changed[run.id])
            return True
        for stage in due:
            self.begin_import(stage)
        return False

    def _was_approved(self, stage: StageRow) -> bool:
        """A gate before the work covers every attempt of its epoch, also when the stage had to wait again since."""
        find = "SELECT 1 FROM pipelines_gate WHERE stage_id = %s AND epoch = %s AND moment = 'before'"
        return bool(query(f"{find} AND state = 'approved'", [stage.id, stage.epoch]))

    def _set_status(self, run: RunRow, status: RunStatus, reason: str = "") -> None:
        origin, run.status = run.status, status
        run.finished_at = self.now if status in TERMINAL_RUN else None
        if status in TERMINAL_RUN:
            run.paused, run.pause_reason, run.paused_until, run.held = False, "", None, False
            if run.has_children or run.parent_id is not None:
                self._ended_runs.add(run.id)
            if run.lane_id is not None:
                self._lanes.add(run.lane_id)
        if not run.is_final:
            self._explain_failure(run)
        self._dirty_runs.add(run.id)
        if status == RunStatus.PAUSED:
            self._marks.setdefault(run.id, Mark(CheckpointMoment.PAUSE))
        self.event(f"run.{status}", run.id, None, None, origin, status, reason=reason)
        if status == RunStatus.BLOCKED:
            self.notice(NoticeKind.RUN_BLOCKED, run.id)

    def _tell_failures(self) -> None:
        failed = [run for run_id, run in self.runs.items() if run_id in self._failed and run.status == RunStatus.FAILED]
        if failed:
            failures.tell(self, failed)

    def _explain_failure(self, run: RunRow) -> None:
        """The first stage at fault speaks for a failed run; a run that did not fail names none."""
        run.failure_code, run.failure_message, run.failure_stage = "", "", None
        if run.status == RunStatus.FAILED:
            for stage in run.stages:
                if stage.state == StageState.FAILED and not stage.run_next_if_failed:
                    run.failure_code, run.failure_message = stage.last_error_code, stage.last_error_message
                    run.failure_stage = stage.id
                    break
        self._dirty_runs.add(run.id)

    def _save_outputs(self) -> None:
        if self._outputs:
            execute(
                "INSERT INTO pipelines_stageoutput (id, stage_id, epoch, attempt, body, size, digest, at)"
                " SELECT id, stage_id, epoch, attempt, body, size, digest, %s FROM json_to_recordset(%s::json) AS"
                " r(id uuid, stage_id uuid, epoch int, attempt uuid, body text, size int, digest text)",
                [self.now, recordset(self._outputs)],
            )

    def _save_attempts(self) -> None:
        """Ends attempts; what they had only declared becomes unknown, in the same statement."""
        if not self._attempts:
            return
        doubted = query(
            "WITH ended AS (UPDATE pipelines_attempt a SET state = r.state, finished_at = %s, cause = r.cause,"
            " error_code = coalesce(r.error_code, ''), error_message = coalesce(r.error_message, ''),"
            " traceback = coalesce(r.traceback, ''), result_digest = coalesce(r.result_digest, ''),"
            " decision = r.decision, usage = r.usage FROM json_to_recordset(%s::json) AS r(id uuid, state text,"
            " cause text, error_code text, error_message text, traceback text, result_digest text, decision jsonb,"
            " usage jsonb) WHERE a.id = r.id RETURNING a.id, a.number)"
            " UPDATE pipelines_effect e SET state = 'unknown' FROM ended"
            # the empty text keeps the planner from reading all that is open anywhere, by the index made for that
            " WHERE e.attempt = ended.id AND e.state || '' = 'declared'"
            " RETURNING e.run_id, e.stage_id, e.attempt, ended.number, e.id, e.effect_class, e.step_id, e.key",
            [self.now, recordset(self._attempts)],
        )
        for run_id, stage_id, attempt_id, number, effect_id, *identity in doubted:
            data = effects.event_data(effect_id, effects.Identity(*identity)) | {"number": number}
            self.event(
                "effect.doubt",
                run_id,
                stage_id,
                attempt_id,
                EffectState.DECLARED,
                EffectState.UNKNOWN,
                reason=effects.NOT_TOLD,
                data=data,
            )

    def _save_imports(self) -> None:
        """The attempts of imports that are awaited from now on, each with its request's digest."""
        if not self._imports:
            return
        # imported here: jobs stand above moves
        from pipelines.jobs import insert_awaited

        insert_awaited(self, self._imports)

    def _save_stages(self) -> None:
        dirty = [
            {
                "id": stage.id,
                "state": stage.state,
                "available_at": stage.available_at,
                "epoch": stage.epoch,
                "attempt_number": stage.attempt_number,
                "retry_count": stage.retry_count,
                "recovery_count": stage.recovery_count,
                "started_at": stage.started_at,
                "finished_at": stage.finished_at,
                "output_id": stage.output_id,
                "output_digest": stage.output_digest,
                "checkpoint": stage.checkpoint,
                "last_error_code": stage.last_error_code,
                "last_error_message": stage.last_error_message,
                "failure_disposition": stage.failure_disposition,
                "stale": stage.stale,
            }
            for stage in self.stages.values()
            if stage.id in self._dirty_stages
        ]
        if dirty:
            execute(
                "UPDATE pipelines_stage s SET state = r.state, available_at = r.available_at,"
                " epoch = r.epoch, attempt_number = r.attempt_number, retry_count = r.retry_count,"
                " recovery_count = r.recovery_count, started_at = r.started_at, finished_at = r.finished_at,"
                " output_id = r.output_id, output_digest = r.output_digest, checkpoint = r.checkpoint,"
                " last_error_code = r.last_error_code, last_error_message = r.last_error_message,"
                " failure_disposition = r.failure_disposition, stale = r.stale FROM json_to_recordset(%s::json) AS"
                " r(id uuid, state text, available_at timestamptz, epoch int, attempt_number int, retry_count int,"
                " recovery_count int, started_at timestamptz, finished_at timestamptz, output_id uuid,"
                " output_digest text, checkpoint uuid, last_error_code text, last_error_message text,"
                " failure_disposition text, stale boolean)"
                " WHERE s.id = r.id",
                [recordset(dirty)],
            )

    def _save_queue(self) -> None:
        """Makes the queue say what stages and runs now say; claims take their entries themselves."""
        wanted = self._queue()
        gone = [stage_id for stage_id, entry in self._queued.items() if wanted.get(stage_id) != entry]
        if gone:
            execute("DELETE FROM pipelines_queueentry WHERE stage_id = ANY(%s)", [gone])
        new = [stage_id for stage_id, entry in wanted.items() if self._queued.get(stage_id) != entry]
        if new:
            background = [stage_id for stage_id in new if self._run_of(stage_id).is_background]
            starts = [stage_id for stage_id in new if wanted[stage_id].is_start]
            execute(
                "INSERT INTO pipelines_queueentry (stage_id, application_id, environment_id, handler, available_at,"
                " is_background, is_start, throttle, recipients)"
                " SELECT id, application_id, environment_id, handler, available_at,"
                f" id = ANY(%s), id = ANY(%s), {_THROTTLE},"
                " CASE WHEN recipients IS NOT NULL THEN recourse_recipients(id) END"
                " FROM pipelines_stage s WHERE id = ANY(%s)",
                [background, starts, list({self._run_of(stage_id).workspace_id for stage_id in new}), new],
            )
        for stage_id in new:
            # a retry that is scheduled is announced too: who waits learns when to look next
            self._ready.add(self.queue_of(self.stages[stage_id]))

    def _standing(self) -> dict[uuid.UUID, Entry]:
        """What the queue says of these runs as they are locked: all that waits, unless a run has no room for that;
        of such a run it is read who stands there."""
        waiting = {run.id: _waiting(run) for run in self.runs.values()}
        crowded = [one.id for run in self.runs.values() if len(waiting[run.id]) > _room(run) for one in waiting[run.id]]
        there = places.taken(crowded) if crowded else frozenset()
        left_out = set(crowded) - there
        return {
            stage.id: _entry(run, stage)
            for run in self.runs.values()
            for stage in waiting[run.id]
            if stage.id not in left_out
        }

    def _queue(self) -> dict[uuid.UUID, Entry]:
        """What the queue has to say of these runs, as they stand."""
        return {stage.id: _entry(run, stage) for run in self.runs.values() for stage in self._in_room(run)}

    def _in_room(self, run: RunRow) -> list[StageRow]:
        """Of a run's claimable stages, as many as its concurrency leaves room for beside the active ones: so claims
        need not ask. First those that a live worker may take; of them the ready, then those that are due soonest."""
        waiting, room = _waiting(run), _room(run)
        if len(waiting) <= room:
            return waiting
        if run.id not in self._lacking:
            handlers = {stage.handler for stage in run.stages if stage.state not in TERMINAL_STAGE}
            self._lacking[run.id] = places.lacking(run, handlers)
        lacking = self._lacking[run.id]

        def rank(stage: StageRow) -> tuple[bool, bool, datetime]:
            return stage.handler in lacking, stage.state != StageState.READY, _moment(stage.available_at)

        return sorted(waiting, key=rank)[:room]

    def _run_of(self, stage_id: uuid.UUID) -> RunRow:
        return self.runs[self.stages[stage_id].run_id]

    def _save_gates(self) -> None:
        if self._gate_ends:
            execute(
                "UPDATE pipelines_gate g SET state = r.state, closed_at = %s FROM json_to_recordset(%s::json) AS"
                " r(id uuid, state text) WHERE g.id = r.id",
                [self.now, recordset(self._gate_ends)],
            )
        if self._gates:
            execute(
                "INSERT INTO pipelines_gate (id, stage_id, run_id, workspace_id, moment, epoch, attempt,"
                " request_digest, output, approver_role, count, require_person, state, opened_at, expires_at)"
                " SELECT id, stage_id, run_id, workspace_id, moment, epoch, attempt, request_digest, output,"
                " approver_role, count, require_person, 'open', %s, expires_at FROM json_to_recordset(%s::json) AS"
                " r(id uuid, stage_id uuid, run_id uuid, workspace_id uuid, moment text, epoch int, attempt uuid,"
                " request_digest text, output uuid, approver_role text, count int, require_person boolean,"
                " expires_at timestamptz)",
                [self.now, recordset(self._gates)],
            )

    def _save_dead_letters(self) -> None:
        if self._closed_letters:
            closed = query(
                "UPDATE pipelines_deadletter d SET state = r.state, closed_at = %s FROM json_to_recordset(%s::json) AS"
                " r(stage_id uuid, state text, reason text) WHERE d.stage_id = r.stage_id"
                " AND d.state IN ('open', 'acknowledged') RETURNING d.run_id, d.stage_id, r.state, r.reason",
                [self.now, recordset(self._closed_letters)],
            )
            for run_id, stage_id, state, reason in closed:
                self.event(f"dead_letter.{state}", run_id, stage_id, None, "open", state, reason=reason)
        if self._dead_letters:
            execute(
                "INSERT INTO pipelines_deadletter (id, stage_id, run_id, workspace_id, epoch, reason, error_code,"
                " handler, state, opened_at)"
                " SELECT id, stage_id, run_id, workspace_id, epoch, reason, error_code, handler, 'open', %s"
                " FROM json_to_recordset(%s::json) AS r(id uuid, stage_id uuid, run_id uuid, workspace_id uuid,"
                " epoch int, reason text, error_code text, handler text)",
                [self.now, recordset(self._dead_letters)],
            )

    def _save_lanes(self) -> None:
        # imported here: lanes stand above moves
        from pipelines.lanes import let_in_later

        let_in_later(self._lanes)

    def _save_children(self) -> None:
        """Who waits for whom, and whose end others are to learn of; nothing for runs that have neither parents nor
        children."""
        ended = [self.runs[run_id] for run_id in self._ended_runs if self.runs[run_id].is_terminal]
        if self._awaits or self._awaited or ended:
            # imported here: it stands above moves
            from pipelines import awaited_runs

            awaited_runs.save(
                {self.stages[stage_id].run_id for stage_id in self._awaits},
                [link for links in self._awaits.values() for link in links],
                awaited=self._awaited,
                parents={run.id for run in ended if run.has_children},
                children={run.id for run in ended if run.parent_id is not None},
                actor=self.actor,
            )

    def _save_slots(self) -> None:
        # imported here: these stand above moves
        from pipelines.throttle_lines import wake_later

        wake_later(self._slots)

    def _save_words(self) -> None:
        """What a person may look for: the errors with which stages were given up on and runs failed."""
        failed = {run_id for run_id in self._dirty_runs if self.runs[run_id].status == RunStatus.FAILED}
        context.index(sorted(failed | {letter["run_id"] for letter in self._dead_letters}))

    def _save_requesters(self) -> None:
        if self._requesters:
            execute(
                "UPDATE pipelines_run t SET requesters = array_append(t.requesters, r.user_id)"
                " FROM json_to_recordset(%s::json) AS r(run_id uuid, user_id int)"
                " WHERE t.id = r.run_id AND NOT t.requesters @> ARRAY[r.user_id]",
                [recordset(self._requesters)],
            )

    def _save_runs(self) -> None:
        dirty = [
            {
                "id": run.id,
                "status": run.status,
                "paused": run.paused,
                "pause_reason": run.pause_reason,
                "paused_until": run.paused_until,
                "started_at": run.started_at,
                "finished_at": run.finished_at,
                "failure_code": run.failure_code,
                "failure_message": run.failure_message,
                "failure_stage": run.failure_stage,
                "held": run.held,
                "deadline_at": run.deadline_at,
                "deadline_seconds": run.deadline_seconds,
                "through_blackout": run.through_blackout,
            }
            for run in self.runs.values()
            if run.id in self._dirty_runs
        ]
        if dirty:
            execute(
                "UPDATE pipelines_run t SET status = r.status, paused = r.paused, pause_reason = r.pause_reason,"
                " paused_until = r.paused_until, started_at = r.started_at, finished_at = r.finished_at,"
                " failure_code = r.failure_code, failure_message = r.failure_message, failure_stage = r.failure_stage,"
                " held = r.held, deadline_at = r.deadline_at, deadline_seconds = r.deadline_seconds,"
                " through_blackout = r.through_blackout, updated_at = %s"
                " FROM json_to_recordset(%s::json) AS r(id uuid, status text, paused boolean, pause_reason text,"
                " paused_until timestamptz, started_at timestamptz, finished_at timestamptz, failure_code text,"
                " failure_message text, failure_stage uuid, held boolean, deadline_at timestamptz,"
                " deadline_seconds double precision, through_blackout boolean) WHERE t.id = r.id AND t.id = ANY(%s)",
                [self.now, recordset(dirty), [row["id"] for row in dirty]],
            )
        if self._changes:
            told = [{"id": run_id, "changed": differing} for run_id, differing in self._changes.items()]
            execute(
                "UPDATE pipelines_run t SET changed = r.changed FROM json_to_recordset(%s::json)"
                " AS r(id uuid, changed jsonb) WHERE t.id = r.id",
                [recordset(told)],
            )


# in which line of its queue a stage `s` waits; asked for each stage only where a workspace has such policies
_THROTTLE = f"""
    CASE WHEN EXISTS (SELECT FROM pipelines_policy p WHERE p.workspace_id = ANY(%s) AND p.status = 'active'
        AND p.kind IN ('concurrency', 'rate'))
    THEN (SELECT recourse_throttle(r.workspace_id, r.environment_id, r.pipeline_id, s.name, s.handler)
        FROM pipelines_run r WHERE r.id = s.run_id) ELSE '{NO_THROTTLE}' END"""


class _Part(Moves):
    """One of several runs that are locked together. Saving hands what was decided to the moves that hold them all."""

    def __init__(self, whole: Moves, run: RunRow) -> None:
        self._whole = whole
        super().__init__(whole.now, [run], whole.actor)

    def _standing(self) -> dict[uuid.UUID, Entry]:
        there = self._whole._queued  # noqa: SLF001 - the whole is of the same class
        return {stage_id: there[stage_id] for stage_id in self.stages if stage_id in there}

    def active_attempts(self, stage_ids: Iterable[uuid.UUID]) -> list[AttemptRow]:
        """As of a run alone; those of all the runs are locked at once, in their order, so that nobody waits in a
        circle."""
        wanted = set(stage_ids)
        found = [one for one in self._whole.all_active_attempts() if one.stage_id in wanted] if wanted else []
        active = [one for one in found if one.state in (AttemptState.DISPATCHED, AttemptState.RUNNING)]
        self.effects.watch(active)
        return active

    def open_effects(self, run: RunRow) -> list[Row]:
        return self._whole.open_effects(run)

    def save(self) -> None:
        self.effects.save()
        self._whole.take_up(self)


class Entry(NamedTuple):
    """A stage's entry in the queue, as far as a move may change it."""

    available_at: datetime | str | None
    is_start: bool


def event_row(
    run_id: uuid.UUID,
    kind: str,
    from_state: str = "",
    to_state: str = "",
    stage_id: uuid.UUID | None = None,
    attempt_id: uuid.UUID | str | None = None,
    actor: str = "",
    reason: str = "",
    data: Any = None,
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "stage": stage_id,
        "attempt": attempt_id,
        "kind": kind,
        "from_state": from_state,
        "to_state": to_state,
        "actor": actor,
        "reason": reason,
        "data": data,
    }


def insert_events(events: Sequence[dict[str, Any]]) -> None:
    """Adds events in the order given, in one statement, in the caller's transaction."""
    if events:
        execute(
            "INSERT INTO pipelines_event (run_id, stage, attempt, kind, from_state, to_state, at, actor, reason, data)"
            " SELECT run_id, stage, attempt, kind, from_state, to_state, recourse_now(), actor, reason, data"
            " FROM json_to_recordset(%s::json) AS r(run_id uuid, stage uuid, attempt uuid, kind text, from_state text,"
            " to_state text, actor text, reason text, data jsonb)",
            [recordset(events)],
        )


def _waiting(run: RunRow) -> list[StageRow]:
    """A run's claimable stages, unless it stands still."""
    if run.paused or run.held or run.changed or run.is_terminal:
        return []
    return [stage for stage in run.stages if stage.state in CLAIMABLE_STAGE and stage.mode != StageMode.IMPORT]


def _room(run: RunRow) -> int:
    """How many stages may be handed out beside the active ones."""
    if len(run.stages) <= run.limits.concurrency:
        return len(run.stages)
    return max(0, run.limits.concurrency - sum(stage.state in ACTIVE_STAGE for stage in run.stages))


def _entry(run: RunRow, stage: StageRow) -> Entry:
    return Entry(stage.available_at, _waits_in_blackout(run, stage))


def _moment(told: datetime | str | None) -> datetime:
    if isinstance(told, str):
        return datetime.fromisoformat(told)
    return told or NO_END


def _waits_in_blackout(run: RunRow, stage: StageRow) -> bool:
    """What begins a run, or tries a stage again; what has begun goes on."""
    begins = run.started_at is None or stage.state == StageState.RETRY_SCHEDULED
    return begins and not run.through_blackout
