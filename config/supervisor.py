"""Starts and watches the processes of `up`: starts them in order, restarts what crashes, stops all in reverse order.

The samples add themselves by a module `samples.up`, used when it exists and `--no-samples` is not given, with

- `HANDLERS`: entries that are added to RECOURSE_HANDLERS for all processes of this `up`;
- `seed(base_url: str) -> None`: called once after `ready`, in a process of its own with Django set up. Makes what the
  samples need (workspace, keys in files of the data directory …); must be a no-op when everything is there already;
- `services(base_url: str) -> list[Service]`: called after `seed` has ended well, in the supervisor. The processes to
  run. They are restarted when they end, like all others; those with `stop_first` end before the others when `up` stops.

Promises: each service is the leader of its own process group, and nothing of a group outlives `up`, even when `up` is
killed with -9 (see `guardian`). A service that ends is started again after 0.2 s, doubling up to 15 s while it keeps
ending.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

log = structlog.get_logger("up")

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 15.0
STEADY_SECONDS = 30.0


@dataclass(frozen=True)
class Service:
    """One process to keep running. `env` is laid over the environment of `up`; `fds` stay open in the process.

    `stop_first`: it needs the others to stop in order (a worker says goodbye to the server). `stop_last`: the others
    need it (the database).
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    fds: tuple[int, ...] = ()
    stop_seconds: float = 10.0
    stop_first: bool = False
    stop_last: bool = False


class StopRequestedError(Exception):
    """SIGTERM or SIGINT arrived while something was being waited for."""


class Supervisor:
    """Keeps services running until SIGTERM or SIGINT. One per process; must live in the main thread."""

    def __init__(self, *, kept_open: Iterable[int] = ()) -> None:
        self.children: list[_Child] = []
        self.stopping = False
        self._guardian = _Guardian(tuple(kept_open))
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)

    def __enter__(self) -> Supervisor:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        self._guardian.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()
        self._guardian.dismiss()
        signal.set_wakeup_fd(-1)

    def start(self, service: Service) -> None:
        """Start `service` and keep it running from now on."""
        child = _Child(service)
        self.children.append(child)
        child.start(self._guardian)

    def run(self) -> None:
        """Watch until a stop is asked for."""
        while not self.stopping:
            self._watch(None)

    def wait_for(self, condition: Callable[[], bool], *, seconds: float, every: float = 0.1) -> bool:
        """Watch until `condition` holds, at most `seconds`: whether it does. Raises StopRequestedError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._watch(every)
            self.heed_stop()
        self.heed_stop()
        return True

    def heed_stop(self) -> None:
        """For the time between two steps that know nothing of signals. Raises StopRequestedError."""
        if self.stopping:
            raise StopRequestedError

    def run_once(self, service: Service) -> int:
        """Run `service` to its end while watching the others: its exit code. Raises StopRequestedError."""
        child = _Child(service, once=True)
        self.children.append(child)
        child.start(self._guardian)
        try:
            while child.code is None:
                self._watch(None)
                self.heed_stop()
        finally:
            if child.code is not None:
                self.children.remove(child)
        return child.code

    def stop_all(self) -> None:
        """Stop every service, the last started first; one that does not listen is killed with its whole group."""
        self.stopping = True
        for first, last in ((True, False), (False, False), (False, True)):
            group = [
                child
                for child in reversed(self.children)
                if (child.service.stop_first, child.service.stop_last) == (first, last)
            ]
            for child in group:
                child.ask_to_stop()
            for child in group:
                child.wait_or_kill(self._guardian)

    def _on_stop(self, *_: object) -> None:
        self.stopping = True

    def _watch(self, seconds: float | None) -> None:
        due = [child.start_at for child in self.children if child.start_at is not None]
        now = time.monotonic()
        pauses = [max(0.0, moment - now) for moment in due] + ([seconds] if seconds is not None else [])
        with suppress(InterruptedError):
            select.select([self._wake_read], [], [], min(pauses, default=None))
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        if self.stopping:
            return
        self._guardian.look(self.children)
        for child in self.children:
            child.look(self._guardian)


class _Child:
    """One service and the process that runs it now."""

    def __init__(self, service: Service, *, once: bool = False) -> None:
        self.service = service
        self.once = once
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.start_at: float | None = None
        self.started = 0.0
        self.pause = FIRST_PAUSE

    def start(self, guardian: _Guardian) -> None:
        self.start_at = None
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            list(self.service.argv),
            env=os.environ | dict(self.service.env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=self.service.fds,
        )
        guardian.watch(self)

    def look(self, guardian: _Guardian) -> None:
        """Notice an end and set the moment of the next start; start again when that moment has come."""
        if self.start_at is not None and time.monotonic() >= self.start_at:
            self.start(guardian)
        if self.process is None or self.process.poll() is None:
            return
        self._gone(guardian)
        if self.once:
            return
        self.pause = FIRST_PAUSE if time.monotonic() - self.started > STEADY_SECONDS else self.pause
        log.warning("service ended; starting it again", service=self.service.name, code=self.code, seconds=self.pause)
        self.start_at = time.monotonic() + self.pause
        self.pause = min(self.pause * 2, LONGEST_PAUSE)

    def ask_to_stop(self) -> None:
        self.start_at = None
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait_or_kill(self, guardian: _Guardian) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(self.service.stop_seconds)
        except subprocess.TimeoutExpired:
            log.warning("service does not stop; killing it", service=self.service.name)
        self._gone(guardian)

    def _gone(self, guardian: _Guardian) -> None:
        if self.process is None:
            return
        # Whatever is left of its group has lost its leader, or did not listen to it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.code = self.process.wait()
        guardian.forget(self.process.pid)
        self.process = None


class _Guardian:
    """The other end of `config/guardian.py`: told of every group, it ends them all when this process is gone."""

    def __init__(self, kept_open: tuple[int, ...]) -> None:
        self.kept_open = kept_open
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-S", str(Path(__file__).with_name("guardian.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=self.kept_open,
        )

    def watch(self, child: _Child) -> None:
        if child.process is not None:
            self._tell(f"{'=' if child.service.stop_last else '+'}{child.process.pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def look(self, children: list[_Child]) -> None:
        """Replace a guardian that was killed, and tell the new one everything."""
        if self.process is not None and self.process.poll() is not None:
            self.start()
            for child in children:
                if child.process is not None:
                    self.watch(child)

    def dismiss(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
            self.process.wait()

    def _tell(self, line: str) -> None:
        if self.process is not None and self.process.stdin is not None:
            # A broken pipe means that it was killed: `look` starts another.
            with suppress(BrokenPipeError):
                self.process.stdin.write(line.encode())
                self.process.stdin.flush()
