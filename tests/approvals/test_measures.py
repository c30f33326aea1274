"""What /metrics tells of questions and messages, and what telling it costs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone

from approvals import measures, requests
from approvals.models import Delivery
from approvals.notifications import notices
from approvals.transitions import decide_gate
from pipelines.models import Run, Workspace
from tests.approvals.notified import GATED, channel_of
from tests.approvals.test_inbox import asked, gate_of
from tests.cast import Person
from tests.clock import Clock
from tests.pipelines.test_measures import told

StartRun = Callable[..., Run]
People = dict[str, Person]


def delivery(workspace: Workspace, state: str = "pending", **more: Any) -> Delivery:
    closed_at = None if state == "pending" else timezone.now()
    channel = workspace.channels.first() or channel_of(workspace)
    return Delivery.objects.create(
        workspace=workspace, channel=channel, state=state, subject="one", body=[], closed_at=closed_at, **more
    )


def test_what_waits_for_people_is_told_with_the_age_of_the_oldest(
    start_run: StartRun, people: People, client: Client, clock: Clock
) -> None:
    """P84: open gates and requests; what is decided or withdrawn counts no more."""
    before = told(client)
    assert [before["waiting_approvals", kind] for kind in ("gate", "operation")] == [0, 0]
    assert [before["oldest_waiting_approval_seconds", kind] for kind in ("gate", "operation")] == [0, 0]
    run = start_run(GATED)
    clock.advance(30)
    start_run(GATED)
    request = asked(run, people["operator"])
    now = told(client)
    assert (now["waiting_approvals", "gate"], now["waiting_approvals", "operation"]) == (2, 1)
    assert 30 <= now["oldest_waiting_approval_seconds", "gate"] < 40
    assert now["oldest_waiting_approval_seconds", "operation"] < 10
    decide_gate(gate_of(run, "charge").stage_id, actor=people["approver"].actor, approved=True)
    requests.withdraw(request.subject, actor=people["operator"].actor)
    after = told(client)
    assert (after["waiting_approvals", "gate"], after["waiting_approvals", "operation"]) == (1, 0)
    assert after["oldest_waiting_approval_seconds", "gate"] < 10


def test_facts_are_told_of_until_they_are_taken_up(start_run: StartRun, client: Client, clock: Clock) -> None:
    """Also where no rule wants them: that the number falls shows that somebody asks the rules."""
    start_run(GATED)
    clock.advance(20)
    now = told(client)
    assert now["waiting_notices", ""] == 1
    assert 20 <= now["oldest_waiting_notice_seconds", ""] < 30
    notices.take_up()
    after = told(client)
    assert (after["waiting_notices", ""], after["oldest_waiting_notice_seconds", ""]) == (0, 0)


def test_deliveries_are_told_by_state_and_pauses_between_tries_are_no_waiting(
    workspace: Workspace, client: Client, clock: Clock
) -> None:
    delivery(workspace, "failed")
    delivery(workspace, "sent")
    first = delivery(workspace)
    clock.advance(90)
    delivery(workspace)
    now = told(client)
    assert (now["deliveries", "pending"], now["deliveries", "failed"]) == (2, 1)
    assert ("deliveries", "sent") not in now
    assert 90 <= now["oldest_due_delivery_seconds", ""] < 100
    Delivery.objects.filter(id=first.id).update(due_at=timezone.now() + timedelta(days=1))
    after = told(client)
    assert after["deliveries", "pending"] == 2
    assert after["oldest_due_delivery_seconds", ""] < 10


def test_counting_ends_at_its_bound(
    start_run: StartRun, workspace: Workspace, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "MOST", 2)
    for _ in range(3):
        start_run(GATED)
        delivery(workspace)
        delivery(workspace, "failed")
    now = told(client)
    assert (now["waiting_approvals", "gate"], now["waiting_notices", ""]) == (2, 2)
    assert (now["deliveries", "pending"], now["deliveries", "failed"]) == (2, 2)


def test_nothing_is_read_as_a_whole(start_run: StartRun, workspace: Workspace, django_assert_num_queries: Any) -> None:
    """Every statement can be answered from indexes that hold what is open, pending or failed, and no more."""
    start_run(GATED)
    delivery(workspace)
    with django_assert_num_queries(7) as seen:
        list(measures.people())
    statements = [one["sql"] for one in seen.captured_queries if "approvals_" in one["sql"] or "_gate" in one["sql"]]
    assert len(statements) == 3
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in statements:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            for table in ("pipelines_gate", "approvals_approvalrequest", "approvals_delivery"):
                assert f"Seq Scan on {table}" not in plan, plan
            # all that hold what is open, pending or failed: of small tables the planner takes any of them
            gates = {"gate_waiting", "gate_one_open_per_stage", "gate_expiry"}
            requests = {"approval_request_waiting", "approval_request_one_open", "approval_request_expiry"}
            used = {*gates, *requests, "delivery_due", "delivery_failed"}
            assert any(f"using {index} " in plan or f"on {index} " in plan for index in used), plan
            for whole in ("gate_closed", "approval_request_closed", "delivery_newest"):
                assert whole not in plan, plan


def test_a_database_that_is_away_leaves_them_out(db: None, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(measures, "planned", away)
    now = told(client)
    assert now["engine_up", ""] == 1, "the engine's are read by themselves"
    assert not [name for name, _ in now if name.startswith(("waiting_", "deliveries", "oldest_due"))]
