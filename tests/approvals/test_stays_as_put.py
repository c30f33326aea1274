"""What people were asked and what they answered stays as it was, whoever writes to the database (I7, I9, ADR 0069)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import IntegrityError, models, transaction

from approvals.models import ApprovalRequest, RequestDecision
from pipelines.models import Gate, Run, Workspace
from pipelines.sql import execute
from tests.approvals.asked import agree, join, rule
from tests.cast import Hand, Person, stages_of
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
ENDS = {"state", "closed_at", "warned_at"}  # how it ended, and when it was told that it would
OTHERWISE = {
    models.UUIDField: "gen_random_uuid()",
    models.CharField: "CASE WHEN {0} = '' THEN 'x' ELSE '' END",
    models.TextField: "{0} || 'x'",
    models.PositiveSmallIntegerField: "{0} + 1",
    models.PositiveIntegerField: "{0} + 1",
    models.IntegerField: "coalesce({0}, 0) + 1",
    models.BooleanField: "NOT {0}",
    models.JSONField: "'[\"other\"]'::jsonb",
    models.DateTimeField: "coalesce({0}, recourse_now()) + interval '1 second'",
}


def column_and_other(field: models.Field) -> tuple[str, str]:
    """The field's column, and an expression for any other value of it."""
    kind = type(field.target_field if isinstance(field, models.ForeignKey) else field)
    found = next(one for one in kind.__mro__ if one in OTHERWISE)
    return field.column, OTHERWISE[found].format(field.column)


def changes(model: type[models.Model]) -> list[str]:
    table = model._meta.db_table
    fields = [field for field in model._meta.concrete_fields if field.name not in ENDS]
    return [f"UPDATE {table} SET {column} = {other}" for column, other in map(column_and_other, fields)]


def refused(sql: str, why: str) -> None:
    with pytest.raises(IntegrityError, match=why), transaction.atomic():
        execute(sql)


@pytest.fixture
def asked(start_run: StartRun, hand: Hand, workspace: Workspace, people: dict[str, Person]) -> ApprovalRequest:
    """A retry that two must agree to, of whom one has."""
    run = start_run()
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    rule(workspace, "retry", count=2)
    anna = join(workspace, "approver", "anna")
    agree(retry_stage(stages_of(run)[0].id, actor=people["operator"].actor).operation_id, anna)
    return ApprovalRequest.objects.get()


def test_of_a_request_nothing_changes_but_its_end(asked: ApprovalRequest) -> None:
    """Neither what was asked, nor about which run, why, by whom, of whom, or since when."""
    found = changes(ApprovalRequest)
    assert len(found) == len(ApprovalRequest._meta.concrete_fields) - len(ENDS)
    for sql in found:
        refused(sql, "a request stays as it was put")
    execute("UPDATE approvals_approvalrequest SET warned_at = recourse_now()")
    execute("UPDATE approvals_approvalrequest SET state = 'rejected', closed_at = recourse_now()")
    for sql in (*found, "UPDATE approvals_approvalrequest SET state = 'open'"):
        refused(sql, "a request stays as it was put")


def test_a_decision_about_a_request_is_only_ever_added(asked: ApprovalRequest) -> None:
    for sql in (*changes(RequestDecision), "DELETE FROM approvals_requestdecision"):
        refused(sql, "rows of approvals_requestdecision are only ever added")
    assert asked.decisions.get().approved is True


def test_of_a_gate_nothing_changes_but_its_end(start_run: StartRun) -> None:
    """Least of all the stage, run, attempt or workspace that it is about."""
    start_run({"name": "post", "approval": {"when": "before", "count": 2}})
    for sql in changes(Gate)[1:]:  # all but its id, by which what is decided about it holds it
        refused(sql, "what a gate asks for is fixed as it opens")
    execute("UPDATE pipelines_gate SET warned_at = recourse_now()")
