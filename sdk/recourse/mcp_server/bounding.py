"""Answers as they fit into a model's context: bounded, and what is left out is said where it is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recourse.texts import clean

MOST = 40_000  # characters of an answer's JSON
WHOLE = frozenset({"next", "previous", "plan_digest"})  # of no use in part
STEPS = ((4000, 200, 12), (1000, 200, 9), (300, 100, 7), (120, 50, 5))  # of a text, of a list, of what is nested


class TooLarge(Exception):
    """Also the shortest form of the answer is larger than what is given out."""


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def bounded(answer: Any, most: int = MOST) -> tuple[Any, bool]:
    """The answer, and whether something of it was left out. Raises `TooLarge`."""
    answer = json.loads(clean(as_text(answer)))
    if len(as_text(answer)) <= most:
        return answer, False
    for text, items, depth in STEPS:
        shorter = _cut(answer, text, items, depth)
        if len(as_text(shorter)) <= most:
            return shorter, True
    raise TooLarge


def _cut(value: Any, text: int, items: int, depth: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= text else f"{value[:text]} … [{len(value) - text} characters left out]"
    if not isinstance(value, dict | list) or not value:
        return value
    if depth == 0:
        return f"[left out: {len(as_text(value))} characters]"
    if isinstance(value, list):
        kept = [_cut(one, text, items, depth - 1) for one in value[:items]]
        return kept if len(value) <= items else [*kept, f"[{len(value) - items} items left out]"]
    told = {
        _cut(name, text, items, 1): _kept(name, one, text, items, depth) for name, one in list(value.items())[:items]
    }
    return told if len(value) <= items else told | {"[left out]": f"{len(value) - items} fields"}


def _kept(name: str, value: Any, text: int, items: int, depth: int) -> Any:
    return value if name in WHOLE and not isinstance(value, Mapping | list) else _cut(value, text, items, depth - 1)
