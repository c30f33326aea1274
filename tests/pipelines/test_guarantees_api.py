"""`/v1/guarantees` and a pipeline's readiness: what releases in force declare, beside what their newest runs told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import guarantees, guarantees_facts, readiness_facts
from pipelines.models import Effect, Environment, Pipeline, Run, Stage
from pipelines.releases import register_release
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.pipelines.test_policies import add
from tests.recovery.backfilled import pipeline_of
from tests.recovery.stories import effect_of

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]


@pytest.fixture
def admin(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["admin"])


@pytest.fixture
def pipeline(people: dict[str, Person], environment: Environment) -> Pipeline:
    """`rates` of one stage, `fetch`, in force in development."""
    found: Pipeline = pipeline_of(people["admin"].actor, environment)
    return found


@pytest.fixture
def told(start_run: StartRun, hand: Hand) -> Callable[..., Run]:
    """A run of `rates` whose `fetch` told of an effect with this detail, and of its state if asked: `told(act=…)`."""

    def made(seconds: float = 0, clock: Clock | None = None, state: str = "committed", **detail: str) -> Run:
        run = start_run(pipeline="rates", name=None)
        job = hand.take()
        if detail:
            effect = effect_of(run, "fetch", state)
            Effect.objects.filter(id=effect.id).update(detail=detail)
        if clock is not None:
            for _ in range(int(seconds // 30)):
                clock.advance(30)
                hand.renew(job)
        hand.report(job)
        return run

    return made


def place(api: Api, slug: str = "rates") -> dict[str, Any]:
    answer = api.get(f"/v1/pipelines/{slug}/readiness")
    assert answer.status_code == 200, answer.content
    assert answer.json()["pipeline"] == slug
    (found,) = answer.json()["environments"]
    return found


def line(found: dict[str, Any], key: str) -> dict[str, Any]:
    (one,) = [one for one in found["checklist"] if one["key"] == key]
    return one


def test_the_route_tells_what_the_pure_part_says_of_what_is_set_now(admin: Api, people: dict[str, Person]) -> None:
    """N28."""
    answer = admin.get("/v1/guarantees").json()["statements"]
    said = guarantees.statements(guarantees_facts.read(people["admin"].actor.workspace_id))
    assert [(one["key"], one["standing"], one["text"]) for one in answer] == [
        (one.key, one.standing, one.text) for one in said
    ]
    assert {one["standing"] for one in answer} == {"promised", "off", "not_promised"}


def test_a_policy_that_is_paused_switches_nothing_on(admin: Api) -> None:
    """N1: and one that is active does."""

    def standing() -> str:
        statements = admin.get("/v1/guarantees").json()["statements"]
        return next(one["standing"] for one in statements if one["key"] == "run_retry")

    made = add(admin, "patient", {}, {"max_retries": 1, "retry_interval": 5}, "run_retry", status="paused")
    assert standing() == "off"
    admin.patch(f"/v1/policies/{made['id']}", {"status": "active"})
    assert standing() == "promised"


def test_what_never_ran_is_not_known(admin: Api, pipeline: Pipeline) -> None:
    found = place(admin)
    assert (found["environment"], found["runs"]) == ("development", 0)
    assert line(found, "upserts")["state"] == "not_known"
    (stage,) = found["stages"]
    assert (stage["stage"], stage["verdict"]) == ("fetch", "declared")
    assert stage["reasons"][1] == "not known: no run of this release has attempted it."


def test_upserts_that_were_told_are_seen(admin: Api, pipeline: Pipeline, told: Callable[..., Run]) -> None:
    """N12, N19."""
    told(connector="warehouse", act="upsert")
    found = place(admin)
    assert found["runs"] == 1
    assert line(found, "upserts")["state"] == "met"
    assert "warehouse" in line(found, "row_limits")["why"]
    assert found["stages"][0]["verdict"] == "seen"


def test_an_insert_makes_it_doubtful_and_one_that_did_not_happen_does_not(
    admin: Api, pipeline: Pipeline, told: Callable[..., Run]
) -> None:
    """N23."""
    told(connector="warehouse", act="insert", state="absent")
    assert place(admin)["stages"][0]["verdict"] == "declared"
    told(connector="warehouse", act="insert")
    found = place(admin)
    assert found["stages"][0]["verdict"] == "doubtful"
    assert line(found, "upserts")["state"] == "not_met"


def test_what_an_earlier_release_did_says_nothing_of_the_one_in_force(
    admin: Api, pipeline: Pipeline, told: Callable[..., Run], people: dict[str, Person], environment: Environment
) -> None:
    told(connector="warehouse", act="insert")
    schema = {"type": "object"}
    document = {
        "slug": "rates",
        "name": "Rates",
        "stages": [{"name": "fetch", "handler": "Handler", "effect_mode": "external", "approval": {"when": "before"}}],
        "input_schema": schema,
        "limits": {"deadline_seconds": 600},
    }
    register_release(
        actor=people["admin"].actor, pipeline=pipeline, environment=environment, definition=document, activate=True
    )
    found = place(admin)
    assert found["runs"] == 0
    assert line(found, "input_schema")["state"] == "met"
    assert line(found, "limits")["state"] == "met"
    (stage,) = found["stages"]
    assert stage["verdict"] == "asks"
    assert stage["reasons"][-1] == "declared: people decide before its work, at a gate."
    assert not any("insert" in reason for reason in stage["reasons"])


def test_a_long_attempt_that_left_no_state_lacks_checkpoints(
    admin: Api, pipeline: Pipeline, told: Callable[..., Run], clock: Clock
) -> None:
    """N20: and with a state it does not."""
    run = told(seconds=330, clock=clock)
    assert line(place(admin), "checkpoints")["state"] == "not_met"
    Stage.objects.filter(run=run).update(checkpoint=run.id)
    assert line(place(admin), "checkpoints")["state"] == "met"


def test_policies_count_where_they_rule(admin: Api, pipeline: Pipeline) -> None:
    """N1: one of another pipeline does not, and one that retries nothing outranks the options."""
    add(admin, "theirs", {"pipeline": "other"}, {"max_retries": 2, "retry_interval": 5})
    assert line(place(admin), "retries")["state"] == "not_met"
    add(admin, "ours", {"pipeline": "rates"}, {"max_retries": 2, "retry_interval": 5})
    assert line(place(admin), "retries")["state"] == "met"
    add(admin, "none", {"stage": "fetch"}, {"max_retries": 0, "retry_interval": 0})
    assert line(place(admin), "retries")["state"] == "not_met"
    add(admin, "patient", {"environment": "development"}, {"max_retries": 1, "retry_interval": 5}, "run_retry")
    assert "patient" in line(place(admin), "retries")["why"]
    add(admin, "quick", {}, {"seconds": 5}, "timeout")
    assert line(place(admin), "limits")["state"] == "met"


def test_no_more_than_the_newest_runs_are_looked_at(
    admin: Api, pipeline: Pipeline, told: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_facts, "LAST_RUNS", 2)
    told(connector="warehouse", act="insert")
    told()
    assert place(admin)["stages"][0]["verdict"] == "doubtful"
    told()
    assert place(admin)["stages"][0]["verdict"] == "declared"
    assert place(admin)["runs"] == 2


def test_what_a_worker_tells_may_be_anything(admin: Api, pipeline: Pipeline, told: Callable[..., Run]) -> None:
    """A detail that is no object, or whose names are long or none."""
    for detail in ([1], "text", {"connector": "x" * 5000, "act": {"a": 1}}, {"connector": None}):
        run = told(connector="x")
        Effect.objects.filter(run=run).update(detail=detail)
    found = place(admin)
    assert max(len(reason) for reason in found["stages"][0]["reasons"]) < 500


def test_it_costs_the_same_however_many_runs_and_stages_there_are(
    admin: Api, pipeline: Pipeline, told: Callable[..., Run]
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            place(admin)
        return len(queries)

    told(connector="warehouse", act="upsert")
    count()
    few = count()
    for _ in range(4):
        told(connector="warehouse", act="insert")
    assert count() == few


def test_a_pipeline_that_is_not_there_or_of_another_workspace_is_not_found(
    admin: Api, pipeline: Pipeline, outsider: Person, as_person: Callable[[Person], Api]
) -> None:
    for slug in ("nothing", "%00", "a%20b", "x" * 300, "ratés"):
        assert admin.get(f"/v1/pipelines/{slug}/readiness").status_code == 404, slug
    assert as_person(outsider).get("/v1/pipelines/rates/readiness").status_code == 404
    unknown = admin.get("/v1/pipelines/rates/readiness?colour=red")
    assert (unknown.status_code, unknown.json()["code"]) == (400, "validation_error")


def test_without_a_release_in_force_there_is_nothing_to_say(admin: Api) -> None:
    admin.post("/v1/pipelines", {"slug": "bare", "name": "Bare"})
    assert admin.get("/v1/pipelines/bare/readiness").json() == {"pipeline": "bare", "environments": []}
