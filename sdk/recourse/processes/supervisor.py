"""The supervisor: one small process for each command, between the worker and whatever the command starts.

It reads one line of JSON, the wish, from its standard input, and starts the command. Then it feeds, listens, counts and
reaps, and tells the worker in lines of JSON: `{"log": [text, …]}` as lines come, `{"ended": {…}}` at last. A further
line on its input is the reason for which all must end. Input that ends means that the worker is gone, and so must all
be.

It ends after everything that it started, or, where that cannot be, after having said what is left.
"""

from __future__ import annotations

import binascii
import json
import os
import resource
import selectors
import signal
import time
from types import FrameType
from typing import Any

from recourse.processes import linux, table
from recourse.processes.launch import NotStarted, Started, launch
from recourse.processes.trees import Descendants, Group, Left, Tree

CHUNK = 65_536
QUICK_SECONDS, LOOK_SECONDS = 0.05, 0.2  # between looks at the tree: while it is young, and later
YOUNG_SECONDS = 2.0
LINGER_SECONDS = 1.0  # for what the command itself leaves running, to end by itself
MOST_LEFT = 200
MOST_LINE = 16_000
TAIL = 8_000
AT_ONCE = frozenset({"processes"})  # no grace for what multiplies


class Supervisor:
    def __init__(self, wish: dict[str, Any], said: bytes, folder: str, worker: int) -> None:
        self.wish = wish
        self.folder = folder
        self.worker = worker
        self.began = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.tree: Tree = Descendants()
        self.started: Started | None = None
        self.reason: str | None = None  # why all must end; None as long as nothing speaks for it
        self.by_itself = False  # whether the command's own process had ended before that
        self.signals: list[dict[str, Any]] = []
        self.kill_at: float | None = None
        self.status: int | None = None  # of the command's own process
        self.exited_at = 0.0
        self.all_gone = False
        self.known: set[tuple[int, int]] = set()
        self.seen = 1
        self.live_cpu = 0.0
        self.counted = linux.IS_LINUX
        self.output = bytearray()
        self.line = bytearray()
        self.tail = bytearray()
        self.received = 0
        self.input = wish["input"].encode("utf-8", "surrogatepass")
        self.control = bytearray(said)
        self.telling = bytearray()
        self.worker_gone = False

    def run(self, wake: int) -> dict[str, Any]:
        """Until all has ended, or could not be ended; what is to be told of it. Raises NotStarted."""
        self.started = launch(self.wish["args"], self.wish["env"], self.folder, self.wish)
        if self.wish["platform"] != "linux":
            self.tree = Group(self.started.pid, self.wish["platform"])
            self.counted = False
        for end in (self.started.stdin, self.started.stdout, self.started.stderr, 0, 1):
            os.set_blocking(end, False)
        self.selector.register(wake, selectors.EVENT_READ, self._woken)
        self.selector.register(0, selectors.EVENT_READ, self._hear)
        self.selector.register(self.started.stdout, selectors.EVENT_READ, self._take_output)
        self.selector.register(self.started.stderr, selectors.EVENT_READ, self._take_errors)
        self.selector.register(self.started.stdin, selectors.EVENT_WRITE, self._feed)
        self._obey()
        while not self.all_gone:
            for key, _ in self.selector.select(self._patience()):
                key.data(key.fd)
            self._reap()
            if not self.all_gone:
                self._watch()
            if self.kill_at is not None and time.monotonic() >= self.kill_at and not self.all_gone:
                self._kill()
                break
        return self._account()

    def must_end(self, reason: str) -> None:
        """TERM to all of it; KILL after the grace. The first reason stays. Who begins anew is frozen first."""
        if self.reason is not None:
            return
        self.reason = reason
        self.by_itself = self.status is not None
        if self.all_gone:
            return
        if reason in AT_ONCE:
            self.kill_at = time.monotonic()
            return
        self.tree.freeze()
        count = self.tree.send(signal.SIGTERM)
        self.tree.send(signal.SIGCONT)
        self._note(signal.SIGTERM, count)
        self.kill_at = time.monotonic() + self.wish["grace_seconds"]

    def _patience(self) -> float:
        now = time.monotonic()
        wait = QUICK_SECONDS if now - self.began < YOUNG_SECONDS else LOOK_SECONDS
        return max(0.0, min(wait, (self.kill_at or now + wait) - now))

    def _watch(self) -> None:
        """Looks at the tree, and at every limit."""
        now = time.monotonic()
        rows = self.tree.look()
        fresh = {(one.pid, one.started) for one in rows}
        main = self.started.pid if self.started else 0
        self.seen += sum(1 for one in fresh - self.known if one[0] != main)
        self.known = fresh
        self.live_cpu = sum(one.cpu_seconds for one in rows)
        parents = {one.parent for one in rows} & {one.pid for one in rows}
        if self.counted and any(table.ignores_children(pid) for pid in parents):
            self.counted = False
        if self.reason is not None:
            return
        wish = self.wish
        if sum(one.tasks for one in rows) >= wish["processes"]:
            self.must_end("processes")
        elif wish["cpu_seconds"] is not None and self._cpu() > wish["cpu_seconds"]:
            self.must_end("cpu")
        elif wish["wall_seconds"] is not None and now - self.began >= wish["wall_seconds"]:
            self.must_end("wall_clock")
        elif self.status is not None and now - self.exited_at >= LINGER_SECONDS:
            self.must_end("left_behind")

    def _kill(self) -> None:
        """KILL, frozen first, again and again until nothing is left or patience ends."""
        give_up_at = time.monotonic() + self.wish["kill_seconds"]
        most = 0
        while True:
            self.tree.freeze()
            most = max(most, self.tree.send(signal.SIGKILL))
            self._reap()
            if self.all_gone or time.monotonic() >= give_up_at:
                break
            time.sleep(0.01)
        self._note(signal.SIGKILL, most)

    def _note(self, number: signal.Signals, processes: int) -> None:
        after = round(time.monotonic() - self.began, 3)
        self.signals.append({"signal": number.name, "after_seconds": after, "processes": processes})

    def _reap(self) -> None:
        """Whatever has ended and is ours now. No child is left: nothing is, since all that lives descends from one."""
        main = self.started.pid if self.started else 0
        known = {pid for pid, _ in self.known}
        while True:
            try:
                pid, status, _ = os.wait4(-1, os.WNOHANG | linux.ANY_CHILD)
            except ChildProcessError:
                self.all_gone = self.status is not None and (self.tree.finds_all or not self.tree.send(0))
                return
            if pid == 0:
                return
            if pid == main:
                self.status = status
                self.exited_at = time.monotonic()
            elif pid not in known:
                self.seen += 1

    def _cpu(self) -> float:
        """Of all that was reaped, here or by a parent that was, and of what lives."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime + self.live_cpu

    def _woken(self, end: int) -> None:
        while _read(end):
            pass
        if _told_to_end:
            self.must_end("told_to_end")

    def _hear(self, end: int) -> None:
        data = _read(end)
        if data is None:
            return
        if not data:
            self.selector.unregister(end)
            self._worker_went()
            return
        self.control += data
        self._obey()

    def _obey(self) -> None:
        reason, found, _ = self.control.partition(b"\n")
        if found:
            self.must_end(reason.decode())

    def _worker_went(self) -> None:
        self.worker_gone = True
        self.telling.clear()
        self.must_end("worker_gone")

    def _feed(self, end: int) -> None:
        try:
            written = os.write(end, self.input[:CHUNK]) if self.input else 0
        except BlockingIOError:
            return
        except OSError:  # it does not want to read
            self.input = b""
            written = 0
        self.input = self.input[written:]
        if not self.input:
            self._close(end)

    def _take_output(self, end: int) -> None:
        data = self._take(end)
        if data:
            self.output += data

    def _take_errors(self, end: int) -> None:
        data = self._take(end)
        if not data:
            return
        self.tail += data
        del self.tail[:-TAIL]
        self.line += data
        *whole, rest = bytes(self.line).split(b"\n")
        self.line = bytearray(rest)
        if len(rest) > MOST_LINE:
            whole.append(rest)
            self.line.clear()
        self._tell_lines(whole)

    def _tell_lines(self, lines: list[bytes]) -> None:
        texts = [line.decode("utf-8", "backslashreplace") for line in lines if line.strip()]
        if texts:
            self._tell({"log": texts})

    def _take(self, end: int) -> bytes:
        """What the command says, up to its limit; whoever says more is ended and not listened to any longer."""
        data = _read(end)
        if data is None:
            return b""
        if not data:
            self._close(end)
            return b""
        room = self.wish["output_bytes"] - self.received
        self.received += len(data)
        if len(data) > room:
            self.must_end("output")
            if self.started:
                for stream in (self.started.stdout, self.started.stderr):
                    self._close(stream)
        return data[: max(0, room)]

    def _close(self, end: int) -> None:
        if end in self.selector.get_map():
            self.selector.unregister(end)
            os.close(end)

    def _tell(self, message: dict[str, Any]) -> None:
        if self.worker_gone:
            return
        self.telling += json.dumps(message).encode() + b"\n"
        if 1 not in self.selector.get_map():
            self.selector.register(1, selectors.EVENT_WRITE, self._utter)

    def _utter(self, end: int) -> None:
        try:
            written = os.write(end, self.telling[:CHUNK])
        except BlockingIOError:
            return
        except OSError:
            self.selector.unregister(end)
            self._worker_went()
            return
        del self.telling[:written]
        if not self.telling:
            self.selector.unregister(end)

    def _drain(self) -> None:
        """What stands in the pipes still. Nobody writes any more, or whoever does is not waited for."""
        if self.started is None:
            return
        for stream, take in ((self.started.stdout, self._take_output), (self.started.stderr, self._take_errors)):
            before = -1
            while stream in self.selector.get_map() and self.received != before:
                before = self.received
                take(stream)
        if self.line:
            self._tell_lines([bytes(self.line)])

    def _account(self) -> dict[str, Any]:
        self._drain()
        left: list[Left] = [] if self.all_gone and self.tree.finds_all else self.tree.left()
        if not self.tree.finds_all and self.reason is None:
            left = []  # nothing was to be ended
        self.live_cpu = sum(one.cpu_seconds for one in self.tree.look()) if left else 0.0
        most_rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        return {
            "exit_code": code if code is None or code >= 0 else None,
            "signal": _name(-code) if code is not None and code < 0 else None,
            "reason": self.reason,
            "by_itself": self.reason is None or self.by_itself,
            "signals": self.signals,
            "duration_seconds": round(time.monotonic() - self.began, 3),
            "cpu_seconds": round(self._cpu(), 3),
            "max_rss_bytes": most_rss * (1024 if linux.IS_LINUX else 1),
            "processes_seen": self.seen,
            "left": [one._asdict() for one in left[:MOST_LEFT]],
            "left_count": len(left),
            "complete": self.all_gone and not left and (self.tree.finds_all or self.reason is None),
            "counted": self.counted and not left,
            "output": binascii.b2a_base64(bytes(self.output), newline=False).decode(),
            "tail": bytes(self.tail).decode("utf-8", "backslashreplace"),
        }

    def finish(self, ended: dict[str, Any]) -> None:
        """The last word to the worker, if it is there to hear it."""
        if not self.worker_gone and os.getppid() == self.worker:
            os.set_blocking(1, True)
            _write_all(bytes(self.telling) + json.dumps({"ended": ended}).encode() + b"\n")


_told_to_end = False


def main() -> None:
    """The process. Nothing is printed but messages; what is wrong with the supervisor itself goes to standard error."""
    worker = os.getppid()
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _note_signal)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    linux.die_with_parent(signal.SIGTERM)
    text, found, said = _first_line()
    if not found:
        return
    wish: dict[str, Any] = json.loads(text)
    if (
        wish["platform"] == "linux"
    ):  # elsewhere nobody finds what left its parent: no more than that is done here either
        linux.become_subreaper()
    folder = _make_folder(wish)
    supervisor = Supervisor(wish, said, folder, worker)
    try:
        ended = supervisor.run(wake)
    except NotStarted as error:
        ended = {"not_started": str(error)}
    finally:
        _remove(folder)
    supervisor.finish(ended)


def _note_signal(number: int, frame: FrameType | None) -> None:
    """SIGTERM comes when the worker dies; SIGINT and SIGHUP of a terminal are the worker's to understand."""
    global _told_to_end  # noqa: PLW0603 - one process, one command
    _told_to_end = _told_to_end or number == signal.SIGTERM


def _first_line() -> tuple[bytes, bytes, bytes]:
    """The wish, its line's end, and what was said after it; no end when the worker went before it had said it."""
    text = b""
    while b"\n" not in text:
        data = os.read(0, CHUNK)
        if not data:
            break
        text += data
    return text.partition(b"\n")


def _make_folder(wish: dict[str, Any]) -> str:
    """A directory that the command's user owns and nobody else may enter."""
    folder: str = wish["folder"]
    os.mkdir(folder, 0o700)
    if wish["user"]:
        os.chown(folder, *wish["user"])
    for name in ("HOME", "TMPDIR"):
        wish["env"].setdefault(name, folder)
    return folder


def _remove(folder: str) -> None:
    import shutil  # takes longer to import than all the rest

    shutil.rmtree(folder, ignore_errors=True)


def _read(end: int) -> bytes | None:
    """b"" at the end, None when there is nothing just now."""
    try:
        return os.read(end, CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _write_all(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(1, data) :]
        except OSError:
            return


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


if __name__ == "__main__":
    main()
