"""Bulks over the operations API: what the wire takes, what it answers, and what it refuses by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import AuditEvent, Run
from recovery import bulk_work
from recovery.models import BulkOperation
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.bulked import failing, letters_of

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/v1/bulk-operations"
KEY = "0b7e3d1c-1111-4222-8333-444455556666"
StartRun = Callable[..., Run]


@pytest.fixture
def client(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def body(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "reason": "the upstream is back", "rate": 1000, **more}


def test_a_look_then_the_bulk_its_targets_and_its_end(
    start_run: StartRun, hand: Hand, client: Api, clock: Clock
) -> None:
    """The story of the how-to: a dry run, the real request held to it, progress, items."""
    failing(start_run, hand, 3)
    asked = body("redrive", filter={"error_code": "BUSINESS_REJECTED", "status": ["open"]})
    seen = client.post(PATH, {**asked, "dry_run": True})
    assert seen.status_code == 200, seen.content
    plan = seen.json()
    assert (plan["total"], plan["acts"], plan["blackout"], len(plan["samples"])) == (3, 3, None, 3)
    assert not BulkOperation.objects.exists()
    asked |= {"plan_digest": plan["plan_digest"], "client_request_id": KEY}
    made = client.post(PATH, asked)
    assert made.status_code == 201, made.content
    told = made.json()
    assert (told["status"], told["total"], told["progress"]["pending"], told["replayed"]) == ("running", 3, 3, False)
    again = client.post(PATH, asked)
    assert (again.status_code, again.json()["id"], again.json()["replayed"]) == (200, told["id"], True)
    one = f"{PATH}/{told['id']}"
    clock.advance(1)
    bulk_work.step(uuid.UUID(told["id"]))
    now = client.get(one).json()
    assert (now["status"], now["progress"]["done"], now["progress"]["eta_seconds"]) == ("completed", 3, None)
    items = client.get(f"{one}/items?status=done&page_size=2").json()
    assert [item["position"] for item in items["results"]] == [1, 2]
    assert {item["stands"] for item in items["results"]} == {"redriven"}
    assert items["next"]
    assert client.get(f"{one}/items?status=denied").json()["results"] == []
    assert [row["id"] for row in client.get(f"{PATH}?kind=redrive&status=completed").json()["results"]] == [told["id"]]


def test_it_is_steered(start_run: StartRun, client: Api) -> None:
    ids = [str(start_run().id) for _ in range(3)]
    one = f"{PATH}/{client.post(PATH, body('cancel', execution_ids=ids, rate=1)).json()['id']}"
    for verb, status in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("abort", "aborted")):
        answer = client.post(f"{one}/{verb}", {"reason": "so"})
        assert (answer.status_code, answer.json()["status"]) == (200, status), answer.content
    late = client.post(f"{one}/resume", {})
    assert (late.status_code, late.json()["code"]) == (409, "execution_state_invalid")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"kind": "explode"}, "kind"),
        ({"kind": "cancel"}, "filter"),
        ({"kind": "cancel", "filter": {}}, "filter"),
        ({"kind": "cancel", "filter": {"status": 7}}, "filter"),
        ({"kind": "cancel", "filter": {"colour": "red"}}, "colour"),
        ({"kind": "cancel", "filter": {"page_size": "3"}}, "filter"),
        ({"kind": "redrive", "filter": {"environment": "production"}}, "environment"),
        ({"kind": "redrive", "execution_ids": [KEY]}, "execution_ids"),
        ({"kind": "cancel", "dead_letter_ids": [KEY]}, "dead_letter_ids"),
        ({"kind": "cancel", "execution_ids": []}, "execution_ids"),
        ({"kind": "cancel", "execution_ids": ["x"]}, "execution_ids[0]"),
        ({"kind": "cancel", "execution_ids": [KEY], "scope": "stage"}, "scope"),
        ({"kind": "cancel", "execution_ids": [KEY], "rate": 0}, "rate"),
        ({"kind": "cancel", "execution_ids": [KEY], "stop_ratio": 2}, "stop_ratio"),
        ({"kind": "cancel", "execution_ids": [KEY], "filter": {"status": "failed"}}, "filter"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(asked: dict[str, Any], field: str, client: Api) -> None:
    answer = client.post(PATH, asked)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field]), answer.content
    assert not BulkOperation.objects.exists()
    assert AuditEvent.objects.filter(action="bulk.start").count() == 1


def test_every_way_to_name_targets_is_taken(start_run: StartRun, hand: Hand, client: Api) -> None:
    runs = failing(start_run, hand, 2)
    (letter, _), stage = letters_of(runs), stages_of(runs[0])[0]
    for asked in (
        body("retry", stage_ids=[str(stage.id)], scope="stage_and_downstream"),
        body("rerun", execution_ids=[str(runs[0].id)], from_step_id="failed_stage"),
        body("discard", dead_letter_ids=[str(letter.id)]),
        body("replay", filter={"status": "failed", "search": "nightly"}, freeze_release=True),
        body("pause", filter={"status": "failed"}, until="2199-01-01T00:00:00Z"),
    ):
        answer = client.post(PATH, {**asked, "dry_run": True})
        assert answer.status_code == 200, (asked, answer.content)
    foreign = client.post(PATH, body("cancel", execution_ids=[str(runs[0].id), KEY]))
    assert (foreign.status_code, foreign.json()["code"]) == (404, "not_found")


def test_a_viewer_looks_and_others_see_nothing(
    start_run: StartRun, client: Api, api: Api, people: dict[str, Person], outsider: Person, as_person: Any
) -> None:
    """Model §5, I16: another workspace's bulk is 404, an application's key 403."""
    run = start_run()
    asked = body("cancel", execution_ids=[str(run.id)])
    made = client.post(PATH, asked).json()
    viewer, stranger = as_person(people["viewer"]), as_person(outsider)
    assert viewer.post(PATH, {**asked, "dry_run": True}).status_code == 200
    assert viewer.post(PATH, asked).status_code == 403
    assert viewer.get(f"{PATH}/{made['id']}").status_code == 200
    for path in ("", "/items"):
        assert stranger.get(f"{PATH}/{made['id']}{path}").status_code == 404
        assert api.get(f"{PATH}/{made['id']}{path}").status_code == 403
    assert stranger.post(f"{PATH}/{made['id']}/abort").status_code == 404
    assert stranger.get(PATH).json()["results"] == []
    assert api.post(PATH, asked).status_code == 403
