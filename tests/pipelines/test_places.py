"""A stage that no live worker may take holds no place of its run's from those that one may take (R25, ADR 0086)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines import places, queries, unserved
from pipelines.models import QueueEntry, Run, WorkerSession
from pipelines.sql import database_now
from pipelines.sweeps import sweep
from tests.cast import Hand

pytestmark = pytest.mark.django_db
StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]

LONELY = {"name": "lonely", "handler": "Nobody", "depends_on": []}
BESIDE = [{"name": name, "depends_on": []} for name in "ab"]
LAST = {"name": "z", "depends_on": ["lonely", "a", "b"]}  # where one names what it needs, nobody needs the one before


def queued(run: Run) -> set[str]:
    return set(QueueEntry.objects.filter(stage__run=run).values_list("stage__name", flat=True))


def test_a_place_that_nobody_can_take_is_passed_on(start_run: StartRun, hand: Hand) -> None:
    run = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    assert queued(run) == {"lonely"}, "it is the first, and nobody has asked yet who works"
    assert sweep()["places"] == 1
    assert queued(run) == {"a"}
    assert sweep()["places"] == 0, "and once"
    hand.report(hand.take(), output=1)
    assert queued(run) == {"b"}
    hand.report(hand.take(), output=1)
    assert queued(run) == {"lonely"}, "nobody else is left"
    assert sweep()["places"] == 0


def test_it_comes_last_whenever_places_are_given(start_run: StartRun, hand: Hand) -> None:
    """No sweep is needed where anything of the run moves."""
    first = {"name": "first"}
    after = [{**one, "depends_on": ["first"]} for one in (LONELY, *BESIDE)]
    run = start_run(first, *after, limits={"concurrency": 1})
    hand.report(hand.take(), output=1)
    assert queued(run) == {"a"}


def test_once_a_worker_has_come_it_has_its_turn(start_run: StartRun, hand: Hand, new_hand: NewHand) -> None:
    run = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    sweep()
    other = new_hand("hand-2", "Nobody")
    hand.report(hand.take(), output=1)
    assert queued(run) == {"lonely"}, "it has waited longer than b"
    other.report(other.take(), output=1)
    assert hand.finish() == 2
    assert Run.objects.get(id=run.id).status == "completed"


def test_where_nobody_works_nothing_is_passed_about(start_run: StartRun) -> None:
    run = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    assert places.pass_on() == 0
    assert queued(run) == {"lonely"}


def test_a_worker_that_is_silent_or_leaving_is_none(start_run: StartRun, new_hand: NewHand, hand: Hand) -> None:
    run = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    new_hand("hand-2", "Nobody")
    assert sweep()["places"] == 0
    WorkerSession.objects.filter(worker_name="hand-2").update(state="draining")
    assert sweep()["places"] == 1
    assert queued(run) == {"a"}


def test_a_run_that_stands_still_or_has_room_is_left_alone(start_run: StartRun, hand: Hand) -> None:
    roomy = start_run(LONELY, *BESIDE, LAST)
    paused = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    Run.objects.filter(id=paused.id).update(paused=True)
    assert queued(roomy) == {"lonely", "a", "b"}
    assert places.pass_on() <= 1
    assert queued(roomy) == {"lonely", "a", "b"}


def test_what_waits_says_so(start_run: StartRun, hand: Hand) -> None:
    run = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    before = {one.stage: one.cause for one in queries.blockers(run)}
    assert "first: lonely" in before["a"]
    sweep()
    after = {one.stage: one.cause for one in queries.blockers(run)}
    assert "first: a; no live worker may take it, so it takes no place from others" in after["lonely"]
    assert after["b"].endswith("first: a")


def test_another_application_is_no_help(start_run: StartRun, hand: Hand, sibling_key: str) -> None:
    """A worker of another application with the handler takes nothing from here."""
    run = start_run(LONELY, *BESIDE, LAST, limits={"concurrency": 1})
    session = WorkerSession.objects.get()
    WorkerSession.objects.create(
        application_id=session.application.workspace.applications.exclude(id=session.application_id).get().id,
        environment_id=session.environment_id,
        worker_name="elsewhere",
        handlers=["Nobody"],
        last_seen_at=database_now(),
    )
    assert unserved.holding_places(10, 10) == [run.id]
