"""Answers that are made elsewhere: taken only with the digest of the request that is awaited now.

An import stage waits with an attempt of its own; the digest of its request covers stage, input, dependencies, baseline
and attempt, so no answer to an earlier attempt can be attached to a later one. Whatever does not fit (late, of a
cancelled or expired run, another digest, a second answer) is refused with `stale_request`, moves nothing, and is kept
as late evidence. The same answer again is the first one's. Serves R18–R20, R36, R45.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.db import transaction

from pipelines import outcomes
from pipelines.access import IMPORT, Actor
from pipelines.audit import NO_OP, Entry, audited, standing
from pipelines.errors import Refusal
from pipelines.moves import AttemptRow, Moves, Owner, StageRow
from pipelines.pinned import differences, in_words
from pipelines.results import ENGINE_CODES, first_answer, json_text, save_late
from pipelines.sql import query
from pipelines.states import RunStatus, StageState


@dataclass(frozen=True, slots=True)
class Answer:
    """What was made elsewhere. `output` is any JSON value; `source` says where it comes from, for people."""

    request_digest: str
    status: str = "succeeded"  # or failed
    output: Any = None
    error_code: str = ""
    error_message: str = ""
    source: str = ""

    def told(self) -> dict[str, Any]:
        return {
            "requestDigest": self.request_digest,
            "status": self.status,
            "output": self.output,
            "errorCode": self.error_code,
            "errorMessage": self.error_message,
            "source": self.source,
        }

    def digest(self) -> str:
        """Tells the same answer again from another one; where it comes from does not count."""
        said = [self.status, self.output, self.error_code, self.error_message]
        return sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Taken:
    """Where an answer led, or would lead. `replayed`: it was taken before, and nothing was changed."""

    run_id: uuid.UUID
    stage_id: uuid.UUID
    state: str
    run_status: str
    replayed: bool
    digest: str  # of what was seen: a later import may insist on the same

    @classmethod
    def of(cls, moves: Moves, stage: StageRow, answer: Answer, state: str, *, replayed: bool) -> Taken:
        run = moves.runs[stage.run_id]
        seen = [str(stage.id), answer.request_digest, answer.digest(), str(state), str(run.status), replayed]
        digest = sha256(json.dumps(seen, separators=(",", ":")).encode()).hexdigest()
        return cls(run.id, stage.id, StageState(state), RunStatus(run.status), replayed, digest)


def take(stage_id: uuid.UUID, answer: Answer, *, actor: Actor, reason: str = "", plan_digest: str = "") -> Taken:
    """Takes an answer for an import stage and says to which state it led the stage.

    Another's stage is 404. Refused: `stage_state_invalid` where the stage imports nothing or awaits nothing yet,
    `definition_changed`, else `stale_request`; then it is kept as evidence. With the digest of a preview
    (`plan_digest`), what leads elsewhere by now is `plan_changed`, and changes nothing. An answer that was taken
    already leads nowhere: it is answered as then, whatever was seen.
    """
    found = query("SELECT run_id FROM pipelines_stage WHERE id = %s", [stage_id])
    run_id = found[0][0] if found else None
    refusal = None
    data = {"request_digest": answer.request_digest, "status": answer.status, "source": answer.source}
    with audited(actor, "stage.import", run=run_id, stage=stage_id, reason=reason, **data) as entry:
        taken = _locked(run_id, stage_id, answer, actor, entry)
        if isinstance(taken, Refusal):
            refusal = taken
            entry.keep_refused(refusal)
        elif plan_digest and plan_digest != taken.digest and not taken.replayed:
            raise Refusal("plan_changed", "it would lead elsewhere than it was seen to; look again")
    if refusal is not None:
        raise refusal
    assert isinstance(taken, Taken)  # noqa: S101 - the other kind was raised
    return taken


def preview(stage_id: uuid.UUID, answer: Answer, *, actor: Actor) -> Taken:
    """Where the answer would lead now, or the refusal that it would meet: done as `take` does it, and undone."""
    found = query("SELECT run_id FROM pipelines_stage WHERE id = %s", [stage_id])
    with transaction.atomic():
        taken = _locked(found[0][0] if found else None, stage_id, answer, actor, Entry())
        transaction.set_rollback(True)
    if isinstance(taken, Refusal):
        raise taken
    return taken


def _locked(
    run_id: uuid.UUID | None, stage_id: uuid.UUID, answer: Answer, actor: Actor, entry: Entry
) -> Taken | Refusal:
    owner = Owner(actor.workspace_id, actor.application_id, actor.environment_id)
    moves = Moves.lock([] if run_id is None else [run_id], actor=actor.name, owner=owner)
    stage = moves.stages.get(stage_id)
    if stage is None:
        entry.run = entry.stage = None
        raise Refusal("not_found", "there is no such stage")
    actor.require(IMPORT)
    return _take(moves, stage, answer, entry)


def _take(moves: Moves, stage: StageRow, answer: Answer, entry: Entry) -> Taken | Refusal:
    run = moves.runs[stage.run_id]
    if not stage.awaits_import:
        raise Refusal("stage_state_invalid", f"{stage.name} is executed by workers; nothing is imported for it")
    if not stage.attempt_number:
        raise Refusal("stage_state_invalid", f"{stage.name} is {stage.state}: its answer is not awaited yet")
    ended = moves.end_overdue()
    entry.before = standing(run, stage)
    attempts = moves.attempts("stage_id = %s", stage.id)
    known = {attempt.request_digest: attempt for attempt in attempts}.get(answer.request_digest)
    if known is not None and known.result_digest == answer.digest():
        entry.outcome = NO_OP
        moves.save()
        return Taken.of(moves, stage, answer, _first_answer(stage, known), replayed=True)
    if not run.is_terminal and (changed := differences([run.id])):
        if not run.changed:
            moves.mark_changed(run, changed[run.id])
        moves.settle()
        moves.save()
        return Refusal("definition_changed", f"{in_words(changed[run.id])}; only a fork of the run goes on")
    why_not = _why_not(moves, stage, known)
    if why_not:
        return _keep(moves, stage, known or attempts[-1], answer, why_not, ended=bool(ended))
    assert known is not None  # noqa: S101 - an unknown digest has a reason
    _apply(moves, stage, known, answer)
    moves.settle()
    moves.save()
    entry.after = standing(run, stage)
    return Taken.of(moves, stage, answer, stage.state, replayed=False)


def _first_answer(stage: StageRow, attempt: AttemptRow) -> StageState:
    """As for results; but an import that is tried again is awaited anew at once."""
    first = first_answer(stage, attempt)
    return StageState.WAITING if first == StageState.RETRY_SCHEDULED else first


def _why_not(moves: Moves, stage: StageRow, known: AttemptRow | None) -> str:
    run = moves.runs[stage.run_id]
    if run.is_terminal:
        return f"the run is {run.status}"
    if known is None:
        return "it answers no request of this stage"
    if known.number != stage.attempt_number or known.state != "dispatched":
        return f"it answers attempt {known.number}, which is {known.state}"
    if known.expires_at <= moves.now:
        return f"attempt {known.number} waited until {known.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    return ""


def _apply(moves: Moves, stage: StageRow, attempt: AttemptRow, answer: Answer) -> None:
    facts: dict[str, Any] = {"result_digest": answer.digest()}
    judge = outcomes.Judge(moves)
    body = json_text(answer.output)
    size, limit = len(body.encode()), moves.runs[stage.run_id].limits.allowance(stage.options)
    if answer.status == "failed":
        code, message = answer.error_code, answer.error_message
        code = code.upper() if code in ENGINE_CODES else code
        outcomes.fail(moves, judge, stage, attempt, code=code, message=message, **facts)
    elif size > limit:
        message = f"the output has {size} bytes, the limit is {limit}"
        outcomes.fail(moves, judge, stage, attempt, code="OUTPUT_TOO_LARGE", message=message, **facts)
    else:
        outcomes.succeed(moves, stage, attempt, body, **facts)


def _keep(moves: Moves, stage: StageRow, attempt: AttemptRow, answer: Answer, why_not: str, *, ended: bool) -> Refusal:
    """Keeps what was refused on the attempt that it names, or on the newest."""
    if ended:
        moves.settle()
    told = {"digest": answer.digest(), "why": why_not}
    moves.event("stage.import_refused", stage.run_id, stage.id, attempt.id, reason=why_not, data=told)
    moves.save()
    evidence = {"attempt": attempt.id, "session": None, "reason": "stale request", "body": json.dumps(answer.told())}
    save_late([{**evidence, "digest": sha256(json.dumps(answer.told(), sort_keys=True).encode()).hexdigest()}])
    return Refusal("stale_request", f"the answer for {stage.name} is not taken: {why_not}; it is kept as evidence")
