"""Schedules against an oracle that walks every minute (F92): instants and rules, forward and backward.

`make prove` goes through 10,000 random expressions: every zone of the database in turn, each at least sixteen times,
around three of its changes of clocks ± 3 days and in one plain week; about nine minutes of a processor. `make test`
takes 150 that are always the same; about seven seconds of it.

A proof prints its seed and each failure its number: `RECOURSE_SCHEDULES_SEED` makes the same cases again, and
`RECOURSE_SCHEDULES_FROM` goes on at a number.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from itertools import islice

import pytest

from pipelines.schedules import Rule, Schedule
from tests.pipelines import schedule_oracle as oracle

ALL = 10_000
SAMPLE = 150


def compare(seed: str, numbers: range) -> Counter[str]:
    """Holds every case to the oracle; how many ticks each rule made, and how often each zone was met."""
    names = oracle.zone_names()
    random.Random(seed).shuffle(names)
    met: Counter[str] = Counter()
    wrong: list[str] = []
    for number in numbers:
        case = oracle.case(f"{seed}:{number}", names[number % len(names)])
        schedule = Schedule.read(case.cron, case.timezone, case.gap, case.overlap)
        met[case.timezone] += 1
        for start, end in case.windows:
            wanted = oracle.ticks(case.cron, case.timezone, case.gap, case.overlap, start, end)
            found = list(schedule.between(start, end))
            backward = list(islice(schedule.before(end, inclusive=True), len(found)))
            if [(due.at, str(due.rule)) for due in found] != list(wanted.items()) or backward != found[::-1]:
                wrong.append(f"{case} from {start}")
            met.update(wanted.values())
    assert wrong == []
    return met


def test_a_sample_of_random_schedules_is_what_the_oracle_finds() -> None:
    """F92."""
    met = compare("few", range(SAMPLE))
    assert {rule for rule in Rule.values if met[rule]} == set(Rule.values)


@pytest.mark.prove
def test_ten_thousand_random_schedules_in_all_zones_are_what_the_oracle_finds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """F92. Every number makes its case by itself, so a proof can be resumed where it stopped."""
    seed = os.environ.get("RECOURSE_SCHEDULES_SEED") or str(random.SystemRandom().randrange(10**9))
    first = int(os.environ.get("RECOURSE_SCHEDULES_FROM", "0"))
    met: Counter[str] = Counter()
    for start in range(first, ALL, 500):
        with capsys.disabled():
            sys.stdout.write(f"\nRECOURSE_SCHEDULES_SEED={seed} RECOURSE_SCHEDULES_FROM={start}")
        met += compare(seed, range(start, min(start + 500, ALL)))
    if first == 0:
        assert min(met[name] for name in oracle.zone_names()) >= 10
        assert all(met[rule] > 100 for rule in Rule.values)
