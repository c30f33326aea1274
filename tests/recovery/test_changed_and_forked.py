"""The story of a run beneath which something changed: it stops and says what differs, and a fork of it goes on to the
end (R16, R17, I12). Nobody need cancel it first: nothing of it can begin any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from pipelines.models import Environment, Event, Pipeline, Run, Workspace
from pipelines.releases import register_release
from tests.cast import Api, Hand, Person, stages_of
from tests.pipelines.test_baselines import damage, lay
from tests.pipelines.test_pinned import edit

__all__ = ["lay"]
StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]


@pytest.fixture
def boss(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["release_manager"])


@pytest.fixture
def managed(workspace: Workspace, environment: Environment, people: dict[str, Person]) -> Callable[..., None]:
    """Puts a release of the pipeline `monthly` in force, whose last stage does this."""
    pipeline = Pipeline.objects.create(workspace=workspace, slug="monthly", name="Monthly")

    def release(last: str = "Handler") -> None:
        stages = [{"name": "load", "handler": "Handler"}, {"name": "book", "handler": last}]
        register_release(
            actor=people["admin"].actor,
            pipeline=pipeline,
            environment=environment,
            definition={"slug": "monthly", "name": "Monthly", "stages": stages},
            activate=True,
        )

    release()
    return release


def fork(boss: Api, run: Run, **body: Any) -> Any:
    return boss.post(f"/v1/executions/{run.id}/rerun", {"reason": "it was changed beneath us", **body})


def test_the_definition_is_edited_and_a_fork_runs_what_is_in_force(
    managed: Callable[..., None],
    start_run: StartRun,
    new_hand: Callable[..., Hand],
    boss: Api,
    people: dict[str, Person],
) -> None:
    hand = new_hand("hand-2", "Handler", "Checked")
    run = start_run(pipeline="monthly")
    hand.report(hand.take(), output={"rows": 3})
    edit(run)
    assert not hand.pull(10)

    told = boss.get(f"/v1/executions/{run.id}").json()
    assert told["status"] == "blocked"
    assert [(one["what"], one["name"]) for one in told["definition_changed"]] == [("definition", "monthly")]
    assert told["definition_changed"][0]["pinned"] == run.release_digest
    (cause, *_) = [one["cause"] for one in boss.get(f"/v1/executions/{run.id}/blockers").json()["results"]]
    assert "only a fork goes on" in cause

    managed("Checked")
    before = [(one.name, one.state, one.epoch, one.output_digest) for one in stages_of(run)]
    answer = fork(boss, run, from_step_id="book")
    assert answer.status_code == 201, answer.content
    made = Run.objects.get(id=answer.json()["execution_id"])
    assert made.release_id != run.release_id
    assert [(one.name, one.state) for one in stages_of(made)] == [("load", "completed"), ("book", "ready")]
    job = hand.take()
    assert (job.run_id, job.stage.handler) == (made.id, "Checked")
    hand.report(job, output="booked")
    assert Run.objects.get(id=made.id).status == "completed"

    run.refresh_from_db()
    assert (run.status, bool(run.changed)) == ("blocked", True)
    assert [(one.name, one.state, one.epoch, one.output_digest) for one in stages_of(run)] == before
    assert not hand.pull(10)
    assert boss.post(f"/v1/executions/{run.id}/cancel", {"reason": "done elsewhere"}).status_code == 200
    assert Run.objects.get(id=run.id).status == "cancelled"


def test_the_screen_leads_from_what_differs_to_the_fork(
    managed: Callable[..., None], start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    run = start_run(pipeline="monthly")
    hand.report(hand.take(), output=1)
    edit(run)
    assert not hand.pull(10)
    client = Client()
    client.force_login(people["release_manager"].user)
    page = client.get(f"/console/runs/{run.id}/").content.decode()
    assert "Definition changed" in page
    assert f"/console/runs/{run.id}/rerun/" in page
    dialog = client.get(f"/console/runs/{run.id}/rerun/?from_step_id=book")
    assert dialog.status_code == 200
    assert "is not forked" not in dialog.content.decode()


def test_a_baseline_is_damaged_and_a_fork_pins_it_anew(
    start_run: StartRun, hand: Hand, boss: Api, lay: Callable[..., Any], api: Api
) -> None:
    """R17: what was given is pinned as it is now, or refused where it is not whole: nothing runs on damaged bytes."""
    kept = lay()
    body = {
        "name": "n",
        "idempotencyKey": "k",
        "stages": [{"stageName": "a", "stageHandlerName": "Handler"}],
        "baseline": [{"name": "gold", "artifactId": str(kept.id)}],
    }
    assert api.post("/pipelines/idempotent", body).status_code == 201
    run = Run.objects.get()
    damage(kept.id)
    assert not hand.pull(10)
    assert [one["what"] for one in boss.get(f"/v1/executions/{run.id}").json()["definition_changed"]] == ["baseline"]
    answer = boss.post(f"/v1/executions/{run.id}/replay", {"reason": "anew"})
    if answer.status_code == 201:  # made, and stopped again for the same reason
        made = Run.objects.get(id=answer.json()["execution_id"])
        assert not hand.pull(10)
        assert Run.objects.get(id=made.id).status == "blocked"
    else:
        assert answer.json()["code"] in ("definition_changed", "artifact_corrupt"), answer.content
    assert Run.objects.get(id=run.id).status == "blocked"


def test_while_work_is_under_way_it_is_not_forked(start_run: StartRun, hand: Hand, boss: Api) -> None:
    run = start_run(
        {"name": "a", "depends_on": []}, {"name": "b", "depends_on": []}, {"name": "z", "depends_on": ["a"]}
    )
    job = hand.take()
    edit(run)
    assert not hand.pull(10)
    answer = fork(boss, run, from_step_id="b")
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_state_invalid")
    assert "work of the run is under way (a)" in answer.json()["detail"]
    hand.report(job, output=1)
    assert fork(boss, run, from_step_id="b").status_code == 201


def test_blocked_by_anything_else_it_is_not_forked(start_run: StartRun, hand: Hand, boss: Api, clock: Any) -> None:
    from pipelines.sweeps import expire_leases

    run = start_run({"name": "pay", "effect_mode": "external"})
    hand.take()
    clock.advance(days=1)
    assert expire_leases() == 1
    assert Run.objects.get(id=run.id).status == "blocked"
    answer = fork(boss, run, from_step_id="pay")
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_state_invalid")
    assert not Event.objects.filter(run=run, kind="run.definition_changed").exists()
