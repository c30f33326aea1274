"""What is otherwise in one plan than in another: pure, from their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ABOUT_THEMSELVES = frozenset({"plan_digest"})


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each difference, in the plan's own order: {field, stage, before, after}.

    Of a list, what it no longer holds has no `after` and what is new no `before`; where a list has one item a stage,
    the two that speak of the same stage are one line.
    """
    found = []
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if name in _ABOUT_THEMSELVES or one == other:
            continue
        if isinstance(one, list) and isinstance(other, list):
            found += [_line(name, *pair) for pair in _pairs(one, other)]
        else:
            found.append(_line(name, one, other))
    return found


def _pairs(before: list[Any], after: list[Any]) -> list[tuple[Any, Any]]:
    gone = [item for item in before if item not in after]
    new = [item for item in after if item not in before]
    pairs = []
    for item in gone:
        same = [other for other in new if _stage(item) and _stage(other) == _stage(item)]
        alone = len(same) == 1 and sum(_stage(other) == _stage(item) for other in gone) == 1
        pairs.append((item, same[0] if alone else None))
        if alone:
            new.remove(same[0])
    return pairs + [(None, item) for item in new]


def _line(name: str, before: Any, after: Any) -> dict[str, Any]:
    return {"field": name, "stage": _stage(before) or _stage(after), "before": before, "after": after}


def _stage(item: Any) -> str | None:
    return item.get("stage") if isinstance(item, Mapping) else None
