"""Which processes of an attempt still live, asked of the kernel: a command's environment goes to all that it starts."""

from __future__ import annotations

import os
from pathlib import Path

from recourse.processes import table


def living(execution_id: str) -> list[int]:
    """The processes that were started for this attempt and have not ended, wherever they went since."""
    mark = f"RECOURSE_EXECUTION_ID={execution_id}".encode()
    return [pid for pid in _pids() if _is_of(pid, mark)]


def _is_of(pid: int, mark: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    now = table.read(pid)
    return mark in environment.split(b"\0") and now is not None and now.state not in ("Z", "X")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
