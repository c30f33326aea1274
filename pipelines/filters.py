"""What lists may be filtered by: read from query parameters, checked, and the same for the API and the screens.

Every filter may repeat, and then any of its values matches; different filters narrow each other. An unknown filter and
a value that cannot be meant are refused by name, so that a mistyped filter never shows everything.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Protocol

from django.utils.dateparse import parse_datetime

from pipelines.errors import Refusal
from pipelines.states import RunStatus

PAGING = frozenset({"cursor", "page_size", "workspace", "format"})
LONGEST_VALUE = 300  # a handler's name, the longest thing one can filter by
MOST_VALUES = 50


class Parameters(Protocol):
    """Query parameters, as Django keeps them: names that may repeat."""

    def keys(self) -> Collection[str]: ...
    def getlist(self, name: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted. Pipelines and environments are named by slug, applications by name or id.

    `search` holds words and beginnings of words of name, keywords and non-sensitive context values, case-folded; all
    must occur. `created_after` is inclusive, `created_before` exclusive.
    """

    status: tuple[str, ...] = ()
    pipeline: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    application: tuple[str, ...] = ()
    handler: tuple[str, ...] = ()
    error_code: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    recovered_from: tuple[uuid.UUID, ...] = ()


RUN_FILTERS = tuple(field.name for field in fields(RunFilter))


def read_run_filter(params: Parameters, also: Collection[str] = ()) -> RunFilter:
    """The run filter of a request. `also` names parameters that the caller reads itself."""
    refuse_unknown(params, {*RUN_FILTERS, *also})
    after = [moment(text, "created_after") for text in values(params, "created_after")]
    before = [moment(text, "created_before") for text in values(params, "created_before")]
    return RunFilter(
        status=chosen(params, "status", RunStatus.values),
        pipeline=values(params, "pipeline"),
        environment=values(params, "environment"),
        application=values(params, "application"),
        handler=values(params, "handler"),
        error_code=values(params, "error_code"),
        search=values(params, "search"),
        # told twice, any of them matches: the wider bound rules
        created_after=min(after, default=None),
        created_before=max(before, default=None),
        recovered_from=identifiers(params, "recovered_from"),
    )


def refuse_unknown(params: Parameters, known: Collection[str]) -> None:
    """400 for a parameter that no filter reads, by its name."""
    unknown = sorted(set(params.keys()) - set(known) - PAGING)
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        message = f"no such filter; this list knows: {listed}"
        detail = f"unknown filter: {', '.join(name[:60] for name in unknown)}"
        raise Refusal("validation_error", detail, errors={name[:60]: [message] for name in unknown})


def values(params: Parameters, name: str) -> tuple[str, ...]:
    """The values of a filter; an empty one is as good as none."""
    given = tuple(dict.fromkeys(text.strip() for text in params.getlist(name) if text.strip()))
    if len(given) > MOST_VALUES:
        raise _refuse(name, f"at most {MOST_VALUES} values")
    for text in given:
        if len(text) > LONGEST_VALUE or "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise _refuse(name, f"at most {LONGEST_VALUE} characters, none of them NUL")
    return given


def chosen(params: Parameters, name: str, choices: Sequence[str]) -> tuple[str, ...]:
    """The values of a filter over a closed set."""
    given = values(params, name)
    for text in given:
        if text not in choices:
            raise _refuse(name, f"{text!r} is none of: {', '.join(choices)}")
    return given


def identifiers(params: Parameters, name: str) -> tuple[uuid.UUID, ...]:
    """The values of a filter over ids."""
    return tuple(_identifier(text, name) for text in values(params, name))


def moment(text: str, name: str) -> datetime:
    """A point in time of a filter: ISO 8601 with its offset."""
    # in a query an unescaped plus sign arrives as a space
    repaired = f"{text[:-6]}+{text[-5:]}" if len(text) > 6 and text[-6] == " " else text
    try:
        found = parse_datetime(repaired)
        if found is None or found.tzinfo is None or found.utcoffset() is None:
            raise ValueError("no offset")
        # the ends of time cannot be moved between zones
        _ = (found - timedelta(days=1), found + timedelta(days=1))
    except (ValueError, OverflowError) as error:
        raise _refuse(name, "must be a time with its offset, like 2026-05-20T08:00:00+00:00") from error
    return found


def _identifier(text: str, name: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise _refuse(name, f"{text!r} is not an id") from error


def _refuse(name: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{name}: {message}", errors={name: [message]})
