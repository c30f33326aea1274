"""The worker as a whole: puts the parts together, starts them, and ends them in order."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Mapping
from types import FrameType
from typing import Any

from recourse import clock
from recourse.errors import ApiError, ConfigurationError
from recourse.execution import Report
from recourse.handlers import Registry, default_registry
from recourse.jobs import Job
from recourse.repeating import Backoff, Unavailable
from recourse.settings import api_key as configured_key
from recourse.settings import base_url as configured_url
from recourse.version import VERSION
from recourse.worker.delivery import Delivery
from recourse.worker.leases import Held, Leases
from recourse.worker.live import Live
from recourse.worker.pulling import Places, Puller
from recourse.worker.runners import Runners
from recourse.worker.session import Commands, Session
from recourse.worker.terminations import Terminations

log = logging.getLogger("recourse.worker")

QUIET_SECONDS = 0.5  # for an answer that was on its way when the server was told


class Worker:
    """Runs an application's stages: pulls jobs with their leases, runs the registry's handlers, delivers how they end.

    `concurrency` attempts run at once, plain and async together; `prefetch` more may wait here, under lease. Their
    time-out runs while they wait, so it is for short handlers only. `drain_seconds` is how long running handlers may
    finish after SIGTERM; then they are told to stop, and have `stop_seconds` more, commands what ending them may take.

    What it promises: a handler runs only under a lease that was ours when it started; `ctx.cancelled` is true before
    the lease ends at the server (F03); a result is offered until the server says something definite, without running
    the handler again. What it does not: stop a handler that does not look at `ctx.cancelled`.

    Results are not acknowledged apart from being confirmed: the 202 of a result ends its delivery.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        registry: Registry = default_registry,
        name: str | None = None,
        version: str = "",
        metadata: Mapping[str, Any] | None = None,
        concurrency: int = 16,
        prefetch: int = 0,
        batch: int = 200,
        wait_seconds: int = 5,
        drain_seconds: float = 30.0,
        stop_seconds: float = 3.0,
        deliver_seconds: float = 30.0,
        most_unconfirmed: int = 2000,
    ) -> None:
        if not registry.names:
            raise ConfigurationError('no handler is registered; import the modules that use @handler("Name") first')
        if concurrency < 1 or prefetch < 0 or batch < 1:
            raise ConfigurationError("concurrency and batch are at least 1, prefetch at least 0")
        host = socket.gethostname()
        registration: dict[str, Any] = {
            "workerName": name or f"{host}-{os.getpid()}",
            "supportedHandlers": registry.names,
            "instanceId": str(uuid.uuid4()),
            "sdkVersion": VERSION,
            "hostName": host,
            "pid": os.getpid(),
        }
        sendings = [
            {"handler": handler, **one.as_wire()}
            for handler in registry.names
            for one in registry.find(handler).recipients
        ]
        if sendings:
            registration["recipients"] = sendings
        if version:
            registration["workerVersion"] = version
        if metadata:
            registration["metadata"] = dict(metadata)
        self._drain_seconds = drain_seconds
        self._stop_seconds = stop_seconds
        self._deliver_seconds = deliver_seconds
        self._session = Session(configured_url(base_url), configured_key(api_key), registration)
        self._live = Live(self._session)
        self._leases = Leases(self._session, self._live.announce)
        self._delivery = Delivery(self._session, self._leases.drop)
        self._terminations = Terminations(self._session)
        self._runners = Runners(registry, concurrency, self._ended)
        self._places = Places(concurrency + prefetch)
        self._puller = Puller(
            self._session,
            registry.names,
            self._places,
            batch=batch,
            wait_seconds=wait_seconds,
            ready=lambda: self._delivery.unsettled < most_unconfirmed,
            take=self._take,
        )
        self._session.on_commands = self._obey
        self._session.on_replaced = self._leases.lose_all
        self._draining = threading.Event()
        self._hurry = threading.Event()
        self._ending = threading.Lock()

    def run(self) -> None:
        """Starts, works until SIGTERM, SIGINT or the server's drain command, and ends in order. A second signal
        shortens the wait for running handlers. Call it in the main thread.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)

        # A handler of signals must not touch locks: the main thread may hold them.
        def note(signum: int, frame: FrameType | None) -> None:
            os.write(write_end, b"s")

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        threading.Thread(target=self._on_signals, args=(read_end,), name="recourse-signals", daemon=True).start()
        try:
            if self._open():
                self.start(opened=True)
                self._draining.wait()
                self.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(write_end)

    def start(self, *, opened: bool = False) -> None:
        """Makes the session and starts the threads; returns at once. Waits for a server that is away.

        Raises `ApiError` when the key or the registration is refused.
        """
        if not opened and not self._open():
            return
        self._leases.start()
        self._delivery.start()
        self._live.start(self._leases)
        self._puller.start()
        log.info("working; lease %.0f s", self._session.lease_seconds)

    def drain(self) -> None:
        """Asks the worker to end; returns at once. `stop` does it."""
        self._draining.set()
        self._puller.stop()
        self._places.wake()

    def stop(self) -> None:
        """Ends in order: no more pulls, and the server is told to hand nothing out; running handlers finish, or after
        `drain_seconds` are told to stop; their ends are delivered. Doing it again does nothing.

        1. A handler that stops when told gives its stage back. A command is ended with all that it started; what it was
           about nobody knows, so an `external` stage is left to its lease all the same.
        2. One that does not: stages of effect mode `none` and `idempotent` are given back all the same, `external` ones
           are left to their lease, since nobody knows how far they came.
        """
        with self._ending:
            if self._session.token == "":
                return
            self.drain()
            told = self._say_goodbye(seconds=1.0)
            if not self._places.wait_all_free(self._drain_seconds, self._hurry.is_set):
                self._stop_running()
            # Told, the server brings nothing more: a poll that it lets wait on needs no care.
            self._puller.join(QUIET_SECONDS if told else self._puller.longest_poll + 10.0)
            if not self._delivery.wait_settled(self._deliver_seconds):
                log.error("ended with %d result(s) not confirmed", self._delivery.unsettled)
            if not self._terminations.wait_told(self._deliver_seconds):
                log.error("ended without having told how processes ended")
            if not told:
                self._say_goodbye(seconds=5.0)
            self._close()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _open(self) -> bool:
        """Bootstraps, however long it takes; False when told to end first."""
        backoff = Backoff(first=0.2, most=15.0)
        while not self._draining.is_set():
            try:
                self._session.open()
            except Unavailable as error:
                wait = backoff.next(error.wait)
                log.warning("the server is away, again in %.1f s: %s", wait, error)
                self._draining.wait(wait)
            except ApiError:
                self._session.close()
                raise
            else:
                return True
        self._session.close()
        return False

    def _on_signals(self, read_end: int) -> None:
        """First signal: drain. Further ones: no more patience with handlers."""
        while os.read(read_end, 1):
            if self._draining.is_set():
                self._hurry.set()
                self._places.wake()
            log.info("told to end")
            self.drain()
        os.close(read_end)

    def _take(self, job: Job, asked_at: float) -> None:
        """A job is ours: run it, or give it back when we are ending."""
        self._places.take()
        held = self._leases.hold(job, asked_at)
        if self._draining.is_set():
            self._ended(held, None)
        else:
            self._runners.start(held)

    def _ended(self, held: Held, report: Report | None) -> None:
        """A handler came to its end, or (None) never began. Only now is its place free again."""
        held.running = False
        if held.context.termination is not None:
            self._terminations.add(held)
        if not held.abandoned:
            self._pass_on(held, report)
        self._places.give_back()

    def _pass_on(self, held: Held, report: Report | None) -> None:
        if report is not None and report.outcome != "stopped":
            self._delivery.add(held, report)
        elif report is None or (held.control.stop_reason == "drain" and not held.was_cut_off):
            self._delivery.add(held, released(held))
        else:
            # Lost, cancelled or timed out, and it obeyed: there is nothing to tell. Or cut off: see `stop`.
            self._leases.drop(held)

    def _obey(self, commands: Commands) -> None:
        """What the server asks in any answer. Unknown commands are for newer workers."""
        for command in commands:
            match command.get("command"):
                case "cancel":
                    for held in self._leases.find(command):
                        held.control.stop("cancelled")
                case "pause":
                    for held in self._leases.find(command):
                        held.control.pause_requested = True
                case "drain":
                    self.drain()

    def _stop_running(self) -> None:
        running = [held for held in self._leases.all() if held.running]
        log.warning("telling %d running handler(s) to stop", len(running))
        for held in running:
            held.control.pause_requested = True
            held.control.stop("drain")
        seconds = max([self._stop_seconds, *(held.context.stop_seconds for held in running)])
        if self._places.wait_all_free(seconds, lambda: False):
            return
        for held in running:
            if held.running:
                held.abandoned = True
                self._give_up(held)

    def _give_up(self, held: Held) -> None:
        """For a handler that goes on though it was told to stop. Its place stays taken, its end is not reported, and it
        waits for nothing any more.
        """
        was_lost = held.is_lost
        held.control.owned_until = clock.now()
        if held.job.effect_mode == "external" or was_lost:
            log.error("attempt %s did not stop; it is left to its lease", held.job.execution_id)
            self._leases.drop(held)
        else:
            log.error("attempt %s did not stop; its stage is given back", held.job.execution_id)
            self._delivery.add(held, released(held))

    def _say_goodbye(self, seconds: float) -> bool:
        """Shuts the session down; results are still taken from it. False when the server could not be told in time."""
        until = clock.now() + seconds
        backoff = Backoff(first=0.1, most=1.0)
        while True:
            try:
                self._session.post("workers/shutdown", seconds=3.0)
            except Unavailable as error:
                if self._hurry.is_set() or clock.now() >= until:
                    log.warning("the server could not be told that this worker ends: %s", error)
                    return False
                self._hurry.wait(backoff.next())
            else:
                return True

    def _close(self) -> None:
        for part in (self._leases, self._delivery, self._terminations, self._live, self._runners):
            part.close()
        self._puller.at_end(self._session.close)
        self._session.token = ""


def released(held: Held) -> Report:
    """The report that gives a stage back."""
    execution_id = held.job.execution_id
    return Report("released", {"executionId": execution_id}, b'{"executionId":"%s"}' % execution_id.encode())
