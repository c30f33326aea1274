"""The run page in parts, so that a live page gets only those that changed.

Each part has an element with an id, and a digest of what it says; times that the browser itself keeps current do not
count. The page carries the digests along, and the next answer holds the parts whose digests differ, each swapped in its
own place. Rows of the timeline are parts too: one that appears is put after its neighbour, one that is gone goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.template.loader import get_template
from django.utils.safestring import SafeString, mark_safe

from pipelines.console.run_page import RunLook

PARTS: Mapping[str, str] = {
    "head": "runs/_head.html",
    "blockers": "runs/_holds.html",
    "counts": "runs/_stages_head.html",
    "axis": "runs/_axis.html",
    "pauses": "runs/_pauses.html",
    "stage": "runs/_stage.html",
    "attempts": "runs/_attempts.html",
    "data": "runs/_stage_data.html",
    "more": "runs/_more.html",
    "events": "runs/_told.html",
    "facts": "runs/_facts.html",
    "aside": "runs/_aside.html",
}
IN_TABLES = ("axis", "pauses")
LETTERS = 5  # of a digest: one change in a million goes unseen until the next
# what changes by itself: texts of relative times, lengths of what goes on, the frame around the drawing
_MOVING = re.compile(
    r'(?<= data-ago>)[^<]*|(?<=<span data-since=")([^"]*)">[^<]*|viewBox="[^"]*"| width="[^"]*"(?= data-grows)'
    r'|(?<=data-now )x1="[^"]*" y1="0" x2="[^"]*"'
)
_ROW = re.compile(r"[\d-]+\.[0-9a-f]{5}")


@dataclass(frozen=True, slots=True)
class Parts:
    """The page's parts as HTML by name, and its rows by key, in their order."""

    parts: Mapping[str, str]
    rows: Mapping[str, str]

    def seen(self, beat: str) -> str:
        """What somebody who got all of it has seen."""
        told = "".join(_digest(html) for html in self.parts.values())
        return "~".join([beat, told, *(f"{key}.{_digest(html)}" for key, html in self.rows.items())])


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page told that it has: digests by part, and by row."""

    parts: Mapping[str, str]
    rows: Mapping[str, str]


def read_seen(text: str) -> Seen:
    """What a page sent along; whatever cannot be read was not seen."""
    _, told, *rows = [*text.split("~"), ""] if "~" in text else ["", ""]
    digests = [told[at : at + LETTERS] for at in range(0, len(told), LETTERS)]
    pairs = [row.partition(".") for row in rows if _ROW.fullmatch(row)]
    return Seen(dict(zip(PARTS, digests, strict=False)), {key: digest for key, _, digest in pairs})


def render(look: RunLook, context: Mapping[str, Any]) -> Parts:
    """All parts of the page."""
    told = {**context, "look": look}
    row = get_template("runs/_stage_row.html")
    return Parts(
        {name: get_template(template).render(told) for name, template in PARTS.items()},
        {line.key: row.render({"look": look, "line": line, "now": look.now}) for line in look.lines},
    )


def changes(now: Parts, seen: Seen) -> SafeString:
    """What a page that has `seen` needs to be as it is now, each element to be swapped in its own place."""
    found = []
    for name, html in now.parts.items():
        if seen.parts.get(name) != _digest(html):
            swapped = html.replace(f'id="part-{name}"', f'id="part-{name}" hx-swap-oob="true"', 1)
            found.append(_in_table(swapped) if name in IN_TABLES else swapped)
    found.extend(
        _in_table(f'<tr id="row-{key}" hx-swap-oob="delete"></tr>') for key in seen.rows if key not in now.rows
    )
    place = "afterbegin:#stage-rows"
    for key, html in now.rows.items():
        if key not in seen.rows:
            found.append(_in_table(f'<tbody hx-swap-oob="{place}">{html}</tbody>'))
        elif seen.rows[key] != _digest(html):
            found.append(_in_table(html.replace(f'id="row-{key}"', f'id="row-{key}" hx-swap-oob="true"', 1)))
        place = f"afterend:#row-{key}"
    return mark_safe("".join(found))  # noqa: S308 - rendered above, and keys that are numbers


def _in_table(html: str) -> str:
    """A row on its own is dropped by browsers, unless a template is around it."""
    return f"<template>{html}</template>"


def _digest(html: str) -> str:
    told = _MOVING.sub("", html)
    return sha256(told.encode()).hexdigest()[:LETTERS]
