"""What a person answers on the retry, redrive and skip screens, read and checked before the verb is called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import QueryDict
from django.utils.dateparse import parse_datetime

from pipelines.api.shapes import text_problem
from pipelines.audit import LONGEST_REASON
from pipelines.blackouts import OVERRIDE
from pipelines.console.screens import typed
from pipelines.errors import Refusal
from recovery.plans import AND_DOWNSTREAM, STAGE_ONLY

LARGEST = 256 * 1024  # bytes, as for an input or output that comes over the wire
LONGEST_NOTE = 500
LATEST_YEAR = 2200  # of a time to come, as over the wire: the end of time cannot be moved between zones

# The operator's checklist of source 000 (P59, P87); each needs its tick and its note where a stage acts outside.
CHECKS: tuple[tuple[str, str, str], ...] = (
    ("history", "I read the error and the earlier attempts", "What do they say?"),
    ("outside", "I checked whether the outside operation already happened", "What did you find, and where?"),
    ("cause", "The cause is resolved", "What was it, and what changed?"),
    ("repeat", "Doing it again is safe: the handler is idempotent, or can tell what it did", "How do you know?"),
)


@dataclass(frozen=True, slots=True)
class RetryAnswers:
    """`new_input` is None when the stage keeps its own."""

    scope: str
    new_input: str | None


def read_retry(params: QueryDict, *, looking: bool = False) -> RetryAnswers:
    """Scope and input; refuses, by field, an unknown scope and an input that is too large.

    When the plan is only looked at, the input is left aside, and what cannot be read is as good as not given.
    """
    errors: dict[str, list[str]] = {}
    scope = params.get("scope", STAGE_ONLY)
    if scope not in (STAGE_ONLY, AND_DOWNSTREAM):
        errors["scope"] = ["choose one of the two"]
    if looking:
        return RetryAnswers(STAGE_ONLY if errors else scope, None)
    new_input = params.get("input", "") if params.get("change_input") else None
    if new_input is not None and len(new_input.encode("utf-8", "replace")) > LARGEST:
        errors["input"] = [f"at most {LARGEST // 1024} KiB"]
    elif new_input is not None and (problem := text_problem(new_input)):
        errors["input"] = [problem]
    if errors:
        raise Refusal("validation_error", "something is missing; nothing was changed", errors=errors)
    return RetryAnswers(scope, new_input)


def read_checks(params: QueryDict, at_stake: Sequence[str]) -> dict[str, str]:
    """The notes of the checklist, each with its tick, where doing it again may repeat what these stages did outside."""
    if not at_stake:
        return {}
    notes, errors = {}, {}
    for name, _, _ in CHECKS:
        notes[name] = typed(params, f"note_{name}")[:LONGEST_NOTE]
        if not params.get(f"check_{name}") or not notes[name]:
            errors[f"check_{name}"] = [f"needed, with a note: what {', '.join(at_stake)} did outside may repeat"]
    if errors:
        raise Refusal("validation_error", "something is missing; nothing was changed", errors=errors)
    return notes


def read_override(params: QueryDict) -> str:
    """Why it is to start although a blackout may hold; blank when nothing was given."""
    reason = typed(params, OVERRIDE)
    if len(reason) > LONGEST_REASON:
        message = f"at most {LONGEST_REASON} characters"
        raise Refusal("validation_error", f"{OVERRIDE}: {message}", errors={OVERRIDE: [message]})
    return reason


def with_notes(reason: str, notes: dict[str, str]) -> str:
    """The reason with the checklist's notes, as the audit keeps it."""
    told = "; ".join(f"{name}: {note}" for name, note in notes.items())
    return f"{reason} [checked {told}]".strip() if told else reason


def read_until(params: QueryDict, now: datetime, *, looking: bool = False) -> datetime | None:
    """When a pause ends by itself, as UTC; none when nothing was given. Refused: no time, or one that is past.

    When the plan is only looked at, what cannot be read is as good as not given.
    """
    text = params.get("until", "").strip()
    if not text:
        return None
    try:
        moment = parse_datetime(text) if text.isascii() and len(text) <= 40 else None
    except ValueError:
        moment = None
    until = moment.replace(tzinfo=moment.tzinfo or UTC) if moment else None
    is_usable = until is not None and until > now and until.year <= LATEST_YEAR
    if not is_usable and looking:
        return None
    if not is_usable:
        message = "give a time to come, like 2026-06-01T12:00, in UTC"
        raise Refusal("validation_error", message, errors={"until": [message]})
    return until


def asked(params: QueryDict) -> list[dict[str, str | bool]]:
    """The checklist for a form, with what was ticked and noted already, and what was not although it was sent."""
    return [
        {
            "name": name,
            "claim": claim,
            "question": question,
            "ticked": params.get(f"check_{name}", ""),
            "note": params.get(f"note_{name}", ""),
            "is_missing": "reason" in params and not (params.get(f"check_{name}") and typed(params, f"note_{name}")),
        }
        for name, claim, question in CHECKS
    ]


def read_output(params: QueryDict) -> tuple[Any, bool]:
    """The output that a skipped stage shall hand on, as (JSON value, whether one was given)."""
    text = params.get("output", "").strip()
    if not text:
        return None, False
    if len(text.encode("utf-8", "replace")) > LARGEST:
        raise Refusal(
            "validation_error", "the output is too large", errors={"output": [f"at most {LARGEST // 1024} KiB"]}
        )
    try:
        return json.loads(text, parse_constant=_no_constant), True
    except (ValueError, RecursionError) as error:
        message = 'this is not JSON; a text needs quotes, like "none"'
        raise Refusal("validation_error", message, errors={"output": [message]}) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
