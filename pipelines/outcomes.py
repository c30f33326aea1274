"""What an attempt's end means for its stage: one function per kind of end, shared by results and sweeps.

Every automatic decision stores its reason (I15). Effect mode `external` is never repeated blindly: a lost or timed-out
attempt of it waits for reconciliation, unless it tells its intents and had told none. Effects of class `internal_state`
leave no doubt. Serves R3–R5, F62.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pipelines import policies
from pipelines.moves import AttemptRow, Moves, StageRow
from pipelines.retries import PolicyFact, RetryDecision, Target, decide_retry
from pipelines.sql import query


class Judge:
    """Decides on failures of a batch: the policies and slugs that it needs are read once, and only if one failed."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._policies: dict[uuid.UUID, list[PolicyFact]] | None = None
        self._slugs: dict[uuid.UUID, tuple[str, str]] = {}

    def decide(self, stage: StageRow, attempt: AttemptRow, code: str, retryable: bool | None) -> RetryDecision:
        run = self._moves.runs[stage.run_id]
        if self._policies is None:
            self._policies = policies.active("retry", {run.workspace_id for run in self._moves.runs.values()})
        rules: Sequence[PolicyFact] = self._policies.get(run.workspace_id, ())
        policy = None
        if rules:
            pipeline, environment = self._slug(run.id)
            policy = policies.winner(rules, Target(stage.name, stage.handler, pipeline, environment))
        return decide_retry(
            code=code,
            retryable=retryable,
            options=stage.options,
            policy=policy,
            retries_used=stage.retry_count,
            seed=str(attempt.id),
        )

    def _slug(self, run_id: uuid.UUID) -> tuple[str, str]:
        if not self._slugs:
            rows = query(
                "SELECT r.id, coalesce(p.slug, ''), e.slug FROM pipelines_run r JOIN pipelines_environment e"
                " ON e.id = r.environment_id LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id"
                " WHERE r.id = ANY(%s)",
                [list(self._moves.runs)],
            )
            self._slugs = {run_id: (pipeline, environment) for run_id, pipeline, environment in rows}
        return self._slugs[run_id]


def succeed(moves: Moves, stage: StageRow, attempt: AttemptRow, body: str, **facts: Any) -> None:
    """running, or waiting for an import → completed, or waiting where a gate stands after the work."""
    verbs = _verbs(stage)
    output = moves.output(stage, body, attempt=attempt.id)
    moves.attempt(attempt, verbs.attempt_succeed, **facts)
    if (stage.approval or {}).get("when") == "after":
        moves.stage(stage, verbs.offer, **_CLEAN)
        moves.open_gate(stage, "after", attempt=attempt, output=output)
    else:
        moves.stage(stage, verbs.succeed, output_id=output, **_CLEAN)


def wait(moves: Moves, stage: StageRow, attempt: AttemptRow, body: str, **facts: Any) -> None:
    """running → waiting: the handler asked for a decision; its output counts once approved (P77)."""
    output = moves.output(stage, body, attempt=attempt.id)
    moves.attempt(attempt, "wait", **facts)
    moves.stage(stage, "wait", **_CLEAN)
    moves.open_gate(stage, "after", attempt=attempt, output=output)


def wait_for_runs(moves: Moves, stage: StageRow, attempt: AttemptRow, links: Sequence[uuid.UUID], **facts: Any) -> None:
    """running → waiting for runs that the stage started, given as links: no worker is held meanwhile, and nothing is
    counted. Their end makes it ready again in the same epoch; so does one that they had reached before (N9).

    It will begin anew, so with an open effect in mode `external` it waits for reconciliation instead, as given back.
    """
    if stage.effect_mode == "external" and moves.effects.are_open(attempt):
        reason = "it began to wait for other runs while the outcome of an effect is not known"
        moves.attempt(attempt, "wait", cause=reason, decision={"applied": False, "explanation": reason}, **facts)
        trouble = {"last_error_code": "PARKED", "last_error_message": reason}
        moves.stage(stage, "doubt", reason=reason, failure_disposition="needs_reconciliation", **trouble)
        return
    moves.attempt(attempt, "wait", cause="waits for runs that it started", **facts)
    moves.stage(stage, "await_runs", data={"runs": len(links)})
    moves.await_runs(stage, links)


def fail(
    moves: Moves,
    judge: Judge,
    stage: StageRow,
    attempt: AttemptRow,
    *,
    code: str,
    message: str,
    retryable: bool | None = None,
    ended: str = "",
    **facts: Any,
) -> None:
    """running → retry_scheduled or failed, by the retry decision, which is stored on the attempt (P30–P46, F166). An
    import that is tried again is awaited anew at once.

    While the outcome of an effect of the attempt is not known, whatever the code: needs_reconciliation. The decision is
    stored as one that was not applied. Where the limits of the run admit no further attempt, there is none: what was
    exhausted is stored with the decision (R28).
    """
    verbs = _verbs(stage)
    ended = ended or verbs.attempt_fail
    decision = judge.decide(stage, attempt, code, retryable)
    stored, is_open = decision.as_json(), moves.effects.are_open(attempt)
    shortage = moves.ledger.shortage(stage) if decision.retry and not is_open else None
    if is_open:
        stored["applied"] = False
    if shortage:
        stored["exhausted"] = shortage.code
    moves.attempt(attempt, ended, error_code=code, error_message=message, decision=stored, **facts)
    trouble: Mapping[str, Any] = {"last_error_code": code, "last_error_message": message}
    if is_open:
        reason = f"failed while the outcome of an effect is not known; not applied: {decision.explanation}"
        moves.stage(stage, "doubt", reason=reason, failure_disposition="needs_reconciliation", **trouble)
    elif shortage:
        reason = f"{decision.explanation}; but {shortage.message}"
        moves.stage(stage, verbs.fail, reason=reason, failure_disposition=shortage.code, **trouble)
        moves.dead_letter(stage, "retries_exhausted")
    elif decision.retry and decision.delay is not None:
        due = moves.now + timedelta(seconds=decision.delay)
        moves.stage(
            stage,
            verbs.retry,
            reason=decision.explanation,
            available_at=due,
            retry_count=stage.retry_count + 1,
            failure_disposition="retry_scheduled",
            **trouble,
        )
    else:
        moves.stage(stage, verbs.fail, reason=decision.explanation, failure_disposition=decision.verdict, **trouble)
        exhausted = decision.verdict == "retries_exhausted"
        moves.dead_letter(stage, "retries_exhausted" if exhausted else "terminal_error")


def time_out(moves: Moves, judge: Judge, stage: StageRow, attempt: AttemptRow) -> None:
    """The server's timeout: as a failure with code TIMEOUT; in effect mode `external` as `lose`."""
    message = f"no result within {attempt.timeout_seconds or 0:g} s"
    if _had_begun_nothing(moves, stage, attempt):
        moves.attempt(attempt, "time_out", cause=message, error_code="TIMEOUT", error_message=message)
        _recover(moves, stage, "recover", "give_up_recovery", "recoveries_exhausted", "TIMEOUT", message)
    elif stage.effect_mode == "external":
        _doubt(moves, stage, attempt, "time_out", "TIMEOUT", message)
    else:
        fail(moves, judge, stage, attempt, code="TIMEOUT", message=message, ended="time_out", cause=message)


def time_out_import(moves: Moves, judge: Judge, stage: StageRow, attempt: AttemptRow) -> None:
    """Nothing was imported in time: as a failure with code TIMEOUT."""
    message = f"no answer was imported within {attempt.timeout_seconds or 0:g} s"
    fail(moves, judge, stage, attempt, code="TIMEOUT", message=message, ended="time_out_import", cause=message)


def lose(moves: Moves, stage: StageRow, attempt: AttemptRow) -> None:
    """The lease ran out: back to ready with recovery + 1, given up above the limit.

    Effect mode `external` waits for reconciliation instead, unless the stage tells its intents and had told none.
    """
    cause = f"lease of {attempt.worker or 'its worker'} ran out"
    if stage.effect_mode == "external" and not _had_begun_nothing(moves, stage, attempt):
        _doubt(moves, stage, attempt, "lose", "LEASE_EXPIRED", cause)
        return
    moves.attempt(attempt, "lose", cause=cause)
    _recover(moves, stage, "recover", "give_up_recovery", "recoveries_exhausted", "LEASE_EXPIRED", cause)


def give_back(moves: Moves, stage: StageRow, attempt: AttemptRow) -> None:
    """Released by its worker: back to ready, nothing counted; with an open effect in mode `external`, in doubt."""
    cause = "released by its worker"
    if stage.effect_mode == "external" and moves.effects.are_open(attempt):
        _doubt(moves, stage, attempt, "release", "RELEASED", f"{cause} while the outcome of an effect is not known")
    else:
        moves.attempt(attempt, "release", cause=cause)
        moves.stage(stage, "take_back")


def undeliver(moves: Moves, stage: StageRow, attempt: AttemptRow) -> None:
    """No acquisition within the visibility time: as `lose`, for an attempt that nobody had begun."""
    cause = f"{attempt.worker or 'the worker'} did not acquire the lease in time"
    moves.attempt(attempt, "undeliver", cause=cause)
    _recover(moves, stage, "undeliver", "give_up_delivery", "undeliverable", "UNDELIVERED", cause)


@dataclass(frozen=True, slots=True)
class _Verbs:
    """The moves that an answer makes, of a stage and of its attempt."""

    succeed: str
    offer: str
    retry: str
    fail: str
    attempt_succeed: str
    attempt_fail: str


_WORK = _Verbs("succeed", "wait", "schedule_retry", "fail", "succeed", "fail")
_IMPORT = _Verbs("take_import", "offer_import", "retry_import", "fail_import", "take_import", "fail_import")


def _verbs(stage: StageRow) -> _Verbs:
    return _IMPORT if stage.awaits_import else _WORK


# `stale` stays: an attempt that was under way when an earlier stage was retried ends on what it was given
_CLEAN: dict[str, Any] = {"last_error_code": "", "last_error_message": "", "failure_disposition": ""}


def _had_begun_nothing(moves: Moves, stage: StageRow, attempt: AttemptRow) -> bool:
    """Whether a stage that tells its intents before it acts outside had told none."""
    keeps_to_it = stage.effect_mode == "external" and stage.effect_protocol == "intent"
    return keeps_to_it and not moves.effects.were_begun(attempt)


def _recover(moves: Moves, stage: StageRow, again: str, give_up: str, letter: str, code: str, cause: str) -> None:
    if stage.recovery_count >= stage.max_recoveries:
        reason = f"{stage.recovery_count} of {stage.max_recoveries} recoveries are used"
        trouble = {"last_error_code": code, "last_error_message": cause, "failure_disposition": letter}
        moves.stage(stage, give_up, reason=reason, **trouble)
        moves.dead_letter(stage, letter)
    else:
        count = stage.recovery_count + 1
        moves.stage(stage, again, reason=f"{cause}: recovery {count} of {stage.max_recoveries}", recovery_count=count)


def _doubt(moves: Moves, stage: StageRow, attempt: AttemptRow, ended: str, code: str, cause: str) -> None:
    moves.attempt(attempt, ended, cause=cause, error_code=code, error_message=cause)
    reason = f"{cause}; what it did outside is unknown"
    trouble = {"last_error_code": code, "last_error_message": cause, "failure_disposition": "needs_reconciliation"}
    moves.stage(stage, "doubt", reason=reason, **trouble)
