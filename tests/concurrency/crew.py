"""Threads with a database connection each, let loose at the same instant."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connection

from pipelines.errors import Refusal
from pipelines.sql import query

PATIENCE_SECONDS = 60
Act = Callable[[], Any]


class Crew:
    """`at_once(a, b, …)` runs each act on a thread of its own, begun together, and returns what each one answered.

    A refusal is an answer; anything else that is raised fails the test.
    """

    def __init__(self, size: int) -> None:
        self._tasks: list[queue.SimpleQueue[tuple[int, Act] | None]] = [queue.SimpleQueue() for _ in range(size)]
        self._answers: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._start = threading.Barrier(1)
        self._threads = [threading.Thread(target=self._work, args=(tasks,), daemon=True) for tasks in self._tasks]
        for thread in self._threads:
            thread.start()

    def at_once(self, *acts: Act) -> list[Any]:
        assert len(acts) <= len(self._tasks)
        self._start = threading.Barrier(len(acts))
        for number, act in enumerate(acts):
            self._tasks[number].put((number, act))
        answers: list[Any] = [None] * len(acts)
        for _ in acts:
            number, answer, error = self._answers.get(timeout=PATIENCE_SECONDS)
            if error is not None:
                raise error
            answers[number] = answer
        return answers

    def close(self) -> None:
        for tasks in self._tasks:
            tasks.put(None)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _work(self, tasks: queue.SimpleQueue[tuple[int, Act] | None]) -> None:
        try:
            while (task := tasks.get()) is not None:
                number, act = task
                self._answers.put((number, *self._run(act)))
        finally:
            connection.close()

    def _run(self, act: Act) -> tuple[Any, BaseException | None]:
        try:
            connection.ensure_connection()
            self._start.wait(PATIENCE_SECONDS)
            return act(), None
        except Refusal as refusal:
            return refusal, None
        except BaseException as error:  # noqa: BLE001 - handed to the test, which raises it
            return None, error


@contextmanager
def crew_of(size: int) -> Iterator[Crew]:
    crew = Crew(size)
    try:
        yield crew
    finally:
        crew.close()


def deadlocks() -> int:
    """How many deadlocks the server has met in this database so far."""
    query("SELECT pg_stat_clear_snapshot()")
    return int(query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0][0])


def refusals(answers: Sequence[Any]) -> list[str]:
    return [answer.code for answer in answers if isinstance(answer, Refusal)]
