"""Outlives `up` for a moment: when `up` is gone, however it went, ends every process group that is still there.

Reads lines from its standard input: `+PID` a group was started, `=PID` the same for one that the others need until they
have gone (the database), `-PID` it has ended. The end of the input means that `up` has ended, in order (nothing is left
then) or not. Runs alone, without the site packages, to cost next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

GRACE_SECONDS = 8.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, str] = {}
    for line in sys.stdin:
        sign, pid = line[0], int(line[1:])
        if sign == "-":
            groups.pop(pid, None)
        else:
            groups[pid] = sign
    end(groups)


def end(groups: dict[int, str]) -> None:
    """Ask the leaders, wait, then kill the groups; those that others need only when the others have gone."""
    for kind in ("+", "="):
        part = [pid for pid, sign in groups.items() if sign == kind]
        for pid in part:
            _send(os.kill, pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while any(_send(os.killpg, pid, 0) for pid in part) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in part:
            _send(os.killpg, pid, signal.SIGKILL)


def _send(how: Callable[[int, int], None], pid: int, number: int) -> bool:
    try:
        how(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
