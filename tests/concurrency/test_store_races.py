"""Writing to the workspace store in the same instant, on real connections: quotas hold, keys are single."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from pipelines import leases, store_tables, store_writing
from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.models import Run, StoreTable
from pipelines.sql import query
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew
from tests.kept import assert_counted

StartRun = Callable[..., Run]
ROUNDS = 12
ROW = len('{"n":100}')


def writing(hand: Hand, job: Job, table: str, *numbers: int, upsert: bool = False, **more: Any) -> Callable[[], Any]:
    rows = [{"n": number, **more} for number in numbers]
    key = ["n"] if upsert else None
    return lambda: store_writing.write(hand.holder, job.stage.id, job.attempt_id, table, rows, upsert=upsert, key=key)


def jobs_of(start_run: StartRun, hand: Hand, count: int) -> list[Job]:
    for _ in range(count):
        start_run("first")
    jobs = hand.pull(count)
    assert len(jobs) == count
    return jobs


def test_many_writers_of_a_table_stop_at_its_last_row(
    crew: Crew, start_run: StartRun, hand: Hand, settings: Any
) -> None:
    """Eight writers with two rows each, and room for nine: four of them are stored, whole; not one row more."""
    settings.RECOURSE_STORE_TABLE_ROWS = 9
    jobs = jobs_of(start_run, hand, 8)
    for number in range(ROUNDS):
        table = f"rows-{number}"
        told = crew.at_once(*(writing(hand, job, table, 2 * place, 2 * place + 1) for place, job in enumerate(jobs)))
        assert [one.code for one in told if isinstance(one, Refusal)] == ["store_quota_exceeded"] * 4
        assert StoreTable.objects.get(name=table).rows == 8
    assert_counted()


def test_writers_of_different_tables_stop_together_at_the_last_byte(
    crew: Crew, start_run: StartRun, hand: Hand, settings: Any
) -> None:
    """Each table has room; all of them together have room for five rows to the byte, and get no more."""
    jobs = jobs_of(start_run, hand, 8)
    for number in range(ROUNDS):
        StoreTable.objects.all().delete()
        settings.RECOURSE_STORE_BYTES = 5 * ROW
        told = crew.at_once(*(writing(hand, job, f"t{place}", 100 + number) for place, job in enumerate(jobs)))
        assert [one.code for one in told if isinstance(one, Refusal)] == ["store_quota_exceeded"] * 3
        assert sum(StoreTable.objects.values_list("bytes", flat=True)) == 5 * ROW
        assert StoreTable.objects.filter(rows=0).count() == 0  # nor was a table made for what was refused
    assert_counted()


def test_no_more_tables_are_made_than_there_may_be(crew: Crew, start_run: StartRun, hand: Hand, settings: Any) -> None:
    settings.RECOURSE_STORE_TABLES = 3
    jobs = jobs_of(start_run, hand, 8)
    for _ in range(ROUNDS):
        StoreTable.objects.all().delete()
        told = crew.at_once(*(writing(hand, job, f"t{place}", 1) for place, job in enumerate(jobs)))
        assert [one.code for one in told if isinstance(one, Refusal)] == ["store_quota_exceeded"] * 5
        assert StoreTable.objects.count() == 3
    assert_counted()


def test_the_same_rows_at_once_are_stored_once(crew: Crew, start_run: StartRun, hand: Hand) -> None:
    """N12, N25: of eight who make the table and upsert the same keys, each key has one row, and it is whole."""
    jobs = jobs_of(start_run, hand, 8)
    for number in range(ROUNDS):
        told = crew.at_once(
            *(writing(hand, job, f"merged-{number}", 1, 2, 3, upsert=True, by=place) for place, job in enumerate(jobs))
        )
        assert sorted(one.inserted for one in told) == [0] * 7 + [3]
        rows = query(
            "SELECT DISTINCT body ->> 'by' FROM recourse_store.rows r JOIN pipelines_storetable t ON t.id = r.table_id"
            " WHERE t.name = %s",
            [f"merged-{number}"],
        )
        assert len(rows) == 1  # one request's rows, never some of one and some of another
    assert_counted()


def test_a_write_beside_the_end_of_its_lease_is_whole_or_not_at_all(
    crew: Crew, start_run: StartRun, hand: Hand, new_hand: Callable[..., Hand]
) -> None:
    """N25: the lease is given back in the same moment; what was told to be stored is, what was refused is not."""
    for number in range(ROUNDS):
        start_run("first")
        job = hand.take()
        told, _ = crew.at_once(
            writing(hand, job, f"beside-{number}", 1, 2),
            lambda job=job: leases.release(hand.holder, job.stage.id, job.attempt_id),  # type: ignore[misc]
        )
        found = StoreTable.objects.filter(name=f"beside-{number}").values_list("rows", flat=True)
        if isinstance(told, Refusal):
            assert (told.code, list(found)) == ("stale_execution", [])
        else:
            assert list(found) == [2]
        hand.finish()
    assert_counted()


def test_a_table_that_is_removed_while_rows_are_written(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """Whichever comes first: no row is left without its table, and what is counted is there."""
    admin = people["admin"].actor
    jobs = jobs_of(start_run, hand, 6)
    for number in range(ROUNDS):
        name = f"going-{number}"
        writing(hand, jobs[0], name, 100)()
        table_id: uuid.UUID = StoreTable.objects.get(name=name).id
        crew.at_once(
            *(writing(hand, job, name, place, 50 + place) for place, job in enumerate(jobs)),
            lambda table_id=table_id: store_tables.remove(admin, table_id, {}),  # type: ignore[misc]
            lambda table_id=table_id: store_tables.remove(admin, table_id, {"n": 100}),  # type: ignore[misc]
        )
        assert_counted()
        for left in StoreTable.objects.all():
            store_tables.remove(admin, left.id, {})
