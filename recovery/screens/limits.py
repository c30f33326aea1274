"""What a run's page shows of its limits: how much is used, as figures and bars; folded where all is as usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.budget_queries import standing
from pipelines.limits import Limits
from pipelines.models import Run
from recovery import revisions

WIDTH = 1000  # of a bar


@dataclass(frozen=True, slots=True)
class Bar:
    """One limit: what is charged of it, what is reserved, and where both end in a bar of `WIDTH`."""

    word: str
    used: int
    reserved: int
    most: int
    is_size: bool = False

    @property
    def share(self) -> float:
        return 1.0 if not self.most else min(1.0, (self.used + self.reserved) / self.most)

    @property
    def x(self) -> float:
        return WIDTH * min(1.0, self.used / self.most) if self.most else WIDTH

    @property
    def width(self) -> float:
        return WIDTH * self.share - self.x

    @property
    def left(self) -> int:
        return max(0, self.most - self.used - self.reserved)

    @property
    def is_used_up(self) -> bool:
        return self.left == 0


@dataclass(frozen=True, slots=True)
class OfRun:
    """The run's limits, with bars of those that are counted; none where all are the defaults, which are far off."""

    run: Run
    limits: Limits
    bars: Sequence[Bar] = ()


def of_run(run: Run) -> OfRun:
    """Nothing is counted where all limits are the defaults: they are only told."""
    limits = Limits.of(run.limits)
    if limits == Limits():
        return OfRun(run, limits)
    found = standing(run)
    bars = [
        Bar("Attempts", found.charged.attempts, found.reserved.attempts, limits.total_attempts),
        Bar("Output", found.charged.bytes, found.reserved.bytes, limits.total_output_bytes, is_size=True),
        Bar("Revisions", revisions.used([run.id]).get(run.id, 0), 0, limits.revisions),
    ]
    return OfRun(run, limits, bars)
