"""The threads that send in a process: begun when something is due, gone when nothing is.

The task that finds work never waits for the network: it claims for as many threads as are free and returns. A thread
that has sent goes on with whatever else is due. So deliveries need no process of their own, and the one that lends them
its threads, `up`'s clock, goes on with its own work while a receiver hangs.
"""

from __future__ import annotations

import threading
import time

import structlog
from django.db import connection

from approvals.notifications import deliveries
from approvals.notifications.deliveries import Claim

log = structlog.get_logger(__name__)
THREADS = 8


class Senders:
    """At most `most` threads at once. Safe to call from several threads."""

    def __init__(self, most: int = THREADS) -> None:
        self.most = most
        self.is_closing = False
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def go(self) -> int:
        """Begins to send what is due, as far as threads are free; returns how many were begun."""
        with self._lock:
            claims = [] if self.is_closing else deliveries.claim(self.most - len(self._threads))
            for mine in claims:
                thread = threading.Thread(target=self._send, args=(mine,), name="sender", daemon=True)
                self._threads.add(thread)
                thread.start()
        return len(claims)

    def close(self, seconds: float) -> None:
        """Begins nothing any more, and gives what is on its way so long to end. What does not end is sent again by
        another process, once it is held no longer."""
        self.is_closing = True
        until = time.monotonic() + seconds
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _send(self, mine: Claim) -> None:
        claims = [mine]
        try:
            while claims:
                deliveries.deliver(claims[0])
                claims = [] if self.is_closing else deliveries.claim(1)
        except Exception:
            log.exception("sender.ended")
        finally:
            connection.close()
            with self._lock:
                self._threads.discard(threading.current_thread())
