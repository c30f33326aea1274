"""Blockers for a reader: who is to act, when the engine looks again, and where what holds is to be seen."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from pipelines.blockers import APPLICATION, CLOCK, ENGINE, NO_WORKER, NOBODY, PERSON, Blocker

ACTS = {
    PERSON: "A person must act.",
    NOBODY: "Nothing here can change that.",
    NO_WORKER: "A worker that registers this handler must come.",
    APPLICATION: "The application decides with its key, or a person does.",
    ENGINE: "Nobody need act.",
    CLOCK: "Nobody need act.",
}


@dataclass(frozen=True, slots=True)
class Why:
    """One cause as a line. `then` says whose turn it is; `links` lead to what holds it, as (words, address)."""

    who: str
    cause: str
    then: str
    next_look: datetime | None
    links: tuple[tuple[str, str], ...]


def tell(
    blockers: Sequence[Blocker],
    *,
    subject: str,
    run_id: uuid.UUID | None = None,
    trigger_id: uuid.UUID | None = None,
    backfill_id: uuid.UUID | None = None,
) -> list[Why]:
    """The lines of what does not move; `subject` is what a blocker without a stage holds."""
    return [
        Why(
            one.stage or subject,
            one.cause,
            ACTS.get(one.holder) or _turn(one),
            one.next_look,
            tuple(_links(one, run_id, trigger_id, backfill_id)),
        )
        for one in blockers
    ]


def _turn(one: Blocker) -> str:
    """Whose turn it is, of a holder with a name: a worker holds a stage, a person all of it."""
    return f"It is up to {one.holder}." if one.stage_id else f"It is up to {one.holder}, or another who may."


def _links(
    one: Blocker, run_id: uuid.UUID | None, trigger_id: uuid.UUID | None, backfill_id: uuid.UUID | None
) -> list[tuple[str, str]]:
    found = [(inside.sentence(), reverse("console:run", args=[inside.id])) for inside in one.behind]
    if one.asks is not None:
        found.append(("how it stands with its approval", reverse("console:approval", args=[one.asks])))
    if one.closed_by == "blackout":
        found.append(("blackouts and freeze", reverse("console:blackouts")))
    elif one.closed_by == "backfill" and backfill_id is not None:
        found.append(("its backfill", reverse("console:backfill", args=[backfill_id])))
    elif one.closed_by == "trigger" and trigger_id is not None:
        found.append(("its trigger", reverse("console:trigger", args=[trigger_id])))
    if one.stage_id is not None and run_id is not None:
        found.append(("its run", reverse("console:run", args=[run_id])))
    return found
