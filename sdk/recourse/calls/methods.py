"""How one definition of a call serves both clients.

A group's methods only say what is asked: they return a `Call`. Read from a group of a `SyncClient`, such a method sends
it and returns the answer; of a `Client`, what is to be awaited. Its parameters and the answer's type stay known to type
checkers in both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from recourse.calls.base import Call, Planned
from recourse.models.pages import Page

P = ParamSpec("P")
T = TypeVar("T")
N = TypeVar("N")
T_co = TypeVar("T_co", covariant=True)
N_co = TypeVar("N_co", covariant=True)
Item = TypeVar("Item")


class Sync:
    """What sends a call and waits for its answer."""

    def send(self, call: Call[T]) -> T:
        raise NotImplementedError


class Async:
    """What sends a call, and is awaited."""

    async def send(self, call: Call[T]) -> T:
        raise NotImplementedError


Sender_co = TypeVar("Sender_co", bound=Sync | Async, covariant=True)


class Group(Generic[Sender_co]):
    """Calls about one kind of thing."""

    def __init__(self, sender: Sender_co) -> None:
        self._sender = sender


class Items(Generic[Item]):
    """The items of a list, page after page: no page is asked for before its first item is wanted, and one is held at a
    time. `next` is the link to the page after the last one read; `iterate(next=...)` goes on there.
    """

    def __init__(self, first: Call[Page[Item]], send: Callable[[Call[Page[Item]]], Page[Item]]) -> None:
        self.next: str | None = None
        self._first = first
        self._send = send

    def __iter__(self) -> Iterator[Item]:
        return (item for page in self.pages() for item in page["results"])

    def up_to(self, pages: int) -> Iterator[Item]:
        """The items of at most so many pages."""
        return (item for page in self.pages(pages) for item in page["results"])

    def pages(self, most: int | None = None) -> Iterator[Page[Item]]:
        """Whole pages, at most so many."""
        call = self._first
        while most is None or most > 0:
            page = self._send(call)
            self.next = page["next"]
            yield page
            if self.next is None:
                return
            call = call.following(self.next)
            most = None if most is None else most - 1


class AsyncItems(Generic[Item]):
    """As `Items`, for `async for`."""

    def __init__(self, first: Call[Page[Item]], send: Callable[[Call[Page[Item]]], Awaitable[Page[Item]]]) -> None:
        self.next: str | None = None
        self._first = first
        self._send = send

    def __aiter__(self) -> AsyncIterator[Item]:
        return (item async for page in self.pages() for item in page["results"])

    def up_to(self, pages: int) -> AsyncIterator[Item]:
        """The items of at most so many pages."""
        return (item async for page in self.pages(pages) for item in page["results"])

    async def pages(self, most: int | None = None) -> AsyncIterator[Page[Item]]:
        """Whole pages, at most so many."""
        call = self._first
        while most is None or most > 0:
            page = await self._send(call)
            self.next = page["next"]
            yield page
            if self.next is None:
                return
            call = call.following(self.next)
            most = None if most is None else most - 1


class SyncMethod(Protocol[P, T_co]):
    def __call__(self, *args: P.args, **named: P.kwargs) -> T_co: ...


class AsyncMethod(Protocol[P, T_co]):
    def __call__(self, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T_co]: ...


class SyncVerb(SyncMethod[P, T_co], Protocol[P, T_co, N_co]):
    def plan(self, *args: P.args, **named: P.kwargs) -> N_co:
        """What this would do; nothing is changed."""


class AsyncVerb(AsyncMethod[P, T_co], Protocol[P, T_co, N_co]):
    def plan(self, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, N_co]:
        """What this would do; nothing is changed."""


class SyncList(SyncMethod[P, Page[Item]], Protocol[P, Item]):
    def iterate(self, *args: P.args, **named: P.kwargs) -> Items[Item]:
        """All items, from the first page or the one of `next` on."""


class AsyncList(AsyncMethod[P, Page[Item]], Protocol[P, Item]):
    def iterate(self, *args: P.args, **named: P.kwargs) -> AsyncItems[Item]:
        """All items, from the first page or the one of `next` on."""


class _Defined:
    def __init__(self, define: Callable[..., Any]) -> None:
        self.define = define
        self.__doc__ = define.__doc__


class asks(_Defined, Generic[P, T]):  # noqa: N801 - a decorator
    """A method that sends one call."""

    def __init__(self, define: Callable[Concatenate[Any, P], Call[T]]) -> None:
        super().__init__(define)

    @overload
    def __get__(self, group: None, kind: Any) -> Self: ...
    @overload
    def __get__(self, group: Group[Sync], kind: Any) -> SyncMethod[P, T]: ...
    @overload
    def __get__(self, group: Group[Async], kind: Any) -> AsyncMethod[P, T]: ...
    def __get__(self, group: Group[Any] | None, kind: Any) -> Any:
        return self if group is None else _method(group, self.define)


class plans(_Defined, Generic[P, T, N]):  # noqa: N801 - a decorator
    """A method with a dry run: `.plan(...)` takes the same, changes nothing, and answers what would be done."""

    def __init__(self, define: Callable[Concatenate[Any, P], Planned[T, N]]) -> None:
        super().__init__(define)

    @overload
    def __get__(self, group: None, kind: Any) -> Self: ...
    @overload
    def __get__(self, group: Group[Sync], kind: Any) -> SyncVerb[P, T, N]: ...
    @overload
    def __get__(self, group: Group[Async], kind: Any) -> AsyncVerb[P, T, N]: ...
    def __get__(self, group: Group[Any] | None, kind: Any) -> Any:
        return self if group is None else _verb(group, self.define)


class lists(_Defined, Generic[P, Item]):  # noqa: N801 - a decorator
    """A method that reads one page of a list; `.iterate(...)` takes the same and reads them all."""

    def __init__(self, define: Callable[Concatenate[Any, P], Call[Page[Item]]]) -> None:
        super().__init__(define)

    @overload
    def __get__(self, group: None, kind: Any) -> Self: ...
    @overload
    def __get__(self, group: Group[Sync], kind: Any) -> SyncList[P, Item]: ...
    @overload
    def __get__(self, group: Group[Async], kind: Any) -> AsyncList[P, Item]: ...
    def __get__(self, group: Group[Any] | None, kind: Any) -> Any:
        return self if group is None else _list(group, self.define)


class iterates(Generic[P, Item]):  # noqa: N801 - made of a method, as a decorator would be
    """`group.iterate(...)`: the same as `group.list.iterate(...)`."""

    def __init__(self, listing: lists[P, Item]) -> None:
        self.define = listing.define

    @overload
    def __get__(self, group: None, kind: Any) -> Self: ...
    @overload
    def __get__(self, group: Group[Sync], kind: Any) -> Callable[P, Items[Item]]: ...
    @overload
    def __get__(self, group: Group[Async], kind: Any) -> Callable[P, AsyncItems[Item]]: ...
    def __get__(self, group: Group[Any] | None, kind: Any) -> Any:
        return self if group is None else _list(group, self.define).iterate


def _method(group: Group[Any], define: Callable[..., Any]) -> Any:
    """A function of the definition's name, words and parameters that sends what it defines; in both clients alike."""
    sender = group._sender  # noqa: SLF001 - a part of the group

    @wraps(define)
    def method(*args: Any, **named: Any) -> Any:
        return sender.send(define(group, *args, **named))

    vars(method)["__wrapped__"] = define.__get__(group)  # whose parameters `help` and others show: all but the group
    return method


def _verb(group: Group[Any], define: Callable[..., Any]) -> Any:
    method = _method(group, define)

    @wraps(method)
    def plan(*args: Any, **named: Any) -> Any:
        return method(*args, **{**named, "dry_run": True})

    method.plan = plan
    return method


def _list(group: Group[Any], define: Callable[..., Any]) -> Any:
    sender = group._sender  # noqa: SLF001 - a part of the group
    method = _method(group, define)

    @wraps(method)
    def iterate(*args: Any, **named: Any) -> Any:
        first = define(group, *args, **named)
        return (AsyncItems if isinstance(sender, Async) else Items)(first, sender.send)

    method.iterate = iterate
    return method
