"""What lists may be filtered by: read from query parameters, checked, and the same for the API and the screens.

Every filter may repeat, and then any of its values matches; different filters narrow each other. An unknown filter and
a value that cannot be meant are refused by name, so that a mistyped filter never shows everything.

A list of rows has a `ListFilter` of its own; runs have `RunFilter`, because `pipelines.listing` finds them in SQL.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

import django_filters
from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.utils.dateparse import parse_datetime

from pipelines.errors import Refusal
from pipelines.states import RunStatus

PAGING = frozenset({"cursor", "page_size", "workspace", "format"})
LONGEST_VALUE = 300  # a handler's name, the longest thing one can filter by
MOST_VALUES = 50
YES_OR_NO = ("true", "false")
MOST_WORDS = 20  # of all searches of a request: each is compared with the words of every run that is looked at
BETWEEN_WORDS = "-_/:.@"  # besides white space, in searches as in what is searched

Row = TypeVar("Row", bound=Model)
Wanted = TypeVar("Wanted")


class Parameters(Protocol):
    """Query parameters, as Django keeps them: names that may repeat."""

    def keys(self) -> Collection[str]: ...
    def getlist(self, name: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are wanted. Pipelines and environments are named by slug, applications by name or id.

    `search` holds words and beginnings of words of name, keywords and non-sensitive context values, case-folded; all
    must occur. With `wide`, as screens search, words of idempotency keys and of errors count too. `created_after` is
    inclusive, `created_before` exclusive.
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
    parent_id: tuple[uuid.UUID, ...] = ()
    wide: bool = False

    @property
    def narrows(self) -> bool:
        """Whether it leaves out any run."""
        return any(getattr(self, name) for name in RUN_FILTERS)


RUN_FILTERS = tuple(field.name for field in fields(RunFilter) if field.name != "wide")


def read_run_filter(params: Parameters, also: Collection[str] = (), *, wide: bool = False) -> RunFilter:
    """The run filter of a request. `also` names parameters that the caller reads itself; `wide` how words are meant."""
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
        search=_searches(params),
        # told twice, any of them matches: the wider bound rules
        created_after=min(after, default=None),
        created_before=max(before, default=None),
        recovered_from=identifiers(params, "recovered_from"),
        parent_id=identifiers(params, "parent_id"),
        wide=wide and bool(_searches(params)),
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
    return _read(params, name, _texts)


def _searches(params: Parameters) -> tuple[str, ...]:
    given = values(params, "search")
    apart = str.maketrans(BETWEEN_WORDS, " " * len(BETWEEN_WORDS))
    if sum(len(text.translate(apart).split()) for text in given) > MOST_WORDS:
        raise _refuse("search", f"at most {MOST_WORDS} words")
    return given


def chosen(params: Parameters, name: str, choices: Sequence[str]) -> tuple[str, ...]:
    """The values of a filter over a closed set."""
    return _read(params, name, lambda given: _choices(given, choices))


def identifiers(params: Parameters, name: str) -> tuple[uuid.UUID, ...]:
    """The values of a filter over ids."""
    return _read(params, name, _identifiers)


def moment(text: str, name: str) -> datetime:
    """A point in time of a filter: ISO 8601 with its offset."""
    try:
        return _moment(text)
    except ValueError as error:
        raise _refuse(name, str(error)) from error


# lists of rows


class Given(forms.Field):
    """All that was given for one filter, read by `read`, which raises ValueError for what cannot be meant."""

    widget = forms.MultipleHiddenInput

    def __init__(self, *, read: Callable[[Sequence[str]], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._read = read

    def clean(self, value: Sequence[str] | None) -> Any:
        try:
            return self._read(value or ())
        except ValueError as error:
            raise ValidationError(str(error)) from error


class AnyOf(django_filters.Filter):
    """Rows whose field is one of the texts given; with `choices`, only words of that closed set are taken."""

    field_class = Given

    def __init__(self, field_name: str | None = None, *, choices: Sequence[str] = (), lookup: str = "in") -> None:
        read = (lambda given: list(_choices(given, choices))) if choices else (lambda given: list(_texts(given)))
        super().__init__(field_name, lookup, read=read)


class Named(AnyOf):
    """Rows that belong to a row of `model` with one of the names given.

    Its ids are asked for first: of ids the planner knows how common they are, of names behind a join it does not.
    """

    def __init__(self, field_name: str, model: Any, name: str) -> None:
        super().__init__(f"{field_name}_id")
        self._model, self._name = model, name

    def filter(self, qs: QuerySet[Any], value: Sequence[str]) -> QuerySet[Any]:
        if not value:
            return qs
        rows = self._model.objects.filter(**{f"{self._name}__in": value})
        ids = list(rows.values_list("pk", flat=True))
        return super().filter(qs, ids) if ids else qs.none()


class AnyId(django_filters.Filter):
    """Rows whose field is one of the ids given."""

    field_class = Given

    def __init__(self, field_name: str | None = None) -> None:
        super().__init__(field_name, "in", read=lambda given: list(_identifiers(given)))


class Since(django_filters.Filter):
    """Rows of that time or later; told twice, any of them matches: the earlier rules."""

    field_class = Given

    def __init__(self, field_name: str) -> None:
        super().__init__(field_name, "gte", read=lambda given: min(map(_moment, _texts(given)), default=None))


class Before(django_filters.Filter):
    """Rows before that time; told twice, the later rules."""

    field_class = Given

    def __init__(self, field_name: str) -> None:
        super().__init__(field_name, "lt", read=lambda given: max(map(_moment, _texts(given)), default=None))


class Until(django_filters.Filter):
    """Rows of that time or before it; told twice, the later rules."""

    field_class = Given

    def __init__(self, field_name: str) -> None:
        super().__init__(field_name, "lte", read=lambda given: max(map(_moment, _texts(given)), default=None))


class Truth(django_filters.Filter):
    """Rows whose field is true, or is false; told twice, either."""

    field_class = Given

    def __init__(self, field_name: str | None = None) -> None:
        super().__init__(field_name, "in", read=lambda given: [one == "true" for one in _choices(given, YES_OR_NO)])


class ListFilter(django_filters.FilterSet):
    """What a list of rows may be filtered by, for the API and the screens alike.

    A subclass names its filters; what somebody may see at all is not its business but the query's.
    """

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(cls.base_filters)

    @classmethod
    def narrow(cls, rows: QuerySet[Row], params: Parameters) -> QuerySet[Row]:
        """The rows that the parameters ask for. Unknown filters and values that cannot be meant are refused by name."""
        refuse_unknown(params, cls.names())
        asked = cls(data=params, queryset=rows)
        if not asked.is_valid():
            errors = {name: list(messages) for name, messages in asked.errors.items()}
            told = "; ".join(f"{name}: {messages[0]}" for name, messages in errors.items())
            raise Refusal("validation_error", told, errors=errors)
        return asked.qs


# below: how values are read; each raises ValueError with what to tell


def _read(params: Parameters, name: str, read: Callable[[Sequence[str]], Wanted]) -> Wanted:
    try:
        return read(params.getlist(name))
    except ValueError as error:
        raise _refuse(name, str(error)) from error


def _texts(given: Sequence[str]) -> tuple[str, ...]:
    texts = tuple(dict.fromkeys(text.strip() for text in given if text.strip()))
    if len(texts) > MOST_VALUES:
        raise ValueError(f"at most {MOST_VALUES} values")
    for text in texts:
        if len(text) > LONGEST_VALUE or "\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"at most {LONGEST_VALUE} characters, none of them NUL")
    return texts


def _choices(given: Sequence[str], choices: Sequence[str]) -> tuple[str, ...]:
    texts = _texts(given)
    for text in texts:
        if text not in choices:
            raise ValueError(f"{text!r} is none of: {', '.join(choices)}")
    return texts


def _identifiers(given: Sequence[str]) -> tuple[uuid.UUID, ...]:
    return tuple(_identifier(text) for text in _texts(given))


def _identifier(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an id") from error


def _moment(text: str) -> datetime:
    # in a query an unescaped plus sign arrives as a space
    repaired = f"{text[:-6]}+{text[-5:]}" if len(text) > 6 and text[-6] == " " else text
    try:
        found = parse_datetime(repaired)
        if found is None or found.tzinfo is None or found.utcoffset() is None:
            raise ValueError("no offset")
        # the ends of time cannot be moved between zones
        _ = (found - timedelta(days=1), found + timedelta(days=1))
    except (ValueError, OverflowError) as error:
        raise ValueError("must be a time with its offset, like 2026-05-20T08:00:00+00:00") from error
    return found.astimezone(UTC)  # Python reads offsets that the database does not


def _refuse(name: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{name}: {message}", errors={name: [message]})
