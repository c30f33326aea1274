"""A worker's pull: takes what is there, or waits for it without holding a database connection or looking in a loop.

Not promised: that a job reaches a client that hangs up in the very moment of its answer. Nothing is lost then: the
visibility time or the lease runs out, and the stage is handed out again.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection

from pipelines.jobs import Job
from pipelines.leases import Holder, claim, next_due
from pipelines.listen import Full, Waiter, listener
from pipelines.wake import Queue

Gone = Callable[[], bool]
LOOK_SECONDS = 5.0  # how often a waiting pull looks whether its client is still there
FIRST_MISS = 0.002  # seconds to wait when others hold all that is due; doubled each time
LONGEST_MISS = 0.25


class Busy(Exception):
    """As many pulls wait in this process as may; ask again a little later."""


def pull(
    holder: Holder, queues: Sequence[Queue], *, limit: int, acquire: bool, seconds: float, gone: Gone
) -> list[Job]:
    """Up to `limit` jobs of these queues; with none there, waits up to `seconds` for the first.

    Returns nothing at once for a draining session, a client that has hung up, or a process that is about to end.
    Raises `Busy` instead of waiting above RECOURSE_WAITING_PULLS.
    """
    if holder.draining or gone():  # a client may have hung up before its turn came
        return []
    jobs = claim(holder, queues, limit=limit, acquire=acquire)
    if jobs or not seconds or listener.closing:
        return jobs
    try:
        with listener.subscribed(queues, limit=settings.RECOURSE_WAITING_PULLS) as waiter:
            look = partial(claim, holder, queues, limit=limit, acquire=acquire)
            return _wait(waiter, look, lambda: next_due(queues, holder.sends_to), seconds, gone)
    except Full:
        raise Busy from None


def hung_up(socket: Any) -> Gone:
    """Whether the other end of a connection has closed it; never, for a server that does not show its socket."""
    if socket is None or not hasattr(select, "POLLRDHUP"):
        return lambda: False
    ear = select.poll()
    ear.register(socket.fileno(), select.POLLRDHUP)
    return lambda: bool(ear.poll(0))


def _wait(
    waiter: Waiter, look: Callable[[], list[Job]], when: Callable[[], float | None], seconds: float, gone: Gone
) -> list[Job]:
    ends, missed = time.monotonic() + seconds, 0
    while not listener.closing and not gone():
        jobs = look()
        left = ends - time.monotonic()
        if jobs or left <= 0:
            return jobs
        due = when()
        if due is not None and due <= 0:
            # due, but others are changing those rows: they commit soon, and need not tell when they leave them alone
            pause = min(FIRST_MISS * 2**missed, LONGEST_MISS) * random.uniform(0.5, 1.5)  # noqa: S311
            missed = min(missed + 1, 10)
        else:
            pause, missed = left if due is None else due, 0
        _give_connection_back()
        if not _sleep(waiter, min(pause, left), gone):
            return []
    return []


def _sleep(waiter: Waiter, seconds: float, gone: Gone) -> bool:
    """Until woken or `seconds` have passed; False when there is nobody left to wait for."""
    until = time.monotonic() + seconds
    while not waiter.wait(max(0.0, min(LOOK_SECONDS, until - time.monotonic()))):
        if gone():
            return False
        if time.monotonic() >= until:
            break
    return True


def _give_connection_back() -> None:
    if not connection.in_atomic_block:
        connection.close()
