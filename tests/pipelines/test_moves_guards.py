"""The database is the last guard: each constraint and trigger that the engine relies on, met on purpose and by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from approvals.transitions import decide_gate
from pipelines.access import Actor
from pipelines.ids import new_id
from pipelines.models import Run
from pipelines.sql import execute, query
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.pipelines.engine import stage

StartRun = Callable[..., Run]


COPIED = (
    "stage_id",
    "run_id",
    "number",
    "epoch",
    "state",
    "worker",
    "request_digest",
    "dispatched_at",
    "expires_at",
    "error_code",
    "error_message",
    "traceback",
    "result_digest",
    "cause",
)


@contextmanager
def guarded(words: str) -> Iterator[None]:
    """The block is refused by the database, in these words."""
    with pytest.raises(IntegrityError, match=words), transaction.atomic():
        yield


def copy_attempt(run: Run, **changes: Any) -> None:
    """A second row beside the stage's attempt, as a fault in the engine might write it."""
    (row,) = query(f"SELECT {', '.join(COPIED)} FROM pipelines_attempt WHERE run_id = %s", [run.id])
    values = dict(zip(COPIED, row, strict=True)) | {"id": new_id()} | changes
    execute(
        f"INSERT INTO pipelines_attempt ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})",
        list(values.values()),
    )


def test_a_stage_has_one_active_attempt(start_run: StartRun, hand: Hand) -> None:
    """I2."""
    run = start_run("first")
    hand.take()
    with guarded("attempt_one_active_per_stage"):
        copy_attempt(run, number=2)


def test_an_attempt_number_is_given_once(start_run: StartRun, hand: Hand) -> None:
    """I1."""
    run = start_run("first")
    hand.report(hand.take())
    with guarded("attempt_number_once_per_stage"):
        copy_attempt(run, state="lost")


def test_a_stage_has_one_open_gate(start_run: StartRun) -> None:
    run = start_run({"name": "first", "approval": {"when": "before"}})
    with guarded("gate_one_open_per_stage"):
        execute(
            "INSERT INTO pipelines_gate (id, stage_id, run_id, workspace_id, moment, epoch, request_digest, state,"
            " opened_at) SELECT %s, stage_id, run_id, workspace_id, moment, epoch, '', 'open', opened_at"
            " FROM pipelines_gate WHERE run_id = %s",
            [new_id(), run.id],
        )


def test_a_key_makes_one_run_of_an_application(start_run: StartRun) -> None:
    """P21, F124."""
    one, two = start_run("first", key="k"), start_run("first")
    with guarded("run_identity_once_per_application"):
        execute(
            "INSERT INTO pipelines_runidentity (run_id, application_id, environment_id, key, fingerprint)"
            " SELECT %s, application_id, environment_id, key, fingerprint FROM pipelines_runidentity WHERE run_id = %s",
            [two.id, one.id],
        )


@pytest.mark.parametrize(
    ("table", "column", "name"),
    [
        ("run", "status", "run_status_known"),
        ("stage", "state", "stage_state_known"),
        ("stage", "effect_mode", "stage_effect_mode_known"),
        ("attempt", "state", "attempt_state_known"),
        ("gate", "state", "gate_state_known"),
        ("deadletter", "state", "dead_letter_state_known"),
        ("deadletter", "reason", "dead_letter_reason_known"),
        ("workersession", "state", "worker_session_state_known"),
    ],
)
def test_states_are_a_closed_set(
    start_run: StartRun, hand: Hand, clock: Clock, table: str, column: str, name: str
) -> None:
    start_run({"name": "first", "approval": {"when": "before"}})
    failing, _ = start_run("first"), start_run("first")
    hand.report(hand.take(), "failed", error_code="FOO")
    hand.take()
    assert failing.dead_letters.count() == 1
    where = "WHERE state = 'running'" if table == "attempt" else ""
    with guarded(name):
        execute(f"UPDATE pipelines_{table} SET {column} = 'strange' {where}")


def test_an_ended_attempt_cannot_be_changed(start_run: StartRun, hand: Hand) -> None:
    """I6: by trigger, whoever writes."""
    start_run("first")
    hand.report(hand.take())
    with guarded("nothing changes an ended attempt"):
        execute("UPDATE pipelines_attempt SET state = 'running'")
    with guarded("nothing changes an ended attempt"):
        execute("UPDATE pipelines_attempt SET error_message = 'another'")


def test_a_cancelled_run_stays_cancelled(start_run: StartRun, people: dict[str, Person]) -> None:
    """I8."""
    run = start_run("first")
    cancel_run(run.id, actor=people["operator"].actor)
    with guarded("a cancelled run stays cancelled"):
        execute("UPDATE pipelines_run SET status = 'running'")


def test_a_run_past_its_deadline_stays_failed(start_run: StartRun, clock: Clock) -> None:
    """I8."""
    from pipelines import sweeps

    start_run("first", deadline_seconds=10)
    clock.advance(10)
    sweeps.enforce_deadlines()
    with guarded("a run past its deadline stays failed"):
        execute("UPDATE pipelines_run SET status = 'running'")


def test_a_decided_gate_stays_decided(start_run: StartRun, application_actor: Actor) -> None:
    """I9."""
    run = start_run({"name": "first", "approval": {"when": "before"}})
    decide_gate(stage(run, "first").id, actor=application_actor, approved=False, reason="no")
    with guarded("a decided gate stays decided"):
        execute("UPDATE pipelines_gate SET state = 'approved'")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("event", "reason"),
        ("auditevent", "reason"),
        ("stageoutput", "body"),
        ("gatedecision", "reason"),
        ("lateevidence", "reason"),
        ("logline", "message"),
        ("runidentity", "fingerprint"),
    ],
)
def test_what_is_only_ever_added_is_neither_changed_nor_deleted(
    start_run: StartRun, hand: Hand, application_actor: Actor, table: str, column: str
) -> None:
    """I7: by trigger; retention alone may delete, in a transaction that names itself, and never change."""
    run = start_run({"name": "first", "approval": {"when": "after"}}, key="k")
    job = hand.take()
    hand.report(job, output=1, logs=[{"level": "info", "message": "hello"}])
    hand.report(job, output=2)
    decide_gate(stage(run, "first").id, actor=application_actor, approved=True)
    assert query(f"SELECT count(*) FROM pipelines_{table}")[0][0] >= 1
    for change in (f"UPDATE pipelines_{table} SET {column} = 'x'", f"DELETE FROM pipelines_{table}"):
        with guarded(f"rows of pipelines_{table} are only ever added"):
            execute(change)
    with guarded("only ever added"):
        execute("SET LOCAL recourse.retention = 'on'")
        execute(f"UPDATE pipelines_{table} SET {column} = 'x'")
