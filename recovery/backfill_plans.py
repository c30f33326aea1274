"""What a backfill would do, before it does it: every tick of its window, which of them are missed, and who must agree.

Pure, and the same for the same world. Its digest covers all that would be done, each tick with the run that it has;
nothing that only describes the world around it: how long it may take, who works, which blackout holds. A hundred
thousand ticks are planned in a second: what is shown of them is made only for those that are looked at. Serves
O49–O56, F80, F108.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple

import rfc8785

from pipelines.schedules import Due
from pipelines.states import REDONE, RunStatus, SkipReason, TickState
from recovery.models import BackfillOrder, Reprocess
from recovery.plans import Agreement
from recovery.redoing import Withheld
from recovery.states import BACKFILL, BackfillState

LISTED = 1_000  # ticks that are listed, and made, without `max_ticks`
MOST_TICKS = 100_000  # of one backfill, whatever `max_ticks` says

NOT_RECORDED = "not recorded"  # why a tick is missed that is not in the ledger
ACTED_OUTSIDE = "acted-outside"  # why a tick is left alone that was to be done once more
NAMED = 20  # withheld ticks that a plan names, and unfit ones


class Known(NamedTuple):
    """A tick of the window that is in the ledger. `run_status` is blank when its run is not made yet, or removed."""

    state: str
    reason: str
    run: str | None
    run_status: str


class Occasion(NamedTuple):
    """One tick of the window. `run` is the one that it has, or had before it is done once more."""

    due: Due
    previous: datetime | None
    run: str | None
    why: str  # it is filled; blank: it is left alone
    withheld: Withheld | None = None  # it was to be done once more, and must not be


@dataclass(frozen=True, slots=True)
class Asked:
    """A request after its defaults. Its times are UTC."""

    trigger_id: uuid.UUID
    from_time: datetime
    to_time: datetime
    cron: str
    timezone: str
    gap: str
    overlap: str
    max_concurrent: int
    reprocess: str
    order: str

    def as_json(self) -> dict[str, Any]:
        return {
            "trigger_binding_id": str(self.trigger_id),
            "window": {"from": self.from_time.isoformat(), "to": self.to_time.isoformat()},
            "cron": self.cron,
            "timezone": self.timezone,
            "gap": self.gap,
            "overlap": self.overlap,
            "max_concurrent": self.max_concurrent,
            "reprocess": self.reprocess,
            "order": self.order,
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 of what makes two requests the same."""
        return sha256(rfc8785.dumps([BACKFILL, self.as_json()])).hexdigest()


@dataclass(frozen=True, slots=True)
class Unfit:
    """Inputs that the pipeline's schema does not take: of `looked_at` ticks those that will fail, and why."""

    looked_at: int = 0
    ticks: tuple[tuple[Due, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Around:
    """What a plan says and its digest leaves out."""

    estimate_seconds: float | None = None  # by how long the newest runs of the pipeline took
    without_worker: tuple[str, ...] = ()  # handlers that no live worker has registered
    trigger_version: int | None = None  # which says with what its runs are made; the digest covers what it says
    blackout: Mapping[str, Any] | None = None  # {name, reason, until, is_freeze} of what holds now
    unfit: Unfit = field(default_factory=Unfit)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a backfill acts, in words."""

    trigger: str
    pipeline: str
    environment: str
    is_protected: bool
    application: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a backfill would do. `occasions` are all ticks of the window, oldest first."""

    asked: Asked
    place: Place
    release_id: str
    stages: int  # of each run
    occasions: Sequence[Occasion]
    total_ticks: int  # that are filled
    made_with: Mapping[str, Any] = field(default_factory=dict)  # what the trigger says of its runs: `made_with_of`
    agreements: tuple[Agreement, ...] = ()
    around: Around = field(default_factory=Around)

    @property
    def missed(self) -> list[Occasion]:
        """What is filled, in the order in which it is let in."""
        found = [one for one in self.occasions if one.why]
        return found[::-1] if self.asked.order == BackfillOrder.NEWEST else found

    @property
    def skipped(self) -> int:
        """How many have a run and are left alone."""
        return len(self.occasions) - self.total_ticks

    @property
    def withheld(self) -> list[Occasion]:
        """What was to be done once more and is left alone, for its runs did something outside that is not cleared."""
        return [one for one in self.occasions if one.withheld]

    @property
    def missed_because(self) -> dict[str, int]:
        """How many ticks are filled for which reason."""
        return dict(sorted(Counter(one.why for one in self.occasions if one.why).items()))

    @property
    def size(self) -> dict[str, int]:
        """How much it touches, as rules count it."""
        return {"runs": self.total_ticks, "stages": self.total_ticks * self.stages, "ticks": self.total_ticks}

    @property
    def digest(self) -> str:
        return sha256(rfc8785.dumps(self._deeds())).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The plan as it is kept and put before others: counts and a digest instead of every tick."""
        deeds = self._deeds()
        first = next((one for one in self.occasions if one.why), None)
        last = next((one for one in reversed(self.occasions) if one.why), None)
        return {
            **deeds,
            "first_tick": first.due.at.isoformat() if first else None,
            "last_tick": last.due.at.isoformat() if last else None,
            "missed_because": self.missed_because,
            "trigger_version": self.around.trigger_version,
            "withheld_ticks": [
                {
                    "tick_time": one.due.at.isoformat(),
                    "local_time": one.due.local.isoformat(),
                    "execution_id": one.withheld.run,
                    "code": one.withheld.code,
                    "message": one.withheld.text,
                }
                for one in self.withheld[:NAMED]
                if one.withheld
            ],
            "unfit": len(self.around.unfit.ticks),
            "unfit_of": self.around.unfit.looked_at,
            "unfit_ticks": [
                {"tick_time": due.at.isoformat(), "local_time": due.local.isoformat(), "message": why}
                for due, why in self.around.unfit.ticks[:NAMED]
            ],
            "estimate_seconds": self.around.estimate_seconds,
            "protected": self.place.is_protected,
            "without_worker": list(self.around.without_worker),
            "blackout": dict(self.around.blackout) if self.around.blackout else None,
            "plan_digest": sha256(rfc8785.dumps(deeds)).hexdigest(),
        }

    def ticks(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Every tick as a dry run answers it, as far as `limit`, oldest first."""
        for one in self.occasions if limit is None else self.occasions[:limit]:
            told = (one.due.at, one.due.local.isoformat(), one.due.rule)
            yield (tick_json(*told, "pending") if one.why else skipped_json(*told, one.run, one.withheld))

    def answer(self, limit: int | None = None) -> dict[str, Any]:
        """The dry run's answer: source 002's shape, and what else is worth knowing before it is done (O51, O52)."""
        plan = self.as_json()
        return {
            "trigger_binding_id": plan.pop("trigger_binding_id"),
            "window": plan.pop("window"),
            "total_ticks": plan.pop("total_ticks"),
            "dispatched": 0,
            "failed": 0,
            "dry_run": True,
            "ticks": list(self.ticks(limit)),
            "backfill_id": None,
            "status": BackfillState.PREVIEWED.value,
            **plan,
        }

    def _deeds(self) -> dict[str, Any]:
        return {
            "kind": BACKFILL,
            **self.asked.as_json(),
            "trigger": self.place.trigger,
            "pipeline": self.place.pipeline,
            "environment": self.place.environment,
            "application": self.place.application,
            "release_id": self.release_id or None,
            "made_with_digest": sha256(rfc8785.dumps(dict(self.made_with))).hexdigest(),
            "total_ticks": self.total_ticks,
            "skipped": self.skipped,
            "withheld": len(self.withheld),
            "ticks_digest": _ticks_digest(self.occasions),
            "approvals": [one.as_json() for one in self.agreements],
        }


def tick_json(
    at: datetime,
    local_time: str,
    rule: str,
    status: str,
    run: uuid.UUID | str | None = None,
    *,
    reason: str = "",
    error: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One tick in source 002's shape, with its local time and the rule that made it."""
    told: dict[str, Any] = {"tick_time": at.isoformat(), "status": str(status)}
    if run is not None:
        told["execution_id"] = str(run)
    if error:
        told["error"] = dict(error)
    if reason:
        told["reason"] = str(reason)
    return {**told, "local_time": local_time, "rule": str(rule)}


def skipped_json(
    at: datetime, local_time: str, rule: str, run: uuid.UUID | str | None, withheld: Withheld | None
) -> dict[str, Any]:
    """A tick that is left alone: it has a run; or was to be done once more, and its error says why it must not be."""
    if withheld is None:
        return tick_json(at, local_time, rule, "skipped", run, reason=SkipReason.EXISTING)
    error = {"code": withheld.code, "message": withheld.text}
    return tick_json(at, local_time, rule, "skipped", run, reason=ACTED_OUTSIDE, error=error)


def occasions(
    dues: Iterable[Due],
    previous: datetime | None,
    known: Mapping[int, Known],
    reprocess: str,
    withheld: Mapping[datetime, Withheld] = MappingProxyType({}),
) -> list[Occasion]:
    """The ticks of a window, oldest first. `previous` is the tick before the first; `known` goes by seconds since 1970.

    A tick is missed when the ledger has no run for it, whatever the reason. Of those that have one, `withheld` are not
    done once more.
    """
    found: list[Occasion] = []
    find = known.get
    for due in dues:
        tick = find(int(due.at.timestamp()))
        if tick is None:
            found.append(Occasion(due, previous, None, NOT_RECORDED))
        elif tick.run is None:
            found.append(Occasion(due, previous, None, tick.reason or tick.state))
        else:
            held_back = withheld.get(due.at)
            found.append(Occasion(due, previous, tick.run, "" if held_back else done_again(tick, reprocess), held_back))
        previous = due.at
    return found


def done_again(tick: Known, reprocess: str) -> str:
    """Why a tick that has a run is done once more; blank: it is not. Never one whose run is unfinished."""
    if tick.state != TickState.DISPATCHED or tick.run_status not in REDONE[reprocess]:
        return ""
    if tick.run_status in REDONE[Reprocess.FAILED]:
        return f"its run {'was cancelled' if tick.run_status == RunStatus.CANCELLED else 'failed'}"
    return "its run is done again"


def estimate(total: int, max_concurrent: int, mean_seconds: float | None) -> float | None:
    """How long so many runs take, a few at a time; None where nobody knows how long one takes."""
    if mean_seconds is None or not total:
        return None
    rounds = -(-total // max(max_concurrent, 1))
    return round(rounds * mean_seconds, 1)


def _ticks_digest(found: Sequence[Occasion]) -> str:
    """SHA-256 of all ticks: the instant, whether it is filled, and the run that it has."""
    lines = [f"{one.due.at.timestamp():.0f} {'x' if one.why else '-'} {one.run or ''}" for one in found]
    return sha256("\n".join(lines).encode()).hexdigest()
