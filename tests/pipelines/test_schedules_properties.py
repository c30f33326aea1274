"""What holds for every schedule: order, both directions, windows, policies, words; and the zones as their files say."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import islice, pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines import zones
from pipelines.errors import Refusal
from pipelines.schedules import Due, Gap, Overlap, Rule, Schedule
from tests.pipelines import schedule_oracle as oracle

ZONES = oracle.zone_names()
LIMIT = 6000  # ticks: four days of every minute
SHORT = timedelta(days=2)


class Asked(NamedTuple):
    """A schedule and a window of some days, most often with a change of clocks in it."""

    schedule: Schedule
    start: datetime
    end: datetime

    def ticks(self, schedule: Schedule | None = None) -> list[Due]:
        return list((schedule or self.schedule).between(self.start, self.end))


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    dice = draw(st.randoms(use_true_random=False))
    timezone = draw(st.sampled_from(ZONES))
    near = oracle.transitions(timezone)
    middle = dice.choice(near) if near else oracle.BEGIN + timedelta(minutes=dice.randrange(30_000_000))
    schedule = Schedule.read(
        oracle.possible(dice, middle.astimezone(oracle.zone(timezone)).hour),
        timezone,
        draw(st.sampled_from(Gap.values)),
        draw(st.sampled_from(Overlap.values)),
    )
    start = middle - timedelta(seconds=dice.randrange(2 * 86400))
    return Asked(schedule, start, start + timedelta(seconds=dice.randrange(3 * 86400)))


BERLIN = Asked(
    Schedule.read("*/20,5 0-4 * * *", "Europe/Berlin", "shift", "both"),
    datetime(2026, 10, 24, 12, tzinfo=UTC),
    datetime(2026, 10, 25, 12, tzinfo=UTC),
)


@given(asked())
@example(BERLIN)
def test_backward_is_forward_turned_round(given_: Asked) -> None:
    forward = given_.ticks()
    backward = list(islice(given_.schedule.before(given_.end, inclusive=True), len(forward) + 1))
    assert backward[: len(forward)] == forward[::-1]
    assert all(due.at < given_.start for due in backward[len(forward) :])


@given(asked())
@example(BERLIN)
def test_instants_rise_strictly_and_are_what_the_zones_clocks_show(given_: Asked) -> None:
    ticks = given_.ticks()
    assert all(later.at > earlier.at for earlier, later in pairwise(ticks))
    for due in ticks:
        shown = due.at.astimezone(oracle.zone(given_.schedule.timezone))
        assert (due.local.isoformat(), due.local.fold) == (shown.isoformat(), shown.fold)
        assert (due.at.utcoffset(), due.local.tzinfo) == (timedelta(), zones.zone(given_.schedule.timezone))
        assert due.rule in Rule.values


@given(asked(), st.integers(0, LIMIT))
@example(BERLIN, 7)
def test_wherever_one_begins_the_ticks_are_the_same(given_: Asked, index: int) -> None:
    """After and before any instant, tick or not; a window is no more than that, with both its ends."""
    ticks = given_.ticks()
    cut = ticks[index % len(ticks)].at if ticks else given_.start
    after = [due for due in ticks if due.at > cut]
    assert list(islice(given_.schedule.after(cut), len(after))) == after
    assert given_.schedule.next(len(after), cut) == after
    assert list(given_.schedule.between(cut, given_.end)) == [due for due in ticks if due.at >= cut]
    assert list(given_.schedule.between(given_.start, cut)) == [due for due in ticks if due.at <= cut]
    before = [due for due in ticks if due.at < cut]
    assert list(islice(given_.schedule.before(cut), len(before))) == before[::-1]


@given(asked())
@example(BERLIN)
def test_policies_change_nothing_but_what_they_name(given_: Asked) -> None:
    """F105: fewest ticks with `skip` and `first`; the others add only theirs; real time knows none."""
    schedule = given_.schedule

    def told(gap: str, overlap: str) -> dict[datetime, str]:
        ticks = given_.ticks(Schedule(schedule.cron, schedule.timezone, gap, overlap))
        return {due.at: str(due.rule) for due in ticks}

    fewest, second, both = (told("skip", overlap) for overlap in ("first", "second", "both"))
    plain = {at: rule for at, rule in fewest.items() if rule in ("fixed_time", "real_time")}
    assert fewest.keys() | second.keys() == both.keys()
    for found in (fewest, second, both, told("shift", "first"), told("first_existing", "both")):
        assert plain.items() <= found.items()
    for gap, rule in (("shift", "gap_shift"), ("first_existing", "gap_first_existing")):
        added = told(gap, "first").items() - fewest.items()
        assert {rule_ for _, rule_ in added} <= {rule}


@given(asked())
@example(BERLIN)
def test_every_schedule_and_every_tick_has_its_words(given_: Asked) -> None:
    schedule = given_.schedule
    assert schedule.timezone in schedule.sentence()
    for due in islice(given_.ticks(), 50):
        told = schedule.explain(due)
        assert f"{due.at:%H:%M}" in told
        assert "{" not in told
        assert ("not exist" in told) == str(due.rule).startswith("gap_")
        assert ("comes twice" in told) or not str(due.rule).startswith("overlap_")


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=300)
def test_any_text_is_read_or_refused_with_a_type(expression: str, timezone: str) -> None:
    """Nothing else comes out: no error of cronsim's, of Python's, of the file system's."""
    for ask in ((expression, "UTC"), ("0 8 * * *", timezone)):
        assert code_of(*ask) in ("", "cron_invalid", "timezone_invalid")


def code_of(expression: str, timezone: str) -> str:
    """How it is refused, or nothing."""
    try:
        Schedule.read(expression, timezone)
    except Refusal as refused:
        return refused.code
    return ""


@given(st.lists(st.text("0123456789*,-/L#monfrijaW?", min_size=1, max_size=6), min_size=5, max_size=5).map(" ".join))
@settings(max_examples=500)
@example("*/1 0-0 1/31 1-12/12 0L")
def test_whatever_looks_like_an_expression_is_read_or_refused_and_then_has_a_sentence(expression: str) -> None:
    if code := code_of(expression, "Europe/Berlin"):
        assert code == "cron_invalid"
    else:
        schedule = Schedule.read(expression, "Europe/Berlin")
        assert schedule.sentence()
        assert schedule.next(1, datetime(2026, 1, 1, tzinfo=UTC))


# --- the zones as their files say -----------------------------------------------------------------------------------


def changes_in_file(name: str) -> list[tuple[datetime, int, int]]:
    """At, offset before, offset after, in seconds: those that the zone's file lists (RFC 9636), its second part."""
    data = resources.files("tzdata").joinpath("zoneinfo/" + name).read_bytes()

    def counts(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", data[at + 20 : at + 44])

    utc, standard, leap, number, kinds, letters = counts(0)
    start = 44 + number * 5 + kinds * 6 + letters + leap * 8 + standard + utc
    utc, standard, leap, number, kinds, letters = counts(start)
    start += 44
    instants = struct.unpack(f">{number}q", data[start : start + 8 * number])
    which = data[start + 8 * number : start + 9 * number]
    offsets = [struct.unpack_from(">l", data, start + 9 * number + 6 * kind)[0] for kind in range(kinds)]
    found, before = [], offsets[0]
    for at, kind in zip(instants, which, strict=True):
        if offsets[kind] != before:
            found.append((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at), before, offsets[kind]))
        before = offsets[kind]
    return found


def test_no_zone_changes_twice_within_a_day() -> None:
    """What `zones.changes` relies on; the nearest two are almost a week apart."""
    for name in ZONES:
        for (one, *_), (other, *_) in pairwise(changes_in_file(name)):
            assert other - one > timedelta(days=2), name


def test_every_change_that_a_file_lists_is_found() -> None:
    """A third of the zones each time, by the day of the year: all of them within days."""
    sample = random.Random(datetime.now(UTC).toordinal()).sample(ZONES, len(ZONES) // 3)
    for name in [*sample, "Africa/Monrovia", "Pacific/Apia", "Asia/Gaza"]:
        listed = [change for change in changes_in_file(name) if 1900 <= change[0].year < 2100]
        by_year: dict[int, list[tuple[datetime, int, int]]] = {}
        for change in listed:
            by_year.setdefault(change[0].year, []).append(change)
        for year, expected in by_year.items():
            found = [
                (change.at, change.before.total_seconds(), change.after.total_seconds())
                for change in zones.changes(name, year)
            ]
            # the year of the last one may have more, by the rule for all years after
            assert found[: len(expected)] == expected, (name, year)


@pytest.mark.parametrize("name", ["Europe/Berlin", "Asia/Gaza", "Pacific/Apia", "America/St_Johns"])
def test_a_seam_is_the_same_from_both_years_it_lies_in_and_from_each_of_its_days(name: str) -> None:
    for year in range(1990, 2040):
        for change in zones.changes(name, year):
            first, last = change.days
            seam = zones.seam_of(name, first)
            assert seam is not None
            assert seam == zones.seam_of(name, last)
            assert change in seam.changes
            assert zones.seam_of(name, seam.first - timedelta(days=1)) is None


@pytest.mark.parametrize(
    ("at", "before", "after", "days"),
    [
        ("2026-03-29T01:00", 1, 2, (29, 29)),
        (
            "2026-03-29T22:00",
            0,
            1,
            (29, 30),
        ),  # they move to the hour before midnight; a day more than needed does no harm
        ("2026-03-29T22:30", 0, 1, (29, 30)),  # 23:15 is missing, and moves to the next day
        ("2026-03-29T00:30", 1, 0, (29, 29)),
        ("2026-03-29T00:30", 0, -1, (28, 29)),
        ("2026-03-29T00:00", 0, 24, (29, 31)),
    ],
)
def test_a_change_touches_what_it_leaves_out_where_that_moves_and_what_it_repeats(
    at: str, before: int, after: int, days: tuple[int, int]
) -> None:
    change = zones.Change(
        datetime.fromisoformat(at).replace(tzinfo=UTC), timedelta(hours=before), timedelta(hours=after)
    )
    assert tuple(day.day for day in change.days) == days
