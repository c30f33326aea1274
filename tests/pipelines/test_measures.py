"""What /metrics tells of the engine, and what telling it costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from pipelines import measures, sweeps
from pipelines.models import Policy, Run, Workspace
from tests.cast import Hand

StartRun = Callable[..., Run]


def told(client: Client) -> dict[tuple[str, str], float]:
    """Every number of the engine, by metric and label."""
    response = client.get("/metrics")
    assert response.status_code == 200
    return {
        (sample.name.removeprefix("recourse_"), next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
        if sample.name.startswith("recourse_") and not sample.name.startswith("recourse_http")
    }


def test_ready_stages_are_told_by_handler_with_the_age_of_the_oldest(
    start_run: StartRun, hand: Hand, client: Client, clock: Any
) -> None:
    start_run("first")
    clock.advance(30)
    start_run("second")
    now = told(client)
    (handler,) = {label for name, label in now if name == "ready_stages"}
    assert now["ready_stages", handler] == 2
    assert 30 <= now["oldest_ready_stage_seconds", handler] < 40
    hand.pull(2)
    after = told(client)
    assert ("ready_stages", handler) not in after
    assert (after["running_attempts", "dispatched"], after["running_attempts", "running"]) == (0, 2)


def test_a_retry_that_is_not_due_is_not_ready(start_run: StartRun, hand: Hand, client: Client, clock: Any) -> None:
    start_run({"name": "pay", "options": {"max_retries": 1, "retry_interval": 60}})
    hand.report(hand.take(), "failed")
    assert not [name for name, _ in told(client) if name == "ready_stages"]
    clock.advance(61)
    assert [value for (name, _), value in told(client).items() if name == "ready_stages"] == [1]


def test_what_a_policy_has_no_room_for_is_not_ready(
    start_run: StartRun, hand: Hand, client: Client, workspace: Workspace
) -> None:
    Policy.objects.create(workspace=workspace, name="two", kind="concurrency", rule={"max_active": 2})
    for _ in range(5):
        start_run("first")
    assert [value for (name, _), value in told(client).items() if name == "ready_stages"] == [2]
    hand.take()
    assert [value for (name, _), value in told(client).items() if name == "ready_stages"] == [1]
    hand.take()
    assert not [name for name, _ in told(client) if name == "ready_stages"]


def test_expired_leases_are_told_until_a_sweep_has_met_them(
    start_run: StartRun, hand: Hand, client: Client, clock: Any
) -> None:
    start_run("one")
    hand.pull()
    assert told(client)["expired_leases", ""] == 0
    clock.advance(61)
    assert told(client)["expired_leases", ""] == 1
    sweeps.sweep()
    assert told(client)["expired_leases", ""] == 0


def test_runs_and_dead_letters_are_told_by_status(start_run: StartRun, hand: Hand, client: Client) -> None:
    start_run("bad")
    hand.report(hand.take(), "failed")
    start_run("waits")
    now = told(client)
    assert (now["runs", "failed"], now["runs", "queued"], now["runs", "completed"]) == (1, 1, 0)
    assert (now["dead_letters", "open"], now["dead_letters", "acknowledged"]) == (1, 0)


def test_counting_ends_at_its_bound(
    start_run: StartRun, client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "MOST_READY", 2)
    monkeypatch.setattr(measures, "MOST_RUNS", 2)
    for _ in range(3):
        start_run()
    now = told(client)
    assert now["runs", "queued"] == 2
    assert [value for (name, _), value in now.items() if name == "ready_stages"] == [2]


def test_nothing_is_read_as_a_whole(start_run: StartRun, hand: Hand, django_assert_num_queries: Any) -> None:
    """Every statement but the names of applications and environments can be answered from an index."""
    start_run("one")
    hand.pull()
    with django_assert_num_queries(11, exact=False) as asked:
        list(measures.engine())
    statements = [entry["sql"] for entry in asked.captured_queries if "SELECT" in entry["sql"]]
    statements = [sql for sql in statements if "pipelines_" in sql]
    assert len(statements) == 8
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in statements:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            for table in ("run", "attempt", "queueentry", "deadletter", "trigger", "tick"):
                assert f"Seq Scan on pipelines_{table}" not in plan, plan


def test_a_database_that_is_away_is_told_and_the_other_numbers_remain(
    db: None, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(measures, "planned", away)
    text = client.get("/metrics").content.decode()
    assert "recourse_engine_up 0.0" in text
    assert "recourse_runs" not in text
    assert "process_resident_memory_bytes" in text


def test_the_reference_names_every_metric_and_no_other(db: None, client: Client) -> None:
    page = Path(__file__).resolve().parents[2] / "docs/reference/metrics.md"
    written = set(re.findall(r"^\| `(recourse_\w+)", page.read_text(), re.MULTILINE))
    told = set(re.findall(r"^# TYPE (recourse_\w+)", client.get("/metrics").content.decode(), re.MULTILINE))
    assert written == {name for name in told if not name.endswith("_created")}
