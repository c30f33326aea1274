"""Summaries from outside: what the console signs when it stores one, whether that still holds, and what it claims."""

from __future__ import annotations

import json
import uuid
from hashlib import sha256

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


def holds(
    workspace_id: uuid.UUID,
    effect_id: uuid.UUID,
    *,
    source: str,
    summary: str,
    is_sealed: bool,
    is_clean: bool,
    digest: str,
    envelope: Envelope,
) -> bool:
    """Whether a stored summary is sealed, clean, and still what the console signed; `summary` is canonical JSON."""
    if not is_sealed or not is_clean or sha256(summary.encode()).hexdigest() != digest:
        return False
    signed = message(effect_id, source, digest, is_sealed=is_sealed, is_clean=is_clean)
    return signing.verify(workspace_id, envelope, signed) is Verdict.VALID


def claim(summary: str) -> str:
    """The outcome that a summary claims under `outcome`, or blank where it names none."""
    told = json.loads(summary)
    outcome = told.get("outcome") if isinstance(told, dict) else None
    return outcome if outcome in Outcome.values else ""
