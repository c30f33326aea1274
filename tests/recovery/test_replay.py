"""Replay: a new run from the beginning, on the release that is in force now, in the source's environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines import catalog, releases
from pipelines.models import AuditEvent, Checkpoint, Environment, Release, Run
from pipelines.sql import execute
from recovery import forks
from recovery.models import Operation
from recovery.states import OperationKind
from tests.cast import Api, Hand, Person, stages_of
from tests.recovery.stories import clear, effect_of

StartRun = Callable[..., Run]
FAILED = {"error_code": "BUSINESS_REJECTED"}


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def done(start_run: StartRun, hand: Hand) -> Run:
    run = start_run({"name": "first", "input": "as sent"}, "second")
    hand.finish()
    return run


def replay(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/v1/executions/{run.id}/replay", body)


def target_of(answer: Any) -> Run:
    assert answer.status_code == 201, answer.content
    found: Run = Run.objects.get(id=answer.json()["execution_id"])
    return found


@pytest.fixture
def release(people: dict[str, Person], environments: dict[str, Environment]) -> Callable[..., Release]:
    """Registers one of the pipeline `triage` and puts it in force: release("load", where="staging")."""

    def register(*names: str, where: str = "development") -> Release:
        admin = people["admin"].actor
        pipeline, _ = catalog.save_pipeline(actor=admin, slug="triage", name="Triage")
        stages = [{"name": name, "handler": "Handler"} for name in names]
        definition = {"slug": "triage", "name": "Triage", "stages": stages}
        return releases.register_release(
            actor=admin, pipeline=pipeline, environment=environments[where], definition=definition, activate=True
        )[0]

    return register


def test_it_starts_from_the_beginning_and_keeps_nothing(done: Run, operator: Api, hand: Hand) -> None:
    """O37, F48: the first stage runs, with what the source's got; no checkpoint is used."""
    answer = replay(operator, done)
    target = target_of(answer)
    assert [stage.state for stage in stages_of(target)] == ["ready", "pending"]
    job = hand.take()
    assert (job.stage.name, job.input) == ("first", "as sent")
    hand.report(job)
    hand.finish()
    target.refresh_from_db()
    assert target.status == "completed"
    assert target.recovery == {
        "type": "replay",
        "original_execution_id": str(done.id),
        "operation_id": answer.json()["operation_id"],
        "checkpoint_id": None,
        "frozen_input": False,
    }
    assert answer.json()["from_step_id"] is None


def test_freezing_is_a_hint_and_never_the_old_release(
    start_run: StartRun, hand: Hand, operator: Api, release: Callable[..., Release]
) -> None:
    """O40, O41: the release in force now, whatever the source ran on."""
    release("load")
    run = start_run(pipeline="triage", input={"ticket": 7})
    hand.finish()
    current = release("load", "check")
    answer = replay(operator, run, flow_slug="triage", freeze_release=True)
    target = target_of(answer)
    assert (target.release_id, answer.json()["release_changed"]) == (current.id, True)
    assert operator.get(f"/v1/executions/{target.id}").json()["inputs"] == {"ticket": 7, "_recovery": target.recovery}
    assert target.recovery is not None
    assert target.recovery["frozen_input"] is True
    assert [stage.name for stage in stages_of(target)] == ["load", "check"]


def test_a_release_promoted_in_between_does_not_slip_in(
    start_run: StartRun, hand: Hand, people: dict[str, Person], release: Callable[..., Release], monkeypatch: Any
) -> None:
    """O40: what was in force when the target was reserved is pinned through dispatch."""
    pinned = release("load")
    run = start_run(pipeline="triage", input={})
    hand.finish()
    actor = people["operator"].actor
    asked = forks.ask_fork(OperationKind.REPLAY, run, forks.Wish(), actor=actor)
    dispatch = forks.dispatch

    def promoted_meanwhile(operation: Operation, **how: Any) -> Any:
        release("load", "check")
        return dispatch(operation, **how)

    monkeypatch.setattr(forks, "dispatch", promoted_meanwhile)
    made = forks.fork(asked, actor=actor)
    target = Run.objects.get(id=made.result["execution_id"])
    assert target.release_id == pinned.id
    assert [stage.name for stage in stages_of(target)] == ["load"]


def test_a_release_revoked_in_between_stops_it(
    start_run: StartRun, hand: Hand, people: dict[str, Person], release: Callable[..., Release], monkeypatch: Any
) -> None:
    """Model §2: revoked blocks forks, also one that was reserved; the operation fails and its key is free."""
    release("load")
    run = start_run(pipeline="triage", input={})
    hand.finish()
    actor = people["operator"].actor
    asked = forks.ask_fork(OperationKind.REPLAY, run, forks.Wish(), actor=actor)
    dispatch = forks.dispatch

    def revoked_meanwhile(operation: Operation, **how: Any) -> Any:
        execute("UPDATE pipelines_release SET status = 'revoked'")
        return dispatch(operation, **how)

    monkeypatch.setattr(forks, "dispatch", revoked_meanwhile)
    with pytest.raises(forks.Refusal) as refused:
        forks.fork(asked, actor=actor, key="k-1")
    assert refused.value.code == "release_not_active"
    operation = Operation.objects.get()
    assert (operation.state, operation.key, operation.target) == ("failed", "", None)
    assert not Run.objects.filter(recovered_from=run).exists()
    assert [event.outcome for event in AuditEvent.objects.filter(action="run.replay")] == ["denied"]


def test_a_replay_of_staging_never_lands_in_production(
    place: Any,
    start_run: StartRun,
    operator: Api,
    environments: dict[str, Environment],
    release: Callable[..., Release],
) -> None:
    """O38, O39: the source's environment is the default and the only one."""
    there = type(place)(place.workspace_id, place.application_id, environments["staging"].id, "staging")
    of_staging, _ = release("load", where="staging"), release("load", "charge", where="production")
    run = start_run(pipeline="triage", input={}, in_place=there)
    Hand(there, "hand-2", ["Handler"]).finish()
    for environment, status, code in (
        ("production", 409, "recovery_environment_mismatch"),
        ("mars", 422, "environment_unknown"),
    ):
        answer = replay(operator, run, environment=environment)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    target = target_of(replay(operator, run))
    assert (target.environment.slug, target.release_id) == ("staging", of_staging.id)


def test_every_effect_of_the_source_is_in_question(
    done: Run, operator: Api, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Model §2 Disposition: also that of a stage long done."""
    effect = effect_of(done, "first")
    answer = replay(operator, done)
    assert (answer.status_code, answer.json()["code"]) == (409, "operator_review_required")
    clear(effect, as_person(people["approver"]))
    assert replay(operator, done).json()["disposition"] == "recovery_allowed_reconciled"


def test_a_stage_that_is_gone_is_told_as_removed_and_needs_no_checkpoint(
    start_run: StartRun, hand: Hand, operator: Api, release: Callable[..., Release]
) -> None:
    release("load", "check")
    run = start_run(pipeline="triage", input={})
    hand.finish()
    release("load")
    plan = replay(operator, run, dry_run=True).json()
    assert (plan["removed"], plan["kept"], plan["checkpoint_id"]) == (["check"], [], None)
    target = target_of(replay(operator, run))
    assert [stage.name for stage in stages_of(target)] == ["load"]
    assert Checkpoint.objects.get(run=target).moment == "run_start"


def test_rerun_and_replay_do_not_share_a_key(done: Run, operator: Api) -> None:
    """Model §3.6: scope, operation, key."""
    key = {"client_request_id": "0b7e3d1c-1111-4222-8333-444455556666"}
    replayed = replay(operator, done, **key)
    rerun = operator.post(f"/v1/executions/{done.id}/rerun", key)
    assert (replayed.status_code, rerun.status_code) == (201, 201)
    frozen = replay(operator, done, freeze_release=True, **key)
    assert (frozen.status_code, frozen.json()["code"]) == (409, "recovery_idempotency_conflict")


def test_a_replay_takes_no_step(done: Run, operator: Api) -> None:
    answer = replay(operator, done, from_step_id="first")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["from_step_id"])
