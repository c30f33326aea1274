"""Strict shapes of requests: nothing is coerced, nothing unknown is ignored, every message names its path.

The shapes are DRF serializers and fields, so that OpenAPI is written from them; what checks a request is compiled from
them once, because DRF's own machinery costs more than a whole result does. A field that may be left out may also be
null, which means the same. Declared names are ours; with `camel` the wire's are camelCase.

    class Word(Shape):
        key = Text(max_length=255)
        value = Text(max_length=255, blank=True)

    Word.clean({"key": "customer", "value": "4711"})

Serves F135 and the rule that unknown fields are refused by name.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.fields import empty

from pipelines.errors import Refusal

Problems = list[tuple[str, str]]  # (path below the value, message)
Check = Callable[[Any], Any]  # the clean value, or a `Wrong`
LATER = "this comes with a later version of the console; it is refused rather than ignored"
MOST_PROBLEMS = 50


class Wrong:
    """What is wrong with a value, for whoever knows its path."""

    __slots__ = ("problems",)

    def __init__(self, *problems: tuple[str, str]) -> None:
        self.problems: Problems = list(problems)

    @classmethod
    def at_value(cls, message: str) -> Wrong:
        return cls(("", message))

    def below(self, name: str) -> Problems:
        return [(name + (path if path[:1] in ("[", "") else f".{path}"), message) for path, message in self.problems]


class Text(serializers.CharField):
    """A string. Without `blank` it must hold more than white space; without `control` no control characters.

    NUL and lone surrogates are never text: no database column takes them.
    """

    def __init__(
        self,
        *,
        blank: bool = False,
        trim: bool = False,
        control: bool = True,
        max_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(allow_blank=blank, trim_whitespace=trim, **kwargs)
        self.control = control
        self.max_bytes = max_bytes

    def checker(self) -> Check:
        blank, trim, control = self.allow_blank, self.trim_whitespace, self.control
        longest, most_bytes = self.max_length, self.max_bytes

        def check(value: Any) -> Any:
            if type(value) is not str:
                return Wrong.at_value("must be a string")
            if trim:
                value = value.strip()
            if not blank and (not value or value.isspace()):
                return Wrong.at_value("must not be blank")
            if longest is not None and len(value) > longest:
                return Wrong.at_value(f"must have at most {longest} characters")
            problem = text_problem(value)
            if problem:
                return Wrong.at_value(problem)
            if not control and not value.isprintable() and _CONTROL.search(value):
                return Wrong.at_value("must not contain control characters")
            if most_bytes is not None and len(value) * 4 > most_bytes and len(value.encode()) > most_bytes:
                return Wrong.at_value(f"must have at most {most_bytes} bytes of UTF-8")
            return value

        return check


class Whole(serializers.IntegerField):
    """A whole number; true, 1.0 and "1" are none."""

    def checker(self) -> Check:
        return _number_check(self, whole=True)


class Number(serializers.FloatField):
    """A finite number; true and "1" are none."""

    def checker(self) -> Check:
        return _number_check(self, whole=False)


class Flag(serializers.BooleanField):
    """true or false, and nothing that looks like it (F135)."""

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            return value if value is True or value is False else Wrong.at_value("must be true or false")

        return check


class OneOf(serializers.ChoiceField):
    """One word of a closed set, case included. `later` are words of a later version."""

    def __init__(self, choices: Sequence[str], *, later: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(choices=choices, **kwargs)
        self.later = frozenset(later)

    def checker(self) -> Check:
        words, later = frozenset(self.choices), self.later
        message = "must be one of: " + ", ".join(str(word) for word in self.choices)

        def check(value: Any) -> Any:
            if type(value) is not str:
                return Wrong.at_value(message)
            if value in words:
                return value
            return Wrong.at_value(f"{value!r}: {LATER}" if value in later else message)

        return check


class Identifier(serializers.UUIDField):
    """A UUID in its usual 36 characters."""

    def checker(self) -> Check:
        return lambda value: read_id(value) or Wrong.at_value("must be a UUID")


class Moment(serializers.DateTimeField):
    """An instant: ISO 8601 with its offset from UTC."""

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            try:
                moment = datetime.fromisoformat(value) if type(value) is str else None
            except ValueError:
                moment = None
            if moment is None or moment.tzinfo is None or not 1970 <= moment.year <= 2200:
                return Wrong.at_value("must be an ISO 8601 time with its offset from UTC, from 1970 to 2200")
            return moment.astimezone(UTC)  # Python reads offsets that the database does not

        return check


class AnyJson(serializers.JSONField):
    """Any JSON value, kept as sent."""

    def checker(self) -> Check:
        return lambda value: value


class SmallJson(serializers.JSONField):
    """Any JSON value that the database can hold, of a bounded size."""

    def __init__(self, *, max_bytes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_bytes = max_bytes

    def checker(self) -> Check:
        return lambda value: _held_json(value, self.max_bytes, exact=False)


class JsonObject(serializers.DictField):
    """A JSON object with free content that the database can hold. With `exact`, whole numbers must survive a double."""

    def __init__(self, *, max_bytes: int, exact: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_bytes = max_bytes
        self.exact = exact

    def checker(self) -> Check:
        most_bytes, exact = self.max_bytes, self.exact

        def check(value: Any) -> Any:
            if type(value) is not dict:
                return Wrong.at_value("must be an object")
            return _held_json(value, most_bytes, exact=exact)

        return check


class ListOf(serializers.ListField):
    """A list of `child`, a field or a shape. Its own limits are `min_length` and `max_length`."""

    def checker(self) -> Check:
        child = checker_of(self.child)
        least, most = self.min_length or 0, self.max_length

        def check(value: Any) -> Any:
            if type(value) is not list:
                return Wrong.at_value("must be a list")
            if len(value) < least:
                return Wrong.at_value(f"must have at least {least} item{'s' if least > 1 else ''}")
            if most is not None and len(value) > most:
                return Wrong.at_value(f"must have at most {most} items")
            clean = [child(item) for item in value]
            if Wrong not in map(type, clean):
                return clean
            wrong = Wrong()
            for index, item in enumerate(clean):
                if type(item) is Wrong and len(wrong.problems) < MOST_PROBLEMS:
                    wrong.problems += item.below(f"[{index}]")
            return wrong

        return check


class Shape(serializers.Serializer[Any]):
    """An object with exactly these fields.

    `later` names fields of a later version, refused as such. `spelling` gives a field another name on the wire than the
    rule would. `rule` looks at the clean object as a whole and tells what is wrong with it.
    """

    camel: ClassVar[bool] = False
    later: ClassVar[Sequence[str]] = ()
    spelling: ClassVar[Mapping[str, str]] = {}

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        return []

    @classmethod
    def wire_name(cls, name: str) -> str:
        if name in cls.spelling:
            return cls.spelling[name]
        head, *rest = name.split("_")
        return head + "".join(part.title() for part in rest) if cls.camel else name

    @classmethod
    def check(cls, value: Any, *, partial: bool = False) -> Any:
        """The clean object by declared names, defaults filled in, or a `Wrong`. With `partial` nothing is required."""
        return _compiled(cls, partial)(value)

    @classmethod
    def clean(cls, value: Any, *, partial: bool = False) -> dict[str, Any]:
        """As `check`, but raises `validation_error` naming every field that is wrong."""
        clean = cls.check(value, partial=partial)
        if type(clean) is Wrong:
            raise refusal(clean)
        return clean

    def checker(self) -> Check:
        return _compiled(type(self), self.partial)

    def get_fields(self) -> dict[str, Any]:
        fields = {}
        for name, field in super().get_fields().items():
            wire = self.wire_name(name)
            if wire != name and field.source in (None, wire):
                # DRF insists that a source differs from the field's name
                field.source = name if field.source is None else None
            fields[wire] = field
        return fields

    def run_validation(self, data: Any = empty) -> Any:
        """For DRF's own views: the same check, the same messages."""
        clean = self.checker()({} if data is empty else data)
        if type(clean) is Wrong:
            raise serializers.ValidationError(by_path(clean))
        return clean


def refusal(wrong: Wrong) -> Refusal:
    errors = by_path(wrong)
    path, messages = next(iter(errors.items()))
    return Refusal("validation_error", f"{path}: {messages[0]}" if path else messages[0], errors=errors)


def by_path(wrong: Wrong) -> dict[str, list[str]]:
    errors: dict[str, list[str]] = {}
    for path, message in wrong.problems[:MOST_PROBLEMS]:
        errors.setdefault(path, []).append(message)
    return errors


def read_id(value: Any) -> uuid.UUID | None:
    """A UUID from its usual text; None for anything else."""
    if type(value) is not str or not _UUID.fullmatch(value):
        return None
    return uuid.UUID(value)


def text_problem(value: str) -> str | None:
    """Why a string cannot be stored as text; None when it can."""
    if "\x00" in value:
        return "must not contain NUL"
    if not value.isascii() and _SURROGATE.search(value):
        return "must not contain half of a surrogate pair"
    return None


def json_problem(value: Any, *, exact: bool = False) -> str | None:
    """Why a JSON value cannot be stored; None when it can. Walks without recursion."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) is str:
            problem = text_problem(item)
            if problem:
                return problem
        elif type(item) is dict:
            waiting += item.keys()
            waiting += item.values()
        elif type(item) is list:
            waiting += item
        elif exact and type(item) is int and abs(item) >= 2**53:
            return "must not contain whole numbers beyond ±(2^53 − 1); send them as strings"
    return None


def _held_json(value: Any, most_bytes: int, *, exact: bool) -> Any:
    if len(json.dumps(value, separators=(",", ":"))) > most_bytes:
        return Wrong.at_value(f"must have at most {most_bytes} bytes as JSON")
    problem = json_problem(value, exact=exact)
    return Wrong.at_value(problem) if problem else value


def checker_of(field: Any) -> Check:
    return field.checker()


@cache
def _compiled(shape: type[Shape], partial: bool) -> Check:
    fields: dict[str, tuple[str, Check, bool]] = {}
    defaults: list[tuple[str, Any]] = []
    declared: Mapping[str, Any] = shape._declared_fields  # noqa: SLF001 - DRF offers only a deep copy of each
    for name, field in declared.items():
        if not field.read_only:
            fields[shape.wire_name(name)] = (field.source or name, checker_of(field), field.required)
            if field.default is not empty and not partial:
                defaults.append((field.source or name, field.default))
    required = () if partial else tuple(wire for wire, (_, _, needed) in fields.items() if needed)
    later = frozenset(shape.wire_name(name) for name in shape.later)
    rule = shape.rule

    def check(value: Any) -> Any:
        if type(value) is not dict:
            return Wrong.at_value("must be an object")
        clean: dict[str, Any] = {}
        problems: Problems = []
        for wire, raw in value.items():
            known = fields.get(wire)
            if known is None:
                problems.append((_shown(wire), LATER if wire in later else "there is no such field"))
                continue
            target, check_field, needed = known
            if raw is None:
                if needed:
                    problems.append((wire, "must not be null"))
                continue
            result = check_field(raw)
            if type(result) is Wrong:
                problems += result.below(wire)
            else:
                clean[target] = result
        problems += [(wire, "this field is required") for wire in required if wire not in value]
        if problems:
            return Wrong(*problems)
        for target, default in defaults:
            if target not in clean:
                clean[target] = default() if callable(default) else default
        problems = rule(clean)
        return Wrong(*problems) if problems else clean

    return check


def _number_check(field: Any, *, whole: bool) -> Check:
    least, most = field.min_value, field.max_value
    kinds = (int,) if whole else (int, float)
    kind = "a whole number" if whole else "a number"
    message = f"must be {kind} from {least} to {most}"

    def check(value: Any) -> Any:
        if type(value) not in kinds or not (isfinite(value) if type(value) is float else True):
            return Wrong.at_value(message)
        return value if least <= value <= most else Wrong.at_value(message)

    return check


def _shown(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:100]}…"


_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
