"""The input of a tick's run, made of its trigger's template. Pure: live ticks and backfills are filled alike.

A template is a JSON object. Its texts, at any depth, may hold `{{name}}`; names of members stay as they are. Between
`interval_start` and `interval_end` lies what has passed since the tick before by the same schedule; a tick without one
before it has an empty interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import rfc8785

from pipelines.api.serializers import INPUT_BYTES
from pipelines.api.shapes import json_problem
from pipelines.errors import Refusal
from pipelines.schedules import Due

NAMES = ("tick_time", "local_date", "local_time", "timezone", "interval_start", "interval_end", "trigger")
LONGEST_TIME = "2026-11-30T12:00:00+00:00:00"  # offsets had seconds once


def instant_text(at: datetime) -> str:
    """An instant as inputs, keywords and answers tell it: ISO 8601, `+00:00`."""
    return at.astimezone(UTC).isoformat()


def check(template: object, *, timezone: str = "UTC", trigger_name: str = "") -> None:
    """Refused: what is no JSON object, a name that is not of `NAMES`, and what is too large once it is filled in."""
    if not isinstance(template, dict):
        raise _refused("must be a JSON object")
    try:
        if problem := json_problem(template, exact=True):
            raise _refused(problem)
        words = dict.fromkeys(NAMES, LONGEST_TIME) | {"timezone": timezone, "trigger": trigger_name}
        text(_filled(template, words.__getitem__))
    except KeyError as error:
        known = ", ".join(NAMES)
        raise _refused(f"{{{{{str(error.args[0])[:60]}}}}} is not known; what may be filled in is {known}") from None
    except RecursionError:
        raise _refused("is nested too deeply") from None


def fill(template: Mapping[str, Any], *, due: Due, previous: datetime | None, trigger_name: str) -> dict[str, Any]:
    """The input of one tick. `due.local` is in the schedule's zone; `previous` is the tick before."""
    words = {
        "tick_time": instant_text(due.at),
        "local_date": due.local.date().isoformat(),
        "local_time": due.local.isoformat(),
        "timezone": str(due.local.tzinfo),
        "interval_start": instant_text(previous or due.at),
        "interval_end": instant_text(due.at),
        "trigger": trigger_name,
    }
    filled: dict[str, Any] = _filled(dict(template), words.__getitem__)
    return filled


def varies(template: Mapping[str, Any]) -> bool:
    """Whether the template may say something else for another tick."""
    return bool(_filled(dict(template), lambda name: "") != dict(template))


def text(run_input: Mapping[str, Any]) -> str:
    """The input as canonical JSON, as runs keep it. Refused when it is larger than a run's may be."""
    try:
        encoded = rfc8785.dumps(dict(run_input))
    except rfc8785.CanonicalizationError:
        raise _refused("must be plain JSON") from None
    if len(encoded) > INPUT_BYTES:
        raise _refused(f"must have at most {INPUT_BYTES} bytes once it is filled in, not {len(encoded)}")
    return encoded.decode()


def keywords(due: Due) -> list[dict[str, str]]:
    """What a tick's run is found by."""
    return [
        {"key": "tick", "value": instant_text(due.at)},
        {"key": "local_date", "value": due.local.date().isoformat()},
    ]


def _filled(value: Any, word: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return _text_filled(value, word)
    if isinstance(value, dict):
        return {name: _filled(inner, word) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, word) for inner in value]
    return value


def _text_filled(text: str, word: Callable[[str], str]) -> str:
    """Each `{{` with the next `}}` after it makes a place; what is left open stays. One walk, however many are open."""
    parts, done = [], 0
    while (begin := text.find("{{", done)) >= 0 and (end := text.find("}}", begin + 2)) >= 0:
        parts += [text[done:begin], word(text[begin + 2 : end].strip())]
        done = end + 2
    return "".join([*parts, text[done:]])


def _refused(message: str) -> Refusal:
    return Refusal("validation_error", f"input {message}", errors={"input": [message]})
