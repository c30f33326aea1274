"""Backfills over HTTP: shapes, codes, who may, and what is refused before anything is made (contract §4, O49–O56)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import lanes
from pipelines.ids import new_id
from pipelines.models import Application, AuditEvent, Environment, Run, Tick, Trigger
from recovery.models import Backfill
from tests.cast import Api, Person
from tests.recovery.backfilled import finish, trigger_of

pytestmark = pytest.mark.django_db

PATH = "/v1/triggers/backfill"
AsPerson = Callable[[Person], Api]


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["release_manager"].actor, environment, application)


def body(trigger: Trigger, **changes: Any) -> dict[str, Any]:
    window = {"from_time": "2026-05-20T08:00:00Z", "to_time": "2026-05-22T08:00:00Z"}
    return {"trigger_binding_id": str(trigger.id), **window, **changes}


def nothing_was_made() -> bool:
    return not (Run.objects.exists() or Tick.objects.exists() or Backfill.objects.exists())


def test_a_dry_run_counts_and_makes_nothing(as_person: AsPerson, people: dict[str, Person], trigger: Trigger) -> None:
    """O51, O52, O53: both ends belong to the window; a viewer may look."""
    answer = as_person(people["viewer"]).post(PATH, body(trigger, dry_run=True))
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert (told["total_ticks"], told["dispatched"], told["failed"], told["dry_run"]) == (3, 0, 0, True)
    assert [(one["tick_time"], one["status"]) for one in told["ticks"]] == [
        (f"2026-05-{day}T08:00:00+00:00", "pending") for day in (20, 21, 22)
    ]
    assert (told["backfill_id"], told["status"], told["skipped"]) == (None, "previewed", 0)
    assert nothing_was_made()
    assert not AuditEvent.objects.filter(action="backfill.start").exists(), "looking is no request"


def test_every_field_of_the_guide_is_taken_with_what_the_contract_adds(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    """O50, contract §4: told or left out, the plan is the same where what is told is the trigger's own."""
    viewer = as_person(people["viewer"])
    place = {"flow_slug": "rates", "workload_id": str(trigger.application_id), "environment": "development"}
    schedule = {"cron": "0 8 * * *", "timezone": "UTC", "gap": "first_existing", "overlap": "first"}
    more = {"max_concurrent": 1, "reprocess": "none", "order": "oldest", "max_ticks": 3, "reason": "it was away"}
    told = viewer.post(PATH, body(trigger, dry_run=True, **place, **schedule, **more))
    assert told.status_code == 200, told.content
    assert told.json()["plan_digest"] == viewer.post(PATH, body(trigger, dry_run=True)).json()["plan_digest"]
    for name, value in (("max_concurrent", 2), ("order", "newest"), ("reprocess", "all"), ("gap", "skip")):
        other = viewer.post(PATH, body(trigger, dry_run=True, **{name: value})).json()
        assert other["plan_digest"] != told.json()["plan_digest"], name
    assert nothing_was_made()


def test_a_backfill_answers_201_with_its_runs_and_can_be_looked_at(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    """O49, O54."""
    olga = as_person(people["operator"])
    made = olga.post(PATH, body(trigger, max_concurrent=2, reason="the service was away"))
    assert made.status_code == 201, made.content
    told = made.json()
    assert (told["total_ticks"], told["dispatched"], told["failed"], told["status"]) == (3, 3, 0, "running")
    runs = {str(run_id) for run_id in Run.objects.values_list("id", flat=True)}
    assert {one["execution_id"] for one in told["ticks"]} == runs
    lanes.let_in()
    found = olga.get(f"/v1/backfills/{told['backfill_id']}").json()
    assert (found["status"], found["dispatched"], found["reason"]) == ("running", 3, "the service was away")
    assert (found["progress"]["active"], found["progress"]["held"]) == (2, 1)
    listed = olga.get("/v1/backfills?status=running").json()["results"]
    assert [one["id"] for one in listed] == [told["backfill_id"]]
    assert olga.get("/v1/backfills?status=paused").json()["results"] == []
    page = olga.get(f"/v1/backfills/{told['backfill_id']}/ticks?page_size=2").json()
    rest = olga.get(page["next"].partition("testserver")[2]).json()
    assert [one["tick_time"] for one in page["results"] + rest["results"]] == [
        one["tick_time"] for one in told["ticks"]
    ]


def test_ticks_that_have_a_run_are_skipped_with_it_and_not_counted(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    """F108; nothing to fill is an answer too."""
    olga = as_person(people["operator"])
    first = olga.post(PATH, body(trigger, to_time="2026-05-20T08:00:00Z")).json()
    run = first["ticks"][0]["execution_id"]
    plan = olga.post(PATH, body(trigger, dry_run=True)).json()
    assert (plan["total_ticks"], plan["skipped"]) == (2, 1)
    assert (plan["ticks"][0]["status"], plan["ticks"][0]["execution_id"]) == ("skipped", run)
    again = olga.post(PATH, body(trigger, to_time="2026-05-20T08:00:00Z"))
    assert (again.status_code, again.json()["total_ticks"], again.json()["status"]) == (200, 0, "completed")
    assert Run.objects.count() == 1


def test_the_same_key_answers_with_the_first_backfill_and_refuses_another_request(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    olga = as_person(people["operator"])
    key = str(uuid.uuid4())
    first = olga.post(PATH, body(trigger, client_request_id=key))
    again = olga.post(PATH, body(trigger, client_request_id=key))
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["replayed"] is True
    assert again.json()["backfill_id"] == first.json()["backfill_id"]
    other = olga.post(PATH, body(trigger, client_request_id=key, max_concurrent=3))
    assert (other.status_code, other.json()["code"]) == (409, "recovery_idempotency_conflict")
    assert (Run.objects.count(), Backfill.objects.count()) == (3, 1)


def test_a_plan_that_was_looked_at_is_held_to(as_person: AsPerson, people: dict[str, Person], trigger: Trigger) -> None:
    olga = as_person(people["operator"])
    digest = olga.post(PATH, body(trigger, dry_run=True)).json()["plan_digest"]
    olga.post(PATH, body(trigger, to_time="2026-05-20T08:00:00Z"))
    refused = olga.post(PATH, body(trigger, plan_digest=digest))
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_changed")
    assert Run.objects.count() == 1
    assert olga.post(PATH, body(trigger, plan_digest=refused.json()["plan_digest"])).status_code == 201


def test_it_is_paused_resumed_and_cancelled(as_person: AsPerson, people: dict[str, Person], trigger: Trigger) -> None:
    """F82: cancelling strands nothing; the ticks are missed again and another backfill fills them."""
    olga = as_person(people["operator"])
    made = olga.post(PATH, body(trigger)).json()["backfill_id"]
    lanes.let_in()
    for verb, status in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        answer = olga.post(f"/v1/backfills/{made}/{verb}", {"reason": "why not"})
        assert (answer.status_code, answer.json()["status"]) == (200, status)
    assert sorted(Run.objects.values_list("status", flat=True)) == ["cancelled", "cancelled", "queued"]
    assert [one["status"] for one in olga.get(f"/v1/backfills/{made}/ticks").json()["results"]] == [
        "dispatched",
        "cancelled",
        "cancelled",
    ]
    refused = olga.post(f"/v1/backfills/{made}/resume", {})
    assert (refused.status_code, refused.json()["code"]) == (409, "execution_state_invalid")
    plan = olga.post(PATH, body(trigger, dry_run=True)).json()
    assert (plan["total_ticks"], plan["skipped"]) == (2, 1)
    assert olga.post(PATH, body(trigger)).json()["dispatched"] == 2


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"from_time": "2026-05-23T08:00:00Z"}, 422, "backfill_window_invalid", "from_time"),
        ({"to_time": "2199-01-01T00:00:00Z"}, 422, "backfill_window_invalid", "to_time"),
        ({"from_time": "2026-05-20T08:00:00"}, 400, "validation_error", "from_time"),
        ({"from_time": "yesterday"}, 400, "validation_error", "from_time"),
        ({"cron": "0 8 30 2 *"}, 422, "cron_invalid", "cron"),
        ({"cron": "every day"}, 422, "cron_invalid", "cron"),
        ({"timezone": "Mars/Olympus"}, 422, "timezone_invalid", "timezone"),
        ({"environment": "moon"}, 422, "environment_unknown", "environment"),
        ({"flow_slug": "other"}, 400, "validation_error", "flow_slug"),
        ({"workload_id": str(new_id())}, 400, "validation_error", "workload_id"),
        ({"max_concurrent": 0}, 400, "validation_error", "max_concurrent"),
        ({"max_concurrent": "3"}, 400, "validation_error", "max_concurrent"),
        ({"reprocess": "some"}, 400, "validation_error", "reprocess"),
        ({"order": "random"}, 400, "validation_error", "order"),
        ({"max_ticks": 0}, 400, "validation_error", "max_ticks"),
        ({"gap": "later"}, 400, "validation_error", "gap"),
        ({"overlap": "never"}, 400, "validation_error", "overlap"),
        ({"trigger_binding_id": "1"}, 400, "validation_error", "trigger_binding_id"),
        ({"surprise": 1}, 400, "validation_error", "surprise"),
        ({"cron": "* * * * *", "max_ticks": 100}, 422, "backfill_too_many_ticks", "max_ticks"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    as_person: AsPerson,
    people: dict[str, Person],
    trigger: Trigger,
    changes: dict[str, Any],
    status: int,
    code: str,
    field: str,
) -> None:
    answer = as_person(people["operator"]).post(PATH, body(trigger, **changes))
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.content
    assert field in answer.json()["errors"]
    assert nothing_was_made()


def test_the_number_of_ticks_has_a_limit_that_must_be_lifted_by_hand_and_one_that_cannot(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    """Contract §4: a dry run included. 1,000 minutes are listed, 1,001 need `max_ticks`, 100,001 are always refused."""
    olga = as_person(people["operator"])
    minutely = {"cron": "* * * * *", "dry_run": True, "from_time": "2026-01-01T00:00:00Z"}
    told = olga.post(PATH, body(trigger, **minutely, to_time="2026-01-01T16:39:00Z")).json()
    assert (told["total_ticks"], len(told["ticks"])) == (1_000, 1_000)
    for to_time, more, allowed in (
        ("2026-01-01T16:40:00Z", {}, False),
        ("2026-01-01T16:40:00Z", {"max_ticks": 1_001}, True),
        ("2026-03-11T10:39:00Z", {"max_ticks": 100_000}, True),
        ("2026-03-11T10:40:00Z", {"max_ticks": 100_000}, False),
        ("2026-03-11T10:40:00Z", {"max_ticks": 200_000}, False),
    ):
        answer = olga.post(PATH, body(trigger, **minutely, to_time=to_time, **more))
        assert answer.status_code == (200 if allowed else 422), (to_time, more)
        if not allowed:
            assert answer.json()["code"] == "backfill_too_many_ticks"
    assert nothing_was_made()


def test_above_a_thousand_ticks_the_answer_is_202_and_lists_the_first(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    """The rest is made by the sweep, and nothing is lost on the way (F104)."""
    wanted = {"cron": "* * * * *", "from_time": "2026-01-01T00:00:00Z", "to_time": "2026-01-01T16:40:00Z"}
    answer = as_person(people["operator"]).post(PATH, body(trigger, **wanted, max_ticks=2_000))
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert len(answer.json()["ticks"]) == 1_000
    assert answer.json()["total_ticks"] == 1_001


def test_a_viewer_an_approver_and_a_stranger_may_not(
    as_person: AsPerson,
    people: dict[str, Person],
    outsider: Person,
    trigger: Trigger,
    environments: dict[str, Environment],
) -> None:
    """403 names the right; another workspace's trigger and backfill are 404 (I16)."""
    for role in ("viewer", "approver"):
        answer = as_person(people[role]).post(PATH, body(trigger))
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
        assert "fork" in answer.json()["detail"]
    assert as_person(outsider).post(PATH, body(trigger)).status_code == 404
    assert as_person(outsider).post(PATH, body(trigger, dry_run=True)).status_code == 404
    assert nothing_was_made()
    made = as_person(people["operator"]).post(PATH, body(trigger)).json()["backfill_id"]
    for path in ("", "/ticks"):
        assert as_person(outsider).get(f"/v1/backfills/{made}{path}").status_code == 404
    for verb in ("pause", "resume", "cancel"):
        assert as_person(outsider).post(f"/v1/backfills/{made}/{verb}", {}).status_code == 404
        assert as_person(people["viewer"]).post(f"/v1/backfills/{made}/{verb}", {}).status_code == 403
    assert as_person(outsider).get("/v1/backfills").json()["results"] == []
    assert Backfill.objects.get().state == "running"


def test_in_a_protected_environment_an_operator_s_backfill_awaits_another_s_agreement(
    as_person: AsPerson,
    people: dict[str, Person],
    environments: dict[str, Environment],
    application: Application,
) -> None:
    """Model §5: on approval; four eyes; the same key afterwards answers with what was made."""
    trigger = trigger_of(people["release_manager"].actor, environments["production"], application)
    olga, key = as_person(people["operator"]), str(uuid.uuid4())
    asked = olga.post(PATH, body(trigger, client_request_id=key))
    assert (asked.status_code, asked.json()["status"]) == (202, "awaiting_approval")
    backfill_id = asked.json()["backfill_id"]
    assert not Run.objects.exists()
    (waiting,) = as_person(people["approver"]).get("/v1/approvals").json()["results"]
    assert waiting["id"] == backfill_id
    refused = olga.post(f"/v1/approvals/{backfill_id}/decision", {"approved": True, "reason": ""})
    assert refused.status_code == 403
    agreed = as_person(people["approver"]).post(f"/v1/approvals/{backfill_id}/decision", {"approved": True})
    assert agreed.status_code == 200, agreed.content
    again = olga.post(PATH, body(trigger, client_request_id=key))
    assert (again.status_code, again.json()["dispatched"], again.json()["replayed"]) == (200, 3, True)
    assert Run.objects.count() == 3
    other = as_person(people["release_manager"]).post(PATH, body(trigger))
    assert other.status_code == 200, "a release manager needs nobody, and nothing is left to fill"


def test_another_environment_of_the_workspace_is_a_mismatch(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger
) -> None:
    answer = as_person(people["operator"]).post(PATH, body(trigger, environment="staging"))
    assert (answer.status_code, answer.json()["code"]) == (409, "recovery_environment_mismatch")
    assert nothing_was_made()


def test_an_application_reads_its_own_backfills_and_starts_none(
    as_person: AsPerson, api: Api, sibling_key: str, people: dict[str, Person], trigger: Trigger
) -> None:
    made = as_person(people["operator"]).post(PATH, body(trigger)).json()["backfill_id"]
    sibling = Api({"X-API-Key": sibling_key})
    assert api.get(f"/v1/backfills/{made}").status_code == 200
    assert sibling.get(f"/v1/backfills/{made}").status_code == 404
    assert sibling.get("/v1/backfills").json()["results"] == []
    assert api.post(PATH, body(trigger)).status_code == 403


def test_each_request_leaves_one_event_with_its_reason(
    as_person: AsPerson, people: dict[str, Person], trigger: Trigger, hand: Any
) -> None:
    """F145: also what was refused."""
    olga = as_person(people["operator"])
    made = olga.post(PATH, body(trigger, reason="the service was away")).json()["backfill_id"]
    olga.post(f"/v1/backfills/{made}/pause", {"reason": "it is slow"})
    as_person(people["viewer"]).post(f"/v1/backfills/{made}/cancel", {"reason": "please"})
    olga.post(f"/v1/backfills/{made}/resume", {})
    while lanes.let_in():
        finish(hand, made)
    events = AuditEvent.objects.filter(action__startswith="backfill.").order_by("at", "id")
    assert list(events.values_list("action", "outcome", "reason")) == [
        ("backfill.start", "allowed", "the service was away"),
        ("backfill.pause", "allowed", "it is slow"),
        ("backfill.cancel", "denied", ""),
        ("backfill.resume", "allowed", ""),
    ]
    assert olga.get(f"/v1/backfills/{made}").json()["status"] == "completed"
