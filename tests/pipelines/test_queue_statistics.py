"""Claims while the planner still takes the queue for empty, as after a night without work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines import queue_statistics
from pipelines.models import Run
from pipelines.sql import execute, query
from tests.cast import Hand

StartRun = Callable[..., Run]


@pytest.fixture
def empty_statistics(hand: Hand) -> None:
    """The queue was empty, and had been something else before, when statistics were taken."""
    execute("ANALYZE pipelines_queueentry")
    execute(
        "UPDATE pg_class SET reltuples = 0, relpages = greatest(relpages, 1)"
        " WHERE oid = 'pipelines_queueentry'::regclass"
    )


def rows_read() -> int:
    ((read,),) = query(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
        " WHERE relname = 'pipelines_queueentry'"
    )
    return int(read)


def test_a_claim_reads_the_queue_once_at_most_for_each_stage_that_it_looks_at(
    empty_statistics: None, start_run: StartRun, hand: Hand
) -> None:
    """P49: of a hundred that wait; walked through once for each of them it would be ten thousand."""
    for _ in range(100):
        start_run("first", "second")
    before = rows_read()
    assert len(hand.pull(10)) == 10
    assert rows_read() - before < 1_500


def test_statistics_follow_a_queue_that_filled_all_at_once(
    empty_statistics: None, start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once they are near enough, nothing is done."""
    monkeypatch.setattr(queue_statistics, "MANY", 20)
    assert queue_statistics.follow() is False
    for _ in range(20):
        start_run("first")
    assert queue_statistics.follow() is True
    ((known,),) = query("SELECT reltuples FROM pg_class WHERE oid = 'pipelines_queueentry'::regclass")
    assert known == 20
    assert queue_statistics.follow() is False
