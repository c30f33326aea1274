"""Cutting long lists by keyset: a page is found from where the last one ended, never by counting or skipping rows.

A list is ordered by one or two fields that together are unique. The cursor is opaque to callers; a foreign or broken
one is an input error. Shared by the operations API and the screens.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet

from pipelines.errors import Refusal

DEFAULT_SIZE = 50
LARGEST_SIZE = 200

Row = TypeVar("Row")
Position = tuple[Any, ...]  # the values of the ordering fields at one row
NEWEST = ("created_at", "id")


@dataclass(frozen=True, slots=True)
class Cut:
    """Which page is wanted: `size` rows behind `position` (from the start when None), or before it when `backwards`."""

    size: int = DEFAULT_SIZE
    position: Position | None = None
    backwards: bool = False

    @property
    def reach(self) -> int:
        """One row more than the page: whether it comes tells whether there is another page."""
        return self.size + 1


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """The rows of one page in list order, and the cursors of its neighbours; None where there is no neighbour."""

    rows: list[Row] = field(default_factory=list)
    next: str | None = None
    previous: str | None = None


def number(text: str) -> int:
    """A key that is a whole number of the database, for lists in the order of such."""
    found = int(text)
    if not 0 <= found < 2**63:
        raise ValueError("out of range")
    return found


def read_cut(
    params: Mapping[str, str], parse: Sequence[Callable[[str], Any]] = (datetime.fromisoformat, uuid.UUID)
) -> Cut:
    """The page that `cursor` and `page_size` ask for; `parse` reads the ordering fields. Refuses nonsense by name."""
    size = _size(params.get("page_size"))
    text = params.get("cursor")
    if not text:
        return Cut(size)
    try:
        direction, *values = json.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
        if direction not in ("n", "p") or len(values) != len(parse):
            raise ValueError("not a cursor of this list")
        position = tuple(_placed(reader(value)) for reader, value in zip(parse, values, strict=True))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error) as error:
        raise _refuse("cursor", "this cursor is not one of this list; begin again without it") from error
    return Cut(size, position, backwards=direction == "p")


def page(found: Sequence[Row], cut: Cut, key: Callable[[Row], Position]) -> Page[Row]:
    """Makes a page of up to `cut.reach` rows, found in the cut's own direction."""
    rows, more = list(found[: cut.size]), len(found) > cut.size
    if cut.backwards:
        rows.reverse()
    if not rows:
        return Page()
    has_next = more or cut.backwards
    has_previous = more if cut.backwards else cut.position is not None
    return Page(
        rows,
        next=_cursor("n", key(rows[-1])) if has_next else None,
        previous=_cursor("p", key(rows[0])) if has_previous else None,
    )


def page_of(rows: QuerySet[Any], cut: Cut, fields: Sequence[str] = NEWEST, *, descending: bool = True) -> Page[Any]:
    """Cuts a queryset that is ordered by `fields`, which together are unique."""
    downwards = descending != cut.backwards
    if cut.position is not None:
        rows = rows.filter(_behind(fields, cut.position, "lt" if downwards else "gt"))
    ordered = rows.order_by(*(f"-{name}" if downwards else name for name in fields))
    return page(list(ordered[: cut.reach]), cut, lambda row: _values(row, fields))


def _behind(fields: Sequence[str], position: Position, side: str) -> Q:
    # the first comparison is implied by the second; it is what an index can use
    first, *rest = fields
    if not rest:
        return Q(**{f"{first}__{side}": position[0]})
    return Q(**{f"{first}__{side}e": position[0]}) & (
        Q(**{f"{first}__{side}": position[0]}) | Q(**{f"{rest[0]}__{side}": position[1]})
    )


def _values(row: Model, fields: Sequence[str]) -> Position:
    return tuple(getattr(row, name) for name in fields)


def cursor_at(position: Position, *, backwards: bool = False) -> str:
    """The cursor of what lies behind a place in a list, or before it; no row need stand there."""
    return _cursor("p" if backwards else "n", position)


def _cursor(direction: str, position: Position) -> str:
    values = [value.isoformat() if isinstance(value, datetime) else str(value) for value in position]
    return base64.urlsafe_b64encode(json.dumps([direction, *values]).encode()).decode().rstrip("=")


def _placed(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError("a time without its offset")
    return value.astimezone(UTC)  # Python reads offsets that the database does not


def _size(text: str | None) -> int:
    if text is None:
        return DEFAULT_SIZE
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= LARGEST_SIZE):
        raise _refuse("page_size", f"page_size must be a whole number from 1 to {LARGEST_SIZE}")
    return int(text)


def _refuse(name: str, message: str) -> Refusal:
    return Refusal("validation_error", message, errors={name: [message]})
