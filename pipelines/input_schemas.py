"""What runs of a pipeline may be given: a JSON Schema (2020-12) of its definition, read and applied in bounded work.

A schema refers only to itself, by JSON pointers, and never in a circle, so that its whole size is known when it is
registered. Patterns are bounded by what they cost: those whose work may explode are refused with the schema, and a text
that is too long for the others with the input. Words of `format` are notes and are not checked, as the standard has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from re import _constants as words  # type: ignore[attr-defined]
from re import _parser as patterns  # type: ignore[attr-defined]
from typing import Any, Final

import rfc8785
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend

from pipelines.errors import Refusal

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
LARGEST: Final = 64 * 1024  # bytes of a schema
DEEPEST: Final = 100  # levels, with what it refers to in its place
MOST_NODES: Final = 20_000  # of a schema, with what it refers to in its place
MOST_CHECKS: Final = 5_000_000  # values of an input times nodes of its schema
MOST_STEPS: Final = 10_000_000  # of one pattern on one text
MOST_TOLD: Final = 20  # problems of one input
LONGEST_MESSAGE: Final = 300
_REFUSED = frozenset(
    {"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"}
)
_REPEATS = frozenset({words.MAX_REPEAT, words.MIN_REPEAT, words.POSSESSIVE_REPEAT})
_UNBOUNDED_WORK = frozenset({words.GROUPREF, words.GROUPREF_EXISTS, words.ASSERT, words.ASSERT_NOT})


class _Unfit(Exception):
    """Why a schema is refused, and where in it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path, self.message = path, message


def problem_of(schema: Any) -> tuple[str, str] | None:
    """Why this is no schema for inputs: its path within the schema, and a sentence; None when it is one."""
    if not isinstance(schema, dict):
        return "", "must be a JSON object: a JSON Schema"
    try:
        if len(json.dumps(schema, separators=(",", ":")).encode()) > LARGEST:
            return "", f"must have at most {LARGEST} bytes as JSON"
        if schema.get("$schema", DIALECT) != DIALECT:
            return "$schema", f"must be {DIALECT}, or be left out"
        _nodes(schema, schema, "", (), {})
        Draft202012Validator.check_schema(schema)
    except _Unfit as unfit:
        return unfit.path, unfit.message
    except SchemaError as error:
        return _path(error.absolute_path), error.message[:LONGEST_MESSAGE]
    except RecursionError:
        return "", "is nested too deeply"
    return None


def check(schema: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    """Refuses an input that its pipeline's schema does not take, naming paths below `input`; without one, none."""
    if schema is None:
        return
    validator, nodes = _read(rfc8785.dumps(dict(schema)).decode())
    if nodes * _size(given) > MOST_CHECKS:
        raise _refusal({"input": ["is too large to be checked by the schema of its pipeline"]})
    problems: dict[str, list[str]] = {}
    for error in islice(validator.iter_errors(dict(given)), MOST_TOLD):
        path = _path(error.absolute_path)
        below = "input" + (path if path.startswith("[") or not path else f".{path}")
        problems.setdefault(below, []).append(error.message[:LONGEST_MESSAGE])
    if problems:
        raise _refusal(problems)


def cost(schema: Mapping[str, Any] | None, given: Mapping[str, Any]) -> int:
    """How much checking it comes to, in values of the input times nodes of the schema; `MOST_CHECKS` is refused."""
    return 0 if schema is None else _read(rfc8785.dumps(dict(schema)).decode())[1] * _size(given)


def _refusal(problems: dict[str, list[str]]) -> Refusal:
    path, messages = next(iter(problems.items()))
    return Refusal("validation_error", f"{path}: {messages[0]}", errors=problems)


@lru_cache(maxsize=200)
def _read(text: str) -> tuple[Any, int]:
    schema = json.loads(text)
    return _Validator(schema), _nodes(schema, schema, "", (), {})


def _size(value: Any) -> int:
    """How many values there are, members and elements among them."""
    waiting, count = [value], 0
    while waiting:
        item = waiting.pop()
        count += 1
        waiting += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return count


def _nodes(node: Any, root: Any, path: str, within: tuple[int, ...], known: dict[int, int]) -> int:
    """How many nodes there are below, with what they refer to in its place. Raises what is refused."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) in within:
        raise _Unfit(path, "refers to itself: that has no end")
    if len(within) > DEEPEST:
        raise _Unfit(path, f"is nested in more than {DEEPEST} levels")
    if id(node) not in known:
        inside, count = (*within, id(node)), 1
        members = node.items() if isinstance(node, dict) else enumerate(node)
        for name, value in members:
            place = f"{path}[{name}]" if isinstance(node, list) else f"{path}.{name}" if path else str(name)
            if isinstance(node, dict) and isinstance(value, str):
                _check_word(str(name), value, place)
            if isinstance(node, dict) and name == "patternProperties" and isinstance(value, dict):
                for pattern in value:
                    _check_word("pattern", pattern, place)
            if name == "$ref" and isinstance(value, str):
                count += _nodes(_pointed(root, value, place), root, place, inside, known)
            else:
                count += _nodes(value, root, place, inside, known)
            if count > MOST_NODES:
                raise _Unfit(path, f"has more than {MOST_NODES} parts, with what it refers to")
        known[id(node)] = count
    return known[id(node)]


def _check_word(name: str, value: str, place: str) -> None:
    if name in _REFUSED:
        raise _Unfit(place, "is not taken here: refer by $ref with a JSON pointer, such as #/$defs/name")
    if name == "pattern":
        try:
            _power(value)
        except (ValueError, re.error, OverflowError) as error:
            raise _Unfit(place, f"{value[:60]!r} is not taken: {error}") from None


def _pointed(root: Any, reference: str, place: str) -> Any:
    """What a pointer within the schema refers to; refused where it leads elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        raise _Unfit(place, "must stay within the schema: #/…; nothing is fetched from elsewhere")
    found = root
    for part in reference[2:].split("/") if reference != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _Unfit(place, f"{reference[:100]} is not in the schema") from None
    if not isinstance(found, dict | bool):
        raise _Unfit(place, f"{reference[:100]} is no schema")
    return found


@lru_cache(maxsize=1_000)
def _power(pattern: str) -> int:
    """The power of a text's length that bounds the work of searching it. ValueError where the work may explode."""
    parsed = patterns.parse(pattern)
    anchored = bool(parsed) and parsed[0] in ((words.AT, words.AT_BEGINNING), (words.AT, words.AT_BEGINNING_STRING))
    return _repeats(parsed, inside=False) + (0 if anchored else 1)


def _repeats(parsed: Any, *, inside: bool) -> int:
    count = 0
    for kind, told in parsed:
        if kind in _UNBOUNDED_WORK:
            raise ValueError("it looks ahead or behind, or refers back")
        if kind in _REPEATS:
            least, most, body = told
            varies = least != most
            if inside and varies:
                raise ValueError("it repeats what itself repeats")
            count += varies + _repeats(body, inside=inside or varies)
        elif kind == words.BRANCH:
            if inside:
                raise ValueError("it repeats a choice")
            count += max(_repeats(one, inside=inside) for one in told[1])
        elif kind in (words.SUBPATTERN, words.ATOMIC_GROUP):
            count += _repeats(told[-1] if kind == words.SUBPATTERN else told, inside=inside)
    return count


def _fits(pattern: str, text: str) -> bool:
    if len(text) ** max(1, _power(pattern)) > MOST_STEPS:
        raise ValueError("is too long for its pattern")
    return re.search(pattern, text) is not None


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "string"):
        try:
            fits = _fits(pattern, value)
        except ValueError as error:
            yield ValidationError(str(error))
        else:
            if not fits:
                yield ValidationError(f"does not match {pattern!r}")


def _pattern_properties(validator: Any, by_pattern: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        for pattern, below in by_pattern.items():
            for name, member in value.items():
                try:
                    fits = _fits(pattern, name)
                except ValueError:
                    yield ValidationError("has a name that is too long for its pattern")
                else:
                    if fits:
                        yield from validator.descend(member, below, path=name, schema_path=pattern)


def _unique(validator: Any, is_asked: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if is_asked and validator.is_type(value, "array") and len({rfc8785.dumps(one) for one in value}) < len(value):
        yield ValidationError("has elements that are equal")


_Validator = extend(
    Draft202012Validator,
    {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique},
)


def _path(parts: Any) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text[:LONGEST_MESSAGE]
