"""Celery as an executor of Python handlers: the same handlers that an HTTP worker runs, fed straight from the database.

A message only hints that some queues have work; it may be lost or doubled. `Executor.drain` claims a batch, runs it in
threads, renews, reports in batches and goes on until nothing is ready. Leases, fences and results are those of any
worker, so a killed executor loses nothing (P2, P3, F16, F23, F26).

RECOURSE_HANDLERS names modules, or files of pipelines written as code; `module@workspace/application` limits a module's
handlers to one application.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.db import DataError, InterfaceError, OperationalError, connection
from recourse import Job, Registry, clock, default_registry
from recourse.authoring.loading import load_handlers
from recourse.control import Control
from recourse.execution import Report
from recourse.worker.leases import Held
from recourse.worker.runners import Runners

from pipelines import leases, recipients, results
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.jobs import Job as EngineJob
from pipelines.listen import listener
from pipelines.own_links import Asked, OwnLink, tell_termination
from pipelines.sql import EACH_QUEUE, execute, query
from pipelines.wake import Queue
from pipelines.wire import job_body

log = structlog.get_logger(__name__)
T = TypeVar("T")

THREADS = 16  # handlers that run at once in one process
LARGEST_BATCH = 200
QUICK_SECONDS = 0.1  # a batch done faster than this doubles the next one
SLOW_SECONDS = 1.0
GATHER_SECONDS = 0.004  # how long a report waits for the rest of its batch
LOOK_AGAIN_SECONDS = 1.0  # while handlers run and nothing was announced
LINGER_SECONDS = 0.5  # how long an idle executor keeps its ear open before it gives its slot back
TURN_SECONDS = 20.0  # then the slot is given back even under load, so that others get a turn
RENEW_SECONDS = 5.0  # at the most; it is also how soon a cancel reaches a handler
HINT_GAP_SECONDS = 0.05  # hints closer together are dropped: the executor that the first one woke still listens


@dataclass(frozen=True, slots=True)
class Scope:
    """Which handlers this console executes: name → the application it is limited to, as (workspace, name), or None."""

    handlers: dict[str, tuple[str, str] | None]

    @classmethod
    def load(cls, entries: Iterable[str], registry: Registry) -> Scope:
        """Imports the modules and files of RECOURSE_HANDLERS and notes which names each one registers."""
        handlers: dict[str, tuple[str, str] | None] = {}
        for entry in entries:
            where, _, owner = entry.partition("@")
            workspace, _, application = owner.partition("/")
            before = set(registry.names)
            module = load_handlers(where, registry)
            for name in registry.names:
                home = registry.find(name).function.__module__
                if name not in before or home == module or home.startswith(f"{module}."):
                    handlers[name] = (workspace, application) if owner else None
        return cls(handlers)


class Executor:
    """One per process. Its session is what its leases are bound to."""

    def __init__(self, scope: Scope, registry: Registry = default_registry) -> None:
        self._scope = scope
        self._done: queue.SimpleQueue[tuple[Held, Report | None] | Asked] = queue.SimpleQueue()
        self._runners = Runners(registry, THREADS, lambda held, report: self._done.put((held, report)))
        self._held: dict[str, Held] = {}
        self._batch = THREADS
        self._may_have_strays = False
        self._claimed_at = 0.0
        self._renew_at = 0.0
        self._applications: dict[tuple[str, str], uuid.UUID] = {}
        name = f"celery@{socket.gethostname()}:{os.getpid()}"
        self._sendings = [
            {"handler": handler, **one.as_wire()}
            for handler in sorted(scope.handlers)
            for one in registry.find(handler).recipients
        ]
        self.holder = leases.Holder(new_id(), None, None, name, sends_to=recipients.keys_of(self._sendings))
        self._open_session()

    def drain(self, stopping: threading.Event | Any) -> int:
        """Runs stages until nothing is ready, its turn is over, or `stopping` is set; returns how many it ended.

        What it holds is always brought to an end first. A database outage is waited out; what cannot be reported
        before its lease ends is left to recovery.
        """
        ended = 0
        turn_ends = clock.now() + TURN_SECONDS

        def may_claim() -> bool:
            return not stopping.is_set() and clock.now() < turn_ends

        execute(
            "UPDATE pipelines_workersession SET last_seen_at = recourse_now() WHERE id = %s", [self.holder.session_id]
        )
        with listener.subscribed(None) as waiter:
            queues = self._queues()
            look_at = 0.0  # after a claim that found too little: when to look again, unless woken before
            while True:
                if self._may_have_strays:
                    self._give_back_strays()
                if waiter.wait(0.0):
                    queues, look_at = self._look_again(queues), 0.0
                room = self._batch - len(self._held)
                if may_claim() and room > 0 and clock.now() >= look_at and self._claim(queues, room) < room:
                    look_at = clock.now() + LOOK_AGAIN_SECONDS
                if self._held:
                    ended += self._collect(may_claim)
                elif not may_claim() or not self._linger(waiter, queues):
                    break
                else:
                    queues, look_at = self._queues(), 0.0
        if not stopping.is_set() and clock.now() >= turn_ends:
            send_hint()
        return ended

    def close(self) -> None:
        """Ends the session; nothing more is handed out to it."""
        execute(
            "UPDATE pipelines_workersession SET state = 'draining', ended_at = recourse_now() WHERE id = %s",
            [self.holder.session_id],
        )

    def _open_session(self) -> None:
        execute(
            "INSERT INTO pipelines_workersession (id, state, worker_name, instance_id, handlers, worker_version,"
            " sdk_version, host_name, pid, metadata, recipients, started_at, last_seen_at)"
            " VALUES (%s, 'active', %s, '', %s, '', '', %s, %s, '{}', %s, recourse_now(), recourse_now())",
            [
                self.holder.session_id,
                self.holder.worker,
                sorted(self._scope.handlers),
                socket.gethostname(),
                os.getpid(),
                json.dumps(self._sendings),
            ],
        )

    def _queues(self) -> list[Queue]:
        return [found for found in waiting_queues(list(self._scope.handlers)) if self._serves(found)]

    def _look_again(self, known: list[Queue]) -> list[Queue]:
        """The queues with work by now; in an outage those known before, so that what is held comes to its end."""
        try:
            return self._queues()
        except (OperationalError, InterfaceError):
            if not self._held:
                raise
            self._lose_connection()
            return known

    def _serves(self, found: Queue) -> bool:
        if found.handler not in self._scope.handlers:
            return False
        owner = self._scope.handlers[found.handler]
        if owner is None:
            return True
        if owner not in self._applications:
            rows = query(
                "SELECT a.id FROM pipelines_application a JOIN pipelines_workspace w ON w.id = a.workspace_id"
                " WHERE w.slug = %s AND a.name = %s",
                owner,
            )
            if not rows:
                return False
            self._applications[owner] = rows[0][0]
        return self._applications[owner] == found.application_id

    def _claim(self, queues: list[Queue], room: int) -> int:
        """Takes and starts up to `room` stages, and says how many it got."""
        asked_at = clock.now()
        try:
            jobs = leases.claim(self.holder, queues, limit=room, acquire=True)
        except (OperationalError, InterfaceError):
            if not self._held:
                self._may_have_strays = True
                raise
            self._lose_connection()  # an outage: what is held is brought to its end all the same
            return 0
        self._start(jobs, asked_at)
        return len(jobs)

    def _start(self, jobs: list[EngineJob], asked_at: float) -> None:
        if jobs and not self._held:
            self._claimed_at = asked_at
            self._renew_at = asked_at + _renew_every()
        for job in jobs:
            control = Control()
            control.owned_until = asked_at + settings.RECOURSE_LEASE_SECONDS - 1
            link = OwnLink(self.holder, job.stage.id, self._done.put)
            held = Held(Job(job_body(job)), control, self._renew_at, link)
            self._held[held.job.execution_id] = held
            self._runners.start(held)

    def _collect(self, may_claim: Callable[[], bool]) -> int:
        """Waits for at least one handler to end, reports what has, renews what is due; returns how many ended.

        While it `may_claim` it goes on with the stages that the reported ones made ready.
        """
        ended = self._finished(min(0.5, max(0.0, self._renew_at - clock.now())))
        if clock.now() >= self._renew_at:
            self._renew()
        if not ended:
            return 0
        for held, _ in ended:
            del self._held[held.job.execution_id]
        if not self._held:
            self._pace(clock.now() - self._claimed_at)
        asked_at = clock.now()
        self._start(self._report(ended, self._batch - len(self._held) if may_claim() else 0), asked_at)
        return len(ended)

    def _finished(self, seconds: float) -> list[tuple[Held, Report | None]]:
        """What has ended within the time, and what ends right after it. Serves what handlers ask for meanwhile."""
        ended: list[tuple[Held, Report | None]] = []
        until = clock.now() + seconds
        while len(ended) < len(self._held):
            try:
                one = self._done.get(timeout=max(0.0, until - clock.now()))
            except queue.Empty:
                break
            if isinstance(one, Asked):
                if not one.serve():
                    self._lose_connection()
                continue
            if not ended:
                until = clock.now() + GATHER_SECONDS
            ended.append(one)
        return ended

    def _pace(self, seconds: float) -> None:
        if seconds < QUICK_SECONDS:
            self._batch = min(LARGEST_BATCH, self._batch * 2)
        elif seconds > SLOW_SECONDS:
            self._batch = max(THREADS, self._batch // 2)

    def _report(self, ended: list[tuple[Held, Report | None]], limit: int) -> list[EngineJob]:
        reports = [
            _result(held.job, report.body)
            for held, report in ended
            if report is not None and report.outcome not in ("released", "stopped")
        ]
        given_back = [
            held
            for held, report in ended
            if report is None or (report.outcome in ("released", "stopped") and not held.was_cut_off)
        ]
        answer = self._persist(lambda: self._deliver(reports, limit))
        for held in given_back:
            self._persist(partial(self._give_back, held))
        for held, _ in ended:
            if held.context.termination is not None:
                self._persist(partial(self._tell_end, held))
        return answer or []

    def _deliver(self, reports: list[results.Result], limit: int) -> list[EngineJob]:
        """Reports a batch. A result that cannot be stored becomes a failure that says so, and spoils no other."""
        try:
            return results.report_and_claim(self.holder, reports, served=self._serves, limit=limit)[1]
        except DataError as error:
            if len(reports) > 1:
                return [job for report in reports for job in self._deliver([report], limit // len(reports))]
            log.error("executor.result_not_storable", attempt=str(reports[0].execution_id), error=str(error).strip())
            refused = _not_storable(reports[0], error)
            return results.report_and_claim(self.holder, [refused], served=self._serves, limit=limit)[1]

    def _persist(self, write: Callable[[], T]) -> T | None:
        """Repeats a write through a database outage, for as long as a lease may live; never runs a handler again."""
        give_up_at = clock.now() + settings.RECOURSE_LEASE_SECONDS
        pause = 0.05
        while True:
            try:
                return write()
            except (OperationalError, InterfaceError) as error:
                self._lose_connection()
                if clock.now() > give_up_at:
                    log.error("executor.result_not_confirmed", error=str(error).strip())
                    return None
                time.sleep(pause)
                pause = min(pause * 2, 2.0)

    def _lose_connection(self) -> None:
        connection.close()
        self._may_have_strays = True

    def _give_back_strays(self) -> None:
        """Attempts that were given to us in an answer that never came: nobody began them, so nothing is counted."""
        try:
            for stage_id, attempt_id in query(
                "SELECT stage_id, id FROM pipelines_attempt WHERE session_id = %s AND state = 'running'"
                " AND expires_at > recourse_now()",
                [self.holder.session_id],
            ):
                if str(attempt_id) not in self._held:
                    self._release(stage_id, attempt_id)
        except (OperationalError, InterfaceError):
            connection.close()
            return
        self._may_have_strays = False

    def _tell_end(self, held: Held) -> None:
        try:
            tell_termination(self.holder, held)
        except Refusal as refusal:
            log.error("executor.end_not_taken", attempt=held.job.execution_id, reason=refusal.code)

    def _give_back(self, held: Held) -> None:
        self._release(uuid.UUID(held.job.stage_id), uuid.UUID(held.job.execution_id))

    def _release(self, stage_id: uuid.UUID, attempt_id: uuid.UUID) -> None:
        try:
            leases.release(self.holder, stage_id, attempt_id)
        except Refusal as refusal:
            log.info("executor.already_lost", attempt=str(attempt_id), reason=refusal.code)

    def _renew(self) -> None:
        asked_at = clock.now()
        self._renew_at = asked_at + _renew_every()
        wanted = [(uuid.UUID(held.job.stage_id), uuid.UUID(held.job.execution_id)) for held in self._held.values()]
        try:
            answers = leases.renew(self.holder, wanted)
        except (OperationalError, InterfaceError):
            connection.close()
            self._renew_at = asked_at + 0.5
            return
        for lease in answers:
            held = self._held[str(lease.execution_id)]
            if lease.acquired:
                end = lease.expires_at.isoformat() if lease.expires_at else None
                held.extend(end, asked_at, settings.RECOURSE_LEASE_SECONDS - 1)
                held.control.pause_requested = any(command["command"] == "pause" for command in lease.commands)
            else:
                held.control.stop("cancelled" if lease.reason == "run_terminal" else "lost")

    def _linger(self, waiter: Any, queues: list[Queue]) -> bool:
        """Keeps the ear open a little longer; True when there may be work, False when the slot should be given back."""
        due = leases.next_due(queues, self.holder.sends_to)
        if due is not None and due <= 0:
            time.sleep(0.002)  # due, but in the hands of another claim: look again when that has committed
            return True
        seconds = LINGER_SECONDS if due is None else min(LINGER_SECONDS, due)
        return waiter.wait(seconds) or seconds < LINGER_SECONDS


def waiting_queues(handlers: list[str]) -> list[Queue]:
    """The queues of these handlers that have a stage ready or scheduled; one index probe a queue, not a row."""
    return [
        Queue(*row)
        for row in query(
            f"WITH RECURSIVE {EACH_QUEUE}"  # noqa: S608 - our own text
            " SELECT application_id, environment_id, handler FROM queue WHERE handler = ANY(%s)",
            [handlers],
        )
    ]


def executed_handlers() -> list[str]:
    """What the console's executors have announced. However long one was idle, it still takes hints."""
    return [
        row[0]
        for row in query(
            "SELECT DISTINCT unnest(handlers) FROM pipelines_workersession"
            " WHERE application_id IS NULL AND state = 'active'"
        )
    ]


def _executed_recipients() -> list[str]:
    """The keys of those to whom the console's executors send."""
    rows = query(
        "SELECT recipients::text FROM pipelines_workersession"
        " WHERE application_id IS NULL AND state = 'active' AND recipients <> '[]'"
    )
    return recipients.keys_of([one for (told,) in rows for one in json.loads(told)])


class _Hints:
    """Decides whether a hint is worth sending: is there an executor for the handler, and was none sent just now."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._names_until = 0.0
        self._sent_at = 0.0

    def worth(self, queues: Iterable[Queue]) -> bool:
        now = clock.now()
        if now - self._sent_at < HINT_GAP_SECONDS:
            return False
        if now >= self._names_until:
            self._names, self._names_until = frozenset(executed_handlers()), now + 5.0
        if not any(found.handler in self._names for found in queues):
            return False
        self._sent_at = now
        return True


_hints = _Hints()


def hint(queues: Iterable[Queue]) -> None:
    """After a commit that made stages ready: nudges an executor, if any serves one of these queues. May be lost."""
    if settings.RECOURSE_HANDLERS and _hints.worth(queues):
        send_hint()


def send_hint() -> None:
    """Sends one hint. A broker that cannot be reached only delays: the sweep looks every second."""
    from pipelines.tasks import execute_ready

    try:
        execute_ready.apply_async(expires=30, retry=False)
    except Exception as error:  # noqa: BLE001 - whatever a broker's library raises, the work stays in the database
        log.warning("executor.hint_not_sent", error=str(error))


def hint_overdue() -> bool:
    """Sends a hint when a stage of the console's handlers is due; the sweep asks, so a lost hint costs a second."""
    if not settings.RECOURSE_HANDLERS:
        return False
    handlers = executed_handlers()
    due = leases.next_due(waiting_queues(handlers), _executed_recipients()) if handlers else None
    if due is not None and due <= 0:
        send_hint()
        return True
    return False


def _renew_every() -> float:
    return min(settings.RECOURSE_RENEW_SECONDS, RENEW_SECONDS)


def _result(job: Job, body: dict[str, Any]) -> results.Result:
    return results.Result(
        stage_id=uuid.UUID(job.stage_id),
        execution_id=uuid.UUID(job.execution_id),
        attempt=job.attempt,
        status=body["status"],
        output=body.get("output"),
        error_code=(body.get("errorCode") or "")[:100],
        error_message=body.get("errorMessage") or "",
        traceback=body.get("traceback") or "",
        retryable=body.get("retryable"),
        context_items=[
            {"key": item["key"], "value": item["value"], "is_sensitive": item.get("isSensitive", False)}
            for item in body.get("contextItems") or ()
        ],
        logs=list(body.get("logs") or ()),
        usage=body.get("usage"),
        awaits_runs=[uuid.UUID(run_id) for run_id in body.get("awaitsRuns") or ()],
    )


def _not_storable(result: results.Result, error: DataError) -> results.Result:
    return results.Result(
        stage_id=result.stage_id,
        execution_id=result.execution_id,
        attempt=result.attempt,
        status="failed",
        error_code="RESULT_INVALID",
        error_message=f"the handler's result cannot be stored: {str(error).strip()}",
        retryable=False,
    )
