"""Waits for work without polling: one LISTEN connection and one thread per process, shared by all who wait.

Notifications may be lost with the connection; then everybody is woken to look for themselves, so nobody waits for one
that will not come. Waiters register before they look, which closes the gap between looking and waiting.
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import psycopg
import structlog
from django.db import connection

from pipelines.wake import CHANNEL, Queue, read_payload

log = structlog.get_logger(__name__)
SHORTEST_PAUSE = 0.1  # seconds between attempts to reach the database again
LONGEST_PAUSE = 5.0
OF_DJANGO = frozenset({"context", "cursor_factory", "prepare_threshold", "server_side_binding"})
PROBE_SECONDS = 60.0  # how long the ear may hear nothing before it asks whether the server is still there


class Waiter:
    """Somebody who waits for some queues, or for any with `queues` None. Wakes are kept until the next wait ends."""

    def __init__(self, queues: frozenset[Queue] | None) -> None:
        self.queues = queues
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Until woken or `seconds` have passed; says whether it was woken."""
        woken = self._event.wait(seconds)
        self._event.clear()
        return woken


class Full(Exception):
    """As many wait already as may wait at once."""


class Listener:
    """The process's one ear on the database. Started by the first waiter; a forked child starts its own."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything, for a forked child: it has inherited neither the thread nor a usable lock."""
        self._lock = threading.RLock()  # reentrant: a signal handler may wake while its thread is registering
        self._waiters: set[Waiter] = set()
        self._ear: _Ear | None = None
        self.closing = False

    @contextmanager
    def subscribed(self, queues: Iterable[Queue] | None, *, limit: int | None = None) -> Iterator[Waiter]:
        """Registers a waiter for the length of the block. Look for work only inside it.

        Raises `Full` when `limit` waiters are there already.
        """
        waiter = Waiter(None if queues is None else frozenset(queues))
        with self._lock:
            if limit is not None and len(self._waiters) >= limit:
                raise Full
            self._waiters.add(waiter)
            if self._ear is None:
                self._ear = _Ear(self)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    @property
    def waiting(self) -> int:
        """How many wait in this process now."""
        with self._lock:
            return len(self._waiters)

    def wake(self, queues: frozenset[Queue] | None = None) -> None:
        """Wakes the waiters of these queues; all of them without a list."""
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            if queues is None or waiter.queues is None or waiter.queues & queues:
                waiter.wake()

    def close(self) -> None:
        """Wakes everybody, for a process that is about to end; `closing` tells them why."""
        self.closing = True
        self.wake()

    def close_on(self, number: int) -> None:
        """Has the signal close the listener, before it does what it did so far. For the main thread."""
        before = signal.getsignal(number)

        def handle(received: int, frame: FrameType | None) -> None:
            self.close()
            if callable(before):
                before(received, frame)

        signal.signal(number, handle)

    def rest(self, seconds: float = 10.0) -> None:
        """Ends the thread and its connection, if there are any; the next waiter starts them anew."""
        with self._lock:
            ear, self._ear = self._ear, None
        if ear is not None:
            ear.stop(seconds)


listener = Listener()
os.register_at_fork(after_in_child=listener.reset)


class _Ear:
    """The thread and its connection. Stopped through a pipe, so that it can sleep for as long as nothing is said."""

    def __init__(self, owner: Listener) -> None:
        self._owner = owner
        self._mouth_end, self._stop_end = os.pipe()
        self._stopping = threading.Event()
        self._parameters = _parameters()
        self._thread = threading.Thread(target=self._run, name="recourse-listen", daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> None:
        self._stopping.set()
        os.write(self._stop_end, b".")
        self._thread.join(seconds)
        if not self._thread.is_alive():
            os.close(self._mouth_end)
            os.close(self._stop_end)

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        while not self._stopping.is_set():
            try:
                with psycopg.connect(**self._parameters, autocommit=True) as ear:  # type: ignore[arg-type]
                    ear.execute(f"LISTEN {CHANNEL}")
                    pause = SHORTEST_PAUSE
                    self._owner.wake()  # for what was announced before the ear was open
                    self._hear(ear)
            except psycopg.Error as error:
                log.warning("listen.lost", error=str(error).strip())
                self._owner.wake()
                self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, LONGEST_PAUSE)

    def _hear(self, ear: psycopg.Connection) -> None:
        while not self._stopping.is_set():
            heard, _, _ = select.select([ear.fileno(), self._mouth_end], [], [], PROBE_SECONDS)
            if not heard:
                ear.execute("SELECT 1")
            elif ear.fileno() in heard:
                ear.pgconn.consume_input()
                while notification := ear.pgconn.notifies():
                    self._owner.wake(read_payload(notification.extra.decode()))


def _parameters() -> dict[str, object]:
    # everything that says how to reach the server, and nothing that is Django's own
    parameters = {name: value for name, value in connection.get_connection_params().items() if name not in OF_DJANGO}
    return {"keepalives_idle": 30, "connect_timeout": 10, **parameters}
