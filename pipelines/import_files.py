"""Import requests and their answers as documents: what somebody elsewhere is handed, and what they hand back.

Both are JSON files with snake_case names. An answer is read strictly: UTF-8 without a mark, no NaN, no name twice, no
unknown name, bounded. Serves R18–R20.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pipelines.access import Actor
from pipelines.api.bodies import parse
from pipelines.api.shapes import AnyJson, OneOf, Problems, Shape, Text
from pipelines.errors import Refusal
from pipelines.imports import Answer
from pipelines.limits import MIB, Limits
from pipelines.models import Attempt, Run, Stage
from pipelines.models.runs import StageMode
from pipelines.moves import NO_END
from pipelines.queries import stage_detail
from pipelines.states import ACTIVE_ATTEMPT, StageState

FORMAT: Final = "recourse-import-request"
VERSION: Final = 1
MOST_BYTES: Final = 16 * MIB
LONGEST_SOURCE: Final = 1_000


class AnswerFields(Shape):
    """What was made elsewhere. `request_digest` is that of the request; `source` says where it comes from, for
    people."""

    request_digest = Text(max_length=64)
    status = OneOf(["succeeded", "failed"], default="succeeded")
    output = AnyJson(required=False)
    error_code = Text(blank=True, max_length=100, default="")
    error_message = Text(blank=True, max_length=64 * 1024, default="")
    source_ = Text(blank=True, max_length=LONGEST_SOURCE, default="", source="source")

    spelling = {"source_": "source"}  # the bare name is DRF's own

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        return answer_problems(clean)


def answer_problems(clean: Mapping[str, Any]) -> Problems:
    """What is wrong with the fields of an answer beside one another."""
    if clean["status"] == "succeeded" and (clean["error_code"] or clean["error_message"]):
        return [("status", "an answer that tells of an error is failed")]
    return []


def answer_of(clean: Mapping[str, Any]) -> Answer:
    """The answer that checked fields tell."""
    return Answer(
        request_digest=clean["request_digest"],
        status=clean["status"],
        output=clean.get("output"),
        error_code=clean["error_code"],
        error_message=clean["error_message"],
        source=clean["source"],
    )


def read_answer(raw: bytes) -> Answer:
    """The answer in a file. `payload_too_large` above `MOST_BYTES`, else `validation_error` naming what is wrong."""
    if len(raw) > MOST_BYTES:
        raise Refusal("payload_too_large", f"an answer may have at most {MOST_BYTES} bytes")
    value = parse(raw)
    if twice := _name_twice(raw):
        message = f"the name {twice!r} stands twice in one object"
        raise Refusal("validation_error", message, errors={"": [message]})
    return answer_of(AnswerFields.clean(value))


def awaited_attempt(stage: Stage) -> Attempt | None:
    """The attempt whose answer an import stage awaits now; None while it awaits none."""
    if stage.mode != StageMode.IMPORT or stage.state != StageState.WAITING:
        return None
    return Attempt.objects.filter(stage=stage, state__in=sorted(ACTIVE_ATTEMPT)).first()


def request_document(actor: Actor, stage_id: uuid.UUID) -> dict[str, Any]:
    """What is asked of whoever makes the answer: the request that is awaited now, with its digest.

    Another's stage is 404. `stage_state_invalid` where the stage imports nothing, or awaits no answer now.
    """
    stage = stage_detail(actor, stage_id)
    if stage.mode != StageMode.IMPORT:
        raise Refusal("stage_state_invalid", f"{stage.name} is executed by workers; nothing is imported for it")
    attempt = awaited_attempt(stage)
    if attempt is None:
        raise Refusal("stage_state_invalid", f"{stage.name} is {stage.state}: no answer is awaited for it")
    run: Run = stage.run
    return {
        "format": FORMAT,
        "version": VERSION,
        "run": str(run.id),
        "run_name": run.name,
        "stage": stage.name,
        "stage_id": str(stage.id),
        "attempt": attempt.number,
        "epoch": attempt.epoch,
        "request_digest": attempt.request_digest,
        "handler": stage.handler,
        "description": stage.description,
        "input": stage.input,
        "dependencies": _dependencies(stage),
        "baseline": run.baseline,
        "recipients": stage.recipients,
        "max_output_bytes": Limits.of(run.limits).allowance(stage.options),
        "deadline_at": _time(run.deadline_at),
        "answer_by": _time(min(filter(None, (attempt.expires_at, run.deadline_at)))),
    }


def _dependencies(stage: Stage) -> dict[str, Any]:
    """The outputs that it builds on, by stage name."""
    needed = Stage.objects.filter(run_id=stage.run_id, position__in=stage.depends_on).select_related("output")
    return {one.name: json.loads(one.output.body) if one.output else None for one in needed.order_by("position")}


def _name_twice(raw: bytes) -> str:
    """A name that an object of this JSON has twice; blank when none does."""
    found = ""

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            found = found or next(name for name in names if names.count(name) > 1)

    json.loads(raw, object_pairs_hook=look)
    return found[:100]


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None and moment < NO_END else None
