"""How the plan of a request is told on screens: the app that carries an operation out says it, in lines of its own.

Approvals keep plans as JSON and know nothing of what is in them; `recovery/apps.py` registers who does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.console.acts import Step

Json = Mapping[str, Any]
AGREEMENT = "awaiting_approval"  # the status of the lines that say who must agree


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asks for, as far as words for it go: the plan as it was judged, or its verdict alone."""

    kind: str
    plan: Json | None
    disposition: str = ""
    reasons: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Teller:
    """`lines` tells all that would be done, `gist` the same in one line."""

    lines: Callable[[Wanted], list[Step]]
    gist: Callable[[Wanted], str]


_tellers: dict[str, Teller] = {}


def told_by(kinds: Iterable[str], teller: Teller) -> None:
    """From now on operations of these kinds are told so."""
    for kind in kinds:
        _tellers[kind] = teller


def lines(wanted: Wanted) -> list[Step]:
    return _tellers[wanted.kind].lines(wanted)


def gist(wanted: Wanted) -> str:
    return _tellers[wanted.kind].gist(wanted)
