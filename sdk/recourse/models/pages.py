"""One page of a list."""

from __future__ import annotations

from typing import Generic, TypedDict, TypeVar

I = TypeVar("I")  # noqa: E741 - an item


class Page(TypedDict, Generic[I]):
    """`next` and `previous` are the links to its neighbours, null where there is none."""

    next: str | None
    previous: str | None
    results: list[I]
