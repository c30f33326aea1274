"""One request as a value, and the few ways to make one. Nothing here sends anything."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

T = TypeVar("T")
N = TypeVar("N")

Json = dict[str, Any]
Items = Mapping[str, str] | Sequence[Mapping[str, Any]]
When = str | datetime  # ISO 8601 with its offset, or a datetime that knows its zone
Some = str | Iterable[str] | None  # a filter: any of several values
Told = bool | str | None  # a filter: true or false


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and `T`, what its answer holds. `person`: it goes with the bearer token, where there is one.

    Every call may be repeated after an unknown outcome: it reads, or the server knows it by `key`, or `again` says what
    the same request does the second time. `bytes_with_digest`: the answer is no JSON, but bytes whose SHA-256 is its
    ETag. `inside`: the part of the answer that is meant. `nothing`: what an answer without a body stands for. `waits`:
    seconds that the server may take longer than usual, because it was asked to.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    key: str | None = None
    again: str = ""
    person: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    bytes_with_digest: bool = False
    inside: str = ""
    nothing: Mapping[str, Any] = field(default_factory=dict)
    waits: float = 0.0

    def following(self, link: str) -> Self:
        """The same list at a page that a link names. Only the link's query is taken: a token follows it nowhere."""
        path = self.path.partition("?")[0]
        query = urlsplit(link).query
        return replace(self, path=f"{path}?{query}" if query else path)


class Planned(Call[T], Generic[T, N]):
    """A call with a dry run, whose answer holds `N`."""

    __slots__ = ()


def read(path: str) -> Call[T]:
    """Reads one thing of the operations API."""
    return Call("GET", path, person=True)


def page(path: str, following: str | None = None, *, inside: str = "", **filters: Some | Told | When | int) -> Call[T]:
    """Reads one page of a list: the one that the link `following` names, or the first with these filters.

    A filter that is a word of Python's has `_` behind its name.
    """
    call: Call[T] = Call("GET", path, person=True, inside=inside)
    if following:
        return call.following(following)
    query = urlencode(
        {name.removesuffix("_"): _plain(value) for name, value in filters.items() if value is not None}, doseq=True
    )
    return replace(call, path=f"{path}?{query}" if query else path)


def write(path: str, body: Json, client_request_id: str | None, method: str = "POST") -> Call[T]:
    """Changes something, once for its key. Without one of the caller's it gets one of its own, so that repeating it
    acts once; a new call is a new act.
    """
    key = client_request_id or str(uuid.uuid4())
    return Call(method, path, body | {"client_request_id": key}, key=key, person=True)


def planned(
    path: str, body: Json, dry_run: bool, plan_digest: str | None, client_request_id: str | None
) -> Planned[T, N]:
    """As `write`, with `plan_digest`. A dry run changes nothing and has no key."""
    if dry_run:
        return Planned("POST", path, body | given(dry_run=True, plan_digest=plan_digest), person=True)
    key = client_request_id or str(uuid.uuid4())
    return Planned("POST", path, body | given(plan_digest=plan_digest, client_request_id=key), key=key, person=True)


def put(path: str, body: Json, *, again: str, method: str = "POST") -> Call[T]:
    """Changes something of the operations API without a key, because of what the same again does."""
    return Call(method, path, body, again=again, person=True)


def told(path: str, body: Json, *, again: str = "", key: str | None = None, session: str | None = None) -> Call[T]:
    """Tells the application API something, as an application, or as the worker whose `session` it is."""
    headers = {"x-worker-session": session} if session else {}
    return Call("POST", path, body, key=key, again=again, headers=headers)


def encoded(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def given(**fields: Any) -> Json:
    """What was said of these; moments as text."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in fields.items()
        if value is not None
    }


def items(said: Items | None) -> list[Mapping[str, Any]] | None:
    """Words as a list, also where they were given as a mapping."""
    if said is None:
        return None
    if isinstance(said, Mapping):
        return [{"key": key, "value": value} for key, value in said.items()]
    return list(said)


def segment(value: str) -> str:
    """An id as one path segment, whatever is in it."""
    return quote(str(value), safe="")


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str | int) else list(value)
