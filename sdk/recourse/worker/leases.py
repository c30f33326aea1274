"""Attempts that this worker holds: renews their leases, and gives them up before they end.

Time is the local clock's (`recourse.clock`), counted from the moment a request was *sent*: the server can only have
granted its lease later, so ours ends first. An answer extends a lease only when the end that it names has moved: a
server that finds the attempt locked by another transaction says `acquired` and leaves the end where it was.
What this cannot do: stop a handler that does not look at `ctx.cancelled`.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from recourse import clock
from recourse.context import StageContext
from recourse.control import Control
from recourse.errors import api_error
from recourse.jobs import Job
from recourse.links import Link, Stored
from recourse.repeating import Backoff, Unavailable
from recourse.worker.session import ANSWER_SECONDS, Session

log = logging.getLogger("recourse.worker")

MOST_PER_REQUEST = 200
ARTIFACT_SECONDS = 60.0  # for one try to store or load an artifact of several megabytes


class Held:
    """One attempt in this worker's hands, from the pull until its result is confirmed."""

    __slots__ = ("abandoned", "all_answered", "context", "control", "job", "lost", "renew_at", "running", "server_end")

    def __init__(self, job: Job, control: Control, renew_at: float, link: Link) -> None:
        self.job = job
        self.control = control
        self.context = StageContext(job, control, link)
        self.renew_at = renew_at
        self.server_end: str | None = (job.lease or {}).get("leaseExpiresAt")
        self.all_answered = True
        self.running = True
        self.lost = False
        self.abandoned = False

    def extend(self, end: str | None, sent_at: float, seconds: float) -> bool:
        """Notes that the lease now ends at `end`, by the server's clock; False when that is no later than before.

        `seconds` is our share of a full lease. After an unanswered renewal a later end may be that one's work, granted
        before `sent_at`: then ours moves by no more than the server's did.
        """
        until = sent_at + seconds
        if end is not None and self.server_end is not None:
            moved = (datetime.fromisoformat(end) - datetime.fromisoformat(self.server_end)).total_seconds()
            if moved <= 0:
                return False
            if not self.all_answered:
                until = min(until, self.control.owned_until + moved)
        self.server_end = end
        self.control.owned_until = until
        return True

    @property
    def is_lost(self) -> bool:
        return self.lost or clock.now() >= self.control.owned_until

    @property
    def was_cut_off(self) -> bool:
        """Whether it acts outside, and was ended by signals wherever it stood: nobody can give such a stage back."""
        return self.context.termination is not None and self.job.effect_mode == "external"

    def lose(self) -> None:
        """Ownership is gone, for good: no later renewal brings it back."""
        self.lost = True
        self.control.stop("lost")


class Wire:
    """An attempt's link to the console: one request for each write."""

    __slots__ = ("_session", "_stage_id")

    def __init__(self, session: Session, job: Job) -> None:
        self._session = session
        self._stage_id = job.stage_id

    def write(self, what: Stored, body: Mapping[str, Any]) -> Mapping[str, Any]:
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        seconds = ARTIFACT_SECONDS if what == "artifacts" else ANSWER_SECONDS
        answer = self._session.post(f"stages/{self._stage_id}/{what}", content, seconds=seconds)
        if answer.status >= 400:
            raise api_error(answer.status, answer.body)
        return answer.body

    def load(self, artifact_id: str) -> Mapping[str, Any]:
        return self._session.fetch(f"artifacts/{quote(artifact_id, safe='')}", seconds=ARTIFACT_SECONDS)


class Leases:
    """All held attempts, with the thread that renews and the one that fences.

    The fence is a thread of its own because a renewal may hang in the network just when the lease ends (F03).
    A worker that holds nothing wakes neither.
    """

    def __init__(self, session: Session, announce: Callable[[], None]) -> None:
        self._session = session
        self._announce = announce
        self._held: dict[str, Held] = {}
        self._changed = threading.Condition()
        self._sleeping = 0
        self._closed = False

    def start(self) -> None:
        for name, step in (("renew", self._renew_step), ("fence", self._fence_step)):
            threading.Thread(target=self._loop, args=(step,), name=f"recourse-{name}", daemon=True).start()

    def hold(self, job: Job, asked_at: float) -> Held:
        """Takes an acquired job in. `asked_at`: when the request that brought it was sent."""
        control = Control(self._announce)
        control.owned_until = asked_at + self._owned_seconds
        if job.timeout_seconds:
            control.times_out_at = clock.now() + job.timeout_seconds
        held = Held(job, control, asked_at + self._session.renew_seconds, Wire(self._session, job))
        with self._changed:
            self._held[job.execution_id] = held
            if self._sleeping:
                self._changed.notify_all()
        return held

    def drop(self, held: Held) -> None:
        """Its end is confirmed, or there is nothing more to hold it for."""
        with self._changed:
            self._held.pop(held.job.execution_id, None)

    def all(self) -> list[Held]:
        with self._changed:
            return list(self._held.values())

    def lose_all(self) -> None:
        """The session under which all was held is gone."""
        for held in self.all():
            held.lose()

    def find(self, command: Mapping[str, Any]) -> list[Held]:
        """The held attempts that a command means: by attempt, else by stage; all when it names neither."""
        execution_id, stage_id = command.get("executionId"), command.get("stageId")
        return [
            held
            for held in self.all()
            if execution_id in (None, held.job.execution_id) and stage_id in (None, held.job.stage_id)
        ]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def _owned_seconds(self) -> float:
        """Our share of a lease: it ends a tenth, at most a second, before the server's does."""
        lease = self._session.lease_seconds
        return lease - min(1.0, lease / 10)

    def _loop(self, step: Callable[[], float]) -> None:
        """Calls `step`, which returns the local time of its next call. What is held later is never due earlier than
        what is held now, so only a thread that waits for nothing at all has to be woken.
        """
        while not self._closed:
            due = step()
            with self._changed:
                if self._closed:
                    return
                if due is math.inf and not self._held:
                    self._sleeping += 1
                    self._changed.wait()
                    self._sleeping -= 1
                elif not self._closed:
                    self._changed.wait(min(max(0.0, due - clock.now()), self._session.renew_seconds))

    def _fence_step(self) -> float:
        now = clock.now()
        due = math.inf
        for held in self.all():
            if held.lost:
                continue
            if now >= held.control.owned_until:
                log.warning("gave up attempt %s: its lease could not be renewed in time", held.job.execution_id)
                held.lose()
            else:
                due = min(due, held.control.owned_until)
        return due

    def _renew_step(self) -> float:
        live = [held for held in self.all() if not held.is_lost]
        if not live:
            return math.inf
        if min(held.renew_at for held in live) <= clock.now():
            for start in range(0, len(live), MOST_PER_REQUEST):
                self._renew(live[start : start + MOST_PER_REQUEST])
        return min(held.renew_at for held in live)

    def _renew(self, live: list[Held]) -> None:
        """Renews many at once (P51). Without an answer it is tried again soon, as long as the lease may live."""
        leases = [{"stageId": held.job.stage_id, "executionId": held.job.execution_id} for held in live]
        sent_at = clock.now()
        seconds = max(0.2, self._session.renew_seconds / 2)
        try:
            answer = self._session.post("leases/renew", json.dumps({"leases": leases}).encode(), seconds=seconds)
            if answer.status >= 400:
                raise Unavailable(f"the renewal was refused: {answer.status} {answer.body.get('code')}")
            told = by_attempt(live, answer.body.get("leases") or [])
        except Unavailable as error:
            for held in live:
                held.all_answered = False
                held.renew_at = self._soon(error.wait)
            log.warning("leases not renewed: %s", error)
            return
        for held in live:
            self._apply(held, told.get(held.job.execution_id, {}), sent_at)

    def _apply(self, held: Held, lease: Mapping[str, Any], sent_at: float) -> None:
        """Moves one lease, or gives the attempt up. One that we gave up already is not taken back; one that was not
        extended, or that the answer leaves out, is asked for again soon, and its time runs on.
        """
        commands = lease.get("commands")
        if commands:
            self._session.on_commands(
                [{"stageId": held.job.stage_id, "executionId": held.job.execution_id} | command for command in commands]
            )
        held.renew_at = self._soon()
        if held.is_lost:
            held.lose()
        elif lease.get("acquired") is True:
            if held.extend(lease.get("leaseExpiresAt"), sent_at, self._owned_seconds):
                held.renew_at = sent_at + self._session.renew_seconds
        elif "acquired" in lease:
            if held.running:
                log.warning("lost attempt %s: %s", held.job.execution_id, lease.get("reason") or "no reason given")
            held.lose()

    def _soon(self, at_least: float = 0.0) -> float:
        return clock.now() + Backoff(first=self._session.renew_seconds / 8).next(at_least)


def by_attempt(sent: list[Held], items: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The items of a batch answer by attempt: by the id they carry, else by their place."""
    told: dict[str, Mapping[str, Any]] = {}
    for position, item in enumerate(items):
        key = item.get("executionId") or (sent[position].job.execution_id if position < len(sent) else None)
        if key is not None:
            told[key] = item
    return told
