"""What the holder of an attempt and its handler tell each other."""

from __future__ import annotations

import math
from collections.abc import Callable

from recourse import clock


class Control:
    """What the holder of an attempt tells its handler. Set from any thread, read by the handler; never taken back.

    `owned_until` is on the local clock: from then on the attempt counts as lost, even when nobody came to say so (F03).
    `times_out_at` too: by then the server has timed the attempt out, and says so only when it is asked next.
    `announce` is called after the handler said something that its holder may want to pass on at once.
    """

    __slots__ = ("announce", "owned_until", "pause_requested", "stop_reason", "times_out_at")

    def __init__(self, announce: Callable[[], None] = lambda: None) -> None:
        self.announce = announce
        self.stop_reason: str | None = None
        self.pause_requested = False
        self.owned_until = math.inf
        self.times_out_at = math.inf

    def stop(self, reason: str) -> None:
        """Asks the handler to stop; the first reason stays."""
        if self.stop_reason is None:
            self.stop_reason = reason

    @property
    def stopped_because(self) -> str | None:
        if self.stop_reason is None:
            now = clock.now()
            if now >= self.owned_until:
                return "lost"
            if now >= self.times_out_at:
                return "timed out"
        return self.stop_reason

    @property
    def is_lost(self) -> bool:
        """The lease is not ours any more, or its end has come."""
        return self.stop_reason == "lost" or clock.now() >= self.owned_until
