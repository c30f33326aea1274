"""The local clock by which a lease is measured: it never jumps, and goes on while the machine is suspended."""

from __future__ import annotations

import time

# Where there is no such clock, as outside Linux, suspend goes unnoticed.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds from some fixed instant. CLOCK_MONOTONIC stands still in suspend, while the lease runs out."""
    return time.clock_gettime(_CLOCK)
