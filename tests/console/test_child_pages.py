"""What is shown of runs that stages start: on the page of either, in a list of its own, and over the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from pipelines import children
from pipelines.children import Wish
from pipelines.creation import Intent
from pipelines.jobs import Job
from pipelines.models import Run
from tests.cast import Api, Hand, Person, stage_of

StartRun = Callable[..., Run]


def spawn(hand: Hand, job: Job, key: str, **wish: Any) -> Run:
    intent = Intent(name=f"imports {key}", stages=[stage_of({"name": "work", "handler": "Child"})])
    started = children.start(hand.holder, job.stage.id, job.attempt_id, Wish(key, intent, **wish))
    assert started is not None
    return Run.objects.get(id=started.child.run_id)


@pytest.fixture
def screen(people: dict[str, Person]) -> Client:
    client = Client()
    client.force_login(people["viewer"].user)
    return client


def shown(screen: Client, path: str) -> str:
    answer = screen.get(f"/console/runs/{path}/")
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def test_both_pages_name_each_other(start_run: StartRun, hand: Hand, screen: Client) -> None:
    run = start_run()
    job = hand.take()
    child, left = spawn(hand, job, "day"), spawn(hand, job, "night", on_parent_end="leave")
    hand.report(job, "waiting", awaits_runs=[child.id])
    page = shown(screen, str(run.id))
    assert "Runs it started" in page
    assert "imports day" in page
    assert "is cancelled" in page
    assert "goes on" in page
    assert f"waits for run {child.id}" in page.lower()
    assert "A decision is asked for" not in page
    assert "other runs are awaited" in screen.get("/console/").content.decode()
    other = shown(screen, str(child.id))
    assert "Started by" in other
    assert f"/console/runs/{run.id}/" in other
    assert "that stage waits for it" in other
    assert "Runs it started" not in other
    assert "Started by" not in page
    assert "that stage waits for it" not in shown(screen, str(left.id))


def test_many_children_are_listed_by_pages(
    start_run: StartRun, hand: Hand, screen: Client, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """By keyset, newest first; the page of the run shows some, and says that there are more."""
    run = start_run()
    job = hand.take()
    for number in range(12):
        spawn(hand, job, f"key-{number:02}")
    page = shown(screen, str(run.id))
    assert "there are more" in page
    assert "imports key-11" in page
    assert "imports key-00" not in page
    first = screen.get(f"/console/runs/{run.id}/children/?page_size=10").content.decode()
    assert ("key-11" in first, "key-01" in first, "Older" in first) == (True, False, True)
    api = as_person(people["viewer"])
    answer = api.get(f"/v1/executions/{run.id}/children?page_size=10").json()
    assert [one["key"] for one in answer["results"]] == [f"key-{number:02}" for number in range(11, 1, -1)]
    rest = api.get(answer["next"][answer["next"].index("/v1") :]).json()
    assert [one["key"] for one in rest["results"]] == ["key-01", "key-00"]
    one = rest["results"][0]
    assert (one["stage"], one["on_parent_end"], one["current"], one["status"]) == ("first", "cancel", True, "queued")


def test_lists_of_children_ask_the_same_whatever_there_are(
    start_run: StartRun, hand: Hand, screen: Client, django_assert_max_num_queries: Any
) -> None:
    run = start_run()
    job = hand.take()
    spawn(hand, job, "one")
    with django_assert_max_num_queries(40) as few:
        shown(screen, f"{run.id}/children")
    for number in range(20):
        spawn(hand, job, f"key-{number}")
    with django_assert_max_num_queries(len(few)):
        shown(screen, f"{run.id}/children")


def test_another_workspace_sees_no_children(
    start_run: StartRun, hand: Hand, outsider: Person, as_person: Callable[[Person], Api]
) -> None:
    """I16."""
    run = start_run()
    spawn(hand, hand.take(), "day")
    assert as_person(outsider).get(f"/v1/executions/{run.id}/children").status_code == 404


def test_a_run_without_children_asks_nothing_about_them(start_run: StartRun, screen: Client) -> None:
    run = start_run()
    page = shown(screen, str(run.id))
    assert "Runs it started" not in page
    assert "Started by" not in page
    assert "None" in shown(screen, f"{run.id}/children")
