"""Takes results from workers, many at once: one bad item spoils no other, one item is a batch of one.

A result counts only when it comes from the session that holds the lease of the stage's current attempt, before the
lease's end. Repeated, it gets the first answer again; too late, it is kept as late evidence and moves nothing.
Serves P5, P52–P56, F01, F09, F16.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson
from django.db import transaction

from pipelines import awaited_runs, budgets, context, effects, outcomes, postures
from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.leases import Holder, hand_on, why_not_held
from pipelines.moves import DEADLINE_EXCEEDED, AttemptRow, Moves, StageRow
from pipelines.postures import Left
from pipelines.sql import execute, query, recordset
from pipelines.states import AttemptState, StageState
from pipelines.wake import Queue

# The engine's own words for how a run or a gate ended. Codes match without case, so a worker that reports one of them
# loses nothing by the capitals, and cannot make a run look as if its deadline had passed.
ENGINE_CODES = frozenset({DEADLINE_EXCEEDED, "gate_denied", "gate_expired", budgets.ATTEMPTS, budgets.BYTES})


@dataclass(slots=True)
class Result:
    """What a worker reports of one attempt. `output` is any JSON value."""

    stage_id: uuid.UUID
    execution_id: uuid.UUID
    attempt: int
    status: str  # succeeded | failed | waiting
    request_digest: str | None = None
    output: Any = None
    error_code: str = ""
    error_message: str = ""
    traceback: str = ""
    retryable: bool | None = None
    context_items: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    effects: list[Told] = field(default_factory=list)
    checkpoint: Left | None = None
    awaits_runs: Sequence[uuid.UUID] = ()  # of `waiting`: runs that the stage started, and no decision

    def body(self) -> str:
        return json_text(self.output)

    def digest(self) -> str:
        """Tells the same result sent again from another one."""
        told = [self.status, self.output, self.error_code, self.error_message, self.retryable, self.context_items]
        if self.effects:
            told.append([effect.as_wire() for effect in self.effects])
        if self.checkpoint:
            told.append([self.checkpoint.state, self.checkpoint.posture])
        if self.awaits_runs:
            told.append({"awaits": sorted(map(str, self.awaits_runs))})
        return sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()


def json_text(output: Any) -> str:
    """An output as JSON text, order kept; escaped only where it could not be stored otherwise."""
    text = json.dumps(output, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: legal in JSON, not in UTF-8
        return json.dumps(output, separators=(",", ":"))
    return text


@dataclass(slots=True)
class Receipt:
    """The answer for one result. Without `accepted`, `code` says why: `not_found`, `stale_execution`, or that of
    `refusal`, which tells what is wrong with the effects in it."""

    stage_id: uuid.UUID
    execution_id: uuid.UUID
    accepted: bool
    stage_state: str | None = None
    code: str | None = None
    refusal: Refusal | None = None


def report(holder: Holder, results: Sequence[Result]) -> list[Receipt]:
    """Applies results in one transaction: attempts end, stages move, what waits for them becomes ready, runs end.

    A run's end is decided once, because its row is locked; one past its deadline ends by that first. Answers in the
    order asked. All is durable on return.
    """
    return report_and_claim(holder, results, served=lambda _: False, limit=0)[0]


def report_and_claim(
    holder: Holder, results: Sequence[Result], *, served: Callable[[Queue], bool], limit: int
) -> tuple[list[Receipt], list[Job]]:
    """As `report`, and in the same transaction hands the stages that these results made ready on to the holder.

    For an executor beside the engine: a run goes from stage to stage without passing the queue.
    """
    if not results:
        return [], []
    with transaction.atomic():
        run_ids = [
            row[0]
            for row in query(
                "SELECT DISTINCT run_id FROM pipelines_attempt WHERE id = ANY(%s)",
                [[result.execution_id for result in results]],
            )
        ]
        moves = Moves.lock(run_ids, actor=holder.worker, owner=holder.owner)
        moves.end_overdue()
        named = [item.execution_id for item in results]
        found = moves.attempts("id = ANY(%s) AND run_id = ANY(%s)", named, list(moves.runs))
        attempts = {attempt.id: attempt for attempt in found}
        judge = outcomes.Judge(moves)
        desk = _Desk(holder, moves, judge)
        receipts = [desk.take(result, attempts.get(result.execution_id)) for result in results]
        moves.settle()
        make_jobs = hand_on(holder, moves, served=served, limit=limit) if limit else list
        moves.save()
        desk.save()
        jobs = make_jobs()
    for receipt in receipts:
        stage = moves.stages.get(receipt.stage_id)
        if receipt.accepted and receipt.stage_state is None and stage is not None:
            receipt.stage_state = stage.state
    return receipts, jobs


class _Desk:
    """Sorts one batch: what counts is applied to the moves, the rest becomes evidence."""

    def __init__(self, holder: Holder, moves: Moves, judge: outcomes.Judge) -> None:
        self._holder = holder
        self._moves = moves
        self._judge = judge
        self._applied: dict[uuid.UUID, str] = {}
        self._context: list[dict[str, Any]] = []
        self._logs: list[dict[str, Any]] = []
        self._late: list[dict[str, Any]] = []

    def take(self, result: Result, attempt: AttemptRow | None) -> Receipt:
        receipt = Receipt(result.stage_id, result.execution_id, False)
        run = self._moves.runs.get(attempt.run_id) if attempt else None
        if attempt is None or run is None or attempt.stage_id != result.stage_id:
            receipt.code = "not_found"
            return receipt
        stage = self._moves.stages[attempt.stage_id]
        try:
            self._take(result, stage, attempt, receipt)
        except Refusal as refusal:
            receipt.code, receipt.refusal = refusal.code, refusal
        return receipt

    def _take(self, result: Result, stage: StageRow, attempt: AttemptRow, receipt: Receipt) -> None:
        effects.check(result.effects)
        digest = result.digest()
        if digest in (self._applied.get(attempt.id), attempt.result_digest) and self._is_own(attempt, result):
            receipt.accepted = True
            if attempt.id not in self._applied:
                receipt.stage_state = first_answer(stage, attempt)
            return
        why_not = self._fence(attempt, result)
        if why_not:
            self._late.append(self._evidence(result, digest, why_not))
            receipt.code = "stale_execution"
            return
        links = awaited_runs.links_of(stage, result.awaits_runs) if result.awaits_runs else []
        if result.checkpoint is not None:
            postures.leave(self._moves, stage, attempt, result.checkpoint, result.effects)
        elif result.effects:
            self._moves.effects.tell(stage, attempt, result.effects)
        self._apply(stage, attempt, result, digest, links)
        self._applied[attempt.id] = digest
        receipt.accepted = True

    def save(self) -> None:
        context.save(self._context)
        context.index({item["run_id"] for item in self._context})
        save_logs(self._logs)
        save_late(self._late)

    def _is_own(self, attempt: AttemptRow, result: Result) -> bool:
        return attempt.session_id == self._holder.session_id and attempt.number == result.attempt

    def _fence(self, attempt: AttemptRow, result: Result) -> str:
        why_not = why_not_held(self._holder, self._moves, attempt)
        if why_not:
            return why_not
        if attempt.number != result.attempt:
            return "another attempt"
        if result.request_digest and result.request_digest != attempt.request_digest:
            return "another request"
        return ""

    def _apply(
        self, stage: StageRow, attempt: AttemptRow, result: Result, digest: str, links: Sequence[uuid.UUID]
    ) -> None:
        self._context += context.rows(stage.run_id, result.context_items, attempt.id)
        self._logs += [{**line, "attempt": attempt.id} for line in result.logs]
        facts: dict[str, Any] = {"result_digest": digest, "usage": result.usage}
        if result.status == "failed":
            outcomes.fail(
                self._moves,
                self._judge,
                stage,
                attempt,
                code=result.error_code.upper() if result.error_code in ENGINE_CODES else result.error_code,
                message=result.error_message,
                retryable=result.retryable,
                traceback=result.traceback,
                **facts,
            )
            return
        if links:
            outcomes.wait_for_runs(self._moves, stage, attempt, links, **facts)
            return
        body = result.body()
        limit = self._moves.runs[stage.run_id].limits.allowance(stage.options)
        size = len(body.encode())
        if size > limit:
            message = f"the output has {size} bytes, the limit is {limit}"
            outcomes.fail(self._moves, self._judge, stage, attempt, code="OUTPUT_TOO_LARGE", message=message, **facts)
        elif result.status == "waiting":
            outcomes.wait(self._moves, stage, attempt, body, **facts)
        else:
            outcomes.succeed(self._moves, stage, attempt, body, **facts)

    def _evidence(self, result: Result, digest: str, reason: str) -> dict[str, Any]:
        told = {
            "status": result.status,
            "attempt": result.attempt,
            "output": result.output,
            "errorCode": result.error_code,
            "errorMessage": result.error_message,
            "traceback": result.traceback,
        }
        if result.effects:
            told["effects"] = [effect.as_wire() for effect in result.effects]
        if result.checkpoint:
            told["checkpoint"] = {"state": result.checkpoint.state, "recoveryPosture": result.checkpoint.posture}
        return {
            "attempt": result.execution_id,
            "session": self._holder.session_id,
            "reason": reason,
            "digest": digest,
            "body": json.dumps(told),
        }


def first_answer(stage: StageRow, attempt: AttemptRow) -> StageState:
    """Where the result took the stage when it first came, wherever the stage has gone since."""
    if attempt.state == AttemptState.SUCCEEDED:
        return StageState.WAITING if (stage.approval or {}).get("when") == "after" else StageState.COMPLETED
    ((decision,),) = query("SELECT decision::text FROM pipelines_attempt WHERE id = %s", [attempt.id])
    if attempt.state == AttemptState.WAITING and decision is None:
        return StageState.WAITING
    decided = orjson.loads(decision)
    if not decided.get("applied", True):
        return StageState.NEEDS_RECONCILIATION
    again = decided["retry"] and "exhausted" not in decided
    return StageState.RETRY_SCHEDULED if again else StageState.FAILED


def save_logs(lines: Sequence[dict[str, Any]]) -> None:
    """Keeps log lines `{attempt, at?, level, message, fields?}`."""
    if lines:
        execute(
            "INSERT INTO pipelines_logline (attempt_id, at, level, message, fields)"
            " SELECT attempt, coalesce(at, recourse_now()), level, message, coalesce(fields, '{}')"
            " FROM json_to_recordset(%s::json) AS r(attempt uuid, at timestamptz, level text, message text,"
            " fields jsonb)",
            [recordset(lines)],
        )


def save_late(items: Sequence[dict[str, Any]]) -> None:
    """Keeps what came too late as evidence, `{attempt, session, reason, digest, body}`; the same again adds nothing."""
    if items:
        execute(
            "INSERT INTO pipelines_lateevidence (attempt_id, session, reason, digest, body, at)"
            " SELECT attempt, session, reason, digest, body, recourse_now() FROM json_to_recordset(%s::json) AS"
            " r(attempt uuid, session uuid, reason text, digest text, body text) ON CONFLICT DO NOTHING",
            [recordset(items)],
        )
