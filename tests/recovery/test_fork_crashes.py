"""A fork asked for at every crash point, and by many at once: exactly one target, under the id that was reserved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from config.celery_settings import configuration
from pipelines.audit import ALLOWED, NO_OP
from pipelines.models import AuditEvent, Checkpoint, Run, StageOutput
from recovery import forks
from recovery.models import Operation
from recovery.states import OperationKind
from recovery.tasks import carry_on
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.concurrency.crew import crew_of
from tests.engine_model.invariants import assert_invariants
from tests.recovery.stories import effect_of, in_review
from tests.services import database_url

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
StartRun = Callable[..., Run]
KEY = "0b7e3d1c-1111-4222-8333-444455556666"
ROOT = Path(__file__).resolve().parents[2]

# where a process may die: the function of `recovery.forks` that is never entered, or never left
BEFORE_THE_RESERVATION = ["allow", "operations.add", "operations.record_verdict"]
AFTER_THE_RESERVATION = [
    "dispatch",
    "_locked",
    "_dispatch",
    "plan_again",
    "_make",
    "_copy_outputs",
    "insert_runs",
    "_copy_context",
    "operations.update",
]


class Killed(BaseException):
    """Nothing after this is done by the one who was asked."""


@pytest.fixture
def fail(start_run: StartRun, hand: Hand) -> Callable[[], Run]:
    """Makes a run that fails at its second stage."""

    def make() -> Run:
        run = start_run("first", "second", context_items=[{"key": "order", "value": "4711"}])
        jobs = hand.pull(10)
        hand.report(next(job for job in jobs if job.run_id == run.id), output=1)
        jobs = hand.pull(10)
        hand.report(next(job for job in jobs if job.run_id == run.id), "failed", error_code="BUSINESS_REJECTED")
        return run

    return make


@pytest.fixture
def failed(fail: Callable[[], Run]) -> Run:
    return fail()


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def ask(run: Run, person: Person, key: str = KEY) -> Any:
    asked = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=person.actor)
    return forks.fork(asked, actor=person.actor, key=key)


def kill_at(point: str, run: Run, person: Person, *, after: bool, key: str = KEY) -> None:
    """Asks for a fork, and is killed on the way into that function, or once it has done its work."""
    home: Any = forks
    *path, name = point.split(".")
    for step in path:
        home = getattr(home, step)
    real = getattr(home, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        if after:
            real(*args, **kwargs)
        raise Killed(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, name, dying)
        with pytest.raises(Killed):
            ask(run, person, key)


def the_one_target(run: Run, operation: Operation) -> Run:
    """The only fork there is, whole, and with the id that was reserved."""
    (target,) = Run.objects.filter(recovered_from=run)
    assert target.id == operation.target
    assert [stage.state for stage in stages_of(target)] == ["completed", "ready"]
    assert StageOutput.objects.filter(stage__run=target).count() == 1
    assert Checkpoint.objects.filter(run=target).count() == 1
    assert target.context_items.count() == 1
    assert_invariants()
    return target


@pytest.mark.parametrize("point", BEFORE_THE_RESERVATION)
def test_killed_before_the_reservation_nothing_was_asked(failed: Run, people: dict[str, Person], point: str) -> None:
    for after in (False, True):
        kill_at(point, failed, people["operator"], after=after)
        assert not Operation.objects.exists()
        assert forks.carry_on_reserved(quiet_seconds=0) == 0
    done = ask(failed, people["operator"])
    assert done.replayed is False
    the_one_target(failed, Operation.objects.get())


@pytest.mark.parametrize("point", AFTER_THE_RESERVATION)
def test_killed_after_the_reservation_one_target_is_made_all_the_same(
    fail: Callable[[], Run], people: dict[str, Person], point: str
) -> None:
    """I10, I11, O30: a recovery requested at every crash point ends in exactly one target.

    Whether the same request comes again, the sweep comes by, or both and twice.
    """
    person = people["operator"]
    for after, healers in product((False, True), ("ask", "sweep", "ask sweep ask sweep")):
        run, key = fail(), str(uuid.uuid4())
        kill_at(point, run, person, after=after, key=key)
        reserved = Operation.objects.get(run=run)
        assert reserved.target is not None
        assert reserved.state in ("reserved", "dispatched")
        verdicts = AuditEvent.objects.filter(run=run.id, action="execution.recovery_disposition")
        assert verdicts.count() == 1
        for healer in healers.split():
            if healer == "sweep":
                forks.carry_on_reserved(quiet_seconds=0)
            else:
                assert ask(run, person, key).replayed is True
        operation = Operation.objects.get(run=run)
        assert (operation.state, operation.target) == ("dispatched", reserved.target)
        the_one_target(run, operation)
        assert AuditEvent.objects.filter(run=run.id, action="run.rerun", outcome=ALLOWED).count() == 1
        assert verdicts.count() == 1


def test_the_sweep_leaves_to_its_caller_what_was_reserved_just_now(
    failed: Run, people: dict[str, Person], clock: Clock
) -> None:
    kill_at("dispatch", failed, people["operator"], after=False)
    assert forks.carry_on_reserved() == 0
    clock.advance(6)
    assert forks.carry_on_reserved() == 1
    the_one_target(failed, Operation.objects.get())


def test_a_fault_of_ours_ends_the_operation_and_frees_its_key(
    failed: Run, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would come again with every sweep."""
    with monkeypatch.context() as patch:
        patch.setattr(forks, "_make", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ask(failed, people["operator"])
        assert Operation.objects.get().state == "reserved"
        assert forks.carry_on_reserved(quiet_seconds=0) == 0
    assert [(one.state, one.key, one.target) for one in Operation.objects.all()] == [("failed", "", None)]
    ask(failed, people["operator"])
    the_one_target(failed, Operation.objects.get(state="dispatched"))


REAL_KILL = """
import os, signal, sys
import django
django.setup()
from pipelines.access import person
from pipelines.models import Run
from django.contrib.auth import get_user_model
from recovery import forks
from recovery.states import OperationKind

point, run_id, user_id, key = sys.argv[1:]
home, name = (forks.operations, point.partition(".")[2]) if "." in point else (forks, point)
setattr(home, name, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
run = Run.objects.select_related("environment", "pipeline").get(id=run_id)
actor = person(get_user_model().objects.get(pk=user_id), run.workspace_id, "api")
forks.fork(forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=actor), actor=actor, key=key)
"""


@pytest.mark.parametrize(
    "point", ["allow", "operations.add", "dispatch", "_make", "_copy_context", "operations.update"]
)
def test_a_process_that_is_really_killed_leaves_one_target_or_none(
    failed: Run, people: dict[str, Person], point: str
) -> None:
    """kill -9, so that nothing of the language or the driver can tidy up."""
    asked = [point, str(failed.id), str(people["operator"].user.pk), KEY]
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL_KILL, *asked],
        env={**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert Run.objects.filter(recovered_from=failed).count() == 0
    reserved = Operation.objects.first()
    done = ask(failed, people["operator"])
    operation = Operation.objects.get()
    assert done.replayed is (reserved is not None)
    assert reserved is None or reserved.target == operation.target
    the_one_target(failed, operation)


# many at once


def test_many_callers_with_one_key_share_one_target(
    failed: Run, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """F118, F124, F125: one 201, the rest 200 with the same id, nobody 5xx."""
    client = as_person(people["operator"])
    with crew_of(8) as crew:
        call = lambda: client.post(f"/v1/executions/{failed.id}/rerun", {"client_request_id": KEY})  # noqa: E731
        answers = crew.at_once(*[call] * 8)
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["execution_id"] for answer in answers}) == 1
    the_one_target(failed, Operation.objects.get())
    outcomes = [event.outcome for event in AuditEvent.objects.filter(action="run.rerun")]
    assert sorted(outcomes) == [ALLOWED] + [NO_OP] * 7


def test_one_key_for_two_runs_at_once_forks_one_of_them(
    failed: Run, start_run: StartRun, hand: Hand, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Each under its own source's lock: the database decides, and the loser is told."""
    others = [failed]
    for _ in range(3):
        others.append(start_run("first", "second"))
        hand.finish()
    client = as_person(people["operator"])
    calls = [
        lambda run=run: client.post(f"/v1/executions/{run.id}/rerun", {"client_request_id": KEY}) for run in others
    ]
    with crew_of(4) as crew:
        answers = crew.at_once(*calls)
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {
        "recovery_idempotency_conflict"
    }
    assert Run.objects.filter(recovered_from__isnull=False).count() == Operation.objects.count() == 1


def test_dispatchers_that_race_make_one_run(failed: Run, people: dict[str, Person]) -> None:
    """I10: callers and sweeps on the same reserved operation."""
    kill_at("dispatch", failed, people["operator"], after=False)
    operation, actor = Operation.objects.get(), people["operator"].actor
    with crew_of(6) as crew:
        acts: list[Callable[[], Any]] = [lambda: forks.dispatch(operation, actor=actor)] * 3
        acts += [lambda: forks.carry_on_reserved(quiet_seconds=0)] * 3
        answers = crew.at_once(*acts)
    targets = {answer.result["execution_id"] for answer in answers[:3]}
    assert targets == {str(operation.target)}
    the_one_target(failed, Operation.objects.get())
    assert AuditEvent.objects.filter(action="run.rerun", outcome=ALLOWED).count() == 1


def test_opposite_decisions_at_once_leave_one_of_them(
    failed: Run, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """F138: two people, one operation."""
    effect_of(failed, "second")
    operation = in_review(failed)
    path = f"/v1/approvals/{operation.id}/decision"
    yes, no = as_person(people["approver"]), as_person(people["admin"])
    with crew_of(2) as crew:
        answers = crew.at_once(
            lambda: yes.post(path, {"approved": True}),
            lambda: no.post(path, {"approved": False, "reason": "no"}),
        )
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    operation.refresh_from_db()
    made = Run.objects.filter(recovered_from=failed).count()
    assert (operation.state, made) in {("dispatched", 1), ("denied", 0)}


def test_a_retry_and_a_rerun_at_once_both_happen_or_one_is_told(
    failed: Run, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """The rerun sees the source before the retry or after it, never in between."""
    client, stage = as_person(people["operator"]), stages_of(failed)[1]
    with crew_of(2) as crew:
        retried, forked = crew.at_once(
            lambda: client.post(f"/v1/stages/{stage.id}/retry", {"reason": "again"}),
            lambda: client.post(f"/v1/executions/{failed.id}/rerun", {}),
        )
    assert retried.status_code == 200
    if forked.status_code != 201:
        assert forked.json()["code"] in ("execution_state_invalid", "plan_changed")
    assert Run.objects.filter(recovered_from=failed).count() == (forked.status_code == 201)
    assert_invariants()


# to the target's end


@pytest.mark.parametrize(("ending", "state"), [("succeeded", "succeeded"), ("failed", "failed"), ("cancel", "failed")])
def test_an_operation_follows_its_targets_end(
    failed: Run, people: dict[str, Person], hand: Hand, operator: Api, ending: str, state: str
) -> None:
    """Model §2 Operation."""
    done = ask(failed, people["operator"])
    assert forks.follow_targets() == 0
    if ending == "cancel":
        operator.post(f"/v1/executions/{done.result['execution_id']}/cancel", {"reason": "no"})
    else:
        hand.report(hand.take(), ending, error_code="BUSINESS_REJECTED" if ending == "failed" else "")
    assert forks.follow_targets() == 1
    assert Operation.objects.get(id=done.operation_id).state == state
    assert forks.follow_targets() == 0
    again = ask(failed, people["operator"])
    assert (again.replayed, again.status) == (True, state)
    assert uuid.UUID(again.result["execution_id"]) == Operation.objects.get(id=done.operation_id).target


def test_the_sweep_comes_by_every_second_where_no_handler_holds_it_up(
    failed: Run, people: dict[str, Person], hand: Hand, tmp_path: Path, clock: Clock
) -> None:
    told = configuration("memory://", tmp_path)
    entry = told["beat_schedule"]["recoveries"]
    assert (entry["schedule"], told["task_routes"][entry["task"]]) == (1.0, {"queue": "recourse.clock"})
    assert entry["task"] == carry_on.name
    kill_at("dispatch", failed, people["operator"], after=False)
    clock.advance(6)
    assert carry_on() == {"expired": 0, "reserved": 1, "followed": 0, "retried": 0}
    assert hand.finish() == 1
    assert carry_on() == {"expired": 0, "reserved": 0, "followed": 1, "retried": 0}
