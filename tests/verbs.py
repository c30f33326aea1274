"""The verbs of people in place, in one call each, as the API and the screens ask for them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from approvals.requests import decide_request
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import DeadLetter, Stage
from recovery import dead_letters
from recovery.operations import Done
from recovery.states import OperationKind
from recovery.transitions import ask_cancel, ask_pause, ask_resume, ask_retry, ask_skip, perform


def retry_stage(stage_id: uuid.UUID, *, actor: Actor, key: str = "", plan_digest: str = "", **asked: Any) -> Done:
    return perform(ask_retry(_run_of(stage_id), stage_id, **asked), actor=actor, key=key, plan_digest=plan_digest)


def retry_after_review(stage_id: uuid.UUID, *, actor: Actor, by: Actor, reason: str) -> None:
    """A retry that the verdict holds back, and that somebody else lets go on."""
    with pytest.raises(Refusal) as held:
        retry_stage(stage_id, actor=actor, reason=reason)
    assert held.value.code == "operator_review_required"
    decide_request(uuid.UUID(held.value.extra["operation_id"]), actor=by, approved=True)


def skip_stage(stage_id: uuid.UUID, *, actor: Actor, key: str = "", plan_digest: str = "", **asked: Any) -> Done:
    return perform(ask_skip(_run_of(stage_id), stage_id, **asked), actor=actor, key=key, plan_digest=plan_digest)


def pause_run(run_id: uuid.UUID, *, actor: Actor, key: str = "", plan_digest: str = "", **asked: Any) -> Done:
    return perform(ask_pause(run_id, **asked), actor=actor, key=key, plan_digest=plan_digest)


def resume_run(run_id: uuid.UUID, *, actor: Actor, key: str = "", plan_digest: str = "", **asked: Any) -> Done:
    return perform(ask_resume(run_id, **asked), actor=actor, key=key, plan_digest=plan_digest)


def cancel_as_operation(run_id: uuid.UUID, *, actor: Actor, key: str = "", plan_digest: str = "", **asked: Any) -> Done:
    return perform(ask_cancel(run_id, **asked), actor=actor, key=key, plan_digest=plan_digest)


def acknowledge(letter: DeadLetter, *, actor: Actor, key: str = "") -> Done:
    return perform(dead_letters.ask_mark(OperationKind.ACKNOWLEDGE, letter), actor=actor, key=key)


def redrive(letter: DeadLetter, *, actor: Actor, key: str = "") -> Done:
    return perform(dead_letters.ask_redrive(letter), actor=actor, key=key)


def _run_of(stage_id: uuid.UUID) -> uuid.UUID:
    stage = Stage.objects.filter(id=stage_id).first()
    if stage is None:
        raise Refusal("not_found", "there is no such stage")
    return stage.run_id
