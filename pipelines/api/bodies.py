"""Reads the JSON body of a request, strictly: bounded in size and depth, no NaN, what is wrong is a typed refusal."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest

from pipelines.errors import Refusal

MIB = 1024 * 1024
DEEPEST = 64


class Unsupported(Refusal):
    """What the request speaks, or wants to be answered in, is not what we speak (405, 406, 415)."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__("unsupported", detail)
        self.status = status


def read_body(request: HttpRequest, max_bytes: int) -> Any:
    """The body's JSON value; an empty body is an empty object.

    Refused: 413 above `max_bytes`, told by Content-Length or met while reading; 415 for another media type; 400 for
    what is not JSON.
    """
    raw = _read(request, max_bytes)
    if not raw:
        return {}
    if not _is_json(request.META.get("CONTENT_TYPE", "")):
        raise Unsupported(415, "the body must be application/json in UTF-8")
    return parse(raw)


def parse(raw: bytes) -> Any:
    """Strict JSON: UTF-8, finite numbers, at most `DEEPEST` levels. Anything else is `validation_error`."""
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise _not_json(f"it is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise _not_json(str(error)[:200]) from error
    except RecursionError as error:
        raise _too_deep() from error
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _depth_exceeds(value, DEEPEST):
        raise _too_deep()
    return value


def _read(request: HttpRequest, max_bytes: int) -> bytes:
    length = request.META.get("CONTENT_LENGTH") or ""
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    source: Any = request
    if not length and request.META.get("wsgi.input_terminated"):
        source = request.META["wsgi.input"]  # sent in chunks: Django itself reads nothing without a length
    try:
        raw = source.read(max_bytes + 1)
    except Exception as error:
        # a server has errors of its own for a body that is sent wrongly, like a chunk that is not as long as it says
        raise _not_json("it broke off before its end, or was sent in a broken way") from error
    if len(raw) > max_bytes:
        raise _too_large(max_bytes)
    if length.isdecimal() and len(raw) < int(length):
        raise _not_json("it broke off before its end")  # even where what came can be read
    return raw


def _is_json(content_type: str) -> bool:
    kind, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    return kind.strip().lower() == "application/json" and charset in ("", "utf-8", "utf8")


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        containers = [item for item in level if type(item) in (dict, list)]
        if not containers:
            return False
        level = [inner for item in containers for inner in (item.values() if type(item) is dict else item)]
    return True


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _not_json(why: str) -> Refusal:
    message = f"the body cannot be read as JSON: {why}"
    return Refusal("validation_error", message, errors={"": [message]})


def _too_deep() -> Refusal:
    return _not_json(f"it is nested more than {DEEPEST} levels deep")


def _too_large(max_bytes: int) -> Refusal:
    return Refusal("payload_too_large", f"the body may have at most {max_bytes} bytes")
