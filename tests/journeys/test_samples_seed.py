"""What the samples make before they run, and that a second start makes nothing."""

from __future__ import annotations

import threading
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from recourse import IdempotencyConflict, OutcomeUnknown

from pipelines import keys
from pipelines.models import ApiKey, AuditEvent, Member, Release, Role, Trigger, Workspace
from samples import feeder, places
from samples.up import APPLICATIONS, seed

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECOURSE_DATA", str(tmp_path))
    return tmp_path


def secret_of(name: str) -> str:
    return places.key_file(name).read_text().strip()


def test_a_seed_makes_what_the_samples_need_and_a_second_one_changes_nothing() -> None:
    root = get_user_model().objects.create_superuser("root", password="x")
    get_user_model().objects.create_user("somebody", password="x")
    seed("http://127.0.0.1:8000")
    workspace = Workspace.objects.get(slug="samples")
    assert list(Member.objects.values_list("workspace", "user", "role")) == [(workspace.id, root.id, Role.ADMIN)]
    release = Release.objects.get(workspace=workspace)
    assert (release.pipeline.slug, release.environment.slug, release.status) == ("fx-daily", "development", "active")
    trigger = Trigger.objects.get(workspace=workspace)
    assert (trigger.name, trigger.cron, trigger.timezone) == ("fx-daily", "15 16 * * mon-fri", "Europe/Berlin")
    assert (trigger.input, trigger.enabled, trigger.application.name) == ({"date": "{{local_date}}"}, True, "fx")
    for name in APPLICATIONS:
        holder = keys.find_key(secret_of(name))
        assert holder is not None
        assert (holder.application_name, holder.environment_slug, holder.scope) == (name, "development", "application")
        assert places.key_file(name).stat().st_mode & 0o777 == 0o600

    events, secrets = AuditEvent.objects.count(), [secret_of(name) for name in APPLICATIONS]
    assert events > 0
    seed("http://127.0.0.1:8000")
    assert AuditEvent.objects.count() == events
    assert [secret_of(name) for name in APPLICATIONS] == secrets
    assert ApiKey.objects.count() == len(APPLICATIONS)
    assert Release.objects.count() == 1
    assert Trigger.objects.count() == 1


def test_a_key_of_another_database_is_replaced_and_its_runs_are_made_again() -> None:
    places.write(places.key_file("fx"), "rk_from-elsewhere", mode=0o600)
    places.write(places.position_file(), '{"newest": "2026-05-29", "fed": 60}')
    seed("http://127.0.0.1:8000")
    assert keys.find_key(secret_of("fx")) is not None
    assert not places.position_file().exists()
    places.write(places.position_file(), '{"newest": "2026-05-29", "fed": 60}')
    seed("http://127.0.0.1:8000")
    assert places.position_file().exists()


class Console:
    """Takes the feeder's runs; `troubles` are raised first, one a call. Stands at the edge of the process."""

    def __init__(self, *troubles: Exception, stop_after: int, stopping: threading.Event) -> None:
        self.troubles = list(troubles)
        self.stop_after = stop_after
        self.stopping = stopping
        self.taken: list[str] = []
        self.runs = self

    def create(self, *, idempotency_key: str, pipeline: str, input: dict[str, str], **_: Any) -> None:  # noqa: A002
        if self.troubles:
            raise self.troubles.pop(0)
        assert idempotency_key == f"{pipeline}:{input['date']}"
        self.taken.append(input["date"])
        if len(self.taken) == self.stop_after:
            self.stopping.set()


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Feeds until `stop_after` runs are taken: the days in the order in which they were."""
    monkeypatch.setattr(feeder, "ask", lambda *_: (200, {"oldest": "1999-01-04", "newest": "2026-05-29"}))
    monkeypatch.setattr(feeder, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(feeder, "RETRY_SECONDS", 0)

    def run(*troubles: Exception, stop_after: int) -> list[str]:
        stopping = threading.Event()
        console = Console(*troubles, stop_after=stop_after, stopping=stopping)
        feeder.feed(console, stopping)
        return console.taken

    return run


def test_the_feeder_walks_back_and_goes_on_where_it_was(feed: Any) -> None:
    assert feed(stop_after=3) == ["2026-05-29", "2026-05-28", "2026-05-27"]
    assert feed(stop_after=2) == ["2026-05-26", "2026-05-25"]
    places.write(places.position_file(), "spoiled")
    assert feed(stop_after=1) == ["2026-05-29"]


def test_the_feeder_tries_a_day_again_until_the_console_has_it(feed: Any) -> None:
    assert feed(OutcomeUnknown("away"), OutcomeUnknown("away"), stop_after=2) == ["2026-05-29", "2026-05-28"]


def test_a_day_that_has_another_run_already_is_passed_over(feed: Any) -> None:
    conflict = IdempotencyConflict(409, "idempotency_conflict", "", {})
    assert feed(conflict, stop_after=1) == ["2026-05-28"]


def test_the_feeder_has_an_end(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "FIRST_DAYS", 2)
    monkeypatch.setattr(feeder, "FURTHER_DAYS", 3)
    days = feed(stop_after=100)
    assert len(days) == 5
    assert days[-1] == date(2026, 5, 25).isoformat()
    assert feed(stop_after=100) == []
