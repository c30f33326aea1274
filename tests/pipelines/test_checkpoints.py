"""What handlers leave for their stage's next attempt: durable, fenced, signed, and handed over only when it holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from pipelines import checkpoint_reading, keyring, leases, sweeps
from pipelines.checkpoint_reading import verify
from pipelines.errors import Refusal
from pipelines.models import Checkpoint, CheckpointEvidence, Effect, LateEvidence, Run, Stage
from pipelines.postures import LARGEST_STATE, Left
from pipelines.states import CheckpointMoment
from tests.cast import Hand, Person, Worker, stages_of, wire
from tests.clock import Clock
from tests.pipelines.engine import kinds, last_event, states
from tests.tampering import Scene, forge, make_scene, past_the_triggers, revoked_key
from tests.verbs import pause_run, resume_run, retry_stage

StartRun = Callable[..., Run]
COMMITTED = {"class": "external_http", "stepId": "charge", "idempotencyKey": "invoice-42"}


def checkpoints(run: Run) -> list[Checkpoint]:
    return list(Checkpoint.objects.filter(run=run).order_by("sequence"))


def leave(worker: Worker, job: dict[str, Any], state: Any, **more: Any) -> Any:
    return worker.post(
        f"/stages/{job['stageId']}/checkpoints", {"executionId": job["executionId"], "state": state} | more
    )


# written


def test_what_a_handler_leaves_is_durable_signed_and_numbered(start_run: StartRun, worker: Worker) -> None:
    """Model §2 Checkpoint: where a handler asks; the answer names it, and its payload holds the state."""
    run = start_run("first", "second")
    job = worker.take()

    answer = leave(worker, job, {"page": 7, "seen": [1.5, "ü", None]})

    assert answer.status_code == 201, answer.content
    start, left = checkpoints(run)
    assert answer.json() == {"checkpointId": str(left.id), "sequence": 2}
    assert (left.moment, str(left.stage), str(left.attempt), left.epoch) == (
        CheckpointMoment.HANDLER,
        job["stageId"],
        job["executionId"],
        1,
    )
    payload = json.loads(left.payload)
    assert payload["state"] == {"page": 7, "seen": [1.5, "ü", None]}
    assert payload["recovery_posture"] is None
    assert (left.current_step_id, left.previous_step_id) == ("first", "")
    assert checkpoint_reading.verify_all([start, left]) == ["valid", "valid"]
    assert stages_of(run)[0].checkpoint == left.id
    assert last_event(run, "stage.checkpoint").data == {"checkpoint": str(left.id)}


def test_only_the_session_that_holds_the_lease_may_leave_anything(
    start_run: StartRun, worker: Worker, new_worker: Callable[..., Worker], clock: Clock
) -> None:
    """Model §2 Lease, F09: another session and a lease that ran out are refused, and nothing is kept."""
    run = start_run("first")
    job = worker.take()

    refusals = [leave(new_worker("worker-2", "Handler"), job, 1)]
    clock.advance(61)
    refusals.append(leave(worker, job, 2))

    assert [(one.status_code, one.json()["code"]) for one in refusals] == [(409, "stale_execution")] * 2
    assert [one.moment for one in checkpoints(run)] == ["run_start"]
    assert stages_of(run)[0].checkpoint is None
    assert LateEvidence.objects.count() == 0


def test_effects_told_too_late_are_kept_as_late_evidence(start_run: StartRun, worker: Worker, clock: Clock) -> None:
    """Model §2 Attempt: what came too late moves nothing, and reconciliation can use it."""
    start_run("first")
    job = worker.take()
    clock.advance(61)

    refused = leave(worker, job, 1, recoveryPosture={"committedSideEffects": [COMMITTED]})

    assert refused.json()["code"] == "stale_execution"
    assert "late evidence" in refused.json()["detail"]
    (evidence,) = LateEvidence.objects.all()
    assert json.loads(evidence.body)["effects"][0]["key"] == "invoice-42"
    assert Effect.objects.count() == 0


def test_the_attempt_of_another_application_or_stage_is_unknown(
    start_run: StartRun, worker: Worker, new_worker: Callable[..., Worker], sibling_key: str
) -> None:
    """I16: 404, whatever the body says."""
    start_run("first")
    start_run("first")
    job, other = worker.pull(maxJobs=2)

    stranger = new_worker("worker-2", "Handler", key=sibling_key)
    assert leave(stranger, job, 1).status_code == 404
    assert leave(worker, {**job, "stageId": other["stageId"]}, 1).status_code == 404
    assert stranger.post(f"/stages/{job['stageId']}/checkpoints", {"nonsense": 1}).status_code == 404


def test_a_state_has_its_limit_and_its_form(start_run: StartRun, worker: Worker) -> None:
    """Model §2: at most 256 KiB of canonical JSON; numbers that no double holds have no canonical form."""
    run = start_run("first")
    job = worker.take()

    assert leave(worker, job, "x" * (LARGEST_STATE - 2)).status_code == 201
    too_large = leave(worker, job, "x" * (LARGEST_STATE - 1))
    no_form = leave(worker, job, {"number": 2**60})
    with pytest.raises(Refusal, match="canonical form"):
        Left(json.loads("[" * 300 + "]" * 300)).check()
    missing = worker.post(f"/stages/{job['stageId']}/checkpoints", {"executionId": job["executionId"]})
    unknown = leave(worker, job, 1, status="done")

    assert (too_large.status_code, too_large.json()["code"]) == (413, "payload_too_large")
    assert str(LARGEST_STATE) in too_large.json()["errors"]["state"][0]
    assert (no_form.status_code, list(no_form.json()["errors"])) == (400, ["state"])
    assert (missing.status_code, list(missing.json()["errors"])) == (400, ["state"])
    assert (unknown.status_code, list(unknown.json()["errors"])) == (400, ["status"])
    assert len(checkpoints(run)) == 2


# recovery posture


def test_both_forms_of_a_posture_say_the_same(start_run: StartRun, worker: Worker) -> None:
    """O47: `side_effects` with `committed: true`, and `committed_side_effects`: same effects, same payload."""
    kept = []
    for posture in (
        {"sideEffects": [{**COMMITTED, "committed": True}]},
        {"committedSideEffects": [COMMITTED]},
        {"sideEffects": [{**COMMITTED, "committed": True}], "committedSideEffects": [COMMITTED]},
    ):
        run = start_run("first")
        job = worker.take()
        assert leave(worker, job, {}, recoveryPosture=posture).status_code == 201
        effects = Effect.objects.filter(run=run).values_list("effect_class", "step_id", "key", "state", "attempt")
        kept.append((json.loads(checkpoints(run)[1].payload)["recovery_posture"], [(*row[:4],) for row in effects]))
        assert [str(row[4]) for row in effects] == [job["executionId"]]

    assert kept[0] == kept[1] == kept[2]
    (entry,) = kept[0][0]["side_effects"]
    assert entry == {
        "class": "external_http",
        "step_id": "charge",
        "idempotency_key": "invoice-42",
        "committed": True,
    }
    assert kept[0][1] == [("external_http", "charge", "invoice-42", "committed")]


@pytest.mark.parametrize("form", ["sideEffects", "committedSideEffects"])
@pytest.mark.parametrize(
    ("left_out", "code"),
    [("class", "effect_class_unknown"), ("stepId", "effect_key_required"), ("idempotencyKey", "effect_key_required")],
)
def test_a_committed_effect_must_say_what_it_is(
    start_run: StartRun, worker: Worker, form: str, left_out: str, code: str
) -> None:
    """O48: class, step and key, each named when it is missing; nothing of the request is kept."""
    run = start_run("first")
    job = worker.take()
    entry = {name: value for name, value in COMMITTED.items() if name != left_out}
    good = {**COMMITTED, "idempotencyKey": "invoice-41"}
    extra = {"committed": True} if form == "sideEffects" else {}

    answer = leave(worker, job, {}, recoveryPosture={form: [{**good, **extra}, {**entry, **extra}]})

    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert list(answer.json()["errors"]) == [f"recoveryPosture.{form}[1].{left_out}"]
    assert len(checkpoints(run)) == 1
    assert Effect.objects.count() == 0


def test_an_unknown_class_is_refused_also_where_nothing_is_committed(start_run: StartRun, worker: Worker) -> None:
    """O42."""
    start_run("first")
    job = worker.take()

    answer = leave(worker, job, {}, recoveryPosture={"sideEffects": [{"class": "telepathy", "committed": False}]})

    assert (answer.status_code, answer.json()["code"]) == (422, "effect_class_unknown")
    assert list(answer.json()["errors"]) == ["recoveryPosture.sideEffects[0].class"]


def test_internal_state_needs_no_key_and_what_is_not_committed_is_no_effect(
    start_run: StartRun, worker: Worker
) -> None:
    """O43: and an entry that is not committed stays in the checkpoint alone."""
    run = start_run("first")
    job = worker.take()
    told = [{"class": "internal_state", "committed": True}, {"class": "retrieval", "committed": False}]

    assert leave(worker, job, {}, recoveryPosture={"sideEffects": told}).status_code == 201

    assert list(Effect.objects.values_list("effect_class", "state")) == [("internal_state", "committed")]
    assert [one["class"] for one in json.loads(checkpoints(run)[1].payload)["recovery_posture"]["side_effects"]] == [
        "internal_state",
        "retrieval",
    ]


def test_what_stands_under_committed_cannot_say_that_it_is_not(start_run: StartRun, worker: Worker) -> None:
    start_run("first")
    job = worker.take()

    answer = leave(worker, job, {}, recoveryPosture={"committedSideEffects": [{**COMMITTED, "committed": False}]})

    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == ["recoveryPosture.committedSideEffects[0].committed"]


def test_a_posture_that_takes_an_effect_back_is_refused_with_its_place(start_run: StartRun, worker: Worker) -> None:
    """Model §2 Effect: only forward. An effect told absent cannot turn out committed by way of a posture."""
    run = start_run("first")
    job = worker.take()
    said = {"executionId": job["executionId"], "effects": [{**COMMITTED, "state": "absent"}]}
    assert worker.post(f"/stages/{job['stageId']}/effects", said).status_code == 201

    answer = leave(worker, job, {}, recoveryPosture={"committedSideEffects": [COMMITTED]})

    assert (answer.status_code, answer.json()["code"]) == (409, "stage_state_invalid")
    assert list(answer.json()["errors"]) == ["recoveryPosture.committedSideEffects[0].state"]
    assert len(checkpoints(run)) == 1


# handed to the next attempt


def test_a_stage_that_is_given_back_goes_on_from_what_it_left(
    start_run: StartRun, worker: Worker, people: dict[str, Person]
) -> None:
    """F50, O8: release with a checkpoint, in one transaction; the next attempt's job carries the state."""
    run = start_run("first")
    job = worker.take()
    assert "checkpoint" not in job
    pause_run(run.id, actor=people["operator"].actor)
    body = {"executionId": job["executionId"], "checkpoint": {"state": {"page": 3}}}

    assert worker.post(f"/stages/{job['stageId']}/release", body).json()["status"] == "ready"

    resume_run(run.id, actor=people["operator"].actor)
    again = worker.take()
    left = Checkpoint.objects.get(run=run, moment="handler")
    assert again["checkpoint"] == {"checkpointId": str(left.id), "sequence": left.sequence, "state": {"page": 3}}
    assert (again["attempt"], again["idempotencyKey"]) == (2, job["idempotencyKey"])


def test_a_failed_attempts_result_leaves_state_for_its_retry(start_run: StartRun, worker: Worker, clock: Clock) -> None:
    """Contract §2: `checkpoint` in a result, kept with it."""
    run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 5}})
    job = worker.take()

    answer = worker.report(
        job,
        "failed",
        errorCode="UPSTREAM",
        checkpoint={"state": {"page": 9}, "recoveryPosture": {"committedSideEffects": [COMMITTED]}},
    )

    assert answer.json()["stageStatus"] == "retry_scheduled"
    assert Effect.objects.get(run=run).state == "committed"
    clock.advance(6)
    assert worker.take()["checkpoint"]["state"] == {"page": 9}


def test_a_result_whose_checkpoint_is_wrong_spoils_no_other(start_run: StartRun, worker: Worker) -> None:
    """Contract §2: each item is answered by itself, and the wrong one is not applied at all."""
    runs = [start_run("first"), start_run("first")]
    jobs = worker.pull(maxJobs=2)
    items = [
        {"stageId": job["stageId"], "executionId": job["executionId"], "attempt": 1, "status": "succeeded"}
        for job in jobs
    ]
    items[0]["checkpoint"] = {"state": "x" * LARGEST_STATE}
    items[0]["effects"] = [{**COMMITTED, "state": "committed"}]

    first, second = worker.post("/results", {"results": items}).json()["results"]

    assert (first["accepted"], first["code"], list(first["errors"])) == (
        False,
        "payload_too_large",
        ["checkpoint.state"],
    )
    assert second["accepted"]
    assert {job["pipelineId"]: states(run)["first"] for job, run in zip(jobs, runs, strict=True)} == {
        jobs[0]["pipelineId"]: "running",
        jobs[1]["pipelineId"]: "completed",
    }
    assert Effect.objects.count() == 0


def test_a_lost_workers_successor_gets_its_newest_state(
    start_run: StartRun, hand: Hand, worker: Worker, clock: Clock
) -> None:
    """F61: run, kill, go on, through the worker protocol alone and with nothing prepared."""
    run = start_run("first", "second")
    job = worker.take()
    for page in (1, 2, 3):
        assert leave(worker, job, {"page": page}).status_code == 201
    clock.advance(61)
    sweeps.expire_leases(100)

    again = worker.take()

    assert again["attempt"] == 2
    assert again["checkpoint"]["state"] == {"page": 3}
    assert worker.report(again).json()["stageStatus"] == "completed"
    assert worker.take()["stageName"] == "second"
    assert kinds(run).count("stage.checkpoint") == 3


def test_a_resumed_run_goes_on_with_the_next_stage(
    start_run: StartRun, worker: Worker, people: dict[str, Person]
) -> None:
    """F50: paused after stage three of five; the first new attempt is one of stage four."""
    run = start_run("one", "two", "three", "four", "five")
    for _ in range(3):
        worker.report(worker.take())
    pause_run(run.id, actor=people["operator"].actor)
    assert worker.pull() == []
    paused = checkpoints(run)[-1]
    assert (paused.moment, paused.current_step_id, paused.previous_step_id) == ("pause", "four", "three")

    resume_run(run.id, actor=people["operator"].actor)

    job = worker.take()
    assert (job["stageName"], job["attempt"]) == ("four", 1)
    assert set(list(states(run).values())[:3]) == {"completed"}


def test_state_that_could_not_be_signed_is_kept_and_never_trusted(
    start_run: StartRun, worker: Worker, settings: Any, clock: Clock
) -> None:
    """Model §2: without a key the engine goes on; what it wrote meanwhile is not handed over, also not later."""
    run = start_run("first")
    job = worker.take()
    key = settings.RECOURSE_ENCRYPTION_KEY
    settings.RECOURSE_ENCRYPTION_KEY = Fernet.generate_key().decode()
    keyring.forget_all()
    assert leave(worker, job, {"page": 1}).status_code == 201
    settings.RECOURSE_ENCRYPTION_KEY = key
    keyring.forget_all()
    left = checkpoints(run)[1]
    assert (left.algorithm, left.key_id, left.signature) == ("", "", "")
    clock.advance(61)
    sweeps.expire_leases(100)

    assert "checkpoint" not in worker.take()
    assert verify(left) == "invalid"


def test_a_new_epoch_starts_clean(start_run: StartRun, worker: Worker, people: dict[str, Person]) -> None:
    """Model §2: the state is read back within the epoch; a retry by a person begins another."""
    run = start_run("first")
    job = worker.take()
    leave(worker, job, {"page": 1})
    worker.report(job, "failed", errorCode="BUSINESS_REJECTED")

    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="again")

    assert "checkpoint" not in worker.take()


@pytest.mark.parametrize("how", ["payload", "stage", "older one named", "newest removed", "named one gone", "revoked"])
def test_state_that_is_not_to_be_believed_is_not_handed_over(
    start_run: StartRun, worker: Worker, clock: Clock, how: str
) -> None:
    """O25, O34, O36: the job carries none, an event says why, and the stage begins clean."""
    run = start_run("first", "second")
    job = worker.take()
    leave(worker, job, {"page": 1})
    leave(worker, job, {"page": 2})
    older, newest = checkpoints(run)[1:]
    match how:
        case "payload":
            forge(newest, payload=newest.payload.replace('"page":2', '"page":9'))
        case "stage":
            forge(newest, stage=stages_of(run)[1].id)
        case "older one named":
            with past_the_triggers():
                Stage.objects.filter(id=job["stageId"]).update(checkpoint=older.id)
        case "newest removed":
            with past_the_triggers():
                newest.delete()
        case "named one gone":
            with past_the_triggers():
                Checkpoint.objects.filter(run=run, moment="handler").delete()
        case "revoked":
            revoked_key(Scene(run, run))
    clock.advance(61)
    sweeps.expire_leases(100)

    again = worker.take()

    assert "checkpoint" not in again
    refused = last_event(run, "stage.checkpoint_refused")
    assert str(refused.attempt) == again["executionId"]
    assert refused.reason


def test_a_claim_asks_nothing_more_when_nothing_was_left(start_run: StartRun, hand: Hand) -> None:
    """The hot path: state costs a statement only where there is some."""
    start_run("first")
    start_run("first")
    hand.take()
    with CaptureQueriesContext(connection) as captured:
        hand.take()

    assert not [one for one in captured.captured_queries if "pipelines_checkpoint" in one["sql"]]


def test_the_job_of_the_console_itself_carries_it_too(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """The executor reads the same job."""
    run = start_run("first")
    job = hand.take()
    leases.release(hand.holder, job.stage.id, job.attempt_id, Left({"page": 5}))

    assert wire(hand.take())["checkpoint"]["state"] == {"page": 5}
    assert states(run) == {"first": "running"}


# read back


def test_what_a_handler_left_can_be_asked_for_by_name(start_run: StartRun, hand: Hand) -> None:
    """What a rerun without `from_step_id` hands over; None where nothing was left."""
    scene = make_scene(start_run, hand)

    left = checkpoint_reading.handler_state(scene.run.id, "second")

    assert left is not None
    assert left.state == {"page": 2, "step": 1}
    assert left.checkpoint_id == scene.stage("second").checkpoint
    assert checkpoint_reading.handler_state(scene.run.id, "first") is None


def test_a_checkpoint_and_its_evidence_are_only_ever_added(start_run: StartRun) -> None:
    """I7: by trigger."""
    run = start_run("first")
    (start,) = checkpoints(run)
    evidence = CheckpointEvidence.objects.create(checkpoint=start, body={}, digest="0" * 64, added_by="x")
    for attempt in (
        lambda: Checkpoint.objects.filter(id=start.id).update(payload="{}"),
        lambda: Checkpoint.objects.filter(id=start.id).delete(),
        lambda: CheckpointEvidence.objects.filter(id=evidence.id).update(body={"a": 1}),
    ):
        with pytest.raises(IntegrityError, match="only ever added"), transaction.atomic():
            attempt()
    assert verify(checkpoints(run)[0]) == "valid"
