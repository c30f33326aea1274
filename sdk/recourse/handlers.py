"""Handlers by name. A registry is an object, so that several applications and tests do not collide."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from recourse.errors import HandlerNotRegistered

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Recipient:
    """To whom an adapter sends: whose it is, which model or service, who pays by which route, what is kept there.

    The console hands a stage that names its recipients only to a worker that declares the same, character by character.
    """

    organisation: str
    service: str
    billing: str = ""
    retention: str = ""

    def as_wire(self) -> dict[str, str]:
        fields = (self.organisation, self.service, self.billing, self.retention)
        return dict(zip(("organisation", "service", "billing", "retention"), map(str.strip, fields), strict=True))


@dataclass(frozen=True, slots=True)
class Handler:
    """A function, whether it has to run on an event loop, and to whom it sends what it is given."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    recipients: tuple[Recipient, ...] = ()


class Registry:
    """Handlers and the error codes of exceptions, for one application."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._codes: dict[type[BaseException], tuple[str, bool | None]] = {}

    def handler(self, name: str, *, recipients: Iterable[Recipient] = ()) -> Callable[[F], F]:
        """Registers the decorated plain or async function under `name`; it takes the stage context.

        `recipients`: to whom it can send; `ctx.recipient` says to whom this attempt goes. A name taken by another
        function is refused with ValueError.
        """

        def register(function: F) -> F:
            self.add(name, function, recipients=recipients)
            return function

        return register

    def add(self, name: str, function: Callable[..., Any], *, recipients: Iterable[Recipient] = ()) -> None:
        known = self._handlers.get(name)
        if known is not None and known.function is not function:
            raise ValueError(f"handler {name!r} is already {known.function!r}")
        self._handlers[name] = Handler(name, function, _is_async(function), tuple(recipients))

    def map_exception(self, kind: type[BaseException], code: str, *, retryable: bool | None = None) -> None:
        """Gives exceptions of `kind` and its subclasses this error code instead of UNHANDLED_EXCEPTION."""
        self._codes[kind] = (code, retryable)

    def find(self, name: str) -> Handler:
        try:
            return self._handlers[name]
        except KeyError:
            raise HandlerNotRegistered(
                f"no handler named {name!r}; there are: {', '.join(self.names) or 'none'}"
            ) from None

    def code_of(self, error: BaseException) -> tuple[str, bool | None]:
        """Error code and retryable flag of an exception: the nearest mapped class wins."""
        for kind in type(error).__mro__:
            if kind in self._codes:
                return self._codes[kind]
        return "UNHANDLED_EXCEPTION", None

    @property
    def names(self) -> list[str]:
        return sorted(self._handlers)

    @property
    def has_async(self) -> bool:
        return any(handler.is_async for handler in self._handlers.values())


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


default_registry = Registry()
handler = default_registry.handler
