"""Waits for work without polling: one LISTEN connection and one thread per process, shared by all who wait.

Notifications may be lost with the connection; then everybody is woken to look for themselves, so nobody waits for one
that will not come. Waiters register before they look, which closes the gap between looking and waiting.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg
import structlog
from django.db import connection

from pipelines.wake import CHANNEL, Queue, read_payload

log = structlog.get_logger(__name__)
LONGEST_PAUSE = 5.0  # seconds between attempts to reach the database again


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


class Listener:
    """The process's one ear on the database. Started by the first waiter; a forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[Waiter] = set()
        self._pid = 0
        self.closing = False

    @contextmanager
    def subscribed(self, queues: Iterable[Queue] | None) -> Iterator[Waiter]:
        """Registers a waiter for the length of the block. Look for work only inside it."""
        waiter = Waiter(None if queues is None else frozenset(queues))
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._waiters = os.getpid(), set()
                threading.Thread(target=self._listen, name="recourse-listen", daemon=True).start()
            self._waiters.add(waiter)
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

    def _listen(self) -> None:
        pause = 0.1
        while not self.closing:
            try:
                with psycopg.connect(**_parameters(), autocommit=True) as ear:
                    ear.execute(f"LISTEN {CHANNEL}")
                    pause = 0.1
                    self.wake()  # what was announced before the ear was open
                    for notification in ear.notifies():
                        self.wake(read_payload(notification.payload))
            except psycopg.Error as error:
                log.warning("listen.lost", error=str(error).strip())
                self.wake()
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE)


listener = Listener()


def _parameters() -> dict[str, object]:
    parameters = connection.get_connection_params()
    return {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters}
