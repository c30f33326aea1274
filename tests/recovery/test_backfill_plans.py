"""What a plan of a backfill says, and what makes it another plan. Pure."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pipelines.schedules import Schedule
from recovery.backfill_plans import Around, Asked, Known, Place, Plan, estimate, occasions
from recovery.plans import Agreement

RUN, OTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
FROM, TO = datetime(2026, 5, 20, 8, tzinfo=UTC), datetime(2026, 5, 24, 8, tzinfo=UTC)
DAILY = Schedule("0 8 * * *", "UTC")
ASKED = Asked(uuid.UUID(int=3), FROM, TO, "0 8 * * *", "UTC", "first_existing", "first", 2, "none", "oldest")


def day(number: int) -> int:
    return int(datetime(2026, 5, number, 8, tzinfo=UTC).timestamp())


def plan(known: dict[int, Known] | None = None, **more: Any) -> Plan:
    """Five days in May, of which the ledger has what is told."""
    asked = replace(ASKED, **{name: more.pop(name) for name in list(more) if name in Asked.__dataclass_fields__})
    found = occasions(DAILY.between(FROM, TO), None, known or {}, asked.reprocess)
    told = {"asked": asked, "place": Place("rates", "rates", "production", True, "billing"), "release_id": "r-1"}
    return Plan(**{**told, "stages": 2, "occasions": found, "total_ticks": sum(1 for one in found if one.why), **more})


LEDGER = {
    day(20): Known("dispatched", "", RUN, "completed"),
    day(21): Known("dispatched", "", OTHER, "failed"),
    day(22): Known("skipped", "paused", None, ""),
    day(23): Known("failed", "", None, ""),
}


@pytest.mark.parametrize(
    ("reprocess", "why"),
    [
        ("none", ["", "", "paused", "failed", "not recorded"]),
        ("failed", ["", "its run failed", "paused", "failed", "not recorded"]),
        ("all", ["its run is done again", "its run failed", "paused", "failed", "not recorded"]),
    ],
)
def test_each_tick_says_why_it_is_filled(reprocess: str, why: list[str]) -> None:
    """F108: missed is what has no run; the rest is done once more only where that was asked for."""
    found = plan(LEDGER, reprocess=reprocess)
    assert [one.why for one in found.occasions] == why
    assert (found.total_ticks, found.skipped) == (5 - why.count(""), why.count(""))
    assert sum(found.missed_because.values()) == found.total_ticks


@pytest.mark.parametrize(
    "known",
    [
        Known("due", "", RUN, ""),
        Known("dispatched", "", RUN, "queued"),
        Known("dispatched", "", RUN, "running"),
        Known("dispatched", "", RUN, "paused"),
        Known("dispatched", "", RUN, "blocked"),
    ],
)
def test_what_is_unfinished_or_about_to_be_made_is_never_done_again(known: Known) -> None:
    assert plan({day(20): known}, reprocess="all").occasions[0].why == ""


def test_a_run_that_was_removed_is_done_again_only_with_all() -> None:
    """Nobody knows any more how it ended."""
    gone = {day(20): Known("dispatched", "", RUN, "")}
    assert [plan(gone, reprocess=one).total_ticks for one in ("none", "failed", "all")] == [4, 4, 5]


def test_the_order_is_that_of_letting_in_and_ticks_are_listed_by_time() -> None:
    newest = plan(order="newest")
    assert [one.due.at.day for one in newest.missed] == [24, 23, 22, 21, 20]
    assert [one["tick_time"][8:10] for one in newest.ticks()] == ["20", "21", "22", "23", "24"]
    assert [one["tick_time"][8:10] for one in newest.ticks(2)] == ["20", "21"]


def test_the_tick_before_is_told_to_each() -> None:
    before = [one.previous and one.previous.day for one in plan().occasions]
    assert before == [None, 20, 21, 22, 23]


def test_whatever_would_be_done_otherwise_is_another_plan() -> None:
    same = plan(LEDGER).digest
    assert plan(LEDGER).digest == same
    others = [
        plan({}),
        plan({**LEDGER, day(20): Known("dispatched", "", OTHER, "completed")}),
        plan(LEDGER, reprocess="failed"),
        plan(LEDGER, order="newest"),
        plan(LEDGER, max_concurrent=3),
        plan(LEDGER, release_id="r-2"),
        plan(LEDGER, cron="0 8 * * 1-7"),
        plan(LEDGER, agreements=(Agreement("approver", 1, 60, "a rule"),)),
    ]
    assert len({same, *(one.digest for one in others)}) == len(others) + 1


def test_what_only_surrounds_it_makes_no_other_plan() -> None:
    around = Around(90.0, ("Handler",), {"name": "audit", "until": None})
    found = plan(LEDGER, around=around)
    assert found.digest == plan(LEDGER).digest == found.as_json()["plan_digest"]
    assert found.answer()["without_worker"] == ["Handler"]


def test_the_answer_is_in_the_shape_of_the_source() -> None:
    """O52, O54."""
    told = plan(LEDGER).answer()
    assert list(told)[:7] == [
        "trigger_binding_id",
        "window",
        "total_ticks",
        "dispatched",
        "failed",
        "dry_run",
        "ticks",
    ]
    assert told["window"] == {"from": "2026-05-20T08:00:00+00:00", "to": "2026-05-24T08:00:00+00:00"}
    assert told["protected"] is True
    first, *_, last = told["ticks"]
    assert (first["status"], first["execution_id"], first["reason"]) == ("skipped", RUN, "existing")
    assert last == {
        "tick_time": "2026-05-24T08:00:00+00:00",
        "status": "pending",
        "local_time": "2026-05-24T08:00:00+00:00",
        "rule": "fixed_time",
    }


def test_rules_count_ticks_runs_and_stages() -> None:
    assert plan(LEDGER).size == {"runs": 3, "stages": 6, "ticks": 3}


@pytest.mark.parametrize(
    ("total", "at_once", "mean", "seconds"),
    [(10, 3, 2.0, 8.0), (9, 3, 2.0, 6.0), (0, 3, 2.0, None), (5, 1, None, None), (1, 100, 0.05, 0.1)],
)
def test_how_long_it_takes_is_so_many_rounds(total: int, at_once: int, mean: float | None, seconds: Any) -> None:
    assert estimate(total, at_once, mean) == seconds
