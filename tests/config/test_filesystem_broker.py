"""The filesystem broker: messages appear whole, and each is taken once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection

from config import filesystem_broker

MESSAGES = 400


@pytest.fixture
def connect(tmp_path: Path):
    filesystem_broker.install()
    options = {"control_folder": str(tmp_path / "control")}
    for folder in ("data_folder_in", "data_folder_out"):
        options[folder] = str(tmp_path / "queue")
    for folder in set(options.values()):
        Path(folder).mkdir()
    return lambda: Connection("filesystem://", transport_options=options)


def test_every_message_is_taken_whole_and_by_one_consumer_only(connect) -> None:
    """P3: what is delivered twice is found finished; this broker does not even begin to."""
    taken: list[int] = []
    produced = threading.Event()

    def consume() -> None:
        with connect() as connection, connection.SimpleQueue("work") as queue:
            while True:
                last_look = produced.is_set()
                try:
                    message = queue.get(block=False)
                except Empty:
                    if last_look:
                        return
                    continue
                message.ack()
                taken.append(message.payload["number"])

    def produce(first: int) -> None:
        with connect() as connection, connection.SimpleQueue("work") as queue:
            for number in range(first, first + MESSAGES // 2):
                queue.put({"number": number, "text": "x" * 20_000})

    consumers = [threading.Thread(target=consume) for _ in range(2)]
    producers = [threading.Thread(target=produce, args=(first,)) for first in (0, MESSAGES // 2)]
    for thread in [*consumers, *producers]:
        thread.start()
    for thread in producers:
        thread.join()
    produced.set()
    for thread in consumers:
        thread.join()
    assert sorted(taken) == list(range(MESSAGES))


def test_who_publishes_while_queues_are_declared_finds_the_table_whole(connect) -> None:
    """A table that is seen half made would end the one that looked."""
    exchanges = [f"work{number}" for number in range(300)]
    failures: list[Exception] = []

    def look() -> None:
        with connect() as connection, connection.channel() as channel:
            waiting = list(exchanges)
            while waiting and not failures:
                try:
                    if channel.get_table(waiting[0]):
                        waiting.pop(0)
                except Exception as failure:  # noqa: BLE001 - told by the test
                    failures.append(failure)

    def declare(name: str) -> None:
        with connect() as connection, connection.channel() as channel:
            for exchange in exchanges:
                channel._queue_bind(exchange, "key", "", name)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    declarers = [threading.Thread(target=declare, args=(name,)) for name in ("one", "two")]
    for thread in [*lookers, *declarers]:
        thread.start()
    for thread in [*declarers, *lookers]:
        thread.join()
    assert failures == []
    with connect() as connection, connection.channel() as channel:
        assert all(sorted(row[2] for row in channel.get_table(exchange)) == ["one", "two"] for exchange in exchanges)


def test_a_message_under_way_is_not_seen_by_anybody(connect, tmp_path: Path) -> None:
    (tmp_path / "queue" / f"1_a.work.msg{filesystem_broker.UNFINISHED}").write_text('{"half": ')
    with connect() as connection, connection.SimpleQueue("work") as queue, pytest.raises(Empty):
        queue.get(block=False)


def test_a_consumer_that_waits_looks_up_often_enough_to_be_stopped(connect) -> None:
    with connect() as connection, connection.SimpleQueue("work"):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=30)
    assert time.monotonic() - begun < 15
