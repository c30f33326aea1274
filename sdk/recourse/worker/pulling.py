"""The one thread that asks for work: a long poll after the other, for as many jobs as there are free places."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from recourse import clock
from recourse.jobs import Job
from recourse.repeating import Backoff, Unavailable
from recourse.worker.leases import MOST_PER_REQUEST
from recourse.worker.session import Answer, Session

log = logging.getLogger("recourse.worker")

QUICK_SECONDS = 0.05


class Places:
    """Counts free places; waiting for one costs nothing."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._all = count
        self._changed = threading.Condition()

    def take(self) -> None:
        with self._changed:
            self._free -= 1

    def give_back(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def wait_free(self, closed: Callable[[], bool]) -> int:
        with self._changed:
            while self._free <= 0 and not closed():
                self._changed.wait()
            return self._free

    def wait_all_free(self, seconds: float, hurry: Callable[[], bool]) -> bool:
        """False when some are still taken after `seconds`, or as soon as there is a hurry."""
        until = clock.now() + seconds
        with self._changed:
            while self._free < self._all:
                left = until - clock.now()
                if left <= 0 or hurry():
                    return False
                self._changed.wait(left)
        return True

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Puller:
    """Pulls until `stop`. An open long poll is let run to its end, never cut: jobs that its answer brings are already
    ours, and would stand still until their leases end. Only when the server knows that this worker ends can the poll
    be left alone.
    """

    def __init__(
        self,
        session: Session,
        handlers: list[str],
        places: Places,
        *,
        batch: int,
        wait_seconds: int,
        ready: Callable[[], bool],
        take: Callable[[Job, float], None],
    ) -> None:
        self._session = session
        self._handlers = handlers
        self._places = places
        self._batch = min(batch, MOST_PER_REQUEST)
        self._wait_seconds = wait_seconds
        self._ready = ready
        self._take = take
        self._stopping = threading.Event()
        self._backoff = Backoff(first=0.2, most=15.0)
        self._empty = Backoff(first=0.05, most=1.0)
        self._thread = threading.Thread(target=self._run, name="recourse-pull", daemon=True)
        self._ending = threading.Lock()
        self._ended = False
        self._close: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._places.wake()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def at_end(self, close: Callable[[], None]) -> None:
        """Calls `close` once no poll is open any more: at once, or in the pulling thread."""
        with self._ending:
            self._close = close
            if self._ended:
                close()

    @property
    def longest_poll(self) -> int:
        """A lease counts from when the poll was sent, so a poll may use up a quarter of it at most."""
        return max(1, min(self._wait_seconds, int(self._session.lease_seconds // 4)))

    def _run(self) -> None:
        self._loop()
        with self._ending:
            self._ended = True
            self._close()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            free = self._places.wait_free(self._stopping.is_set)
            if self._stopping.is_set():
                return
            if not self._ready():
                self._stopping.wait(self._backoff.next())
                continue
            try:
                wait = self._pull(min(free, self._batch))
            except Unavailable as error:
                wait = self._backoff.next(error.wait)
                log.warning("cannot pull, again in %.1f s: %s", wait, error)
            except Exception:
                wait = self._backoff.next()
                log.exception("the answer to a pull makes no sense, again in %.1f s", wait)
            if wait:
                self._stopping.wait(wait)

    def _pull(self, most: int) -> float:
        """One poll; returns how long to wait before the next one."""
        seconds = self.longest_poll
        body = {"handlers": self._handlers, "maxJobs": most, "waitSeconds": seconds, "acquire": True}
        asked_at = clock.now()
        answer = self._session.post("jobs/pull", json.dumps(body).encode(), seconds=seconds + 10.0)
        if answer.status >= 400:
            raise Unavailable(
                f"the pull was refused: {answer.status} {answer.body.get('code')} {answer.body.get('detail')}"
            )
        jobs = answer.body.get("jobs") or []
        for wire in jobs:
            self._accept(Job(wire), asked_at)
        return self._pause_after(answer, bool(jobs), clock.now() - asked_at)

    def _accept(self, job: Job, asked_at: float) -> None:
        """Takes a job whose lease is ours; any other is dropped untouched (P50)."""
        if job.lease is None or job.lease.get("acquired") is not True:
            reason = job.lease.get("reason") if job.lease else "no lease given"
            log.info("dropped the job of attempt %s: %s", job.execution_id, reason)
            return
        self._take(job, asked_at)

    def _pause_after(self, answer: Answer, got: bool, took: float) -> float:
        """None after a job or a real wait. A server that cannot hold polls is not asked in a tight loop."""
        self._backoff.reset()
        if got or (took > QUICK_SECONDS and not answer.wait):
            self._empty.reset()
            return 0.0
        return answer.wait or self._empty.next()
