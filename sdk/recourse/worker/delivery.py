"""Brings the ends of attempts to the server, until it has said something definite about each.

A result is sent at once when nothing is on its way; what ends meanwhile goes together in the next request. No answer,
503 and other 5xx mean: the same bytes again, after a while, for as long as it takes; the handler is never run again
(P56, F16). Any other refusal is final. The attempt's lease is renewed until then, so that nobody else starts the stage.

The end of a lost attempt is offered too: the server refuses it as stale and keeps it as late evidence.

Not promised: what is not delivered when the process dies is gone; the lease then ends and the server decides.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recourse import clock
from recourse.execution import Report, failure_report
from recourse.repeating import Backoff, Unavailable
from recourse.worker.leases import MOST_PER_REQUEST, Held, by_attempt
from recourse.worker.session import Session

log = logging.getLogger("recourse.worker")

MOST_BYTES = 8 * 1024 * 1024
TOO_LATE = frozenset({"stale_execution", "not_found"})


@dataclass(slots=True)
class Parcel:
    """One end on its way. `alone`: a batch with it was refused. `replaced`: it stands for a refused result."""

    held: Held
    report: Report
    alone: bool = False
    replaced: bool = False


class Delivery:
    """The queue and its one sending thread. `settled` is called for every attempt whose end needs no more care."""

    def __init__(self, session: Session, settled: Callable[[Held], None]) -> None:
        self._session = session
        self._settled = settled
        self._queue: deque[Parcel] = deque()
        self._unsettled = 0
        self._changed = threading.Condition()
        self._idle = False
        self._closed = threading.Event()
        self._backoff = Backoff(first=0.1, most=10.0)

    def start(self) -> None:
        threading.Thread(target=self._loop, name="recourse-deliver", daemon=True).start()

    def add(self, held: Held, report: Report) -> None:
        with self._changed:
            self._queue.append(Parcel(held, report))
            self._unsettled += 1
            if self._idle:
                self._changed.notify_all()

    @property
    def unsettled(self) -> int:
        return self._unsettled

    def wait_settled(self, seconds: float) -> bool:
        """Waits until nothing is on its way any more; False when it still is after `seconds`."""
        until = clock.now() + seconds
        with self._changed:
            while self._unsettled:
                left = until - clock.now()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _loop(self) -> None:
        while not self._closed.is_set():
            batch = self._take()
            if not batch:
                continue
            try:
                self._send(batch)
            except Unavailable as error:
                log.warning("%d result(s) not confirmed: %s", len(batch), error)
                self._again(batch, error.wait)
            except Exception:
                log.exception("the answer to %d result(s) makes no sense", len(batch))
                self._again(batch, 0.0)

    def _again(self, batch: list[Parcel], at_least: float) -> None:
        with self._changed:
            self._queue.extendleft(reversed(batch))
        self._closed.wait(self._backoff.next(at_least))

    def _take(self) -> list[Parcel]:
        """What goes into the next request, in order; waits until there is something. Releases and suspects go alone."""
        with self._changed:
            while not self._queue and not self._closed.is_set():
                self._idle = True
                self._changed.wait()
                self._idle = False
            batch: list[Parcel] = []
            size = 0
            while self._queue and len(batch) < MOST_PER_REQUEST:
                first = self._queue[0]
                single = first.alone or first.report.outcome == "released"
                size += len(first.report.encoded) + 1
                if batch and (single or size > MOST_BYTES):
                    break
                batch.append(self._queue.popleft())
                if single:
                    break
            return batch

    def _send(self, batch: list[Parcel]) -> None:
        if batch[0].report.outcome == "released":
            self._send_release(batch[0])
            return
        content = b'{"results":[' + b",".join(parcel.report.encoded for parcel in batch) + b"]}"
        answer = self._session.post("results", content, seconds=30.0)
        if answer.status >= 400:
            self._refused_whole(batch, answer.status, answer.body)
            return
        told = by_attempt([parcel.held for parcel in batch], answer.body.get("results") or [])
        again = [parcel for parcel in batch if not self._judge(parcel, told.get(parcel.held.job.execution_id))]
        if len(again) < len(batch):
            self._backoff.reset()
        if again:
            batch[:] = again
            raise Unavailable("the server could not store them")

    def _judge(self, parcel: Parcel, told: Mapping[str, Any] | None) -> bool:
        """Whether this answer settles the parcel; False means the same again."""
        if told is None or told.get("code") == "result_not_confirmed":
            return False
        if told.get("accepted"):
            self._settle(parcel)
        else:
            self._refused(parcel, str(told.get("code") or "refused"), str(told.get("detail") or ""))
        return True

    def _refused_whole(self, batch: list[Parcel], status: int, body: Mapping[str, Any]) -> None:
        """One bad item must not spoil the others: each goes alone, and then the refusal is its own."""
        self._backoff.reset()
        if len(batch) > 1:
            for parcel in batch:
                parcel.alone = True
            with self._changed:
                self._queue.extendleft(reversed(batch))
            return
        code = str(body.get("code") or f"http_{status}")
        self._refused(batch[0], code, f"{body.get('detail') or ''} {json.dumps(body.get('errors') or {})}".strip())

    def _refused(self, parcel: Parcel, code: str, detail: str) -> None:
        """Final. A stale end is only noted. One that the server cannot take becomes a failure that says why, once:
        otherwise the lease would lapse and the handler would run again, to the same end.
        """
        job = parcel.held.job
        if code in TOO_LATE or parcel.held.is_lost or parcel.replaced:
            log.warning("the end of attempt %s came too late or is not taken: %s %s", job.execution_id, code, detail)
            self._settle(parcel)
            return
        log.error("the result of attempt %s was refused: %s %s", job.execution_id, code, detail)
        name = "OUTPUT_TOO_LARGE" if code == "payload_too_large" else "RESULT_REFUSED"
        report = failure_report(
            parcel.held.context,
            name,
            f"the server refused the result: {code} {detail}",
            retryable=False,
            with_extras=False,
        )
        with self._changed:
            self._queue.append(Parcel(parcel.held, report, alone=True, replaced=True))

    def _send_release(self, parcel: Parcel) -> None:
        answer = self._session.post(f"stages/{parcel.held.job.stage_id}/release", parcel.report.encoded)
        self._backoff.reset()
        if answer.status >= 400:
            log.warning("attempt %s was not released: %s", parcel.held.job.execution_id, answer.body.get("code"))
        self._settle(parcel)

    def _settle(self, parcel: Parcel) -> None:
        self._settled(parcel.held)
        with self._changed:
            self._unsettled -= 1
            if not self._unsettled:
                self._changed.notify_all()
