"""The page docs/reference/client.md, from the methods of the clients; `python -m config.client_models` writes it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from recourse.calls import Call, Groups
from recourse.calls.methods import Sync, asks, lists, plans
from recourse.errors import codes

from config.environment import BASE_DIR
from config.openapi import RULES

PATH = BASE_DIR / "docs" / "reference" / "client.md"
HEAD = """# What the clients can do

Every method of `SyncClient` and `Client`, by group: `client.executions.pause(…)`, awaited with `Client`. How they are
used stands in [the how-to](../howto/python-client.md). Methods take the route's own names, and those of Python's words
with `_` behind them; `help(client.executions.pause)` shows all of them. This page is written from the
code by `python -m config.client_models`.

**Again** says why a call may be repeated after an unknown outcome: a *key* goes with it, of yours (`client_request_id`,
`idempotency_key`) or one of its own; or what the same request does the second time. Reading needs neither.
Methods with a **plan** have a dry run, `….plan(…)`; **lists** are iterated over with `….iterate(…)`, and a group's own
list with `client.GROUP.iterate(…)` too.
"""
CODES = """
## Refusals

Each code has a class; all are `ApiError`, with `status`, `code`, `detail`, `errors` (by field) and `body`.

| code | class | |
|---|---|---|
"""


class _Noted(Sync):
    def __init__(self) -> None:
        self.call: Call[Any] | None = None

    def send(self, call: Call[Any]) -> Any:
        self.call = call


def page() -> str:
    """The whole page."""
    sender = _Noted()
    parts = [HEAD]
    for name, group in vars(Groups(sender)).items():
        told = " ".join((inspect.getdoc(type(group)) or "").split())
        parts.append(f"\n## client.{name}\n\n{told}\n\n| method | | route | answer | again |\n|---|---|---|---|---|\n")
        parts.extend(_rows(group, sender))
    parts.append(CODES)
    for code, kind in codes().items():
        parts.append(f"| `{code}` | `{kind.__name__}` | {_first(kind)} |\n")
    return "".join(parts)


def _rows(group: Any, sender: _Noted) -> Iterator[str]:
    for name, defined in vars(type(group)).items():
        if not isinstance(defined, asks | plans | lists):
            continue
        method = getattr(group, name)
        needed = [one for one in inspect.signature(method).parameters.values() if one.default is one.empty]
        method(**{one.name: b"" if one.name == "data" else _stand_in(one.name) for one in needed})
        call = sender.call
        if call is None:
            raise AssertionError(f"{name} sends nothing")
        kind = "plan" if isinstance(defined, plans) else "list" if isinstance(defined, lists) else ""
        again = "–" if call.method == "GET" else "key" if call.key else call.again
        route = unquote(call.path.partition("?")[0])
        answer = _answer(defined.define)
        yield f"| `{name}` {_first(defined)} | {kind} | {call.method} `/{route}` | `{answer}` | {again} |\n"


def _stand_in(name: str) -> Any:
    return {} if name == "answer" else f"{{{name}}}"


def _answer(define: Any) -> str:
    answer = typing.get_args(typing.get_type_hints(define)["return"])[0]
    inner = typing.get_args(answer)
    return f"Page[{inner[0].__name__}]" if inner else answer.__name__


def _first(documented: Any) -> str:
    """The first sentence of what is said of something."""
    words = RULES.sub("", " ".join((documented.__doc__ or "").split()))
    sentence, dot, _ = words.partition(". ")
    return (sentence + dot).strip().replace("|", "\\|")
