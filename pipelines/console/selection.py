"""What may be done with rows that somebody selects in a list: the verbs that many targets take, and why not.

One form holds them all (templates/runs/_selection.html). It makes a draft of a bulk operation, which does nothing yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict

from pipelines.access import CANCEL, FORK, RECOVER, STEER, Actor
from pipelines.console.offers import missing_right


@dataclass(frozen=True, slots=True)
class Verb:
    """`kind` as bulk operations call it; `refusal` says why this person may not (empty: they may)."""

    kind: str
    label: str
    refusal: str = ""
    danger: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """What the form needs: `of` which rows, their filter as a query string (blank: none is set), and the verbs."""

    of: str
    noun: str
    filter: str
    verbs: Sequence[Verb]


def of_runs(actor: Actor, params: QueryDict, names: Sequence[str]) -> Selection:
    """Verbs on runs. Retry and skip are for the stages at which they stand failed."""
    verbs = (
        _verb(actor, "retry", "Retry…", RECOVER),
        _verb(actor, "skip", "Skip…", RECOVER),
        _verb(actor, "rerun", "Rerun…", FORK),
        _verb(actor, "replay", "Replay…", FORK),
        _verb(actor, "pause", "Pause…", STEER),
        _verb(actor, "resume", "Resume…", STEER),
        _verb(actor, "cancel", "Cancel…", CANCEL, danger=True),
    )
    return Selection("runs", "runs", filter_of(params, names), verbs)


def of_letters(actor: Actor, params: QueryDict, names: Sequence[str]) -> Selection:
    """Verbs on dead letters."""
    verbs = (
        _verb(actor, "redrive", "Redrive…", RECOVER),
        _verb(actor, "discard", "Discard…", RECOVER),
    )
    return Selection("letters", "dead letters", filter_of(params, names), verbs)


def filter_of(params: QueryDict, names: Sequence[str]) -> str:
    """The filter of an address alone, as a query string: what "all that match" means."""
    kept = QueryDict(mutable=True)
    for name in names:
        given = [value for value in params.getlist(name) if value.strip()]
        if given:
            kept.setlist(name, given)
    return kept.urlencode()


def _verb(actor: Actor, kind: str, label: str, needs: str, *, danger: bool = False) -> Verb:
    return Verb(kind, label, "" if actor.may(needs) else missing_right(actor, needs), danger)
