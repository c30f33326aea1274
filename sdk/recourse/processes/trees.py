"""A command's processes as one thing that can be looked at and ended.

`Descendants` (Linux) finds whatever descends from the supervisor, which is a subreaper: leaving the group, the session
or the parent does not help. What others start on its behalf (a service that it asks, a job that it puts into cron) does
not descend from it, and is not found. `Group` is what other systems offer: who leaves the group is not found.
"""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple, Protocol

from recourse.processes import table

MOST_ROUNDS = 500
ENDED = frozenset({"Z", "X"})


class Left(NamedTuple):
    """A process that could not be ended, or (pid None) one that nobody could look for."""

    pid: int | None
    command: str
    why: str


class Tree(Protocol):
    """The processes of one command. `finds_all`: nothing that descends from it is overlooked."""

    finds_all: bool

    def look(self) -> list[table.Process]:
        """What lives of it, cheaply and not exactly."""
        ...

    def send(self, number: int) -> int:
        """The signal to all of it; returns to how many."""
        ...

    def freeze(self) -> None:
        """Stops all of it, and what is made meanwhile, so that nothing escapes by being quick."""
        ...

    def left(self) -> list[Left]:
        """What still lives, and why it may."""
        ...


class Descendants:
    finds_all = True

    def __init__(self) -> None:
        self._root = os.getpid()

    def look(self) -> list[table.Process]:
        return _living(table.walk(self._root))

    def send(self, number: int) -> int:
        return sum(send_to(one, number) for one in self._living())

    def freeze(self) -> None:
        stopped: set[tuple[int, int]] = set()
        for _ in range(MOST_ROUNDS):
            fresh = [one for one in self._living() if (one.pid, one.started) not in stopped]
            if not fresh:
                return
            for one in fresh:
                send_to(one, signal.SIGSTOP)
                stopped.add((one.pid, one.started))

    def left(self) -> list[Left]:
        return [Left(one.pid, table.command_line(one.pid) or one.name, _why_alive(one)) for one in self._living()]

    def _living(self) -> list[table.Process]:
        return _living(table.descendants(self._root, table.everything()))


class Group:
    finds_all = False

    def __init__(self, group: int, platform: str) -> None:
        self._group = group
        self._platform = platform

    def look(self) -> list[table.Process]:
        return []

    def send(self, number: int) -> int:
        try:
            os.killpg(self._group, number)
        except OSError:
            return 0
        return 1

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def left(self) -> list[Left]:
        why = f"on {self._platform} what left the command's group cannot be found, so it counts as not stopped"
        unseen = Left(None, "", why)
        return [Left(self._group, "", "its group still has processes"), unseen] if self.send(0) else [unseen]


def _living(rows: list[table.Process]) -> list[table.Process]:
    return [one for one in rows if one.state not in ENDED]


def send_to(one: table.Process, number: int) -> bool:
    """The signal to just this process, never to a later one of the same number. False: it is gone, or not ours."""
    open_handle: Any = getattr(os, "pidfd_open", None)
    try:
        handle = open_handle(one.pid) if open_handle else None
    except OSError:
        handle = None
        if not table.read(one.pid):
            return False
    try:
        now = table.read(one.pid)
        if now is None or now.started != one.started:
            return False
        if handle is None:
            os.kill(one.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _why_alive(one: table.Process) -> str:
    try:
        os.kill(one.pid, 0)
    except PermissionError:
        return "it belongs to another user, and this worker may not end it"
    except OSError:
        pass
    state = "in a wait that cannot be interrupted" if one.state == "D" else f"in state {one.state}"
    return f"it did not end after SIGKILL: {state}"
