import threading

import pytest
from django.db import connection, connections, transaction

from tests.clock import Clock


def told() -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM recourse_now() - statement_timestamp())")
        return float(cursor.fetchone()[0])


@pytest.mark.django_db
def test_time_stands_at_the_present_until_it_is_moved(clock: Clock) -> None:
    assert told() == 0
    clock.advance(90)
    clock.advance(minutes=1)
    assert told() == 150


@pytest.mark.django_db
def test_a_rolled_back_savepoint_does_not_turn_the_clock_back(clock: Clock) -> None:
    with transaction.atomic():
        clock.advance(30)
        assert told() == 30
        transaction.set_rollback(True)
    assert told() == 30


@pytest.mark.django_db(transaction=True)
def test_connections_of_other_threads_and_later_ones_follow(clock: Clock) -> None:
    seen = []

    def look() -> None:
        seen.append(told())
        connections.close_all()

    with transaction.atomic():
        clock.advance(45)
        assert told() == 45
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [45]


@pytest.mark.django_db(transaction=True)
def test_the_next_test_starts_at_the_present_again() -> None:
    assert told() == 0


@pytest.mark.django_db
def test_moving_the_clock_costs_no_query_that_a_count_would_see(clock: Clock, django_assert_num_queries) -> None:
    clock.advance(5)
    with django_assert_num_queries(1):
        told()
