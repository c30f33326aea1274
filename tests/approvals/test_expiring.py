"""Gates and requests that are soon to expire: told of once, in time, and never when they are decided."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from approvals.models import ApprovalRequest
from approvals.notifications.expiring import warn_expiring
from approvals.notifications.notices import take_up
from approvals.transitions import decide_gate
from pipelines.ids import new_id
from pipelines.models import Gate, Notice, Run, Workspace
from pipelines.sql import database_now
from pipelines.sweeps import expire_gates
from tests.approvals.notified import StartRun, rule_of, sent
from tests.cast import Person
from tests.clock import Clock
from tests.concurrency.crew import crew_of


def gated(start_run: StartRun, seconds: int) -> Run:
    return start_run({"name": "charge", "approval": {"when": "before", "expires_in": seconds}})


def request_of(run: Run, person: Person, clock: Clock, seconds: int, **more: Any) -> ApprovalRequest:
    made: ApprovalRequest = ApprovalRequest.objects.create(
        workspace=run.workspace,
        subject=new_id(),
        kind="rerun",
        cause="approval",
        run=run,
        requested_by=person.user,
        approver_role="approver",
        opened_at=(now := clock.now()),
        expires_at=now + timedelta(seconds=seconds),
        **more,
    )
    return made


@pytest.mark.parametrize(
    ("seconds", "lead"),
    [(120, 60), (600, 60), (3600, 360), (36_000, 3600), (864_000, 3600)],
)
def test_a_tenth_before_the_end_at_least_a_minute_and_at_most_an_hour(
    start_run: StartRun, people: dict[str, Person], clock: Clock, seconds: int, lead: int
) -> None:
    """Both sides of the moment, for gates and for requests."""
    run = gated(start_run, seconds)
    request = request_of(run, people["operator"], clock, seconds)
    clock.advance(seconds - lead - 2)
    assert warn_expiring() == 0
    clock.advance(4)
    assert warn_expiring() == 2
    told = Notice.objects.filter(kind="expiring").values_list("subject", "run", "workspace", named=True)
    assert {notice.subject for notice in told} == {Gate.objects.get().id, request.subject}
    assert {(notice.run, notice.workspace) for notice in told} == {(run.id, run.workspace_id)}
    assert warn_expiring() == 0, "only once"
    assert Gate.objects.get().state == "open", "telling decides nothing"


def test_what_has_less_than_two_minutes_in_all_is_not_told_of(start_run: StartRun, clock: Clock) -> None:
    gated(start_run, 119)
    clock.advance(100)
    assert warn_expiring() == 0


def test_what_is_decided_expired_or_without_an_end_is_not_told_of(
    start_run: StartRun, people: dict[str, Person], clock: Clock
) -> None:
    decided = gated(start_run, 600)
    decide_gate(decided.stages.get().id, actor=people["approver"].actor, approved=True)
    start_run({"name": "charge", "approval": {"when": "before"}})
    request_of(decided, people["operator"], clock, 600, state="withdrawn")
    gated(start_run, 600)
    clock.advance(600)
    assert warn_expiring() == 0, "also before the sweep has come to it"
    assert expire_gates() == 1
    assert warn_expiring() == 0


def test_its_sentence_says_when_it_ends_and_is_not_sent_once_somebody_decided(
    start_run: StartRun, workspace: Workspace, people: dict[str, Person], clock: Clock
) -> None:
    rule_of(workspace, kinds=["expiring"])
    run = gated(start_run, 600)
    request = request_of(run, people["operator"], clock, 600)
    clock.advance(595)
    assert warn_expiring() == 2
    decide_gate(run.stages.get().id, actor=people["approver"].actor, approved=True)
    take_up()
    (line,) = sent()
    assert line["sentence"].startswith(
        "Nobody has decided about operator-acme's request to rerun nightly in development yet: it expires "
    )
    assert line["id"] == str(request.subject)
    assert line["expires_at"] == request.expires_at.isoformat()  # type: ignore[union-attr]


def test_thousands_are_told_of_in_batches(start_run: StartRun, people: dict[str, Person], clock: Clock) -> None:
    run = start_run("first")
    ApprovalRequest.objects.bulk_create(
        ApprovalRequest(
            workspace=run.workspace,
            subject=new_id(),
            kind="rerun",
            cause="approval",
            run=run,
            requested_by=people["operator"].user,
            approver_role="approver",
            opened_at=database_now(),
            expires_at=database_now() + timedelta(minutes=10),
        )
        for _ in range(1200)
    )
    clock.advance(minutes=9, seconds=30)
    assert [warn_expiring(limit=300, most=900) for _ in range(3)] == [900, 300, 0]
    assert Notice.objects.filter(kind="expiring").count() == 1200


def test_the_search_reads_an_index_of_open_rows_only(start_run: StartRun) -> None:
    """F159: decided gates of years cost nothing."""
    from approvals.notifications.expiring import _SOON

    for table, index in (
        ("pipelines_gate", "gate_expiry"),
        ("approvals_approvalrequest", "approval_request_expiry"),
    ):
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN SELECT id FROM {table} WHERE {_SOON.format(table=table)} ORDER BY expires_at")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert f"Index Scan using {index}" in plan, plan
        assert "Index Cond: ((expires_at" in plan, plan


@pytest.mark.django_db(transaction=True)
def test_many_tellers_and_a_decision_at_once_tell_once_at_most(
    start_run: StartRun, people: dict[str, Person], clock: Clock
) -> None:
    with crew_of(6) as crew:
        for _ in range(15):
            stage = gated(start_run, 600).stages.get()
            Notice.objects.all().delete()
            clock.advance(550)
            decide = lambda stage=stage: decide_gate(stage.id, actor=people["approver"].actor, approved=True)  # noqa: E731
            answers = crew.at_once(decide, *[warn_expiring] * 5)
            assert answers[0].approved, answers[0]
            assert Notice.objects.filter(kind="expiring").count() == sum(answers[1:]) <= 1
            assert Gate.objects.get(stage=stage).state == "approved"
