"""Triggers for tests, a clock that is set to a date, and what became of their ticks.

def test_…(make_trigger, clock):
    set_to(clock, "2026-10-25T00:00Z")
    trigger = make_trigger("0 * * * *", "Europe/Berlin", catch_up="latest")
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from pipelines import creation, dispatch, ledger, releases, triggers
from pipelines.creation import Place
from pipelines.ids import new_id
from pipelines.models import Application, Environment, Pipeline, Run, Tick, Trigger, Workspace
from pipelines.schedules import Schedule
from pipelines.sql import database_now
from tests.cast import Person
from tests.clock import Clock
from tests.pipelines import schedule_oracle

MakeTrigger = Callable[..., Trigger]
Fill = Callable[..., ledger.Claims]


def set_to(clock: Clock, at: str) -> datetime:
    """The clock shows this time; backwards too, before anything was made."""
    wanted = datetime.fromisoformat(at)
    clock.shift += wanted - clock.now()
    return wanted


def release(pipeline: Pipeline, environment: Environment, actor: Any, stages: Sequence[dict[str, Any]]) -> None:
    """Puts a release of these stages in force."""
    definition = {"slug": pipeline.slug, "name": pipeline.name, "stages": list(stages)}
    releases.register_release(
        actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True
    )


@pytest.fixture
def make_trigger(
    workspace: Workspace, application: Application, environment: Environment, people: dict[str, Person]
) -> MakeTrigger:
    """Makes a trigger of `pipeline`, which has one stage for `Handler` unless `stages` says otherwise."""

    def make(
        cron: str = "0 * * * *",
        timezone: str = "UTC",
        *,
        pipeline: str = "nightly",
        stages: Sequence[dict[str, Any]] = ({"name": "first", "handler": "Handler"},),
        **wanted: Any,
    ) -> Trigger:
        actor = people["release_manager"].actor
        if not Pipeline.objects.filter(workspace=workspace, slug=pipeline).exists():
            release(
                Pipeline.objects.create(workspace=workspace, slug=pipeline, name=pipeline), environment, actor, stages
            )
        place = {"pipeline": pipeline, "environment": environment.slug, "application": application.name}
        return triggers.create(actor=actor, wanted={**place, "cron": cron, "timezone": timezone, **wanted})

    return make


def run_pass() -> tuple[int, int]:
    """What the scheduler does each second: (ticks recorded, ticks decided)."""
    return ledger.record(), dispatch.dispatch_due()


def turn_back(trigger: Trigger, **by: float) -> datetime:
    """The trigger has last been recorded so long ago: what has come since is found by the next pass."""
    since: datetime = database_now() - timedelta(**by)
    Trigger.objects.filter(id=trigger.id).update(recorded_until=since, next_at=since)
    return since


def states(trigger: Trigger) -> dict[str, int]:
    """How many ticks there are of each state, the skipped ones by reason: {"dispatched": 1, "skipped(paused)": 2}."""
    rows = Tick.objects.filter(trigger=trigger).values_list("state", "reason")
    return dict(Counter(f"{state}({reason})" if reason else state for state, reason in rows))


def instants(trigger: Trigger, **narrowed: Any) -> list[str]:
    """When its ticks were, in UTC and in order: "2026-10-25 00:00"."""
    rows = Tick.objects.filter(trigger=trigger, **narrowed).order_by("at").values_list("at", flat=True)
    return [f"{at:%Y-%m-%d %H:%M}" for at in rows]


def expected(trigger: Trigger, after: datetime, until: datetime) -> list[datetime]:
    """What the oracle says a trigger was due after one instant and up to another."""
    begin, end = after.replace(second=0, microsecond=0), until.replace(second=0, microsecond=0)
    found = schedule_oracle.ticks(trigger.cron, trigger.timezone, trigger.gap, trigger.overlap, begin, end)
    return sorted(at for at in found if after < at <= until)


def runs(trigger: Trigger) -> list[Run]:
    """Its runs, in order of their ticks."""
    return list(Run.objects.filter(trigger=trigger).order_by("tick_at", "id"))


def assert_ledger_holds() -> None:
    """I18: every dispatched tick has its one run, with the id it reserved; no run of a trigger is without its tick."""
    ticks = {tick.run: tick for tick in Tick.objects.filter(state="dispatched")}
    made: dict[uuid.UUID, Run] = {run.id: run for run in Run.objects.filter(trigger__isnull=False)}
    assert set(ticks) == set(made)
    assert all((run.trigger_id, run.tick_at) == (ticks[at].trigger_id, ticks[at].at) for at, run in made.items())
    assert len({(run.trigger_id, run.tick_at) for run in made.values()}) == len(made), "a tick has two runs"


@pytest.fixture
def fill(place: Place) -> Fill:
    """Claims the ticks of a window and makes their runs, as a backfill does: fill(trigger, since, until)."""

    def claim(trigger: Trigger, since: datetime, until: datetime, reprocess: str = "none") -> ledger.Claims:
        schedule = Schedule(trigger.cron, trigger.timezone)
        ticks = [ledger.Wanted(due.at, due.local.isoformat(), due.rule, None) for due in schedule.between(since, until)]
        with transaction.atomic():
            managed = releases.managed(trigger.workspace_id, trigger.pipeline_id, trigger.environment_id)
            claims = ledger.claim(
                trigger.id, ticks, backfill_id=new_id(), schedule=schedule, version=1, reprocess=reprocess
            )
            drafts = [
                creation.managed_draft(
                    place, managed, {}, run_id=one.run_id, origin=creation.Origin(trigger.id, one.at)
                )
                for one in claims.claimed
            ]
            creation.insert_runs(drafts, actor="ann")
        return claims

    return claim
