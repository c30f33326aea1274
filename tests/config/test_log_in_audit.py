"""F145: who got in, who did not and who left stands in the audit of each workspace of the account, and floods none."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pipelines.audit_sentences import Names, tell
from pipelines.models import AuditEvent, Member, Role, Workspace
from tests.cast import Person
from tests.clock import Clock
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
LOGIN, ADMIN = "/console/login/", "/admin/login/"
WINDOW = 300


@pytest.fixture
def ann(workspace: Workspace) -> Any:
    """A member of two workspaces, with the password `secret`."""
    user = UserFactory(username="ann", is_staff=True)
    user.set_password("secret")
    user.save()
    Member.objects.create(user=user, workspace=workspace, role=Role.OPERATOR)
    Member.objects.create(user=user, workspace=Workspace.objects.create(slug="other", name="Other"), role=Role.VIEWER)
    return user


@pytest.fixture
def at_noon(clock: Clock) -> Clock:
    """The beginning of a window, so that a test does not meet its end by chance."""
    clock.advance(WINDOW - clock.now().timestamp() % WINDOW + 1)
    return clock


def log_in(browser: Client, password: str = "secret", *, path: str = LOGIN, name: str = "ann", **more: Any) -> Any:
    return browser.post(path, {"username": name, "password": password}, **more)


def sentences() -> list[tuple[str, str]]:
    """What the audit says of log-ins: (workspace, sentence), in order."""
    events = AuditEvent.objects.filter(action__startswith="session.log_").select_related("workspace").order_by("at")
    return sorted((event.workspace.slug, tell(event, Names())) for event in events)


@pytest.mark.parametrize("path", [LOGIN, ADMIN])
def test_a_log_in_and_a_log_out_are_told_to_each_workspace_of_the_person(path: str, ann: Any) -> None:
    browser = Client()
    assert log_in(browser, path=path).status_code == 302
    both = ["acme", "other"]
    assert sentences() == [(slug, "ann logged in by password") for slug in both]
    browser.post("/console/logout/")
    assert {text for _, text in sentences()} == {"ann logged in by password", "ann logged out"}
    assert AuditEvent.objects.filter(action="session.log_out", user=ann, outcome="allowed").count() == 2
    browser.post("/console/logout/")
    assert len(sentences()) == 4, "who is logged in no longer logs out of nothing"


def test_nothing_says_from_where(ann: Any) -> None:
    """ADR 0081: where a member is, is not the business of their other workspaces."""
    browser = Client(REMOTE_ADDR="203.0.113.7")
    log_in(browser, "wrong")
    log_in(browser)
    browser.post("/console/logout/")
    events = AuditEvent.objects.filter(action__startswith="session.log_").values_list("data", "actor")
    assert len(events) == 6
    assert "203.0.113.7" not in str(list(events))


@pytest.mark.parametrize("path", [LOGIN, ADMIN])
def test_a_failed_log_in_is_somebodys_attempt_and_not_the_persons(path: str, ann: Any, at_noon: Clock) -> None:
    log_in(Client(), "wrong", path=path)
    told = "somebody could not log in as ann by password; name and password did not fit"
    assert sentences() == [("acme", told), ("other", told)]
    assert set(AuditEvent.objects.values_list("user", "outcome", "code")) == {(None, "failed", "unauthorized")}


def test_however_many_fail_from_however_many_addresses_one_event_tells_of_them(ann: Any, at_noon: Clock) -> None:
    """An attacker cannot flood the audit: one event in five minutes of the clock; the next counts what came since."""
    for number in range(40):
        log_in(Client(), "wrong", REMOTE_ADDR=f"203.0.113.{number}")
    assert [text for slug, text in sentences() if slug == "acme"] == [
        "somebody could not log in as ann by password; name and password did not fit"
    ]
    at_noon.advance(WINDOW - 30)
    log_in(Client(), "wrong", REMOTE_ADDR="198.51.100.1")
    at_noon.advance(30)
    log_in(Client(), "wrong", REMOTE_ADDR="198.51.100.1")
    assert len(sentences()) == 2 * 2
    assert sentences()[0][1] == (
        "somebody could not log in as ann by password, 2 times in five minutes; name and password did not fit"
    )


def test_a_name_that_is_nobodys_leaves_nothing(ann: Any, people: dict[str, Person]) -> None:
    for name in ("nobody", "", "x\0y", "x" * 5_000):
        log_in(Client(), name=name)
    assert sentences() == []


def test_a_refused_attempt_above_the_limit_leaves_nothing_more(ann: Any, at_noon: Clock) -> None:
    browser = Client()
    for _ in range(15):
        log_in(browser, "wrong")
    assert log_in(browser).status_code == 429
    assert len(sentences()) == 2


def test_an_account_without_a_workspace_logs_in_and_tells_nobody() -> None:
    get_user_model().objects.create_user("lone", password="secret")
    assert log_in(Client(), name="lone").status_code == 302
    assert sentences() == []


def test_mistyping_ones_own_password_while_logged_in_is_no_log_in(ann: Any) -> None:
    browser = Client()
    log_in(browser)
    given = {
        "old_password": "wrong",
        "new_password1": "long enough to be one",
        "new_password2": "long enough to be one",
    }
    assert browser.post("/console/account/password/", given).status_code == 400
    assert [text for _, text in sentences()] == ["ann logged in by password"] * 2


def test_a_changed_password_is_told_to_each_workspace(ann: Any) -> None:
    browser = Client()
    log_in(browser)
    given = {
        "old_password": "secret",
        "new_password1": "long enough to be one",
        "new_password2": "long enough to be one",
    }
    assert browser.post("/console/account/password/", given).status_code == 303
    events = AuditEvent.objects.filter(action="user.save").select_related("workspace")
    assert sorted((event.workspace.slug, tell(event, Names())) for event in events) == [
        (slug, "ann changed the account of ann (password)") for slug in ("acme", "other")
    ]
