"""Sends what running handlers log and how far they are, once a second at most. Silent handlers cost nothing.

Lines travel with the result when the attempt ends first. A line that is on its way in the very moment in which its
attempt ends may be refused as too late, and is lost then; logs are a help, not evidence.
"""

from __future__ import annotations

import json
import logging
import threading

from recourse.repeating import Unavailable
from recourse.worker.leases import Held, Leases
from recourse.worker.session import Session

log = logging.getLogger("recourse.worker")

EVERY_SECONDS = 1.0
MOST_LINES = 1_000


class Live:
    """The thread that passes news on. `announce` may be called from anywhere and is cheap."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._news = threading.Event()
        self._closed = threading.Event()

    def start(self, leases: Leases) -> None:
        threading.Thread(target=self._loop, args=(leases,), name="recourse-live", daemon=True).start()

    def announce(self) -> None:
        if not self._news.is_set():
            self._news.set()

    def close(self) -> None:
        self._closed.set()
        self._news.set()

    def _loop(self, leases: Leases) -> None:
        while not self._closed.is_set():
            self._news.wait()
            self._closed.wait(EVERY_SECONDS)
            self._news.clear()
            for held in leases.all():
                if held.running and not held.is_lost and held.context.has_news:
                    self._pass_on(held)

    def _pass_on(self, held: Held) -> None:
        execution_id, stage = held.job.execution_id, f"stages/{held.job.stage_id}"
        progress = held.context.take_progress()
        lines = held.context.take_lines()
        try:
            if progress is not None:
                self._session.post(f"{stage}/progress", json.dumps({"executionId": execution_id} | progress).encode())
            while lines:
                some = {"executionId": execution_id, "lines": lines[:MOST_LINES]}
                self._session.post(f"{stage}/logs", json.dumps(some).encode())
                lines = lines[MOST_LINES:]
        except Unavailable as error:
            held.context.put_lines_back(lines)
            self.announce()
            log.info("news of attempt %s not sent yet: %s", execution_id, error)
