"""What differs between two JSON values, place by place: pure, for screens that show them beside each other.

A place is named by its path, `state.rows[3]`; in a list of objects that each name their stage, by that name. What is
nested deeper than `DEEPEST` is compared as one text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DEEPEST = 12
_PLAIN = re.compile(r"[\w-]+")
NAMING = ("stage", "name", "id")  # what tells the objects of a list apart, where each has one
LINES = 300  # of a text; a longer one is not compared line by line
AROUND = 2  # lines that are the same, before and after those that differ
MOST_LINES = 1_000  # of each of two texts, from the first that differs to the last: what comparing costs is bounded
MINUS, PLUS = "−", "+"


@dataclass(frozen=True, slots=True)
class Change:
    """One place. The values as JSON text; None where there is none on that side."""

    path: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """changed, removed, added or same."""
        if self.before == self.after:
            return "same"
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What was and what is, as (sign, text): − before what was, + before what is, none before what is the same.

        Texts of several lines are told line by line; of long stretches that are the same, only where they end.
        """
        whole = [(sign, text) for sign, text in ((MINUS, self.before), (PLUS, self.after)) if text is not None]
        if len(whole) < len((MINUS, PLUS)) or self.kind == "same":
            return whole
        before, after = _lines(self.before), _lines(self.after)
        if not (1 < len(before) <= LINES and 1 < len(after) <= LINES):
            return whole
        return [_signed(line) for line in difflib.unified_diff(before, after, lineterm="", n=AROUND)][2:]


def compare(before: Any, after: Any) -> list[Change]:
    """Every place of both, what differs first, each group in the order of the values."""
    old, new = dict(_places(before)), dict(_places(after))
    paths = [*old, *(path for path in new if path not in old)]
    changes = [Change(path, old.get(path), new.get(path)) for path in paths]
    return sorted(changes, key=lambda change: change.kind == "same")


def unified(before: str, after: str) -> list[str] | None:
    """Two texts as a unified difference, without its head: `@@ -3,5 +3,6 @@`, then lines with a blank, - or + before.

    Nothing where they are the same; None where too many lines lie between the first that differs and the last.
    """
    old, new = before.split("\n"), after.split("\n")
    if old == new:
        return []
    least = min(len(old), len(new))
    head = next((at for at in range(least) if old[at] != new[at]), least)
    tail = next((at for at in range(least - head) if old[-1 - at] != new[-1 - at]), least - head)
    first, last = max(0, head - AROUND), max(0, tail - AROUND)
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    if max(len(old), len(new)) > MOST_LINES:
        return None
    lines = list(difflib.unified_diff(old, new, lineterm="", n=AROUND))[2:]
    return [_further_down(line, first) if line.startswith("@@") else line for line in lines]


def signed(lines: list[str]) -> list[tuple[str, str]]:
    """Lines of `unified` for screens, as those of a `Change`."""
    return [_signed(line) for line in lines]


def _further_down(header: str, lines: int) -> str:
    """A header of a part that begins so many lines further down in both texts."""
    return re.sub(r"(?<=[-+])\d+", lambda found: str(int(found[0]) + lines), header)


def _places(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and depth < DEEPEST:
        for name, inner in value.items():
            yield from _places(inner, _below(path, str(name)), depth + 1)
    elif isinstance(value, list) and value and depth < DEEPEST:
        for name, inner in zip(_names(value), value, strict=True):
            yield from _places(inner, f"{path}[{_plain(name)}]", depth + 1)
    else:
        yield path, _text(value)


def _names(items: list[Any]) -> list[str]:
    for naming in NAMING:
        names = [item.get(naming) if isinstance(item, Mapping) else None for item in items]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return [str(name) for name in names]
    return [str(index) for index in range(len(items))]


def _below(path: str, name: str) -> str:
    if _PLAIN.fullmatch(name):
        return f"{path}.{name}" if path else name
    return f"{path}[{_plain(name)}]"


def _plain(name: str) -> str:
    """A name that could be read as part of a path is quoted, so that no two places share one."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except RecursionError:
        return "… nested too deeply to show"


def _lines(text: str | None) -> list[str]:
    """The lines of what is a text in JSON; anything else is one."""
    said = json.loads(text) if text is not None and text.startswith('"') else None
    return said.split("\n") if isinstance(said, str) else [text or ""]


def _signed(line: str) -> tuple[str, str]:
    if line.startswith("@@"):
        return "⋯", ""
    return {"-": MINUS, "+": PLUS}.get(line[0], ""), line[1:]
