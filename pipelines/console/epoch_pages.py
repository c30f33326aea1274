"""The screen of two lives of a stage beside each other: what went in, what came out, how it ended, what changed.

A retry begins a new epoch and erases nothing of the one before (model §2, R12), so any two can be compared at any time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.console.differences import compare
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.models import Attempt, Event, Stage, StageOutput

PLACES_SHOWN = 500
BEGINNINGS = ("stage.retry", "stage.rewind")


@dataclass(frozen=True, slots=True)
class Life:
    """One epoch of a stage: `began` is the event that began it, none of the first; `attempt` is its last."""

    number: int
    began: Event | None
    attempt: Attempt | None
    tries: int
    text_in: str | None
    output: StageOutput | None

    @property
    def told(self) -> dict[str, Any]:
        """All of it that can differ, as JSON."""
        last = self.attempt
        return {
            "outcome": last.state if last else None,
            "attempts": self.tries,
            "error": {"code": last.error_code, "message": last.error_message, "traceback": last.traceback}
            if last and last.error_code
            else None,
            "input": _read(self.text_in),
            "output": _read(self.output.body) if self.output else None,
        }


@require_safe
@screen
def stage_changes(request: ScreenRequest, stage_id: uuid.UUID) -> HttpResponse:
    """What differs between two epochs of a stage, the earlier one first; the last two, when none are named."""
    stage = queries.stage_detail(request.visit.actor, stage_id)
    earlier, later = sorted(
        (
            _epoch(request.GET, "one", max(stage.epoch - 1, 1), stage),
            _epoch(request.GET, "other", stage.epoch, stage),
        )
    )
    lives = lives_of(stage, (earlier, later))
    changes = compare(lives[0].told, lives[1].told)
    differing = [change for change in changes if change.kind != "same"]
    same = changes[len(differing) :]
    context = {
        "run": stage.run,
        "stage": stage,
        "earlier": lives[0],
        "later": lives[1],
        "both": lives,
        "before": f"epoch {earlier}",
        "after": f"epoch {later}",
        "changes": differing[:PLACES_SHOWN],
        "same": same[:PLACES_SHOWN],
        "left_out": max(len(differing) - PLACES_SHOWN, 0) + max(len(same) - PLACES_SHOWN, 0),
    }
    return show(request, "runs/stage_changes.html", context)


def lives_of(stage: Stage, numbers: Sequence[int]) -> list[Life]:
    """These epochs of the stage, in a fixed number of statements."""
    attempts: dict[int, list[Attempt]] = {}
    for attempt in Attempt.objects.filter(stage=stage, epoch__in=numbers).order_by("number"):
        attempts.setdefault(attempt.epoch, []).append(attempt)
    outputs = {one.epoch: one for one in queries.outputs(stage).filter(epoch__in=numbers).order_by("at", "id")}
    if stage.output is not None:
        outputs[stage.output.epoch] = stage.output
    events = Event.objects.filter(
        run_id=stage.run_id, stage=stage.id, kind__in=[*BEGINNINGS, "stage.input_changed"]
    ).order_by("id")
    began: dict[int, Event] = {}
    replaced: dict[int, str] = {}  # by epoch: what its new input took the place of
    for event in events:
        data = event.data or {}
        if event.kind in BEGINNINGS:
            began[data["epoch"]] = event
        else:
            replaced[data["epoch"]] = data["previous"]
    return [
        Life(
            number,
            began.get(number),
            attempts[number][-1] if number in attempts else None,
            len(attempts.get(number, ())),
            _text_in(stage, number, replaced),
            outputs.get(number),
        )
        for number in numbers
    ]


def _text_in(stage: Stage, epoch: int, replaced: Mapping[int, str]) -> str | None:
    """What went in: the first replacement after the epoch holds it."""
    later = min((one for one in replaced if one > epoch), default=None)
    return stage.input if later is None else replaced[later]


def _read(text: str | None) -> Any:
    """A text as the JSON it holds, or as the text that it is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _epoch(params: Mapping[str, str], name: str, otherwise: int, stage: Stage) -> int:
    text = params.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        message = "choose two epochs by their numbers"
        raise Refusal("validation_error", message, errors={name: [message]})
    if not 1 <= int(text) <= stage.epoch:
        raise Refusal("not_found", f"the stage has no epoch {text}")
    return int(text)
