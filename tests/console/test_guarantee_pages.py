"""Guarantees, checklists and help on screens: the same words as the API's, links that lead somewhere, bounded work."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from pipelines import catalog, guarantees, guarantees_facts, help_topics
from pipelines.models import Environment, Pipeline, Run
from tests.cast import Hand, Person
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import pipeline_of
from tests.recovery.stories import effect_of

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]
Browse = Callable[[Person], Visitor]
# the pages that source 004 names (N29)
NAMED = (
    "Scheduling Guarantees",
    "Connectors Overview",
    "Observability",
    "Workspace",
    "Constraints",
    "REST API",
    "MCP",
)


@pytest.fixture
def pipeline(people: dict[str, Person], environment: Environment) -> Pipeline:
    """`rates`: `fetch`, which says nothing, and `pay`, which acts outside."""
    found: Pipeline = pipeline_of(
        people["admin"].actor, environment, "fetch", {"name": "pay", "effect_mode": "external"}
    )
    return found


def told(response: object) -> str:
    return unescape(text_of(response))


def test_the_page_tells_every_statement_that_holds_now(operator: Visitor, people: dict[str, Person]) -> None:
    """N28."""
    page = told(operator.get("/console/guarantees/"))
    for one in guarantees.statements(guarantees_facts.read(people["operator"].actor.workspace_id)):
        assert one.title in page
        assert one.text in page
    assert "No failed run is retried by itself" in page
    assert "No pipeline yet" in page


def test_what_is_switched_on_changes_what_is_told(
    operator: Visitor, people: dict[str, Person], settings: LazySettings
) -> None:
    """N1, N2, N28: a policy, and settings."""
    settings.RECOURSE_RETENTION_DAYS = 90
    settings.RECOURSE_STORE_TABLES = 0
    catalog.add_policy(
        actor=people["admin"].actor,
        name="patient",
        kind="run_retry",
        match={},
        rule={"max_retries": 2, "retry_interval": 60},
        status="active",
    )
    page = told(operator.get("/console/guarantees/"))
    assert "Failed runs are retried by themselves" in page
    assert "No failed run is retried by itself" not in page
    assert "patient" in page
    assert "until 90 days after its end" in page
    assert "Handlers have no workspace store" in page


def test_a_policy_of_another_workspace_changes_nothing(operator: Visitor, outsider: Person) -> None:
    catalog.add_policy(
        actor=outsider.actor,
        name="theirs",
        kind="run_retry",
        match={},
        rule={"max_retries": 2, "retry_interval": 60},
        status="active",
    )
    page = told(operator.get("/console/guarantees/"))
    assert "No failed run is retried by itself" in page
    assert "theirs" not in page


def test_each_stage_in_force_says_whether_it_is_safe_to_repeat_and_why(
    operator: Visitor, pipeline: Pipeline, start_run: Callable[..., Run], hand: Hand
) -> None:
    page = told(operator.get("/console/guarantees/"))
    assert "rates in development: 2 stages" in page
    assert "Not without a person" in page
    assert "No run of this release has attempted it".lower() in page.lower()
    run = start_run(pipeline="rates", name=None)
    job = hand.take()
    effect = effect_of(run, "fetch")
    type(effect).objects.filter(id=effect.id).update(detail={"connector": "<b>warehouse", "act": "insert"})
    hand.report(job)
    answer = operator.get("/console/guarantees/")
    assert "insert by <b>warehouse, which adds and does not merge" in told(answer)
    assert "<b>warehouse" not in answer.content.decode(), "what a worker called it is text"


def test_the_page_costs_the_same_however_many_pipelines_and_runs_there_are(
    operator: Visitor,
    people: dict[str, Person],
    environment: Environment,
    pipeline: Pipeline,
    start_run: Callable[..., Run],
    hand: Hand,
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get("/console/guarantees/").status_code == 200
        return len(queries)

    start_run(pipeline="rates", name=None)
    hand.report(hand.take())
    count()
    few = count()
    for number in range(4):
        pipeline_of(people["admin"].actor, environment, "a", "b", slug=f"more-{number}")
        start_run(pipeline=f"more-{number}", name=None)
        hand.report(hand.take())
    assert count() == few


def test_pipelines_come_by_pages(operator: Visitor, people: dict[str, Person], environment: Environment) -> None:
    for number in range(12):
        pipeline_of(people["admin"].actor, environment, slug=f"p-{number:02}")
    first = operator.get("/console/guarantees/")
    assert "p-09 in development" in told(first)
    assert "p-10 in development" not in told(first)
    assert 'rel="next"' in first.content.decode()


def test_the_page_of_a_pipeline_has_its_checklist(operator: Visitor, pipeline: Pipeline) -> None:
    """N27: each line says how it stands, why, and where to read on."""
    answer = operator.get(f"/console/pipelines/{pipeline.id}/")
    page = told(answer)
    assert "development: 1 of 8 met" in page
    assert "Failures can be looked into" in page
    assert "Give the definition an input_schema." in page
    assert 'href="/console/help/#constraints"' in answer.content.decode()


def test_a_pipeline_without_a_release_in_force_is_not_judged(operator: Visitor, people: dict[str, Person]) -> None:
    bare, _ = catalog.save_pipeline(actor=people["admin"].actor, slug="bare", name="Bare")
    page = told(operator.get(f"/console/pipelines/{bare.id}/"))
    assert "No release is in force: nothing can be said of it yet." in page
    assert "bare : no release is in force" in told(operator.get("/console/guarantees/"))


# help


def test_every_topic_leads_to_pages_and_documents_that_are_there(browse: Browse, people: dict[str, Person]) -> None:
    """N29."""
    admin = browse(people["admin"])
    type(people["admin"].user).objects.filter(id=people["admin"].user.id).update(is_staff=True)
    page = told(admin.get("/console/help/"))
    assert {one.name for one in help_topics.TOPICS} >= set(NAMED)
    for topic in help_topics.TOPICS:
        assert topic.name in page
        for label, place in topic.screens:
            assert label in page
            address = place if place.startswith("/") else reverse(place)
            assert admin.get(address).status_code == 200, address
        for path in topic.documents:
            assert path in page
            assert (ROOT / path).is_file(), path


def test_whatever_is_told_names_topics_that_there_are(operator: Visitor, pipeline: Pipeline) -> None:
    anchors = operator.get("/console/help/").content.decode()
    for one in guarantees.statements(guarantees.AS_INSTALLED):
        for topic in one.see:
            assert f'id="{topic}"' in anchors


def test_viewers_find_both_from_any_page(browse: Browse, people: dict[str, Person]) -> None:
    viewer = browse(people["viewer"])
    page = viewer.get("/console/").content.decode()
    for address in ("/console/guarantees/", "/console/help/"):
        assert f'href="{address}"' in page
        assert viewer.get(address).status_code == 200


def test_the_words_about_repeating_a_stage_lead_there(operator: Visitor, start_run: Callable[..., Run]) -> None:
    run = start_run("first")
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    assert 'href="/console/guarantees/#repeat"' in page
