"""Imports over HTTP: the request is read and the answer handed in, by the application's key and by people."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import catalog, keys, transitions
from pipelines.errors import Refusal
from pipelines.import_files import read_answer
from pipelines.models import Application, Attempt, AuditEvent, Environment, LateEvidence, Run, Stage
from pipelines.moves import Moves
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.pipelines.test_pinned import edit

StartRun = Callable[..., Run]
IMPORTED: dict[str, Any] = {"name": "correctness", "mode": "import"}


@pytest.fixture
def api(api_key: str) -> Api:
    return Api({"X-API-Key": api_key})


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def stage_of(run: Run) -> Stage:
    return Stage.objects.get(run_id=run.id, name="correctness")


def digest_of(run: Run) -> str:
    return Attempt.objects.filter(stage=stage_of(run)).order_by("-number")[0].request_digest


def answer_to(run: Run, **told: Any) -> dict[str, Any]:
    return {"requestDigest": digest_of(run), "output": {"score": 1}, **told}


def test_the_application_hands_in_what_was_made_elsewhere(start_run: StartRun, api: Api) -> None:
    """R18, contract §2: no worker, no lease; 202 with where it led, and the same again."""
    run = start_run(IMPORTED)
    stage = api.get(f"/pipelines/{run.id}").json()["stages"][0]
    assert (stage["status"], stage["requestDigest"]) == ("waiting", digest_of(run))
    for _ in range(2):
        given = api.post(f"/stages/{stage['id']}/import", answer_to(run, source="the desk"))
        assert (given.status_code, given.json()) == (202, {"accepted": True, "stageStatus": "completed"})
    assert api.get(f"/pipelines/{run.id}").json()["stages"][0]["output"] == {"score": 1}


def test_the_request_is_a_document(start_run: StartRun, hand: Hand, api: Api, operator: Api) -> None:
    """R19: what is asked, of which attempt, with the digest that the answer must carry; the same by both APIs."""
    run = start_run("first", {**IMPORTED, "input": "text", "options": {"timeout": 60, "max_output_bytes": 900}})
    early = api.get(f"/stages/{stage_of(run).id}/import-request")
    assert (early.status_code, early.json()["code"]) == (409, "stage_state_invalid")
    hand.report(hand.take(), output={"found": 3})
    told = api.get(f"/stages/{stage_of(run).id}/import-request").json()
    assert told == operator.get(f"/v1/stages/{stage_of(run).id}/import-request").json()
    assert (told["format"], told["version"]) == ("recourse-import-request", 1)
    assert (told["run"], told["stage"], told["attempt"], told["epoch"]) == (str(run.id), "correctness", 1, 1)
    assert (told["input"], told["dependencies"]) == ("text", {"first": {"found": 3}})
    assert (told["request_digest"], told["max_output_bytes"]) == (digest_of(run), 900)
    assert told["answer_by"]
    assert told["deadline_at"] is None


def test_without_a_bound_of_time_no_end_is_told(start_run: StartRun, api: Api) -> None:
    run = start_run(IMPORTED)
    assert api.get(f"/stages/{stage_of(run).id}/import-request").json()["answer_by"] is None


def test_another_digest_is_refused_and_kept(start_run: StartRun, api: Api) -> None:
    """R18, R20."""
    run = start_run(IMPORTED)
    given = api.post(f"/stages/{stage_of(run).id}/import", answer_to(run, requestDigest="0" * 64))
    assert (given.status_code, given.json()["code"]) == (409, "stale_request")
    assert stage_of(run).state == "waiting"
    assert LateEvidence.objects.count() == 1
    assert AuditEvent.objects.filter(action="stage.import").count() == 1


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"requestDigest": None}, "requestDigest"),
        ({"requestDigest": 7}, "requestDigest"),
        ({"status": "waiting"}, "status"),
        ({"lease": 1}, "lease"),
        ({"errorCode": "X"}, "status"),
        ({"source": "a\x00b"}, "source"),
    ],
)
def test_what_is_wrong_is_named(start_run: StartRun, api: Api, told: dict[str, Any], path: str) -> None:
    run = start_run(IMPORTED)
    given = api.post(f"/stages/{stage_of(run).id}/import", answer_to(run) | told)
    assert (given.status_code, list(given.json()["errors"])) == (400, [path])
    assert stage_of(run).state == "waiting"


def test_only_the_own_application_imports(
    start_run: StartRun, api: Api, sibling_key: str, foreign_key: str, people: dict[str, Person], as_person: Any
) -> None:
    """I16: another's stage is 404 for whoever asks; who may only look is 403."""
    run = start_run(IMPORTED)
    for key in (sibling_key, foreign_key):
        other = Api({"X-API-Key": key})
        assert other.post(f"/stages/{stage_of(run).id}/import", answer_to(run)).status_code == 404
        assert other.get(f"/stages/{stage_of(run).id}/import-request").status_code == 404
    assert api.post(f"/stages/{uuid.uuid4()}/import", answer_to(run)).status_code == 404
    body = {"request_digest": digest_of(run), "output": 1}
    for role, expected in (("viewer", 403), ("approver", 403), ("operator", 200)):
        assert as_person(people[role]).post(f"/v1/stages/{stage_of(run).id}/import", body).status_code == expected
    assert api.post(f"/v1/stages/{stage_of(run).id}/import", body).status_code == 403


def test_the_same_application_s_key_of_another_environment_finds_nothing(
    start_run: StartRun, application: Application, environments: dict[str, Environment]
) -> None:
    """I16."""
    run = start_run(IMPORTED)
    _, secret = keys.issue_key(application, environments["production"])
    other = Api({"X-API-Key": secret})
    assert other.post(f"/stages/{stage_of(run).id}/import", answer_to(run)).status_code == 404
    assert other.get(f"/stages/{stage_of(run).id}/import-request").status_code == 404
    assert stage_of(run).state == "waiting"
    assert not LateEvidence.objects.exists()


def test_nothing_is_taken_before_it_is_awaited(start_run: StartRun, api: Api, operator: Api) -> None:
    """Neither while an earlier stage is to come, nor while a gate stands before it."""
    for run in (start_run("first", IMPORTED), start_run({**IMPORTED, "approval": {"when": "before"}}, key="gated")):
        body = {"requestDigest": "0" * 64}
        early = api.post(f"/stages/{stage_of(run).id}/import", body)
        assert (early.status_code, early.json()["code"]) == (409, "stage_state_invalid")
        looked = operator.post(f"/v1/stages/{stage_of(run).id}/import", {"request_digest": "0" * 64, "dry_run": True})
        assert looked.json()["code"] == "stage_state_invalid"
        assert not Attempt.objects.filter(stage=stage_of(run)).exists()


def test_a_run_that_no_longer_stands_on_what_it_pinned_takes_nothing(start_run: StartRun, api: Api) -> None:
    """R16: it says so, and is blocked."""
    run = start_run(IMPORTED)
    body = answer_to(run)
    edit(run)
    given = api.post(f"/stages/{stage_of(run).id}/import", body)
    assert (given.status_code, given.json()["code"]) == (409, "definition_changed")
    assert (Run.objects.get(id=run.id).status, stage_of(run).state) == ("blocked", "waiting")


def test_people_import_with_a_plan_first(start_run: StartRun, operator: Api) -> None:
    """The plan changes nothing; its digest is held to."""
    run = start_run({**IMPORTED, "approval": {"when": "after"}})
    path, body = f"/v1/stages/{stage_of(run).id}/import", {"request_digest": digest_of(run), "output": [1]}
    plan = operator.post(path, {**body, "dry_run": True}).json()
    assert (plan["stage_status"], stage_of(run).state, stage_of(run).output_id) == ("waiting", "waiting", None)
    assert not AuditEvent.objects.filter(action="stage.import").exists()
    other = operator.post(path, {**body, "output": [2], "plan_digest": plan["plan_digest"]})
    assert (other.status_code, other.json()["code"]) == (409, "plan_changed")
    assert Attempt.objects.get(stage=stage_of(run)).state == "dispatched"
    done = operator.post(path, {**body, "reason": "checked", "plan_digest": plan["plan_digest"]}).json()
    assert (done["stage_status"], done["replayed"], done["operation_id"]) == ("waiting", False, None)
    event = AuditEvent.objects.get(action="stage.import", outcome="allowed")
    assert (event.actor, event.reason) == ("operator-acme", "checked")
    assert operator.post(path, body).json()["replayed"] is True


def test_a_retry_of_a_failed_import_awaits_a_new_answer(start_run: StartRun, api: Api, operator: Api) -> None:
    """R20: planned as it comes about; the answer to the first request is refused."""
    run = start_run(IMPORTED)
    first = answer_to(run, status="failed", errorCode="NO_PROOF")
    assert api.post(f"/stages/{stage_of(run).id}/import", first | {"output": None}).json()["stageStatus"] == "failed"
    path = f"/v1/stages/{stage_of(run).id}/retry"
    plan = operator.post(path, {"reason": "again", "dry_run": True}).json()
    assert [line["to"] for line in plan["run_again"]] == ["waiting"]
    done = operator.post(path, {"reason": "again"})
    assert (done.status_code, done.json()["stage_status"]) == (200, "waiting")
    late = api.post(f"/stages/{stage_of(run).id}/import", {**first, "status": "succeeded", "errorCode": ""})
    assert late.json()["code"] == "stale_request"
    assert api.post(f"/stages/{stage_of(run).id}/import", answer_to(run)).status_code == 202


def test_the_same_failed_answer_again_tells_the_same(start_run: StartRun, api: Api) -> None:
    """An import that is tried again is awaited at once, and says so both times."""
    run = start_run({**IMPORTED, "options": {"max_retries": 1, "retry_interval": 60}})
    first = answer_to(run, status="failed", errorCode="BUSY", output=None)
    told = [api.post(f"/stages/{stage_of(run).id}/import", first).json()["stageStatus"] for _ in range(2)]
    assert told == ["waiting", "waiting"]
    assert stage_of(run).attempt_number == 2


def test_a_policy_outranks_the_stage_s_own_time(
    start_run: StartRun, api: Api, people: dict[str, Person], clock: Clock
) -> None:
    """P47: policies of kind timeout rule imports as they rule work."""
    actor = people["admin"].actor
    catalog.add_policy(
        actor=actor, name="soon", kind="timeout", match={"stage": "correctness"}, rule={"seconds": 5}, status="active"
    )
    run = start_run({**IMPORTED, "options": {"timeout": 600}})
    assert Attempt.objects.get(stage=stage_of(run)).timeout_seconds == 5
    clock.advance(6)
    assert api.post(f"/stages/{stage_of(run).id}/import", answer_to(run)).json()["code"] == "stale_request"


def test_a_paused_run_takes_its_import_and_begins_nothing(start_run: StartRun, api: Api) -> None:
    run = start_run(IMPORTED, {"name": "after", "depends_on": ["correctness"]})
    moves = Moves.lock([run.id])
    transitions.pause(moves, moves.runs[run.id], "")
    assert api.post(f"/stages/{stage_of(run).id}/import", answer_to(run)).status_code == 202
    assert Run.objects.get(id=run.id).status == "paused"


@pytest.mark.parametrize("output", [None, "", 0, False, [], {}, "\ud800", 10**400, 1.5, {"": {"a": [None]}}, "é\u2028"])
def test_odd_outputs_are_kept_as_they_are(start_run: StartRun, api: Api, output: Any) -> None:
    run = start_run(IMPORTED)
    assert api.post(f"/stages/{stage_of(run).id}/import", answer_to(run, output=output)).status_code == 202
    assert api.get(f"/pipelines/{run.id}").json()["stages"][0]["output"] == output


def test_an_output_above_the_limit_is_taken_and_fails_the_stage(start_run: StartRun, api: Api) -> None:
    run = start_run(IMPORTED)
    given = api.post(f"/stages/{stage_of(run).id}/import", answer_to(run, output="x" * 300_000))
    assert (given.status_code, given.json()["stageStatus"]) == (202, "failed")
    assert stage_of(run).last_error_code == "OUTPUT_TOO_LARGE"
    huge = api.post(f"/stages/{stage_of(run).id}/import", b" " * (16 * 2**20 + 1))
    assert (huge.status_code, huge.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xef\xbb\xbf" + json.dumps({"request_digest": "0" * 64}).encode(),
        b'{"request_digest": "a", "output": NaN}',
        b'{"request_digest": "a", "output": 1e999}',
        b'{"request_digest": "a", "request_digest": "b"}',
        b'{"request_digest": "a", "output": {"x": 1, "x": 2}}',
        b'{"request_digest": "a", "lease": 1}',
        b'{"request_digest": "a", "output": ' + b"[" * 100 + b"]" * 100 + b"}",
        '{"request_digest": "ä"}'.encode("latin-1"),
        b"\x00",
    ],
)
def test_a_file_that_is_no_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        read_answer(raw)
    assert caught.value.code == "validation_error"


def test_a_file_is_read_as_it_was_written() -> None:
    told = {"request_digest": "0" * 64, "status": "failed", "error_code": "NO_PROOF", "source": "the desk"}
    answer = read_answer(json.dumps(told).encode())
    assert (answer.request_digest, answer.status, answer.error_code) == ("0" * 64, "failed", "NO_PROOF")
    with pytest.raises(Refusal) as caught:
        read_answer(b" " * (16 * 2**20 + 1))
    assert caught.value.code == "payload_too_large"
