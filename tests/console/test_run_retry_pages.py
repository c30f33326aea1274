"""That a run retries itself, on its page; calling it off there; the admin site; and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client

from pipelines.models import AuditEvent, Policy, Run, Workspace
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.pipelines.test_measures import told
from tests.recovery.retried import fail, fork_of, newest, pass_time, policy_of

StartRun = Callable[..., Run]
People = dict[str, Person]


@pytest.fixture
def run(start_run: StartRun, hand: Hand, workspace: Workspace) -> Run:
    policy_of(workspace, "nights")
    made = start_run("first", "second")
    fail(hand)
    return made


def page(people: People, run: Run, role: str = "operator") -> str:
    visitor = Client()
    visitor.force_login(people[role].user)
    answer = visitor.get(f"/console/runs/{run.id}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_run_says_when_it_retries_itself_by_what_and_the_how_manieth(run: Run, people: People) -> None:
    text = page(people, run)
    assert "Retries itself at " in text
    assert "by policy nights, 1 of 3" in text
    assert "The run's own retry does, unless a person does before." in unescape(text)
    assert "A person must act" not in text, "nobody must"
    assert "run retry: nights" in text
    assert f"/console/runs/{run.id}/run-retry/stop/" in text


def test_a_run_that_no_policy_rules_says_nothing_of_it(start_run: StartRun, hand: Hand, people: People) -> None:
    """N1: off by default, on the screen too."""
    run = start_run("first")
    fail(hand)
    text = page(people, run)
    assert "etries itself" not in text
    assert "run retry: none" in text
    assert "A person must act" in text


def test_who_may_not_call_it_off_is_told_why(run: Run, people: People) -> None:
    text = page(people, run, "viewer")
    assert "Call it off: " in text
    assert f"/console/runs/{run.id}/run-retry/stop/" not in text


def test_it_is_called_off_on_a_form_with_a_reason(run: Run, people: People, clock: Clock) -> None:
    visitor = Client()
    visitor.force_login(people["operator"].user)
    path = f"/console/runs/{run.id}/run-retry/stop/"
    form = visitor.get(path).content.decode()
    assert "retries itself" in form
    assert "by policy nights, 1 of 3" in form
    answer = visitor.post(path, {"reason": "the upstream is gone"})
    assert answer.status_code == 303
    assert (newest(run).state, newest(run).why) == ("called_off", "the upstream is gone")
    text = page(people, run)
    assert "Called off" in text
    assert "the upstream is gone" in text
    assert pass_time(clock) == 0
    assert AuditEvent.objects.get(action="run_retry.stop").channel == "console"


def test_a_form_that_comes_too_late_says_so(run: Run, people: People, clock: Clock, hand: Hand) -> None:
    visitor = Client()
    visitor.force_login(people["operator"].user)
    assert pass_time(clock) == 1
    answer = visitor.post(f"/console/runs/{run.id}/run-retry/stop/", {"reason": "no"})
    assert answer.status_code == 409
    assert "there is nothing to stop" in answer.content.decode()
    assert newest(run).state == "done"


def test_what_was_made_of_it_is_linked(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, clock: Clock
) -> None:
    policy_of(workspace, "anew", mode="new_run")
    run = start_run("first")
    fail(hand)
    assert pass_time(clock) == 1
    fork = fork_of(run)
    assert f"/console/runs/{fork.id}/" in page(people, run)
    assert "policy anew" in page(people, run)
    assert f"/console/runs/{run.id}/" in page(people, fork)


def test_screens_tell_what_a_policy_asked_for_by_its_name(run: Run, people: People, clock: Clock) -> None:
    assert pass_time(clock) == 1
    visitor = Client()
    visitor.force_login(people["viewer"].user)
    (operation,) = newest(run).operations
    for path in (f"/console/operations/{operation}/", "/console/operations/", f"/console/runs/{run.id}/evidence/"):
        answer = visitor.get(path)
        assert answer.status_code == 200
        assert "policy nights" in answer.content.decode(), path


def test_admins_make_such_a_policy_on_the_admin_site(people: People, workspace: Workspace) -> None:
    """As over the API, with its words beside the field."""
    admin = people["admin"].user
    admin.is_staff = True
    admin.save()
    visitor = Client()
    visitor.force_login(admin)
    form = {"workspace": str(workspace.id), "name": "nights", "kind": "run_retry", "status": "active"}
    wrong = visitor.post(
        "/admin/pipelines/policy/add/",
        {**form, "match": '{"stage": "first"}', "rule": '{"max_retries": 0, "retry_interval": 60}'},
    )
    text = wrong.content.decode()
    assert "a policy for whole runs targets pipeline and environment" in text
    assert "max_retries: " in text
    assert not Policy.objects.exists()
    right = {"match": "{}", "rule": '{"mode": "new_run", "max_retries": 2, "retry_interval": 60}'}
    assert visitor.post("/admin/pipelines/policy/add/", {**form, **right}).status_code == 302
    assert Policy.objects.get().kind == "run_retry"


def test_what_is_due_and_what_became_of_the_others_is_counted(run: Run, client: Client, clock: Clock) -> None:
    """P84: a refused or overdue one is seen without looking at runs."""
    now = told(client)
    assert (now["run_retries", "due"], now["run_retries", "done"]) == (1, 0)
    assert now["run_retry_overdue_seconds", ""] == 0
    clock.advance(90)
    assert 30 <= told(client)["run_retry_overdue_seconds", ""] < 35
    assert pass_time(clock, 0) == 1
    now = told(client)
    assert (now["run_retries", "due"], now["run_retries", "done"]) == (0, 1)
    clock.advance(86_401)
    assert told(client)["run_retries", "done"] == 0
