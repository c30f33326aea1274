"""The kernel's table of processes, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
SIGCHLD_BIT = 1 << 16


class Process(NamedTuple):
    """A process as it was when looked at. `started` (in ticks since boot) with `pid` tells it from a later one.

    `cpu_seconds` is its own and that of the children that it has waited for.
    """

    pid: int
    parent: int
    started: int
    state: str
    name: str
    tasks: int
    cpu_seconds: float


def read(pid: int) -> Process | None:
    """The process, None when there is none (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # the name stands in brackets, and may hold brackets and blanks itself
    head, _, tail = text.rpartition(b")")
    words = tail.split()
    ticks = sum(int(word) for word in words[11:15])
    return Process(
        pid=pid,
        parent=int(words[1]),
        started=int(words[19]),
        state=words[0].decode(),
        name=head.partition(b"(")[2].decode(errors="backslashreplace"),
        tasks=int(words[17]),
        cpu_seconds=ticks / TICKS,
    )


def everything() -> list[Process]:
    """All processes that are seen from here."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [one for one in found if one is not None]


def descendants(root: int, rows: Iterable[Process]) -> list[Process]:
    """Those of `rows` that descend from `root`, zombies too, without `root` itself."""
    children: dict[int, list[Process]] = {}
    for row in rows:
        children.setdefault(row.parent, []).append(row)
    found: list[Process] = []
    ahead = [root]
    while ahead:
        below = children.pop(ahead.pop(), [])
        found += below
        ahead += [one.pid for one in below]
    return found


def walk(root: int) -> list[Process]:
    """As `descendants` of everything, at a price that depends on the tree alone. While the tree changes it may miss
    some: good enough for counting, not for ending.
    """
    try:
        found: list[Process] = []
        ahead = _children(root)
        while ahead:
            pid = ahead.pop()
            one = read(pid)
            if one is not None:
                found.append(one)
                ahead += _children(pid)
        return found
    except FileNotFoundError:  # a kernel that keeps no such files
        return descendants(root, everything())


def _children(pid: int) -> list[int]:
    """Raises FileNotFoundError when the kernel tells nobody's children."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):
                raise
        except OSError:  # it ended meanwhile
            continue
    return found


def ignores_children(pid: int) -> bool:
    """Whether the process has its children's ends thrown away, and with them what they used."""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigIgn:"):
                    return bool(int(line.split()[1], 16) & SIGCHLD_BIT)
    except OSError:
        pass
    return False


def tasks_of_user(uid: int) -> int:
    """How many processes and threads a user has, which is what RLIMIT_NPROC counts."""
    count = 0
    for row in everything():
        try:
            if os.stat(f"/proc/{row.pid}").st_uid == uid:
                count += row.tasks
        except OSError:
            continue
    return count


def command_line(pid: int) -> str:
    """What it was started with, blanks between; "" when that cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).rstrip(b"\0").replace(b"\0", b" ").decode(errors="backslashreplace")
    except OSError:
        return ""
