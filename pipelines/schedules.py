"""When a schedule is due: a cron expression read in a time zone, with what to do about local times that a change of
clocks leaves out or repeats (contract.md §4; F80–F99, F105; O53, O56). Pure: no clock, no database, no host's zone.

Two kinds of expression. One whose minute or hour begins with `*` follows real time: every instant at which the clocks
show a time that matches, both passes of a repeated hour, nothing for times that do not exist. Any other names fixed
times, each once for each of its days: `gap` and `overlap` say what becomes of one that does not exist or exists twice.
Instants rise strictly; ticks that fall on one instant are one tick.

Limits: from 1800 until the end of 2200. Do not compare `Due.local` with times of other zones for equality: Python calls
times that exist twice equal to nothing. Compare `Due.at`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import chain, dropwhile, islice, takewhile
from typing import Protocol

from django.db.models import TextChoices

from pipelines import cron as crons
from pipelines import cron_sentences as words
from pipelines import zones
from pipelines.errors import Refusal


class Gap(TextChoices):
    """What becomes of a fixed time that does not exist, because clocks went forward over it."""

    FIRST_EXISTING = "first_existing"  # the first instant that exists after it
    SHIFT = "shift"  # as much later as the clocks went forward
    SKIP = "skip"  # nothing on that day


class Overlap(TextChoices):
    """What becomes of a fixed time that exists twice, because clocks went back over it."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


class Rule(TextChoices):
    """What made a tick. Of several that fall on one instant the first in this order is told."""

    FIXED_TIME = "fixed_time"
    REAL_TIME = "real_time"
    OVERLAP_FIRST = "overlap_first"
    OVERLAP_SECOND = "overlap_second"
    GAP_SHIFT = "gap_shift"
    GAP_FIRST_EXISTING = "gap_first_existing"


GAP_RULES = (Rule.GAP_SHIFT, Rule.GAP_FIRST_EXISTING)
GAP_WORDS = {
    Gap.FIRST_EXISTING: "",
    Gap.SHIFT: "a time that does not exist fires as much later",
    Gap.SKIP: "a time that does not exist is left out",
}
OVERLAP_WORDS = {
    Overlap.FIRST: "",
    Overlap.SECOND: "a time that exists twice fires the second time",
    Overlap.BOTH: "a time that exists twice fires both times",
}
RANK = {rule: rank for rank, rule in enumerate(Rule)}


@dataclass(frozen=True, slots=True)
class Due:
    """One instant at which a schedule is due."""

    at: datetime  # UTC
    local: datetime  # in the schedule's zone: what its clocks show then
    rule: str

    @classmethod
    def kept(cls, at: datetime, timezone: str, rule: str) -> Due:
        """A tick that was found before, of what its row keeps."""
        return cls(at, at.astimezone(zones.zone(timezone)), rule)


class Scheduled(Protocol):
    """Whatever keeps a schedule: a trigger, a tick with that of its time, a backfill."""

    @property
    def cron(self) -> str: ...
    @property
    def timezone(self) -> str: ...
    @property
    def gap(self) -> str: ...
    @property
    def overlap(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """Build it with `read`, which refuses what is wrong; `of` is for what was read before."""

    cron: str
    timezone: str
    gap: str = Gap.FIRST_EXISTING
    overlap: str = Overlap.FIRST

    @classmethod
    def read(cls, cron: str, timezone: str, gap: str = Gap.FIRST_EXISTING, overlap: str = Overlap.FIRST) -> Schedule:
        """Refused: `cron_invalid`, `timezone_invalid`, and `validation_error` for `gap` and `overlap`."""
        text = crons.read(cron).text
        zones.zone(timezone)
        for field, value, choices in (("gap", gap, Gap), ("overlap", overlap, Overlap)):
            if value not in choices.values:
                message = f"{field} is one of {', '.join(choices.values)}."
                raise Refusal("validation_error", message, errors={field: [message]})
        return cls(text, timezone, str(gap), str(overlap))

    @classmethod
    def of(cls, kept: Scheduled) -> Schedule:
        return cls(kept.cron, kept.timezone, kept.gap, kept.overlap)

    def after(self, instant: datetime, *, inclusive: bool = False) -> Iterator[Due]:
        """Every tick after the instant, in order, until the end of 2200; in constant memory."""
        instant = _utc(instant)
        return dropwhile(
            lambda due: due.at < instant or (due.at == instant and not inclusive),
            chain.from_iterable(self._days(instant, forward=True)),
        )

    def before(self, instant: datetime, *, inclusive: bool = False) -> Iterator[Due]:
        """Every tick before the instant, the latest first, back to 1800."""
        instant = _utc(instant)
        return dropwhile(
            lambda due: due.at > instant or (due.at == instant and not inclusive),
            chain.from_iterable(self._days(instant, forward=False)),
        )

    def between(self, start: datetime, end: datetime) -> Iterator[Due]:
        """Every tick of a window; both its ends belong to it (O53)."""
        end = _utc(end)
        return takewhile(lambda due: due.at <= end, self.after(start, inclusive=True))

    def ahead(
        self, instant: datetime, starts_at: datetime | None = None, ends_at: datetime | None = None
    ) -> Iterator[Due]:
        """Every tick after the instant from a start to an end, where there are such; both belong to it."""
        if starts_at is not None and starts_at > instant:
            dues = self.after(starts_at, inclusive=True)
        else:
            dues = self.after(instant)
        return dues if ends_at is None else takewhile(lambda due: due.at <= ends_at, dues)

    def next(self, count: int, after: datetime) -> list[Due]:
        return list(islice(self.after(after), count))

    def sentence(self) -> str:
        """The schedule in plain words: "At 16:15 on Monday to Friday, Europe/Berlin time"."""
        fields = crons.read(self.cron)
        where = self.timezone if self.timezone == "UTC" else f"{self.timezone} time"
        policies = () if fields.real_time else (GAP_WORDS[Gap(self.gap)], OVERLAP_WORDS[Overlap(self.overlap)])
        return "; ".join((f"{self.when()}, {where}", *filter(None, policies)))

    def when(self) -> str:
        """When it is due, without its zone: "At 16:15 on Monday to Friday"."""
        return words.sentence(crons.read(self.cron))

    def explain(self, due: Due) -> str:
        """What made this tick, in plain words, with the change of clocks where one had its part in it. Only the instant
        and the rule are read of it: a row of the ledger says as much."""
        local = due.at.astimezone(zones.zone(self.timezone))
        seam = zones.seam_of(self.timezone, local.date())
        when = f"{words.with_zone(local)}{words.in_utc(local, due.at)}"
        where = "" if self.timezone == "UTC" else f" in {self.timezone}"
        plain = f"{words.with_zone(local)} on {local:%Y-%m-%d}{where}{words.in_utc(local, due.at)}"
        if seam is None:
            return plain
        left_out = [named for named, at, rule in self._made(seam) if at == due.at and rule in GAP_RULES]
        if left_out and due.rule in GAP_RULES:
            later = "as much later, " if due.rule == Rule.GAP_SHIFT else ""
            return (
                f"{_told(left_out)} {'does' if len(left_out) == 1 else 'do'} not exist on {_dates(left_out)} "
                f"in {self.timezone} ({_change(seam.leaves_out(left_out[0]))}): fires {later}at {when}"
            )
        if left_out:
            fall = "falls" if len(left_out) == 1 else "fall"
            return f"{plain}; {_told(left_out)}, left out by clocks that day, {fall} on it"
        twice = seam.repeats(local.replace(tzinfo=None))
        if twice is None:
            return plain
        which = "second" if due.at >= twice.at else "first"
        if due.rule == Rule.REAL_TIME:
            return f"{plain}; it comes twice ({_change(twice)}): this is the {which} time"
        return (
            f"{words.at_clock(local)} comes twice on {local:%Y-%m-%d} in {self.timezone} ({_change(twice)}): "
            f"fires the {which} time, at {when}"
        )

    def _days(self, instant: datetime, *, forward: bool) -> Iterator[list[Due]]:
        """The ticks day by day, from the local day of the instant on. Days that a change of clocks touches come at
        once: there, times of two days may interleave."""
        fields, zone = crons.read(self.cron), zones.zone(self.timezone)
        start = min(max(instant, EARLIEST), LATEST).astimezone(zone).date()
        start = max(start, crons.FIRST_DAY) if forward else min(start, crons.LAST_DAY)
        if seam := zones.seam_of(self.timezone, start):
            start = seam.first if forward else seam.last
        times = fields.times if forward else fields.times[::-1]
        rule = Rule.REAL_TIME if fields.real_time else Rule.FIXED_TIME
        done: zones.Seam | None = None
        for day in fields.days_from(start) if forward else fields.days_until(start):
            seam = zones.seam_of(self.timezone, day)
            if seam is None:
                midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
                began = midnight.astimezone(UTC)
                yield [Due(began + since, midnight + since, rule) for since in times]
            elif seam != done:
                done = seam
                ticks = self._ticks_of(seam)
                yield ticks if forward else ticks[::-1]

    def _ticks_of(self, seam: zones.Seam) -> list[Due]:
        zone = zones.zone(self.timezone)
        ruled: dict[datetime, Rule] = {}
        for _, at, rule in self._made(seam):
            ruled[at] = min(rule, ruled.get(at, rule), key=RANK.__getitem__)
        return [Due(at, at.astimezone(zone), ruled[at]) for at in sorted(ruled)]

    def _made(self, seam: zones.Seam) -> Iterator[tuple[datetime, datetime, Rule]]:
        """Every time on the clock that the expression names in these days, with what becomes of it."""
        fields = crons.read(self.cron)
        for day in takewhile(lambda day: day <= seam.last, fields.days_from(seam.first)):
            for since in fields.times:
                local = datetime.combine(day, time()) + since
                for at, rule in self._instants(local, seam, real_time=fields.real_time):
                    yield local, at, rule

    def _instants(self, local: datetime, seam: zones.Seam, *, real_time: bool) -> list[tuple[datetime, Rule]]:
        found = seam.instants(local)
        if real_time:
            return [(at, Rule.REAL_TIME) for at in found]
        if len(found) == 1:
            return [(found[0], Rule.FIXED_TIME)]
        if found:
            passes = [(found[0], Rule.OVERLAP_FIRST), *((at, Rule.OVERLAP_SECOND) for at in found[1:])]
            return {Overlap.FIRST: passes[:1], Overlap.SECOND: passes[1:2]}.get(Overlap(self.overlap), passes)
        if self.gap == Gap.SKIP:
            return []
        change = seam.leaves_out(local)
        if self.gap == Gap.SHIFT:
            return [(zones.instant(local, change.before), Rule.GAP_SHIFT)]
        return [(change.at, Rule.GAP_FIRST_EXISTING)]


# beyond these nothing is due, and the local day of some instants could not even be told
EARLIEST = datetime.combine(crons.FIRST_DAY, time(), tzinfo=UTC) - timedelta(days=7)
LATEST = datetime.combine(crons.LAST_DAY, time(), tzinfo=UTC) + timedelta(days=7)


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError("a schedule asks for times with a zone")
    return instant.astimezone(UTC)


def _told(times: list[datetime]) -> str:
    told = [words.at_clock(local) for local in times]
    return words.listed(told if len(told) < 4 else [*told[:2], f"{len(told) - 2} more times"])


def _dates(times: list[datetime]) -> str:
    return words.listed([f"{day:%Y-%m-%d}" for day in sorted({local.date() for local in times})])


def _change(change: zones.Change) -> str:
    """clocks go from 02:00 to 03:00"""
    low, high = change.from_wall, change.to_wall
    days = [""] * 2 if low.date() == high.date() else [f" on {local:%Y-%m-%d}" for local in (low, high)]
    back = "" if change.after > change.before else "back "
    return f"clocks go {back}from {words.at_clock(low)}{days[0]} to {words.at_clock(high)}{days[1]}"
