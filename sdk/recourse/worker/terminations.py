"""Tells the console how the processes of an attempt ended, and what could not be ended (R39).

Offered until there is a definite answer, also for attempts that are not ours any more: what runs on matters most then.
Not promised: what is not told when the worker itself dies is gone, and a session that replaced ours cannot speak for
it.
"""

from __future__ import annotations

import json
import logging
import queue
import threading

from recourse import clock
from recourse.repeating import Backoff, Unavailable
from recourse.worker.leases import Held
from recourse.worker.session import Session

log = logging.getLogger("recourse.worker")


class Terminations:
    """The queue and its one sending thread, which starts with the first of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queue: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._untold = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, held: Held) -> None:
        with self._changed:
            self._untold += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="recourse-terminations", daemon=True)
                self._thread.start()
        self._queue.put(held)

    def wait_told(self, seconds: float) -> bool:
        """Waits until all are told; False when some are not after `seconds`."""
        until = clock.now() + seconds
        with self._changed:
            while self._untold:
                left = until - clock.now()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        self._closed.set()
        self._queue.put(None)

    def _loop(self) -> None:
        while (held := self._queue.get()) is not None:
            self._tell(held)
            with self._changed:
                self._untold -= 1
                self._changed.notify_all()

    def _tell(self, held: Held) -> None:
        job = held.job
        body = {"executionId": job.execution_id, "termination": held.context.termination}
        content = json.dumps(body, separators=(",", ":")).encode()
        backoff = Backoff(first=0.1, most=10.0)
        while not self._closed.is_set():
            try:
                answer = self._session.post(f"stages/{job.stage_id}/termination", content)
            except Unavailable as error:
                log.warning("how the processes of attempt %s ended is not told yet: %s", job.execution_id, error)
                self._closed.wait(backoff.next(error.wait))
                continue
            if answer.status >= 400:
                code = answer.body.get("code") or answer.status
                log.error("how the processes of attempt %s ended was not taken: %s", job.execution_id, code)
            return
