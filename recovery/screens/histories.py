"""What stages did so far, for whoever is about to have it done again: the error and the attempts come first (P86)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelines.models import Attempt, Stage

LOOKED_AT = 40  # attempts, newest first
SHOWN = 5  # lines
LONGEST = 200  # of an error in a line


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt that ended in its way, with how many before it, one after another, ended just so."""

    attempt_id: uuid.UUID
    stage: str
    number: int
    state: str
    code: str
    message: str
    times: int = 1

    def is_like(self, other: Tried) -> bool:
        return (self.stage, self.state, self.code, self.message) == (
            other.stage,
            other.state,
            other.code,
            other.message,
        )


def of_stages(run_id: uuid.UUID, names: Sequence[str]) -> list[Tried]:
    """The newest attempts of these stages of the run, the same end once. One query; none for no stage."""
    if not names:
        return []
    rows = Attempt.objects.filter(stage__run=run_id, stage__name__in=names).select_related("stage")
    wanted = ("stage__name", "number", "state", "error_code", "error_message")
    found: list[Tried] = []
    for row in rows.only(*wanted).order_by("-dispatched_at", "-number")[:LOOKED_AT]:
        one = Tried(row.id, row.stage.name, row.number, row.state, row.error_code, _first_line(row.error_message))
        if found and found[-1].is_like(one):
            found[-1] = replace(found[-1], times=found[-1].times + 1)
        else:
            found.append(one)
    return found[:SHOWN]


def facts(stage: Stage) -> list[tuple[str, str]]:
    """Where the stage stands, as (term, text)."""
    tries = f"{stage.attempt_number} {'attempt' if stage.attempt_number == 1 else 'attempts'}"
    found = [("Now", f"{stage.state.replace('_', ' ')}, epoch {stage.epoch}, {tries} in all")]
    if stage.last_error_code:
        message = _first_line(stage.last_error_message)
        found.append(("Last error", f"{stage.last_error_code}{f': {message}' if message else ''}"))
    return found


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
