"""Whose agreement a plan needs: by the rules, by default where it is protected, and by what was asked before."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals import gates
from approvals.models import ApprovalRule
from approvals.rules import DECIDING_ROLES, DEFAULT_EXPIRY, Requirement
from pipelines.access import CAPABILITIES, DECIDE, RESOLVE
from pipelines.models import Role, Workspace
from recovery import agreements
from recovery.agreements import RULED, frozen_in, needed, size_of, with_agreement
from recovery.plans import Line, Plan
from recovery.states import BACKFILL, BULK, OperationKind
from tests.cast import Person

PLAN = Plan(OperationKind.RERUN, str(uuid.UUID(int=1)))
FREE = (OperationKind.PAUSE, OperationKind.RESUME, OperationKind.ACKNOWLEDGE, OperationKind.RECONCILE)


def a_rule(workspace: Workspace, **more: Any) -> ApprovalRule:
    made: ApprovalRule = ApprovalRule.objects.create(
        workspace=workspace, **{"name": "careful", "kinds": list(RULED), **more}
    )
    return made


def ask(person: Person, kind: str = "rerun", plan: Plan = PLAN, **more: Any) -> Requirement | None:
    told = {"environment": "production", "is_protected": True, "pipeline": "nightly", **more}
    return needed(plan, workspace_id=person.actor.workspace_id, kind=kind, actor=person.actor, **told)


def a_plan(*, kept: int = 0, again: int = 0, then: int = 0) -> Plan:
    line = Line("stage", "failed", "ready", 2, "why")
    return replace(PLAN, kept=(line,) * kept, run_again=(line,) * again, then=(line,) * then)


# without any rule


@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize("kind", OperationKind.values)
@pytest.mark.parametrize("is_protected", [True, False])
def test_without_a_rule_a_protected_environment_asks_one_approver_of_operators_forks(
    people: dict[str, Person], role: str, kind: str, is_protected: bool
) -> None:
    """Model §5. Viewers and approvers, who may only look, are told what an operator's fork would need."""
    found = ask(people[role], kind, is_protected=is_protected)
    if is_protected and kind in ("rerun", "replay") and role not in ("release_manager", "admin"):
        assert found is not None
        assert (found.role, found.count, found.expires_in) == ("approver", 1, DEFAULT_EXPIRY)
        assert found.why == ("production is protected: somebody else must agree to what an operator asks for there",)
    else:
        assert found is None


# with one


@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize("kind", RULED)
def test_a_rule_binds_every_role(people: dict[str, Person], workspace: Workspace, role: str, kind: str) -> None:
    a_rule(workspace, role="admin", count=2, expires_in=60)
    found = ask(people[role], kind)
    assert found is not None
    assert (found.role, found.count, found.expires_in) == ("admin", 2, 60)
    assert [why.partition(":")[0] for why in found.why] == ["careful"], "the default is not asked for besides"


def test_what_may_be_ruled_is_what_approvals_can_carry_out() -> None:
    """Each kind is decided upon: it may be ruled, or never waits for anybody."""
    assert set(gates.kinds()) == {*RULED, BACKFILL, BULK}
    assert set(RULED) | set(FREE) == set(OperationKind)
    assert set(RULED).isdisjoint(FREE)


@pytest.mark.parametrize("kind", FREE)
def test_stopping_and_looking_wait_for_nobody(people: dict[str, Person], workspace: Workspace, kind: str) -> None:
    """Not even where a row says so: nobody could carry it out. Nothing is read for them."""
    a_rule(workspace, kinds=[kind])
    with CaptureQueriesContext(connection) as captured:
        assert ask(people["operator"], kind) is None
    assert len(captured) == 0


def test_rules_are_read_once_however_many_there_are(people: dict[str, Person], workspace: Workspace) -> None:
    for number in range(20):
        a_rule(workspace, name=str(number), count=1 + number % 5)
    with CaptureQueriesContext(connection) as captured:
        found = ask(people["operator"])
    assert found is not None
    assert (found.count, len(found.why), len(captured)) == (5, 20, 1)


def test_a_disabled_rule_and_another_workspaces_bind_nothing(
    people: dict[str, Person], workspace: Workspace, other_workspace: Workspace
) -> None:
    a_rule(workspace, enabled=False)
    a_rule(other_workspace)
    assert ask(people["admin"]) is None


@pytest.mark.parametrize(
    ("environment", "is_protected", "pipeline", "is_bound"),
    [
        ("production", True, "nightly", True),
        ("staging", True, "nightly", True),
        ("staging", False, "nightly", False),
        ("production", False, "nightly", True),
        ("production", True, "billing", False),
        ("production", True, "", False),
    ],
)
def test_a_rule_is_about_its_environments_and_pipelines_only(
    people: dict[str, Person],
    workspace: Workspace,
    environment: str,
    is_protected: bool,
    pipeline: str,
    is_bound: bool,
) -> None:
    """F140."""
    a_rule(workspace, environments=["production", "protected"], pipelines=["nightly"])
    found = ask(people["admin"], environment=environment, is_protected=is_protected, pipeline=pipeline)
    assert (found is not None) is is_bound


# how much it touches


def test_what_runs_again_or_changes_is_counted_and_what_is_kept_is_not() -> None:
    assert size_of(a_plan(kept=4, again=2, then=1)) == {"runs": 1, "stages": 3, "ticks": 0}
    assert size_of(PLAN)["stages"] == 0


@pytest.mark.parametrize(
    ("counted", "at_least", "is_bound"),
    [("stages", 3, True), ("stages", 4, False), ("runs", 1, True), ("runs", 2, False), ("ticks", 1, False)],
)
def test_a_threshold_binds_from_its_size_on(
    people: dict[str, Person], workspace: Workspace, counted: str, at_least: int, is_bound: bool
) -> None:
    a_rule(workspace, counted=counted, at_least=at_least)
    found = ask(people["admin"], plan=a_plan(kept=9, again=2, then=1))
    assert (found is not None) is is_bound


# what was asked for before


def test_what_was_asked_for_is_never_lessened_and_is_raised(people: dict[str, Person], workspace: Workspace) -> None:
    """A loosened, disabled, or deleted rule changes nothing of what waits; a stricter one asks for more."""
    rule = a_rule(workspace, role="release_manager", count=2, expires_in=600)
    admin = people["admin"]
    before = ask(admin)
    assert before is not None
    for change in ({"count": 1}, {"role": "approver"}, {"expires_in": 6000}, {"enabled": False}, {"name": "other"}):
        ApprovalRule.objects.filter(id=rule.id).update(**change)
        assert ask(admin, frozen=before) is before
    rule.delete()
    assert ask(admin, frozen=before) is before
    assert ask(people["operator"], frozen=before) is before, "the default asks for less"
    a_rule(workspace, role="admin", count=1)
    after = ask(admin, frozen=before)
    assert after is not None
    assert (after.role, after.count, after.expires_in) == ("admin", 2, 600)
    assert len(after.why) == 2


# as a plan tells it


@pytest.mark.parametrize("expires_in", [None, 60])
def test_a_plan_tells_who_must_agree_and_its_digest_covers_it(expires_in: int | None) -> None:
    requirement = Requirement("release_manager", 2, expires_in, ("one", "two"))
    plan = with_agreement(PLAN, requirement)
    assert plan.as_json()["approvals"] == [
        {
            "role": "release_manager",
            "roles": ["admin", "release_manager"],
            "count": 2,
            "expires_in": expires_in,
            "why": "one; two",
        }
    ]
    for other in (
        None,
        replace(requirement, role="admin"),
        replace(requirement, count=3),
        replace(requirement, expires_in=61),
        replace(requirement, why=("one",)),
    ):
        assert with_agreement(PLAN, other).digest != plan.digest


def test_what_a_kept_plan_asks_for_makes_the_same_plan_again() -> None:
    """Planning anew with what is frozen in the plan moves no digest: nothing is asked anew without a reason."""
    requirement = Requirement("admin", 2, 60, ("one", "two"))
    plan = with_agreement(PLAN, requirement)
    assert frozen_in(plan.as_json()) == requirement
    odd = with_agreement(PLAN, replace(requirement, why=("; a name may; hold anything;", "", ";")))
    assert with_agreement(PLAN, frozen_in(odd.as_json())).digest == odd.digest
    assert frozen_in(PLAN.as_json()) is None
    assert with_agreement(plan, None).digest == PLAN.digest


def test_roles_that_decide_are_those_with_the_capability() -> None:
    """The roles of a plan are those of model §5, whatever the ladder in `approvals/rules.py` says."""
    assert set(DECIDING_ROLES) == set(CAPABILITIES[DECIDE]) == set(CAPABILITIES[RESOLVE])
    assert {*RULED, BACKFILL} > agreements.ASKED_WHERE_PROTECTED
