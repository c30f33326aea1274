"""Starts one command: in a session of its own, as another user where that is wished, within limits, with nothing open
that is not its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from recourse.processes import linux, table


class Started(NamedTuple):
    """The command's process, and our ends of its standard streams."""

    pid: int
    stdin: int
    stdout: int
    stderr: int


class NotStarted(Exception):
    """It was not; the text says at which step, and why. Nothing of it is left."""


def launch(args: list[str], env: Mapping[str, str], folder: str, wish: Mapping[str, Any]) -> Started:
    """`wish`: `user` [uid, gid] or None, `cpu_seconds`, `memory_bytes`, `files` (None: as they are), `processes`.

    Raises NotStarted, also when the program cannot be found or executed.
    """
    ours, its = [], []
    for read_end, write_end in (os.pipe(), os.pipe(), os.pipe()):
        ours.append((read_end, write_end))
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = ours
    its = [in_read, out_write, err_write]
    said, says = os.pipe()
    tasks = _task_limit(wish)
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(args, env, folder, wish, tasks, its, says, supervisor)
    for end in (*its, says):
        os.close(end)
    with os.fdopen(said, "rb") as file:
        why = file.read()
    if why:
        os.waitpid(pid, 0)
        for end in (in_write, out_read, err_read):
            os.close(end)
        raise NotStarted(why.decode(errors="backslashreplace"))
    return Started(pid, in_write, out_read, err_read)


def _task_limit(wish: Mapping[str, Any]) -> int | None:
    """RLIMIT_NPROC counts all that its user has, so what is there already comes on top. None where that is unknown."""
    if not linux.IS_LINUX:
        return None
    uid = wish["user"][0] if wish["user"] else os.getuid()
    return table.tasks_of_user(uid) + int(wish["processes"])


def _become(
    args: list[str],
    env: Mapping[str, str],
    folder: str,
    wish: Mapping[str, Any],
    tasks: int | None,
    streams: list[int],
    says: int,
    supervisor: int,
) -> None:
    """In the new process: never returns. What goes wrong is said through `says`, which the program itself never has."""
    step = "preparing"
    try:
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in signal.valid_signals():
            with contextlib.suppress(OSError, ValueError):  # two cannot be set
                signal.signal(number, signal.SIG_DFL)
        os.setsid()
        for stream, end in enumerate(streams):
            os.dup2(end, stream)
        if wish["user"]:
            step = "becoming another user"
            uid, gid = wish["user"]
            os.setgroups([])
            os.setregid(gid, gid)
            os.setreuid(uid, uid)
        step = "giving up privileges"
        linux.no_new_privileges()
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        step = "entering its folder"
        os.chdir(folder)
        os.umask(0o077)
        step = "setting limits"
        _limit(wish, tasks)
        os.closerange(3, says)
        os.closerange(says + 1, max(os.sysconf("SC_OPEN_MAX"), 256))
        step = f"executing {args[0]}"
        os.execvpe(args[0], args, dict(env))  # noqa: S606 - without a shell is what is wanted
    except BaseException as error:  # noqa: BLE001 - whatever it is, only the parent can tell it
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        os.write(says, f"{step}: {why}".encode(errors="backslashreplace")[:4096])
    finally:
        os._exit(127)


def _limit(wish: Mapping[str, Any], tasks: int | None) -> None:
    _at_most(resource.RLIMIT_CORE, 0)
    if wish["files"] is not None:
        _at_most(resource.RLIMIT_NOFILE, wish["files"])
    if tasks is not None:
        _at_most(resource.RLIMIT_NPROC, tasks)
    if wish["cpu_seconds"] is not None:
        # whoever does not end at the first is killed at the second
        whole = int(-(-wish["cpu_seconds"] // 1))
        _at_most(resource.RLIMIT_CPU, whole, whole + 5)
    if wish["memory_bytes"] is not None:
        _at_most(resource.RLIMIT_AS, wish["memory_bytes"])


def _at_most(kind: int, soft: int, hard: int | None = None) -> None:
    """Sets a limit, or leaves a stricter one that holds already."""
    most = resource.getrlimit(kind)[1]
    wanted = soft if hard is None else hard
    bound = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(kind, (min(soft, bound), bound))
