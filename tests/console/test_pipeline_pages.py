"""Pipelines on screens: what is in force where and how it went, releases side by side, registering, activating."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import unserved
from pipelines.models import Application, AuditEvent, Environment, Pipeline, Release, Run, Workspace
from pipelines.releases import register_release
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import pipeline_of, trigger_of

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]
ATTACK = '"><script>alert(1)</script>'
DEFINITION: dict[str, Any] = {
    "name": "Rates",
    "stages": [{"name": "fetch", "handler": "Handler"}, {"name": "store", "handler": "StoreHandler"}],
}
TOML = """
name = "Rates"
[[stages]]
name = "fetch"
handler = "Handler"
"""


@pytest.fixture
def pipeline(people: dict[str, Person], environment: Environment) -> Pipeline:
    """`rates`, with a release of one stage in force in development."""
    found: Pipeline = pipeline_of(people["admin"].actor, environment)
    return found


@pytest.fixture
def manager(browse: Browse, people: dict[str, Person]) -> Visitor:
    return browse(people["release_manager"])


def told(response: Any) -> str:
    return unescape(text_of(response))


def release_of(
    actor: Any, pipeline: Pipeline, environment: Environment, *, activate: bool = False, **more: Any
) -> Release:
    document = {"slug": pipeline.slug, **DEFINITION, **more}
    return register_release(
        actor=actor, pipeline=pipeline, environment=environment, definition=document, activate=activate
    )[0]


# looking


def test_the_list_says_how_a_pipeline_is_made_while_there_is_none(operator: Visitor, manager: Visitor) -> None:
    assert "No pipeline yet" in told(manager.get("/console/pipelines/"))
    page = operator.get("/console/pipelines/")
    assert "may not make or change a pipeline" in told(page)
    assert 'href="/console/pipelines/new/"' not in page.content.decode()


def test_each_pipeline_says_what_is_in_force_where_and_how_its_last_runs_went(
    operator: Visitor, pipeline: Pipeline, start_run: Callable[..., Run], hand: Hand
) -> None:
    for status in ("succeeded", "failed"):
        start_run(pipeline="rates", name=None)
        hand.report(hand.take(), status, **({"error_code": "BUSINESS_REJECTED"} if status == "failed" else {}))
    page = operator.get("/console/pipelines/")
    digest = pipeline.releases.get().digest[:12]
    assert re.search(rf"development {digest} put in force just now , registered by admin-acme", told(page))
    assert "1 completed" in told(page)
    assert "1 failed" in told(page)
    assert re.search(r"staging nothing is in force", told(page))
    assert "?pipeline=rates&amp;environment=development&amp;status=failed" in page.content.decode()
    assert "billing" in told(page), "the application whose runs they are"


def test_the_list_costs_the_same_however_many_there_are(
    operator: Visitor, people: dict[str, Person], environment: Environment, pipeline: Pipeline
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get("/console/pipelines/").status_code == 200
        return len(queries)

    count()
    few = count()
    for number in range(10):
        pipeline_of(people["admin"].actor, environment, slug=f"more-{number}")
    assert count() == few


def test_the_page_costs_the_same_however_many_releases_and_triggers_there_are(
    operator: Visitor,
    people: dict[str, Person],
    environment: Environment,
    application: Application,
    pipeline: Pipeline,
) -> None:
    trigger_of(people["admin"].actor, environment, application)

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(f"/console/pipelines/{pipeline.id}/").status_code == 200
        return len(queries)

    count()
    few = count()
    for number in range(8):
        release_of(people["admin"].actor, pipeline, environment, description=f"number {number}")
        trigger_of(people["admin"].actor, environment, application, name=f"more-{number}")
    assert count() == few


def test_pages_of_pipelines_are_by_slug_and_a_foreign_cursor_is_refused(
    operator: Visitor, people: dict[str, Person], environment: Environment
) -> None:
    for number in range(3):
        pipeline_of(people["admin"].actor, environment, slug=f"p-{number}")
    first = operator.get("/console/pipelines/", {"page_size": "2"})
    assert "p-0" in told(first)
    assert "p-2" not in told(first)
    further = re.search(r'href="([^"]+)" rel="next"', first.content.decode())
    assert further
    assert "p-2" in told(operator.get(f"/console/pipelines/{unescape(further[1])}"))
    for cursor in ("nonsense", "WyJuIiwgIlx1MDAwMCJd"):
        assert operator.get("/console/pipelines/", {"cursor": cursor}).status_code == 400


def test_a_release_shows_its_stages_and_what_is_otherwise_than_in_the_one_in_force(
    operator: Visitor, people: dict[str, Person], environment: Environment, pipeline: Pipeline
) -> None:
    new = release_of(people["admin"].actor, pipeline, environment)
    page = told(operator.get(f"/console/pipelines/releases/{new.id}/"))
    assert "2 stages" in page
    assert "StoreHandler" in page
    assert re.search(r'stages\[store\]\.handler \+ "StoreHandler"', page), page
    old = pipeline.releases.get(status="active")
    back = told(operator.get(f"/console/pipelines/releases/{old.id}/", {"against": str(new.id)}))
    assert re.search(r'stages\[store\]\.handler − "StoreHandler"', back), back
    assert operator.get(f"/console/pipelines/releases/{old.id}/", {"against": "perhaps"}).status_code == 400


def test_a_handler_that_no_live_worker_has_is_said_first(
    operator: Visitor,
    people: dict[str, Person],
    environment: Environment,
    application: Application,
    pipeline: Pipeline,
    new_hand: Callable[..., Hand],
    clock: Clock,
) -> None:
    """On the release, on its trigger and in the planner; gone as soon as a worker comes, back when it falls silent."""
    trigger = trigger_of(people["admin"].actor, environment, application)
    release = pipeline.releases.get()
    addresses = (
        f"/console/pipelines/releases/{release.id}/",
        f"/console/triggers/{trigger.id}/",
        f"/console/triggers/{trigger.id}/backfill/",
    )
    for address in addresses:
        assert "No live worker has Handler" in told(operator.get(address)), address
    new_hand("hand-9", "Handler")
    for address in addresses:
        assert "No live worker" not in told(operator.get(address)), address
    clock.advance(seconds=3600)
    assert "No live worker has Handler" in told(operator.get(addresses[0]))


def test_the_run_list_warns_of_what_is_ready_and_that_nobody_takes(
    operator: Visitor, people: dict[str, Person], start_run: Callable[..., Run], new_hand: Callable[..., Hand]
) -> None:
    assert "No live worker" not in told(operator.get("/console/"))
    start_run({"name": "load", "handler": "RareHandler"})
    assert "No live worker has RareHandler (billing in development)" in told(operator.get("/console/"))
    new_hand("rare-1", "RareHandler")
    assert "No live worker" not in told(operator.get("/console/"))


def test_queues_of_others_are_not_told(
    outsider: Person, people: dict[str, Person], start_run: Callable[..., Run]
) -> None:
    """I16."""
    start_run({"name": "load", "handler": "RareHandler"})
    assert unserved.queues(outsider.actor) == []
    assert [queue.handler for queue in unserved.queues(people["viewer"].actor)] == ["RareHandler"]


def test_another_workspaces_pipeline_is_not_there(browse: Browse, outsider: Person, pipeline: Pipeline) -> None:
    """I16: neither it nor its releases, also not to compare with."""
    visitor = browse(outsider)
    release = pipeline.releases.get()
    for part in (f"{pipeline.id}/", f"{pipeline.id}/change/", f"{pipeline.id}/release/", f"releases/{release.id}/"):
        assert visitor.get(f"/console/pipelines/{part}").status_code == 404, part
    assert visitor.post(f"/console/pipelines/releases/{release.id}/activate/", {"reason": "mine"}).status_code == 404
    assert "No pipeline yet" in told(visitor.get("/console/pipelines/"))


# making and changing


def test_a_pipeline_is_made_and_changed_and_its_mistakes_are_named_at_their_fields(
    manager: Visitor, workspace: Workspace
) -> None:
    wrong = manager.post("/console/pipelines/new/", {"slug": "no blanks", "name": "", "description": "kept"})
    assert wrong.status_code == 400
    assert "Must consist of letters, digits, hyphens and underscores." in told(wrong)
    assert "kept" in wrong.content.decode(), "what was typed stays"
    assert not Pipeline.objects.exists()
    made = manager.post("/console/pipelines/new/", {"slug": "rates", "name": "Daily rates"}, follow=True)
    assert "rates is made; register a release of it next." in told(made)
    one = Pipeline.objects.get(workspace=workspace)
    taken = manager.post("/console/pipelines/new/", {"slug": "rates", "name": "Others"})
    assert "Another pipeline has this slug." in told(taken)
    manager.post(f"/console/pipelines/{one.id}/change/", {"name": "Rates of the day", "slug": "other"})
    one.refresh_from_db()
    assert (one.slug, one.name) == ("rates", "Rates of the day")
    events = AuditEvent.objects.filter(action="pipeline.save").order_by("id")
    assert [event.outcome for event in events] == ["failed", "allowed", "failed", "allowed"]


@pytest.mark.parametrize("way", ["pasted JSON", "pasted TOML", "a file of JSON", "a file of TOML"])
def test_a_release_is_registered_from_what_is_pasted_or_uploaded(
    manager: Visitor, pipeline: Pipeline, way: str
) -> None:
    text = TOML if "TOML" in way else json.dumps(DEFINITION)
    form: dict[str, Any] = {"environment": "staging", "document": text}
    if way.startswith("a file"):
        form = {"environment": "staging", "file": SimpleUploadedFile(f"rates.{way[-4:].lower()}", text.encode())}
    page = manager.post(f"/console/pipelines/{pipeline.id}/release/", form, follow=True)
    assert "it is not in force" in told(page)
    (release,) = pipeline.releases.filter(environment__slug="staging")
    assert release.status == "draft"
    assert json.loads(release.definition)["stages"][0]["name"] == "fetch"
    events = AuditEvent.objects.filter(action="release.register", channel="console")
    assert [event.outcome for event in events] == ["allowed"]


def test_a_definition_that_cannot_be_meant_is_refused_place_by_place_and_stays_in_the_form(
    manager: Visitor, pipeline: Pipeline
) -> None:
    broken = {"name": "Rates", "stages": [{"name": "fetch"}, {"name": "store", "handler": "H", "needs": ["nowhere"]}]}
    address = f"/console/pipelines/{pipeline.id}/release/"
    page = manager.post(address, {"environment": "staging", "document": json.dumps(broken)})
    assert page.status_code == 400
    assert "definition.stages[0].handler" in told(page)
    assert "nowhere" in page.content.decode()
    for document in ("", "{", "[]", "[[[", "name = ", '"text"', '{"slug": "other", "name": "x", "stages": []}', "\0"):
        refused = manager.post(address, {"environment": "staging", "document": document})
        assert refused.status_code in (400, 422), document
    assert "Choose the environment" in told(manager.post(address, {"document": json.dumps(DEFINITION)}))
    assert pipeline.releases.count() == 1, "nothing was registered"
    assert not AuditEvent.objects.filter(action="release.register", channel="console", outcome="allowed").exists()


def test_a_release_is_put_in_force_with_its_consequences_first(
    manager: Visitor, operator: Visitor, people: dict[str, Person], environment: Environment, pipeline: Pipeline
) -> None:
    old, new = pipeline.releases.get(), release_of(people["admin"].actor, pipeline, environment)
    address = f"/console/pipelines/releases/{new.id}/activate/"
    page = told(manager.get(address))
    assert f"{old.digest[:12]}, which is in force now" in page
    assert "Added store" in page
    assert "No live worker has Handler, StoreHandler" in page
    assert pipeline.releases.get(status="active") == old, "looking changes nothing"
    assert operator.post(address, {"reason": "mine"}).status_code == 403
    done = manager.post(address, {"reason": "better rates"}, follow=True)
    assert "is in force in development." in told(done)
    assert pipeline.releases.get(status="active") == new
    old.refresh_from_db()
    assert old.status == "superseded"
    event = AuditEvent.objects.get(action="release.activate", outcome="allowed")
    assert (event.reason, event.channel) == ("better rates", "console")
    again = told(manager.get(address))
    assert "there is nothing to do" in again
    back = told(manager.get(f"/console/pipelines/releases/{old.id}/activate/"))
    assert "Removed store" in back, "an older one is put in force in the same way"


def test_what_people_wrote_is_shown_as_text(
    manager: Visitor, people: dict[str, Person], environment: Environment, pipeline: Pipeline
) -> None:
    Pipeline.objects.filter(id=pipeline.id).update(name=ATTACK, description=ATTACK)
    release = release_of(people["admin"].actor, pipeline, environment, description=ATTACK)
    for address in (
        "/console/pipelines/",
        f"/console/pipelines/{pipeline.id}/",
        f"/console/pipelines/{pipeline.id}/change/",
        f"/console/pipelines/releases/{release.id}/",
    ):
        page = manager.get(address)
        assert page.status_code == 200
        assert b"<script>alert" not in page.content
