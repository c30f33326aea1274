"""Summaries from outside: what the console signs when it stores one, whether that still holds, and what it claims."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from pipelines import signing
from pipelines.signing import Envelope, Verdict
from recovery.states import Outcome


def message(effect_id: uuid.UUID, source: str, digest: str, *, is_sealed: bool, is_clean: bool) -> bytes:
    """The bytes that are signed: which effect, who says so, how it came, and the summary's digest."""
    return orjson.dumps(
        {
            "clean": is_clean,
            "digest": digest,
            "effect": str(effect_id),
            "sealed": is_sealed,
            "source": source,
        }
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """A summary as it is stored; its text is canonical JSON."""

    source: str
    summary: str
    is_sealed: bool
    is_clean: bool
    digest: str
    envelope: Envelope


def hold(workspace_id: uuid.UUID, stored: Sequence[tuple[uuid.UUID, Stored]]) -> list[bool]:
    """Which of these summaries of effects are sealed, clean, and still what the console signed, all at one moment."""
    worth_asking = [
        one.is_sealed and one.is_clean and sha256(one.summary.encode()).hexdigest() == one.digest for _, one in stored
    ]
    asked = [
        (
            workspace_id,
            one.envelope,
            message(effect_id, one.source, one.digest, is_sealed=one.is_sealed, is_clean=one.is_clean),
        )
        for (effect_id, one), is_whole in zip(stored, worth_asking, strict=True)
        if is_whole
    ]
    verdicts = iter(signing.verify_all(asked))
    return [is_whole and next(verdicts) is Verdict.VALID for is_whole in worth_asking]


def read(summary: str) -> Any:
    """What a stored summary says; None where it is no JSON any more."""
    try:
        return orjson.loads(summary)
    except ValueError:
        return None


def claim(summary: str) -> str:
    """The outcome that a summary claims under `outcome`, or blank where it names none."""
    told = read(summary)
    outcome = told.get("outcome") if isinstance(told, dict) else None
    return outcome if outcome in Outcome.values else ""
