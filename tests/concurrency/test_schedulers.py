"""Schedulers beside each other, beside people who change triggers and beside backfills; and schedulers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines import lanes, ledger, triggers
from pipelines.models import Event, Release, Run, Stage, Tick, Trigger
from pipelines.sql import database_now
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew
from tests.engine_model.invariants import assert_invariants
from tests.scheduled import Fill, MakeTrigger, assert_ledger_holds, expected, run_pass, runs, states, turn_back
from tests.services import database_url
from tests.verbs import retry_stage

ROOT = Path(__file__).resolve().parents[2]
EVERY_MINUTE = {"catch_up": "all", "start_within": 86_400, "overlap_policy": "allow"}


def held_to(trigger: Trigger, since: datetime) -> None:
    """Every tick that the oracle knows has its row, and every row that is dispatched its one run."""
    trigger.refresh_from_db()
    rows = list(Tick.objects.filter(trigger=trigger, at__gt=since).order_by("at").values_list("at", flat=True))
    assert rows == expected(trigger, since, trigger.recorded_until)
    assert_ledger_holds()


# threads with connections of their own


def test_schedulers_side_by_side_give_each_tick_one_run(crew: Crew, make_trigger: MakeTrigger) -> None:
    """I18: eight that record and dispatch at the same instant, time and again, over triggers of every policy."""
    policies = ["allow", "skip", "queue_one", "queue_all"]
    several = [
        make_trigger("* * * * *", name=f"t{number}", **{**EVERY_MINUTE, "overlap_policy": policies[number % 4]})
        for number in range(8)
    ]
    since = {trigger.id: turn_back(trigger, minutes=20) for trigger in several}
    crew.at_once(*[run_pass] * 8)
    crew.at_once(*[run_pass] * 8)
    for trigger in several:
        held_to(trigger, since[trigger.id])
        found, count = states(trigger), Tick.objects.filter(trigger=trigger).count()
        made = {"allow": count, "queue_all": count, "skip": 1, "queue_one": 2}[trigger.overlap_policy]
        assert found.pop("dispatched") == made
        assert found == ({"skipped(overlap)": count - made} if count > made else {})


def test_a_queueing_trigger_never_has_two_runs_in(
    crew: Crew, make_trigger: MakeTrigger, new_hand: Callable[..., Hand]
) -> None:
    """F81: whoever dispatches, lets in or ends runs at the same time."""
    trigger = make_trigger("* * * * *", **{**EVERY_MINUTE, "overlap_policy": "queue_all"})
    hands = [new_hand(f"hand-{number}") for number in range(3)]
    turn_back(trigger, minutes=12)
    most: list[int] = []

    def work(hand: Hand) -> None:
        for job in hand.pull(5):
            most.append(Run.objects.filter(lane_id=trigger.id, held=False).exclude(status="completed").count())
            hand.report(job)
            lanes.let_in([trigger.id])

    crew.at_once(run_pass, run_pass, run_pass)
    whole = Run.objects.count()
    while Run.objects.filter(status="completed").count() < whole:
        acts = [lambda hand=hand: work(hand) for hand in hands]
        crew.at_once(run_pass, *acts, lambda: lanes.let_in([trigger.id]))
    assert whole >= 12
    assert set(most) == {1}
    assert_ledger_holds()


def test_a_change_between_two_schedulers_loses_and_invents_nothing(
    crew: Crew, make_trigger: MakeTrigger, people: dict[str, Person]
) -> None:
    actor = people["admin"].actor
    for number in range(6):
        trigger = make_trigger("* * * * *", name=f"t{number}", **EVERY_MINUTE)
        since = turn_back(trigger, minutes=10)
        until = database_now()
        crew.at_once(
            run_pass,
            lambda: triggers.change(trigger.id, actor=actor, changes={"cron": "0 0 1 1 *"}),  # noqa: B023
            run_pass,
            lambda: triggers.switch(trigger.id, actor=actor, enabled=False),  # noqa: B023
            run_pass,
        )
        run_pass()
        rows = Tick.objects.filter(trigger=trigger, at__lte=until).order_by("at").values_list("at", flat=True)
        assert list(rows) == expected(make_trigger_of(trigger, "* * * * *"), since, until)
        assert not Tick.objects.filter(trigger=trigger, state="due").exists()
        assert_ledger_holds()


def make_trigger_of(trigger: Trigger, cron: str) -> Trigger:
    """The trigger as it was."""
    return Trigger(cron=cron, timezone=trigger.timezone, gap=trigger.gap, overlap=trigger.overlap)


# backfills


def test_two_backfills_over_one_window_make_one_run_for_each_tick(
    crew: Crew, make_trigger: MakeTrigger, fill: Fill
) -> None:
    """The ledger's row decides; who comes second is told the other's run."""
    trigger = make_trigger("* * * * *")
    until = database_now().replace(second=0, microsecond=0) - timedelta(days=1)
    since = until - timedelta(minutes=60)
    found: list[ledger.Claims] = crew.at_once(
        lambda: fill(trigger, since, until),
        lambda: fill(trigger, since + timedelta(minutes=10), until),
        lambda: fill(trigger, since, until - timedelta(minutes=10)),
        lambda: fill(trigger, since - timedelta(minutes=10), until + timedelta(minutes=10)),
    )
    claimed = [one.at for claims in found for one in claims.claimed]
    assert len(claimed) == len(set(claimed)) == Run.objects.count() == Tick.objects.count() == 81
    owned = {one.at: one.run_id for claims in found for one in claims.claimed}
    for claims in found:
        assert all(owned[at] == run_id for at, run_id in claims.existing.items())
    assert_ledger_holds()


def test_a_backfill_beside_the_live_pass_makes_one_run_for_each_tick(
    crew: Crew, make_trigger: MakeTrigger, fill: Fill
) -> None:
    """F86, I18: over what is being recorded and dispatched in this moment; the schedule's pointer is the pass's own."""
    for number in range(5):
        trigger = make_trigger("* * * * *", name=f"t{number}", **EVERY_MINUTE)
        since = turn_back(trigger, minutes=30)
        until = database_now()
        crew.at_once(
            run_pass,
            lambda: fill(trigger, since, until),  # noqa: B023
            run_pass,
            lambda: fill(trigger, since - timedelta(minutes=30), until, "all"),  # noqa: B023
        )
        run_pass()
        held_to(trigger, since)
        assert Trigger.objects.get(id=trigger.id).recorded_until >= until


def test_a_failed_run_that_is_retried_is_not_done_once_more_beside_it(
    crew: Crew, make_trigger: MakeTrigger, fill: Fill, hand: Hand, people: dict[str, Person]
) -> None:
    """Never two live runs for a tick: the retry or the backfill, whoever has the run's lock first."""
    actor = people["operator"].actor
    for number in range(5):
        trigger = make_trigger("* * * * *", name=f"t{number}", enabled=False)
        at = database_now().replace(second=0, microsecond=0) - timedelta(days=1)
        fill(trigger, at, at)
        hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
        (old,) = runs(trigger)
        stage = Stage.objects.get(run=old)
        _, claims = crew.at_once(
            lambda: retry_stage(stage.id, actor=actor, reason="again"),  # noqa: B023
            lambda: fill(trigger, at, at, "failed"),  # noqa: B023
        )
        if claims.claimed:
            assert Tick.objects.get(trigger=trigger).run == claims.claimed[0].run_id
        else:
            assert claims.existing == {at: old.id}
            assert Run.objects.filter(trigger=trigger).count() == 1
        hand.finish()


# kill -9

CRASHER = """
import os, signal, sys
import django
django.setup()
from django.db import connection
from pipelines import dispatch, ledger

# one process loads everything, and forks one that dies for each line that it reads: "before 3", "after 3"
for line in sys.stdin:
    when, number = line.split()
    child = os.fork()
    if child == 0:
        done = 0
        def counted(execute, sql, params, many, context):
            global done
            if when == "before" and done == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
            answer = execute(sql, params, many, context)
            done += 1
            if when == "after" and done == int(number):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer
        connection.ensure_connection()
        with connection.execute_wrapper(counted):
            ledger.record()
            dispatch.dispatch_due()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@contextmanager
def crasher() -> Iterator[Callable[[str, int], bool]]:
    """Runs a pass that dies at a statement; whether it died."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CRASHER],
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def crash(when: str, number: int) -> bool:
        stdin.write(f"{when} {number}\n")
        stdin.flush()
        code = int(stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code != 0

    with process:
        yield crash


def test_a_scheduler_killed_at_any_statement_loses_and_doubles_nothing(make_trigger: MakeTrigger) -> None:
    """F112, I18: kill -9 before and after every statement of recording and dispatching, with what comes next.

    After each, due + dispatched + skipped + failed + not yet recorded is what the oracle counts; after the next pass
    every tick has its run or the reason why it has none.
    """
    killed = 0
    first, without = (
        make_trigger("* * * * *", **EVERY_MINUTE),
        make_trigger("* * * * *", pipeline="gone", **EVERY_MINUTE),
    )
    Release.objects.filter(pipeline=without.pipeline_id).update(status="revoked")
    Trigger.objects.update(next_at=None)
    with crasher() as crash:
        for when in ("before", "after"):
            number = 0
            while True:
                number += 1
                several = [copy_of(first, overlap_policy=policy) for policy in ("allow", "skip", "queue_all")]
                gone = copy_of(without)
                since = {one.id: turn_back(one, minutes=3) for one in (*several, gone)}
                died = crash(when, number)
                killed += died
                for trigger in (*several, gone):
                    accounted(trigger, since[trigger.id])
                run_pass()
                for trigger in (*several, gone):
                    held_to(trigger, since[trigger.id])
                    assert not Tick.objects.filter(trigger=trigger, state="due").exists()
                assert set(states(gone)) == {"failed"}
                assert set(states(several[1])) == {"dispatched", "skipped(overlap)"}
                Trigger.objects.update(next_at=None)
                if not died:
                    break
    assert killed > 20, "every statement was met"
    assert_invariants()


def copy_of(trigger: Trigger, **changes: Any) -> Trigger:
    """Another trigger that is set like it."""
    fields = {name: getattr(trigger, name) for name in (*triggers.SETTINGS, "recorded_until", *changes)} | changes
    place = {name: getattr(trigger, name) for name in ("workspace", "pipeline", "environment", "application")}
    copy = Trigger.objects.create(**place, **fields)
    queues = copy.overlap_policy.startswith("queue")
    lanes.open_lane(copy.id, copy.workspace_id, 1 if queues else None, is_background=False)
    return copy


def accounted(trigger: Trigger, since: datetime) -> None:
    """Whatever is recorded is in a state that says so, and what is not recorded is still ahead of the pointer."""
    trigger.refresh_from_db()
    now = database_now()
    rows = {
        at: (state, run) for at, state, run in Tick.objects.filter(trigger=trigger).values_list("at", "state", "run")
    }
    unrecorded = [at for at in expected(trigger, since, now) if at > trigger.recorded_until]
    assert sorted([*rows, *unrecorded]) == expected(trigger, since, now)
    made = {run.id for run in runs(trigger)}
    assert {run for state, run in rows.values() if state == "dispatched"} == made
    assert not made & {run for state, run in rows.values() if state == "due"}


LOOP = """
import django
django.setup()
from pipelines import dispatch, ledger
print("up", flush=True)
while True:
    ledger.record()
    dispatch.dispatch_due()
"""


def test_two_scheduler_processes_that_are_killed_and_come_again_leave_one_run_for_each_tick(
    make_trigger: MakeTrigger,
) -> None:
    """I18, with processes: what they find is turned back again and again while one of them dies."""
    trigger = make_trigger("* * * * *", **EVERY_MINUTE)
    trigger_until = database_now()
    trigger_since = turn_back(trigger, minutes=5)
    processes = [scheduler(), scheduler()]
    try:
        for number in range(4):
            others = [make_trigger("* * * * *", name=f"{number}-{one}", spread=0, **EVERY_MINUTE) for one in range(20)]
            for one in others:
                turn_back(one, minutes=10)
            kill(processes.pop(0))
            processes.append(scheduler())
    finally:
        for process in processes:
            kill(process)
    run_pass()
    assert Trigger.objects.count() == 81
    assert not Tick.objects.filter(state="due").exists()
    assert Tick.objects.filter(trigger=trigger, at__lte=trigger_until).count() == len(
        expected(trigger, trigger_since, trigger_until)
    )
    assert Event.objects.filter(kind="run.create").count() == Run.objects.count()
    assert_ledger_holds()
    assert_invariants()


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


def scheduler() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LOOP],
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process
