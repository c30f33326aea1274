"""Where a run stands by its newest checkpoint: the snapshot, the list, and that both follow the rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from approvals.transitions import decide_gate
from pipelines import checkpoint_reading
from pipelines.errors import Refusal
from pipelines.models import Checkpoint, Run, Stage
from pipelines.postures import Left
from pipelines.states import lets_go_on
from tests.cast import Api, Hand, Person, stages_of, unknown_id
from tests.clock import Clock
from tests.tampering import Tampering, every_tampering, forge, make_scene, past_the_triggers, remove
from tests.verbs import cancel_as_operation, pause_run, resume_run, retry_stage, skip_stage

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]

FIELDS = {
    "execution_id",
    "current_step_id",
    "previous_step_id",
    "status",
    "pause_reason",
    "workspace_id",
    "checkpoint_id",
    "sequence",
    "epoch",
    "recorded_at",
    "integrity",
    "key_id",
}


@pytest.fixture
def viewer(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["viewer"])


def snapshot(viewer: Api, run: Run) -> dict[str, Any]:
    answer = viewer.get(f"/v1/executions/{run.id}/snapshot")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_snapshot_follows_the_run_step_by_step(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    """O13, O15: after step k it names step k + 1 as current and k as previous; the last one stays."""
    run = start_run("first", "second", "third")
    seen = []
    for _ in range(4):
        told = snapshot(viewer, run)
        seen.append((told["current_step_id"], told["previous_step_id"], told["sequence"], told["status"]))
        for job in hand.pull():
            hand.report(job)

    assert seen == [
        ("first", None, 1, "queued"),
        ("second", "first", 2, "running"),
        ("third", "second", 3, "running"),
        ("third", "third", 4, "completed"),
    ]


def test_the_snapshot_has_exactly_the_fields_of_the_contract(
    start_run: StartRun, hand: Hand, people: dict[str, Person], viewer: Api
) -> None:
    """O15: `status` and `pause_reason` are the run's at this moment, the rest the checkpoint's."""
    run = start_run("first", "second")
    hand.report(hand.take())
    pause_run(run.id, actor=people["operator"].actor)
    told = snapshot(viewer, run)

    newest = Checkpoint.objects.filter(run=run).latest("sequence")
    assert told.keys() == FIELDS
    assert told == {
        "execution_id": str(run.id),
        "current_step_id": "second",
        "previous_step_id": "first",
        "status": "paused",
        "pause_reason": "operator_pause",
        "workspace_id": str(run.workspace_id),
        "checkpoint_id": str(newest.id),
        "sequence": 3,
        "epoch": 1,
        "recorded_at": newest.recorded_at.isoformat(),
        "integrity": "valid",
        "key_id": newest.key_id,
    }
    resume_run(run.id, actor=people["operator"].actor)
    after = snapshot(viewer, run)
    assert (after["status"], after["pause_reason"], after["sequence"]) == ("running", None, 3)


def test_without_a_checkpoint_there_is_a_defined_answer(start_run: StartRun, viewer: Api) -> None:
    """O16: 404 `checkpoint_not_found`, told apart from an unknown run."""
    run = start_run("first")
    remove(run=run)

    answer = viewer.get(f"/v1/executions/{run.id}/snapshot")

    assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint_not_found")
    assert viewer.get(f"/v1/executions/{unknown_id()}/snapshot").json()["code"] == "not_found"


def test_a_stranger_sees_neither_snapshot_nor_checkpoints(
    start_run: StartRun, outsider: Person, as_person: AsPerson, api: Api, sibling_key: str
) -> None:
    """I16, O3: 404 for another workspace and another application; the run's own application may read."""
    run = start_run("first")
    sibling = Api({"X-API-Key": sibling_key})
    for path in ("snapshot", "checkpoints", f"checkpoints/{Checkpoint.objects.get(run=run).id}"):
        assert as_person(outsider).get(f"/v1/executions/{run.id}/{path}").status_code == 404
        assert sibling.get(f"/v1/executions/{run.id}/{path}").status_code == 404
        assert api.get(f"/v1/executions/{run.id}/{path}").status_code == 200


@every_tampering
def test_the_snapshot_says_what_the_checkpoint_is_worth(
    start_run: StartRun, hand: Hand, viewer: Api, tampering: Tampering
) -> None:
    """O25, O36: shown with its verdict, never as if nothing had happened, and never a server error."""
    scene = make_scene(start_run, hand)
    tampering.act(scene)

    assert snapshot(viewer, scene.run)["integrity"] == tampering.verdict
    listed = viewer.get(f"/v1/executions/{scene.run.id}/checkpoints")
    assert listed.status_code == 200
    for item in listed.json()["results"]:
        assert viewer.get(f"/v1/executions/{scene.run.id}/checkpoints/{item['id']}").status_code == 200


# the list


def test_the_list_is_cut_into_pages_and_filtered(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    """Contract §3: newest first, by moment and stage; each with its verdict of now."""
    scene = make_scene(start_run, hand)
    path = f"/v1/executions/{scene.run.id}/checkpoints"

    whole = viewer.get(path).json()["results"]
    assert [item["sequence"] for item in whole] == list(range(len(whole), 0, -1))
    assert [item["superseded"] for item in whole] == [False] + [True] * (len(whole) - 1)
    assert {item["integrity"] for item in whole} == {"valid"}
    first = viewer.get(f"{path}?page_size=3").json()
    second = viewer.get(first["next"].removeprefix("http://testserver")).json()
    assert [item["id"] for item in first["results"] + second["results"]] == [item["id"] for item in whole[:6]]
    assert second["previous"] is not None
    handlers = viewer.get(f"{path}?moment=handler").json()["results"]
    assert {item["moment"] for item in handlers} == {"handler"}
    assert {item["step_id"] for item in handlers} == {"second"}
    of_first = viewer.get(f"{path}?stage_id={scene.stage('first').id}").json()["results"]
    assert [(item["moment"], item["step_id"]) for item in of_first] == [("stage_end", "first")]
    assert viewer.get(f"{path}?moment=yesterday").status_code == 400
    assert viewer.get(f"{path}?kind=handler").status_code == 400


def test_each_item_of_a_page_is_judged_by_itself_with_few_queries(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    """O34: a page costs the same number of statements whatever its size."""
    scene = make_scene(start_run, hand)
    forge(scene.earlier(sequence=3), signature="")
    path = f"/v1/executions/{scene.run.id}/checkpoints"
    viewer.get(path)  # the first use of a token is noted
    costs = []
    for size in (2, 50):
        with CaptureQueriesContext(connection) as captured:
            results = viewer.get(f"{path}?page_size={size}").json()["results"]
        costs.append(len(captured))

    assert costs[0] == costs[1]
    assert [item["integrity"] for item in results if item["sequence"] == 3] == ["invalid"]
    assert {item["integrity"] for item in results if item["sequence"] != 3} == {"valid"}


def test_one_checkpoint_is_shown_with_all_that_verifying_it_takes(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    """O34: identity, payload, digest and envelope, so that an outsider can verify with the public key alone."""
    scene = make_scene(start_run, hand)
    told = viewer.get(f"/v1/executions/{scene.run.id}/checkpoints/{scene.used.id}").json()

    assert sha256(rfc8785.dumps(told["payload"])).hexdigest() == told["signed"]["payload_digest"]
    keys = {one["id"]: one["public_key"] for one in viewer.get("/v1/signing-keys").json()["results"]}
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(keys[told["envelope"]["key_id"]]))
    public.verify(base64.b64decode(told["envelope"]["signature"]), rfc8785.dumps(told["signed"]))
    assert (told["integrity"], told["evidence"]) == ("valid", [])


# the row of checkpoints and the rows of the run say the same

ACTS = ("work", "fail", "leave", "wait", "pause", "resume", "retry", "retry all", "skip", "decide", "cancel")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 3)), min_size=3, max_size=25))
def test_the_newest_checkpoint_always_says_what_the_rows_say(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock, story: list[tuple[str, int]]
) -> None:
    """Model §2 Checkpoint: `done` equals the rows after every step of any story, sequences are 1..n, each is valid."""
    run = start_run(
        "first",
        {"name": "second", "depends_on": ["first"], "options": {"max_retries": 1, "retry_interval": 1}},
        {"name": "third", "depends_on": ["first"], "run_next_if_failed": True},
        {"name": "fourth", "depends_on": ["second", "third"], "approval": {"when": "before"}},
    )
    for act, index in story:
        step(run, hand, people, clock, act, index)
        rows = list(Checkpoint.objects.filter(run=run).select_related("run").order_by("sequence"))
        stages = stages_of(run)
        said = json.loads(rows[-1].payload)
        assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
        assert said["done"] == [
            {"stage": one.name, "state": one.state, "epoch": one.epoch, "output": one.output_digest or None}
            for one in stages
            if lets_go_on(one)
        ]
        finished = [one for one in stages if lets_go_on(one)]
        left = [one for one in stages if not lets_go_on(one)]
        assert rows[-1].current_step_id == (left[0] if left else stages[-1]).name
        assert rows[-1].previous_step_id in ({one.name for one in finished} or {""})
        if finished:
            last = max(finished, key=lambda one: (one.finished_at, one.position))
            assert rows[-1].previous_step_id == last.name
        assert set(checkpoint_reading.verify_all(rows)) == {"valid"}
        found = checkpoint_reading.snapshot(run.id)
        assert found is not None
        assert found[1] == "valid"
    with past_the_triggers():
        Run.objects.filter(id=run.id).update(paused=True)  # nothing of this story is handed out in the next


def step(run: Run, hand: Hand, people: dict[str, Person], clock: Clock, act: str, index: int) -> None:
    """One step of a story; what is not possible now is refused and changes nothing."""
    stages = list(Stage.objects.filter(run=run).order_by("position"))
    target, person = stages[index].id, people["admin"].actor
    clock.advance(2)
    try:
        match act:
            case "work" | "fail" | "leave" | "wait":
                for job in hand.pull():
                    told: dict[str, Any] = {"error_code": "UPSTREAM"} if act == "fail" else {"output": index}
                    if act in ("fail", "leave"):
                        told["checkpoint"] = Left({"at": index})
                    status = {"fail": "failed", "wait": "waiting"}.get(act, "succeeded")
                    hand.report(job, status, **told)
            case "pause":
                pause_run(run.id, actor=person)
            case "resume":
                resume_run(run.id, actor=person)
            case "retry":
                retry_stage(target, actor=person, reason="again")
            case "retry all":
                retry_stage(target, actor=person, reason="again", scope="stage_and_downstream")
            case "skip":
                skip_stage(target, actor=person, reason="not needed")
            case "decide":
                decide_gate(target, actor=people["approver"].actor, approved=index % 2 == 0, reason="no")
            case "cancel" if index == 3:
                cancel_as_operation(run.id, actor=person, reason="enough")
    except Refusal:
        pass
