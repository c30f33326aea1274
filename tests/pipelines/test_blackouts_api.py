"""Blackouts and the freeze over HTTP: made, changed, declared, lifted, by whom, and what is refused (contract §4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pipelines import blackout_rows
from pipelines.models import AuditEvent, Blackout, Environment, Workspace
from pipelines.sql import query
from tests.cast import Api, Person
from tests.clock import Clock
from tests.pipelines.blackout_nights import period, stand_at

pytestmark = pytest.mark.django_db

NIGHTS = {
    "name": "nights",
    "kind": "weekly",
    "timezone": "Europe/Berlin",
    "days": [1, 2, 3, 4, 5],
    "from_time": "22:00",
    "to_time": "06:00",
}


@pytest.fixture
def releaser(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["release_manager"])


@pytest.fixture
def viewer(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["viewer"])


def make(api: Api, **more: Any) -> dict[str, Any]:
    answer = api.post("/v1/blackouts", {**NIGHTS, **more})
    assert answer.status_code == 201, answer.json()
    return answer.json()


def events(action: str) -> list[tuple[str, str]]:
    return [(one.outcome, one.code) for one in AuditEvent.objects.filter(action=action).order_by("at", "id")]


# blackouts


def test_a_blackout_is_made_read_changed_and_switched_off(releaser: Api, viewer: Api, clock: Clock) -> None:
    stand_at(clock, "2026-06-01T21:00:00")  # a Monday, 23:00 in Berlin
    made = make(releaser, environment="production", reason="the batch windows of others")
    assert made["holds"] is True
    assert (made["environment"], made["from_time"], made["to_time"]) == ("production", "22:00:00", "06:00:00")
    assert viewer.get("/v1/blackouts").json()["results"] == [made]

    path = f"/v1/blackouts/{made['id']}"
    changed = releaser.patch(path, {"to_time": "05:30", "name": "short nights"}).json()
    assert changed == {**made, "to_time": "05:30:00", "name": "short nights"}
    off = releaser.patch(path, {"enabled": False}).json()
    assert (off["enabled"], off["holds"]) == (False, False)
    assert releaser.patch(path, {"enabled": False}).status_code == 200
    assert events("blackout.save") == [("allowed", ""), ("allowed", ""), ("allowed", ""), ("no_op", "")]
    sentences = [one["sentence"] for one in viewer.get("/v1/audit-events?action=blackout.save").json()["results"]]
    assert "saved the blackout short nights for production (enabled yes → no)" in sentences[1]


def test_a_period_may_lose_its_end(releaser: Api) -> None:
    told = {"name": "move", "kind": "period", "starts_at": "2026-01-01T00:00:00Z", "ends_at": "2026-01-02T00:00:00Z"}
    made = releaser.post("/v1/blackouts", told).json()
    kept = releaser.patch(f"/v1/blackouts/{made['id']}", {"reason": "takes longer"}).json()
    assert kept["ends_at"] == "2026-01-02T00:00:00+00:00"
    assert releaser.patch(f"/v1/blackouts/{made['id']}", {"ends_at": None}).json()["ends_at"] is None
    assert Blackout.objects.get().ends_at is None


@pytest.mark.parametrize(
    ("told", "status", "code", "field"),
    [
        ({"timezone": "Mars/Olympus"}, 422, "timezone_invalid", "timezone"),
        ({"timezone": "europe/berlin"}, 422, "timezone_invalid", "timezone"),
        ({"environment": "the-moon"}, 422, "environment_unknown", "environment"),
        ({"trigger_id": "00000000-0000-4000-8000-000000000000"}, 400, "validation_error", "trigger"),
        (
            {"trigger_id": "00000000-0000-4000-8000-000000000000", "environment": "production"},
            400,
            "validation_error",
            "environment",
        ),
        ({"kind": "monthly"}, 400, "validation_error", "kind"),
        ({"days": []}, 400, "validation_error", "days"),
        ({"days": [0]}, 400, "validation_error", "days[0]"),
        ({"days": [8]}, 400, "validation_error", "days[0]"),
        ({"to_time": None}, 400, "validation_error", "to_time"),
        ({"from_time": "24:00"}, 400, "validation_error", "from_time"),
        ({"from_time": "22"}, 400, "validation_error", "from_time"),
        ({"from_time": "2٣:0٣"}, 400, "validation_error", "from_time"),
        ({"from_time": "22:00\n"}, 400, "validation_error", "from_time"),
        ({"from_time": "22:00+01:00"}, 400, "validation_error", "from_time"),
        ({"dates": ["2026-12-24"]}, 400, "validation_error", "dates"),
        ({"dates": ["24.12.2026"]}, 400, "validation_error", "dates[0]"),
        ({"dates": ["٢٠٢٦-12-24"]}, 400, "validation_error", "dates[0]"),
        ({"starts_at": "2026-01-01T00:00:00Z"}, 400, "validation_error", "starts_at"),
        ({"starts_at": "2026-01-01T00:00:00"}, 400, "validation_error", "starts_at"),
        ({"name": " "}, 400, "validation_error", "name"),
        ({"name": "n" * 256}, 400, "validation_error", "name"),
        ({"reason": "r" * 10_001}, 400, "validation_error", "reason"),
        ({"is_freeze": True}, 400, "validation_error", "is_freeze"),
        ({"kind": "dates"}, 400, "validation_error", "days"),
        ({"kind": "period", "days": [], "from_time": None, "to_time": None}, 400, "validation_error", "starts_at"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_kept(
    releaser: Api, told: dict[str, Any], status: int, code: str, field: str
) -> None:
    answer = releaser.post("/v1/blackouts", {**NIGHTS, **told})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert field in answer.json()["errors"]
    assert not Blackout.objects.exists()
    assert {outcome for outcome, _ in events("blackout.save")} == {"failed"}


def test_a_change_is_checked_as_a_whole_and_leaves_what_was(releaser: Api) -> None:
    made = make(releaser)
    path = f"/v1/blackouts/{made['id']}"
    for told in ({"days": []}, {"dates": ["2026-12-24"]}, {"timezone": "Mars/Olympus"}, {"kind": "dates"}):
        assert releaser.patch(path, told).status_code in (400, 422), told
    assert releaser.get("/v1/blackouts").json()["results"] == [made]


def test_a_zone_that_only_the_console_knows_is_refused(releaser: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's data of zones decides, so it must know the name."""
    known = blackout_rows.zones.zone("UTC")
    monkeypatch.setattr(blackout_rows.zones, "zone", lambda name: known)
    answer = releaser.post("/v1/blackouts", {**NIGHTS, "timezone": "Moon/Tranquility"})
    assert (answer.status_code, answer.json()["code"]) == (422, "timezone_invalid")
    assert "Moon/Tranquility" in answer.json()["errors"]["timezone"][0]
    assert not Blackout.objects.exists()


def test_the_database_knows_every_zone_that_the_console_knows(db: None) -> None:
    """Where this fails a name is refused when it is written; the docs say so."""
    known = {row[0] for row in query("SELECT name FROM pg_timezone_names")}
    lacking = blackout_rows.zones.names() - known
    assert len(lacking) < 10, sorted(lacking)


def test_a_workspace_has_so_many_that_are_not_over(
    releaser: Api, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(blackout_rows, "MOST", 2)
    over = period(workspace, "2020-01-01T00:00:00", "2020-01-02T00:00:00")
    make(releaser, name="first")
    make(releaser, name="second")
    answer = releaser.post("/v1/blackouts", NIGHTS)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    again = releaser.patch(f"/v1/blackouts/{over.id}", {"ends_at": "2100-01-01T00:00:00Z"})
    assert (again.status_code, again.json()["code"]) == (400, "validation_error"), "one more by a change"
    assert Blackout.objects.count() == 3


# who may


def test_who_may_not_release_only_reads(
    people: dict[str, Person], as_person: Callable[[Person], Api], releaser: Api, outsider: Person
) -> None:
    made = make(releaser)
    path = f"/v1/blackouts/{made['id']}"
    for role in ("viewer", "operator", "approver"):
        theirs = as_person(people[role])
        assert theirs.get("/v1/blackouts").json()["results"] == [made]
        assert theirs.get("/v1/freeze").json() == {"is_frozen": False, "freezes": []}
        for answer in (
            theirs.post("/v1/blackouts", NIGHTS),
            theirs.patch(path, {"enabled": False}),
            theirs.post("/v1/freeze", {"reason": "because"}),
            theirs.post("/v1/freeze/lift"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert ("denied", "permission_denied") in events("freeze.declare")
    foreign = as_person(outsider)
    assert foreign.get("/v1/blackouts").json()["results"] == []
    assert foreign.patch(path, {"enabled": False}).status_code == 404
    assert Blackout.objects.get().enabled


# the freeze


def test_a_freeze_says_who_why_and_since_when_and_is_lifted(
    releaser: Api, viewer: Api, people: dict[str, Person], clock: Clock
) -> None:
    answer = releaser.post("/v1/freeze", {"reason": "an incident at the bank"})
    assert answer.status_code == 201
    freeze = answer.json()
    assert (freeze["by"], freeze["reason"]) == (people["release_manager"].user.username, "an incident at the bank")
    assert (freeze["environment"], freeze["until"]) == (None, None)
    assert viewer.get("/v1/freeze").json() == {"is_frozen": True, "freezes": [freeze]}

    again = releaser.post("/v1/freeze", {"reason": "an incident at the bank"})
    assert (again.status_code, again.json()) == (200, freeze)
    assert Blackout.objects.count() == 1

    clock.advance(60)
    lifted = releaser.post("/v1/freeze/lift", {"reason": "over"}).json()
    assert (lifted["is_frozen"], lifted["freezes"], len(lifted["lifted"])) == (False, [], 1)
    assert lifted["lifted"][0]["until"] is not None
    assert releaser.post("/v1/freeze/lift").json() == {"is_frozen": False, "freezes": [], "lifted": []}
    assert events("freeze.declare") == [("allowed", ""), ("no_op", "")]
    assert events("freeze.lift") == [("allowed", ""), ("no_op", "")]
    told = [one["sentence"] for one in viewer.get("/v1/audit-events").json()["results"]]
    who = people["release_manager"].user.username
    assert f"{who} froze all starts: an incident at the bank" in told
    assert f"{who} lifted the freeze: over" in told


def test_another_reason_or_end_begins_another_freeze_without_a_gap(releaser: Api, clock: Clock) -> None:
    first = releaser.post("/v1/freeze", {"reason": "an incident"}).json()
    clock.advance(60)
    until = (clock.now() + timedelta(hours=2)).isoformat()
    second = releaser.post("/v1/freeze", {"reason": "an incident, longer", "until": until})
    assert second.status_code == 201
    earlier, later = Blackout.objects.order_by("starts_at")
    assert str(earlier.id) == first["id"]
    assert earlier.ends_at == later.starts_at
    assert [one["id"] for one in releaser.get("/v1/freeze").json()["freezes"]] == [second.json()["id"]]
    clock.advance(hours=2)
    assert not releaser.get("/v1/freeze").json()["is_frozen"]


def test_an_environment_is_frozen_and_lifted_by_itself(
    releaser: Api, environments: dict[str, Environment], workspace: Workspace
) -> None:
    releaser.post("/v1/freeze", {"reason": "a move", "environment": "production"})
    releaser.post("/v1/freeze", {"reason": "all of it"})
    assert [one["environment"] for one in releaser.get("/v1/freeze").json()["freezes"]] == [None, "production"]
    left = releaser.post("/v1/freeze/lift").json()
    assert [one["environment"] for one in left["freezes"]] == ["production"]
    assert releaser.post("/v1/freeze/lift", {"environment": "staging"}).json()["lifted"] == []
    assert releaser.post("/v1/freeze/lift", {"environment": "production"}).json()["freezes"] == []


@pytest.mark.parametrize(
    ("told", "status", "field"),
    [
        ({}, 400, "reason"),
        ({"reason": "  "}, 400, "reason"),
        ({"reason": "r" * 10_001}, 400, "reason"),
        ({"reason": "r", "until": "2020-01-01T00:00:00Z"}, 400, "until"),
        ({"reason": "r", "until": "2099-01-01T00:00:00"}, 400, "until"),
        ({"reason": "r", "environment": "the-moon"}, 422, "environment"),
        ({"reason": "r", "name": "mine"}, 400, "name"),
    ],
)
def test_a_freeze_without_a_reason_or_with_an_end_that_is_past_is_refused(
    releaser: Api, told: dict[str, Any], status: int, field: str
) -> None:
    answer = releaser.post("/v1/freeze", told)
    assert (answer.status_code, list(answer.json()["errors"])) == (status, [field])
    assert not Blackout.objects.exists()


def test_a_freeze_is_lifted_and_never_changed(releaser: Api) -> None:
    freeze = releaser.post("/v1/freeze", {"reason": "an incident"}).json()
    answer = releaser.patch(f"/v1/blackouts/{freeze['id']}", {"enabled": False})
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_request")
    assert releaser.get("/v1/freeze").json()["is_frozen"]
