"""The `clock` fixture: time that tests move forward by hand.

All SQL reads time through `recourse_now()`, which adds the session setting `recourse.clock_shift`. The clock puts that
setting on every Django connection of this process, open ones and those to come, whichever thread or pool they belong
to, before their next statement.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

from pipelines import keyring

SET_SHIFT = "SELECT set_config('recourse.clock_shift', %s, false)"
UNKNOWN = timedelta.min  # no shift is ever this


@dataclass
class _Told:
    """Which shift a server session has: in the transaction that runs, if it was told there, and without that one."""

    outside: timedelta = timedelta()
    inside: timedelta | None = None


class Clock:
    """Moves the time that the database tells to this process."""

    def __init__(self) -> None:
        self.shift = timedelta()
        self._told: weakref.WeakKeyDictionary[Any, _Told] = weakref.WeakKeyDictionary()
        self._wrapped: weakref.WeakSet[BaseDatabaseWrapper] = weakref.WeakSet()

    def advance(self, seconds: float = 0, **parts: float) -> None:
        """Let time pass: `advance(30)`, `advance(hours=2)`. Never backwards."""
        step = timedelta(seconds=seconds, **parts)
        assert step >= timedelta(), "time does not run backwards"
        self.shift += step

    def now(self) -> datetime:
        """The time as the database tells it."""
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT recourse_now()")
            return cursor.fetchone()[0]

    def attach(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        """Have `connection` follow this clock for as long as it lives."""
        if connection.vendor != "postgresql" or connection in self._wrapped:
            return
        self._wrapped.add(connection)
        own = weakref.ref(connection)

        def execute(run: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
            session = own().connection  # type: ignore[union-attr]
            self._apply(session)
            try:
                return run(sql, params, many, context)
            finally:
                if isinstance(sql, str) and sql.startswith("ROLLBACK"):
                    self._undone(session)

        connection.execute_wrappers.append(execute)

    def _apply(self, session: Any) -> None:
        """Tell the server session the shift unless it knows it: once a transaction, not before every statement."""
        status = session.pgconn.transaction_status
        if status == TransactionStatus.INERROR:
            return
        told = self._told.setdefault(session, _Told())
        if status == TransactionStatus.IDLE and told.inside is not None:
            # the transaction in which it was told has ended, one way or the other
            told.outside = told.outside if told.inside == told.outside else UNKNOWN
            told.inside = None
        if self.shift == (told.outside if told.inside is None else told.inside):
            return
        # Straight through the driver: counts of Django's queries must not see it.
        with session.cursor() as cursor:
            cursor.execute(SET_SHIFT, [f"{self.shift.total_seconds()} seconds"])
        if status == TransactionStatus.IDLE and session.autocommit:
            told.outside = self.shift
        else:
            told.inside = self.shift

    def _undone(self, session: Any) -> None:
        """Part of a transaction was rolled back, and perhaps what the session was told in it."""
        told = self._told.get(session)
        if told is not None and told.inside is not None:
            told.inside = UNKNOWN


CLOCK = Clock()
connection_created.connect(CLOCK.attach)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock that stands at the present, and is put back afterwards."""
    for connection in connections.all(initialized_only=True):
        CLOCK.attach(connection)
    yield CLOCK
    CLOCK.shift = timedelta()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time for the signing keys that this process holds: it stands still but for the seconds that are let pass."""
    now = [keyring.monotonic()]
    monkeypatch.setattr(keyring, "monotonic", lambda: now[0])

    def pass_(seconds: float) -> None:
        now[0] += seconds

    return pass_
