"""How one definition of a call serves both clients.

A group's methods only say what is asked: they return a `Call`. Read from a group of a `SyncClient`, such a method sends
it and returns the answer; of a `Client`, what is to be awaited. Its parameters and the answer's type stay known to type
checkers in both.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from recourse.calls.base import Call, Planned
from recourse.models.pages import Page

P = ParamSpec("P")
T = TypeVar("T")
N = TypeVar("N")
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


class _Bound:
    """A method of a group; it looks like the definition that it comes from."""

    def __init__(self, group: Group[Any], define: Callable[..., Any]) -> None:
        self._group = group
        self._define = define
        self.__doc__ = define.__doc__
        self.__name__ = define.__name__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._define.__get__(self._group))

    def _call(self, *args: Any, **named: Any) -> Any:
        return self._define(self._group, *args, **named)

    @property
    def _send(self) -> Any:
        return self._group._sender.send  # noqa: SLF001 - a part of the group


class SyncMethod(_Bound, Generic[P, T]):
    def __call__(self, *args: P.args, **named: P.kwargs) -> T:
        answer: T = self._send(self._call(*args, **named))
        return answer


class AsyncMethod(_Bound, Generic[P, T]):
    def __call__(self, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        answer: Coroutine[Any, Any, T] = self._send(self._call(*args, **named))
        return answer


class SyncVerb(SyncMethod[P, T], Generic[P, T, N]):
    def plan(self, *args: P.args, **named: P.kwargs) -> N:
        """What this would do; nothing is changed."""
        answer: N = self._send(self._call(*args, **{**named, "dry_run": True}))
        return answer


class AsyncVerb(AsyncMethod[P, T], Generic[P, T, N]):
    def plan(self, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, N]:
        """What this would do; nothing is changed."""
        answer: Coroutine[Any, Any, N] = self._send(self._call(*args, **{**named, "dry_run": True}))
        return answer


class SyncList(SyncMethod[P, Page[Item]], Generic[P, Item]):
    def iterate(self, *args: P.args, **named: P.kwargs) -> Items[Item]:
        """All items, from the first page or the one of `next` on."""
        return Items(self._call(*args, **named), self._send)


class AsyncList(AsyncMethod[P, Page[Item]], Generic[P, Item]):
    def iterate(self, *args: P.args, **named: P.kwargs) -> AsyncItems[Item]:
        """All items, from the first page or the one of `next` on."""
        return AsyncItems(self._call(*args, **named), self._send)


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
        return self if group is None else _pick(group, SyncMethod, AsyncMethod)(group, self.define)


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
        return self if group is None else _pick(group, SyncVerb, AsyncVerb)(group, self.define)


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
        return self if group is None else _pick(group, SyncList, AsyncList)(group, self.define)


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
        return self if group is None else _pick(group, SyncList, AsyncList)(group, self.define).iterate


def _pick(group: Group[Any], for_sync: type[Any], for_async: type[Any]) -> type[Any]:
    return for_async if isinstance(group._sender, Async) else for_sync  # noqa: SLF001 - a part of the group
