"""Several targets of a bulk in one transaction: each is still its own, and they cost a fixed number of statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pipelines.access import Actor
from pipelines.creation import Place
from pipelines.models import AuditEvent, Blackout, DeadLetter, Environment, Event, Run, Stage, Workspace
from pipelines.moves import Moves
from recovery import bulk_acts, bulk_work
from recovery.models import Operation
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.recovery.bulked import K, begun, counted, fail, failing, item_of, letters_of, of, outcomes, work_through
from tests.recovery.stories import EXTERNAL, effect_of
from tests.recovery.test_backfill_crashes import statements

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


@pytest.mark.parametrize("kind", [K.REDRIVE, K.RETRY, K.SKIP, K.CANCEL, K.DISCARD, K.PAUSE])
def test_many_targets_cost_about_as_many_statements_as_one(
    kind: K, start_run: StartRun, hand: Hand, operator: Actor
) -> None:
    """F53, F165: that is what makes two hundred a second possible on two cores."""

    def cost(count: int) -> int:
        hand.finish()
        runs = failing(start_run, hand, count, "first", "second")
        if kind in (K.CANCEL, K.PAUSE):
            runs = [start_run("first", "second") for _ in range(count)]
        targets: list[Any] = letters_of(runs) if kind in (K.REDRIVE, K.DISCARD) else runs
        bulk = begun(of(kind, targets), operator)
        used = statements(partial(bulk_acts.act_on_next, bulk.id))
        assert counted(bulk) == {"done": count}
        return used

    cost(2)  # what is read once a process
    few, many = cost(2), cost(20)
    # a discard marks each letter by itself
    assert many - few <= (18 if kind == K.DISCARD else 0), (few, many)


def test_each_is_told_as_when_it_is_done_alone(
    start_run: StartRun, hand: Hand, operator: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F146: stages, letters, operations, the engine's events and the audit, all alike."""

    def story(size: int) -> Counter[str]:
        monkeypatch.setattr(bulk_acts, "TOGETHER", size)
        hand.finish()
        charged = failing(start_run, hand, 1, {"name": "charge", **EXTERNAL})[0]
        effect_of(charged, "charge", key=str(charged.id))
        runs = [charged, *failing(start_run, hand, 3, "first", "second")]
        bulk = begun(of(K.REDRIVE, letters_of(runs)), operator)
        bulk_acts.act_on_next(bulk.id)
        for _ in range(3 if size == 1 else 0):
            bulk_acts.act_on_next(bulk.id)
        ids = [run.id for run in runs]
        told: Counter[str] = Counter()
        for run in Run.objects.filter(id__in=ids):
            told[f"run {run.status} {run.requesters == [operator.user_id]}"] += 1
            told["|".join(f"{event.kind} {event.to_state}" for event in run.events.order_by("id"))] += 1
        for stage in Stage.objects.filter(run__in=ids):
            told[f"stage {stage.name} {stage.state} {stage.epoch} {stage.attempt_number}"] += 1
        for letter in DeadLetter.objects.filter(run__in=ids):
            told[f"letter {letter.state} {letter.closed_at is not None}"] += 1
        for one in Operation.objects.filter(run__in=ids):
            told[f"operation {one.state} {one.disposition} {one.result} {one.key.startswith(f'bulk:{bulk.id}:')}"] += 1
        for event in AuditEvent.objects.filter(run__in=ids).exclude(action="run.create"):
            told[f"audit {event.action} {event.outcome} {event.code} {event.before} {event.after}"] += 1
            assert event.action == "execution.recovery_disposition" or event.data["bulk"] == str(bulk.id)
            assert len(event.plan_digest) == 64
        told[str(sorted(outcomes(bulk)))] += 1
        return told

    together, alone = story(25), story(1)
    assert together == alone
    assert sum(together.values()) > 20


def test_stages_of_one_run_are_dealt_with_one_after_the_other(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """The second is planned from what the first left: it has to wait for it."""
    runs = failing(start_run, hand, 2, {"name": "a", "run_next_if_failed": True}, "b")
    for _ in runs:
        fail(hand)
    bulk = begun(of(K.RETRY, runs), operator)
    assert bulk.total == 4
    assert bulk_acts.act_on_next(bulk.id) == 1
    work_through(bulk, clock)
    assert counted(bulk) == {"done": 4}
    for run in runs:
        told = [(stage.name, stage.state, stage.epoch) for stage in stages_of(run)]
        assert told == [("a", "ready", 2), ("b", "pending", 2)]
    assert_invariants()


def test_a_fault_while_one_is_carried_out_undoes_nothing_of_the_others(
    start_run: StartRun, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F64: it is found out late, when others of the same transaction have moved already."""
    runs = [start_run() for _ in range(6)]
    real = Moves.end_run

    def broken(self: Moves, run: Any, *arguments: Any, **more: Any) -> list[dict[str, Any]]:
        left = real(self, run, *arguments, **more)
        if run.id == runs[2].id:
            raise RuntimeError("a fault")
        return left

    monkeypatch.setattr(Moves, "end_run", broken)
    bulk = work_through(begun(of(K.CANCEL, runs), operator), clock)
    assert (counted(bulk), bulk.state) == ({"done": 5, "failed": 1}, "completed_with_failures")
    assert item_of(bulk, runs[2].id).code == "internal_error"
    assert Counter(Run.objects.values_list("status", flat=True)) == {"cancelled": 5, "queued": 1}
    assert Counter(AuditEvent.objects.filter(action="run.cancel").values_list("outcome", flat=True)) == {
        "allowed": 5,
        "failed": 1,
    }
    assert Event.objects.filter(kind="run.cancelled").count() == Operation.objects.count() == 5
    assert_invariants()


def test_what_stands_before_a_blackout_is_done_and_what_it_holds_waits(
    start_run: StartRun,
    hand: Hand,
    operator: Actor,
    clock: Clock,
    workspace: Workspace,
    place: Place,
    environments: dict[str, Environment],
    people: dict[str, Person],
) -> None:
    """Targets of one transaction, in two environments, of which one is frozen once the bulk runs."""
    staging = Place(workspace.id, place.application_id, environments["staging"].id, "staging")
    waiting = [start_run(in_place=staging) for _ in range(2)]
    going = failing(start_run, hand, 3)
    elsewhere = Hand(staging, "hand-2", ["Handler"])
    for _ in waiting:
        fail(elsewhere)
    bulk = begun(of(K.RETRY, [*waiting, *going]), operator)
    freeze = Blackout.objects.create(
        workspace_id=workspace.id,
        name="freeze",
        kind="period",
        starts_at=clock.now(),
        is_freeze=True,
        created_by=people["admin"].user,
        environment=environments["staging"],
    )
    clock.advance(1)
    bulk_work.step(bulk.id)
    bulk.refresh_from_db()
    assert (bulk.state, counted(bulk)) == ("running", {"pending": 2, "done": 3})
    assert "freeze" in bulk.held_reason
    assert {stage.epoch for run in waiting for stage in stages_of(run)} == {1}
    freeze.delete()
    work_through(bulk, clock)
    assert (bulk.state, counted(bulk), bulk.held_reason) == ("completed", {"done": 5}, "")
