"""Pipelines, their releases, and which one is in force."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from pipelines import releases
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Environment, Pipeline, Release, Run
from tests.cast import Api, Person, stages_of
from tests.factories import PipelineFactory

StartRun = Callable[..., Run]


def definition(handler: str = "Handler", **more: Any) -> dict[str, Any]:
    return {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": handler}], **more}


@pytest.fixture
def manager(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["release_manager"])


@pytest.fixture
def pipeline(manager: Api) -> str:
    assert manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"}).status_code == 201
    return "nightly"


def register(manager: Api, *, handler: str = "Handler", environment: str = "development", **more: Any) -> Any:
    body = {"pipeline": "nightly", "environment": environment, "definition": definition(handler), **more}
    return manager.post("/v1/releases", body)


def test_a_pipeline_is_made_and_then_changed(manager: Api) -> None:
    assert manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"}).status_code == 201
    again = manager.post("/v1/pipelines", {"slug": "nightly", "name": "Every night", "description": "after closing"})
    assert (again.status_code, again.json()["name"]) == (200, "Every night")
    (listed,) = manager.get("/v1/pipelines?slug=nightly").json()["results"]
    assert (listed["slug"], listed["description"]) == ("nightly", "after closing")


def test_a_release_is_registered_and_put_in_force(manager: Api, pipeline: str, start_run: StartRun) -> None:
    answer = register(manager)
    assert answer.status_code == 201
    release = answer.json()
    assert (release["status"], release["pipeline"], release["environment"]) == ("draft", "nightly", "development")
    with pytest.raises(Refusal) as refused:
        start_run(pipeline="nightly", name=None)
    assert refused.value.code == "release_not_active"
    activated = manager.post(f"/v1/releases/{release['id']}/activate", {"reason": "tested in staging"})
    assert (activated.status_code, activated.json()["status"]) == (200, "active")
    run = start_run(pipeline="nightly", name=None)
    assert (str(run.release_id), run.name) == (release["id"], "Nightly")
    assert [stage.handler for stage in stages_of(run)] == ["Handler"]
    assert [event.action for event in AuditEvent.objects.filter(action__startswith="release").order_by("at", "id")] == [
        "release.register",
        "release.activate",
    ]
    assert AuditEvent.objects.get(action="release.activate").reason == "tested in staging"


def test_the_same_definition_again_is_the_same_release(manager: Api, pipeline: str) -> None:
    """Saying a default and leaving it out is one definition: the digest is over the whole of it."""
    first = register(manager).json()
    spelled = definition()
    spelled["stages"][0] |= {"needs": None, "effect_mode": "idempotent", "options": {"backoff": "fixed"}}
    body = {"pipeline": "nightly", "environment": "development", "definition": spelled}
    again = manager.post("/v1/releases", body)
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    spelled["stages"][0]["needs"] = []
    assert manager.post("/v1/releases", body).json()["id"] == first["id"]
    outcomes = AuditEvent.objects.filter(action="release.register").order_by("at", "id")
    assert list(outcomes.values_list("outcome", flat=True)) == ["allowed", "no_op", "no_op"]
    assert register(manager, environment="staging").json()["id"] != first["id"]
    assert Release.objects.filter(pipeline__slug="nightly").count() == 2


def test_a_new_release_supersedes_the_old_one_and_a_run_keeps_its_own(
    manager: Api, pipeline: str, start_run: StartRun
) -> None:
    old = register(manager, activate=True).json()
    run = start_run(pipeline="nightly", name=None)
    new = register(manager, handler="Other", activate=True).json()
    assert manager.get(f"/v1/releases/{old['id']}").json()["status"] == "superseded"
    assert [one["id"] for one in manager.get("/v1/releases?status=active").json()["results"]] == [new["id"]]
    run.refresh_from_db()
    assert str(run.release_id) == old["id"]
    assert stages_of(run)[0].handler == "Handler"
    back = manager.post(f"/v1/releases/{old['id']}/activate")
    assert back.json()["status"] == "active"
    assert manager.get(f"/v1/releases/{new['id']}").json()["status"] == "superseded"


def test_activating_what_is_in_force_changes_nothing(manager: Api, pipeline: str) -> None:
    release = register(manager, activate=True).json()
    again = manager.post(f"/v1/releases/{release['id']}/activate")
    assert (again.status_code, again.json()["activated_at"]) == (200, release["activated_at"])
    assert AuditEvent.objects.get(action="release.activate").outcome == "no_op"


@pytest.mark.parametrize("status", ["revoked", "retired"])
def test_a_withdrawn_release_is_not_put_in_force(manager: Api, pipeline: str, status: str) -> None:
    release = register(manager).json()
    Release.objects.filter(id=release["id"]).update(status=status)
    answer = manager.post(f"/v1/releases/{release['id']}/activate")
    assert (answer.status_code, answer.json()["code"]) == (409, "release_not_active")


def test_what_a_release_names_must_exist(manager: Api, pipeline: str) -> None:
    nowhere = register(manager, environment="moon")
    assert (nowhere.status_code, nowhere.json()["code"]) == (422, "environment_unknown")
    body = {"pipeline": "daily", "environment": "development", "definition": definition(slug="daily")}
    unknown = manager.post("/v1/releases", body)
    assert (unknown.status_code, list(unknown.json()["errors"])) == (400, ["pipeline"])
    other = manager.post("/v1/releases", body | {"pipeline": "nightly"})
    assert (other.status_code, list(other.json()["errors"])) == (400, ["definition.slug"])
    assert not Release.objects.exists()


def test_a_definition_that_cannot_run_is_refused_with_its_paths(manager: Api, pipeline: str) -> None:
    broken = definition()
    broken["stages"] = [{"name": "a", "handler": "", "options": {"foo": 1}}]
    body = {"pipeline": "nightly", "environment": "development", "definition": broken}
    answer = manager.post("/v1/releases", body)
    assert answer.status_code == 400
    assert set(answer.json()["errors"]) == {"definition.stages[0].handler", "definition.stages[0].options.foo"}


def test_a_release_shows_its_definition(manager: Api, pipeline: str) -> None:
    release = register(manager).json()
    told = manager.get(f"/v1/releases/{release['id']}").json()["definition"]
    assert told["stages"][0]["handler"] == "Handler"
    assert told["stages"][0]["options"]["max_recoveries"] == 3, "defaults are recorded, not left to chance"


@pytest.mark.django_db(transaction=True)
def test_activations_that_race_leave_one_in_force(people: dict[str, Person], environment: Environment) -> None:
    """Real connections: whichever comes last, exactly one is active, and no one is told a fault."""
    manager = people["release_manager"].actor
    pipeline = PipelineFactory(workspace=environment.workspace, slug="nightly")
    made = [_registered(people, pipeline, environment, handler) for handler in "abcdef"]
    start, faults = threading.Barrier(len(made)), []

    def activate(release: Release) -> None:
        try:
            start.wait(timeout=10)
            releases.activate_release(release.id, actor=manager)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the test shows it
            faults.append(fault)
        finally:
            connection.close()

    threads = [threading.Thread(target=activate, args=[release]) for release in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert faults == []
    statuses = sorted(Release.objects.filter(pipeline=pipeline).values_list("status", flat=True))
    assert statuses == ["active"] + ["superseded"] * 5
    assert AuditEvent.objects.filter(action="release.activate", outcome="allowed").count() == 6


def _registered(people: dict[str, Person], pipeline: Pipeline, environment: Environment, handler: str) -> Release:
    release, new = releases.register_release(
        actor=people["release_manager"].actor,
        pipeline=pipeline,
        environment=environment,
        definition=definition(handler),
        activate=False,
    )
    assert new
    return release
