"""Approval rules in the admin site: read back as sentences, refused where they name what is not there, audited."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from approvals import gates
from approvals.models import ApprovalRule
from pipelines.audit_sentences import Names, tell
from pipelines.ids import new_id
from pipelines.models import AuditEvent, Member, Pipeline, Role, Workspace
from tests.cast import Person
from tests.factories import MemberFactory

LIST = "/admin/approvals/approvalrule/"


@pytest.fixture
def boss(people: dict[str, Person]) -> Client:
    """A member of staff who is an admin of the workspace."""
    return staff(people["admin"].user)


@pytest.fixture
def nightly(workspace: Workspace) -> Pipeline:
    return Pipeline.objects.create(workspace=workspace, slug="nightly", name="Nightly")


def staff(user: Any) -> Client:
    user.is_staff = user.is_superuser = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


def form(workspace: Workspace, **more: Any) -> dict[str, Any]:
    filled = {"workspace": str(workspace.id), "name": "careful", "kinds": ["rerun"], "role": "approver", "count": "1"}
    return {**filled, "environments": "", "pipelines": "", "counted": "", "at_least": "", "expires_in": ""} | more


def page(rule: ApprovalRule, name: str = "change") -> str:
    return f"{LIST}{rule.id}/{name}/"


def told(answer: Any) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


def errors(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 200, "a form that is refused comes back"
    return {name: list(found) for name, found in answer.context["adminform"].form.errors.items()}


def test_a_rule_is_made_and_read_back_as_a_sentence(boss: Client, workspace: Workspace, nightly: Pipeline) -> None:
    """Every kind that is registered may be ticked; what was kept is told in words, and audited."""
    ruled = {"rerun", "replay", "retry", "redrive", "skip", "cancel", "discard"}
    assert set(gates.kinds()) == {*ruled, "backfill", "bulk"}
    filled = form(
        workspace,
        kinds=["rerun", "replay"],
        environments="production, protected",
        pipelines="nightly",
        counted="stages",
        at_least="5",
        role="release_manager",
        count="2",
        expires_in="8 hours",
        enabled="on",
    )
    MemberFactory(workspace=workspace, role="release_manager")
    MemberFactory(workspace=workspace, role="release_manager")
    MemberFactory(workspace=workspace, role="release_manager")
    answer = boss.post(f"{LIST}add/", filled)
    assert answer.status_code == 302, errors(answer)
    words = (
        "replay, rerun of 5 or more stages in production or protected environments of the pipeline nightly:"
        " 2 release managers within 8 hours"
    )
    assert told(answer)[0] == words
    assert len(told(answer)) == 2, "the site's own, and no warning"
    rule = ApprovalRule.objects.get()
    assert (rule.kinds, rule.environments, rule.pipelines) == (
        ["rerun", "replay"],
        ["production", "protected"],
        ["nightly"],
    )
    assert (rule.counted, rule.at_least, rule.role, rule.count, rule.expires_in, rule.enabled) == (
        "stages",
        5,
        "release_manager",
        2,
        28_800,
        True,
    )
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.channel, event.actor) == (
        "approvalrule.save",
        "allowed",
        "admin",
        "admin-acme",
    )
    assert (event.data["id"], event.data["name"], event.data["rule"]) == (str(rule.id), "careful", words)
    assert event.after["count"] == 2
    assert words.encode() in boss.get(LIST).content
    shown = boss.get(page(rule)).content
    assert words.encode() in shown
    assert b'value="8 hours"' in shown


def test_a_rule_is_changed_and_only_what_changed_is_in_the_audit(boss: Client, workspace: Workspace) -> None:
    rule = a_rule(workspace, expires_in=3600)
    filled = form(workspace, count="2", expires_in="1 hour", enabled="on")
    assert boss.post(page(rule), filled).status_code == 302
    event = AuditEvent.objects.get()
    assert (event.before, event.after, event.outcome) == ({"count": 1}, {"count": 2}, "allowed")
    assert boss.post(page(rule), filled).status_code == 302
    again = AuditEvent.objects.order_by("-at", "-id").first()
    assert again is not None
    assert (again.before, again.after, again.outcome) == ({}, {}, "no_op")
    assert boss.post(page(rule), filled | {"enabled": ""}).status_code == 302
    rule.refresh_from_db()
    assert (rule.count, rule.expires_in, rule.enabled) == (2, 3600, False)
    told = [tell(one, Names()) for one in AuditEvent.objects.order_by("at", "id")]
    says = "which says rerun: 2 approvers within 1 hour"
    assert told == [
        f"admin-acme saved the approval rule careful (count 1 → 2), {says}",
        f"admin-acme asked to save the approval rule careful, {says}; nothing changed",
        f"admin-acme saved the approval rule careful (enabled yes → no), {says}",
    ]


def test_a_rule_stays_in_its_workspace(boss: Client, workspace: Workspace, other_workspace: Workspace) -> None:
    Member.objects.create(
        workspace=other_workspace, user=Member.objects.get(role="admin", workspace=workspace).user, role=Role.ADMIN
    )
    rule = a_rule(workspace)
    boss.post(page(rule), form(other_workspace, enabled="on"))
    rule.refresh_from_db()
    assert rule.workspace_id == workspace.id


def test_a_rule_is_removed_and_the_audit_keeps_what_it_said(boss: Client, workspace: Workspace) -> None:
    rule = a_rule(workspace)
    assert boss.post(page(rule, "delete"), {"post": "yes"}).status_code == 302
    assert not ApprovalRule.objects.exists()
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.channel) == ("approvalrule.remove", "allowed", "admin")
    assert event.data["rule"] == "rerun: 1 approver within 7 days"
    assert event.before["kinds"] == ["rerun"]


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"name": ""}, "name", "required"),
        ({"name": "TAKEN"}, "name", "another approval rule has this name"),
        ({"kinds": []}, "kinds", "required"),
        ({"kinds": ["pause"]}, "kinds", "pause is not one of the available choices"),
        ({"kinds": ["reconcile"]}, "kinds", "reconcile is not one of the available choices"),
        ({"environments": "production,prod"}, "environments", "no environment here is called 'prod'"),
        ({"environments": "Production"}, "environments", "no environment here is called 'Production'"),
        ({"environments": "production,,staging"}, "environments", "Item 2"),
        ({"environments": "x" * 101}, "environments", "at most 100 characters"),
        ({"pipelines": "nightly,elsewhere"}, "pipelines", "no pipeline here is called 'elsewhere'"),
        ({"counted": "stages"}, "at_least", "must say how many stages"),
        ({"counted": "stages", "at_least": "0"}, "at_least", "greater than or equal to 1"),
        ({"counted": "stages", "at_least": "1000001"}, "at_least", "less than or equal to 1000000"),
        ({"at_least": "5"}, "counted", "must say what there are 5 of: stages, runs, ticks"),
        ({"counted": "money", "at_least": "5"}, "counted", "money is not one of the available choices"),
        ({"role": "viewer"}, "role", "viewer is not one of the available choices"),
        ({"role": "operator"}, "role", "operator is not one of the available choices"),
        ({"count": "0"}, "count", "greater than or equal to 1"),
        ({"count": "21"}, "count", "less than or equal to 20"),
        ({"expires_in": "8"}, "expires_in", "say it with units"),
        ({"expires_in": "soon"}, "expires_in", "say it with units"),
        ({"expires_in": "-1 hour"}, "expires_in", "say it with units"),
        ({"expires_in": "0 hours"}, "expires_in", "must be from 1 second to 366 days"),
        ({"expires_in": "367 days"}, "expires_in", "must be from 1 second to 366 days"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_field(
    boss: Client,
    workspace: Workspace,
    nightly: Pipeline,
    other_workspace: Workspace,
    more: dict[str, Any],
    field: str,
    said: str,
) -> None:
    """Another workspace's pipeline is as unknown as none; nothing is kept."""
    Pipeline.objects.create(workspace=other_workspace, slug="elsewhere", name="Elsewhere")
    taken = a_rule(workspace, name="taken")
    answer = boss.post(f"{LIST}add/", form(workspace, **more))
    assert any(said in message for message in errors(answer)[field]), errors(answer)
    assert list(ApprovalRule.objects.all()) == [taken]
    assert not AuditEvent.objects.exists()


def test_an_existing_rule_is_held_to_the_same_and_all_that_is_wrong_is_told_at_once(
    boss: Client, workspace: Workspace
) -> None:
    rule = a_rule(workspace)
    a_rule(workspace, name="taken")
    answer = boss.post(page(rule), form(workspace, name="Taken", environments="nowhere", count="x", expires_in="soon"))
    assert errors(answer) == {
        "name": ["another approval rule has this name"],
        "environments": ["no environment here is called 'nowhere'"],
        "count": ["Enter a whole number."],
        "expires_in": ["say it with units, such as 8 hours, 90 minutes or 1 day 12 hours"],
    }
    assert b"rerun: 1 approver within 7 days" in answer.content, "what is kept, not what was refused"
    rule.refresh_from_db()
    assert rule.name == "careful"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("8 hours", 28_800),
        ("90m", 5400),
        ("1 day 12 hours", 129_600),
        ("1D 1h 1min 1s", 90_061),
        (" 366 days ", 366 * 86_400),
        ("", None),
    ],
)
def test_a_length_of_time_is_read_as_people_write_it(
    boss: Client, workspace: Workspace, written: str, seconds: int | None
) -> None:
    assert boss.post(f"{LIST}add/", form(workspace, expires_in=written)).status_code == 302
    assert ApprovalRule.objects.get().expires_in == seconds


@pytest.mark.parametrize(
    ("role", "count", "members", "warning"),
    [
        ("approver", 1, ["approver"], None),
        ("approver", 2, ["approver", "approver"], None),
        ("approver", 2, ["approver"], "needs 2 approvers and the workspace has 2: too few when one of them asks"),
        ("approver", 3, ["approver"], "needs 3 approvers and the workspace has 2: nothing"),
        ("admin", 1, ["approver"], "needs 1 admin and the workspace has 1: too few when one of them asks"),
        ("admin", 1, ["admin"], None),
        ("release_manager", 2, ["approver", "release_manager"], "needs 2 release managers and the workspace has 2"),
    ],
)
def test_too_few_people_to_agree_are_warned_about_and_not_refused(
    boss: Client, workspace: Workspace, role: str, count: int, members: list[str], warning: str | None
) -> None:
    """The admin who saves it is one of them; who may not log in any more is none."""
    workspace.members.exclude(role="admin").delete()
    for one in members:
        MemberFactory(workspace=workspace, role=one)
    MemberFactory(workspace=workspace, role="admin", user__is_active=False)
    answer = boss.post(f"{LIST}add/", form(workspace, role=role, count=str(count)))
    assert answer.status_code == 302
    assert ApprovalRule.objects.count() == 1
    found = [text for text in told(answer) if "needs" in text]
    assert [text[: len(warning)] for text in found] == [warning] if warning else found == []


@pytest.mark.parametrize("role", sorted(set(Role.values) - {"admin"}))
def test_only_admins_of_its_workspace_change_a_rule(people: dict[str, Person], workspace: Workspace, role: str) -> None:
    """Model §5: a superuser too acts in the role they have there; each try is in the audit."""
    rule = a_rule(workspace)
    client = staff(people[role].user)
    assert client.get(page(rule)).status_code == 200
    assert client.post(page(rule), form(workspace, count="3")).status_code == 403
    assert client.post(page(rule, "delete"), {"post": "yes"}).status_code == 403
    assert client.post(f"{LIST}add/", form(workspace, name="other")).status_code == 403
    assert list(ApprovalRule.objects.values_list("name", "count")) == [("careful", 1)]
    denied = AuditEvent.objects.values_list("action", "outcome", "code").order_by("at", "id")
    assert list(denied) == [
        ("approvalrule.save", "denied", "permission_denied"),
        ("approvalrule.remove", "denied", "permission_denied"),
        ("approvalrule.save", "denied", "permission_denied"),
    ]


def test_another_workspaces_rules_are_not_there(boss: Client, workspace: Workspace, other_workspace: Workspace) -> None:
    """I16."""
    foreign = a_rule(other_workspace, name="theirs")
    assert b"theirs" not in boss.get(LIST).content
    for name in ("change", "delete"):
        unknown = boss.get(f"{LIST}{new_id()}/{name}/").status_code
        assert boss.get(page(foreign, name)).status_code == unknown in (302, 403)
        assert boss.post(page(foreign, name), form(other_workspace, post="yes", count="3")).status_code == unknown
    answer = boss.post(f"{LIST}add/", form(other_workspace))
    assert "workspace" in errors(answer)
    foreign.refresh_from_db()
    assert foreign.count == 1
    assert ApprovalRule.objects.count() == 1


def test_the_list_reads_no_more_for_many_rules_than_for_one(boss: Client, workspace: Workspace) -> None:
    counts = []
    for number in range(2):
        for index in range(1 + 20 * number):
            a_rule(workspace, name=f"{number}-{index}")
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(LIST).status_code == 200
        counts.append(len(captured))
    assert counts[0] == counts[1]


def a_rule(workspace: Workspace, **more: Any) -> ApprovalRule:
    made: ApprovalRule = ApprovalRule.objects.create(
        workspace=workspace, **{"name": "careful", "kinds": ["rerun"], **more}
    )
    return made
