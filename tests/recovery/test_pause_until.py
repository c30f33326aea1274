"""Pausing: until somebody resumes or a time comes, with what still runs counted, and paused exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pipelines import sweeps
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Event, Run
from recovery.models import Operation
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.concurrency.crew import Crew, crew_of
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds, last_event, status
from tests.verbs import cancel_as_operation, pause_run, resume_run

StartRun = Callable[..., Run]
People = dict[str, Person]
PARALLEL = [{"name": name, "depends_on": []} for name in "abc"] + [{"name": "d", "depends_on": ["a", "b", "c"]}]


@pytest.fixture
def operator(people: People, as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def pause(api: Api, run: Run, **body: Any) -> Any:
    return api.post(f"/v1/executions/{run.id}/pause", body)


def fresh(run: Run) -> Run:
    return Run.objects.get(id=run.id)


# until


def test_a_pause_ends_by_itself_at_the_time_that_was_named(
    start_run: StartRun, hand: Hand, operator: Api, clock: Clock
) -> None:
    """O7, O9: the answer is the source's two fields; the engine resumes it, not before, and its event says so."""
    run = start_run("first")
    until = clock.now() + timedelta(hours=1)
    answer = pause(operator, run, until=until.isoformat(), reason="until the file is there")
    assert answer.json() == {"execution_id": str(run.id), "status": "pause_signal_sent"}
    assert fresh(run).paused_until == until
    shown = operator.get(f"/v1/executions/{run.id}").json()
    assert (shown["status"], shown["paused_until"], shown["draining"]) == ("paused", shown["paused_until"], 0)
    clock.advance(3599)
    assert sweeps.end_pauses() == 0
    assert hand.pull() == []
    clock.advance(1)
    assert sweeps.sweep()["pauses"] == 1
    assert (status(run), fresh(run).paused_until, fresh(run).pause_reason) == ("queued", None, "")
    event = last_event(run, "run.resume")
    assert (event.actor, event.data) == ("", {"until": until.isoformat()})
    assert "time until which" in event.reason
    assert hand.finish() == 1
    assert status(run) == "completed"
    assert list(Operation.objects.values_list("kind", flat=True)) == ["pause"], "the engine asks for nothing"
    assert_invariants()


@pytest.mark.parametrize("until", ["2030-01-01T00:00:00", "tomorrow", 5, "2020-01-01T00:00:00+00:00", "", "2030-01-01"])
def test_a_time_without_offset_or_one_that_has_passed_is_refused(
    start_run: StartRun, operator: Api, until: object
) -> None:
    run = start_run("first")
    answer = pause(operator, run, until=until)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["until"])
    assert (status(run), Operation.objects.count()) == ("queued", 0)


def test_whatever_offset_it_is_told_in_it_is_that_instant(start_run: StartRun, operator: Api, clock: Clock) -> None:
    run = start_run("first")
    assert pause(operator, run, until="2150-06-01T12:00:00+05:30").status_code == 200
    assert fresh(run).paused_until is not None
    assert fresh(run).paused_until.isoformat() == "2150-06-01T06:30:00+00:00"  # type: ignore[union-attr]


def test_no_leftover_time_undoes_a_later_pause(start_run: StartRun, people: People, clock: Clock) -> None:
    """Resumed by a person, paused again without a time: the first time comes and goes."""
    run, operator = start_run("first"), people["operator"].actor
    pause_run(run.id, actor=operator, until=clock.now() + timedelta(minutes=5))
    resume_run(run.id, actor=operator)
    assert fresh(run).paused_until is None
    pause_run(run.id, actor=operator, reason="for good")
    clock.advance(hours=1)
    assert sweeps.end_pauses() == 0
    assert (status(run), fresh(run).pause_reason) == ("paused", "for good")


def test_a_later_pause_has_its_own_time(start_run: StartRun, people: People, clock: Clock) -> None:
    run, operator = start_run("first"), people["operator"].actor
    pause_run(run.id, actor=operator, until=clock.now() + timedelta(minutes=5))
    resume_run(run.id, actor=operator)
    pause_run(run.id, actor=operator, until=clock.now() + timedelta(minutes=20))
    clock.advance(minutes=10)
    assert sweeps.end_pauses() == 0
    clock.advance(minutes=10)
    assert sweeps.end_pauses() == 1
    assert status(run) == "queued"


def test_a_paused_run_is_not_paused_again(start_run: StartRun, people: People, clock: Clock) -> None:
    """Model §2: its time stays what it was."""
    run, operator = start_run("first"), people["operator"].actor
    pause_run(run.id, actor=operator, until=clock.now() + timedelta(minutes=5))
    before = fresh(run).paused_until
    with pytest.raises(Refusal) as refused:
        pause_run(run.id, actor=operator)
    assert refused.value.code == "execution_state_invalid"
    assert fresh(run).paused_until == before


@pytest.mark.parametrize("end", ["cancel", "finish", "deadline"])
def test_a_run_that_ended_while_it_was_paused_is_not_resumed(
    start_run: StartRun, hand: Hand, people: People, clock: Clock, end: str
) -> None:
    """I8, P76: the time is gone with the run."""
    run, operator = start_run("first", deadline_seconds=600), people["operator"].actor
    job = hand.take()
    pause_run(run.id, actor=operator, until=clock.now() + timedelta(minutes=20))
    if end == "cancel":
        cancel_as_operation(run.id, actor=operator)
    elif end == "finish":
        hand.report(job)
    else:
        clock.advance(601)
        sweeps.enforce_deadlines()
    clock.advance(hours=1)
    before = Event.objects.filter(run=run).count()
    assert sweeps.end_pauses() == 0
    assert fresh(run).paused_until is None
    assert Event.objects.filter(run=run).count() == before


def test_a_run_that_still_drains_goes_on_at_its_time(
    start_run: StartRun, hand: Hand, people: People, clock: Clock
) -> None:
    """pausing → running: it was never paused, and is not said to have been."""
    run = start_run(*PARALLEL)
    hand.take()
    pause_run(run.id, actor=people["operator"].actor, until=clock.now() + timedelta(seconds=10))
    assert status(run) == "pausing"
    clock.advance(10)
    assert sweeps.end_pauses() == 1
    assert status(run) == "running"
    assert "run.paused" not in kinds(run)


# drain


def test_what_still_runs_is_counted_down_and_then_it_is_paused(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """P61: `draining` on the run and in its blockers; `paused` with the last one."""
    run = start_run(*PARALLEL)
    jobs = hand.pull(3)
    pause(operator, run)
    for left in (3, 2, 1):
        shown = operator.get(f"/v1/executions/{run.id}").json()
        assert (shown["status"], shown["draining"]) == ("pausing", left)
        first = operator.get(f"/v1/executions/{run.id}/blockers").json()["results"][0]
        assert str(left) in first["cause"]
        hand.report(jobs.pop())
    shown = operator.get(f"/v1/executions/{run.id}").json()
    assert (shown["status"], shown["draining"]) == ("paused", 0)
    assert kinds(run).count("run.paused") == 1
    assert hand.pull() == [], "d is ready and is not handed out"


# at the same time


@pytest.fixture
def crew(transactional_db: None) -> Iterator[Crew]:
    with crew_of(4) as found:
        yield found


ROUNDS = 8


@pytest.mark.django_db(transaction=True)
def test_many_that_finish_at_once_pause_the_run_once(
    start_run: StartRun, people: People, crew: Crew, hand: Hand
) -> None:
    """`paused` is set exactly when the last has ended, and told once."""
    for _ in range(ROUNDS):
        run = start_run(*PARALLEL)
        jobs = hand.pull(3)
        answers = crew.at_once(
            *[lambda job=job: hand.report(job) for job in jobs],
            lambda run=run: pause_run(run.id, actor=people["operator"].actor),
        )
        assert not any(isinstance(answer, Refusal) for answer in answers)
        assert status(run) == "paused"
        assert kinds(run).count("run.paused") == 1
        assert hand.pull() == []
        cancel_as_operation(run.id, actor=people["operator"].actor)
    assert_invariants()


@pytest.mark.django_db(transaction=True)
def test_many_sweeps_resume_a_run_once(start_run: StartRun, people: People, crew: Crew, clock: Clock) -> None:
    runs = [start_run("first") for _ in range(ROUNDS)]
    for run in runs:
        pause_run(run.id, actor=people["operator"].actor, until=clock.now() + timedelta(seconds=30))
    clock.advance(31)
    crew.at_once(*[sweeps.end_pauses] * 4)
    sweeps.end_pauses()  # what was held by another is met again
    for run in runs:
        assert (status(run), kinds(run).count("run.resume")) == ("queued", 1)


@pytest.mark.django_db(transaction=True)
def test_a_pause_made_while_the_old_time_comes_stays(
    start_run: StartRun, people: People, crew: Crew, clock: Clock
) -> None:
    """A person resumes and pauses anew beside the sweep, in whichever order: the new pause has no time and holds."""
    operator = people["operator"].actor

    def anew(run: Run) -> None:
        try:
            resume_run(run.id, actor=operator)
        except Refusal as refused:
            if refused.code != "execution_state_invalid":  # the sweep was first
                raise
        pause_run(run.id, actor=operator, reason="for good")

    for _ in range(ROUNDS):
        run = start_run("first")
        pause_run(run.id, actor=operator, until=clock.now() + timedelta(seconds=30))
        clock.advance(31)
        crew.at_once(sweeps.end_pauses, lambda run=run: anew(run), sweeps.end_pauses)
        sweeps.end_pauses()
        assert (status(run), fresh(run).pause_reason, fresh(run).paused_until) == ("paused", "for good", None)
        assert kinds(run).count("run.resume") == 1
    assert_invariants()


# both faces


def test_the_screens_and_the_api_keep_the_same_operation(
    start_run: StartRun, operator: Api, people: People, client: Any
) -> None:
    """O2: one function for both; each makes its row and its one audit event."""
    by_api, by_screen = start_run("first"), start_run("first")
    pause(operator, by_api, reason="audit day")
    client.force_login(people["operator"].user)
    client.post(f"/console/runs/{by_screen.id}/pause/", {"reason": "audit day"})
    client.post(f"/console/runs/{by_screen.id}/resume/", {"reason": "over"})
    kept = Operation.objects.order_by("created_at", "id").values_list("kind", "run_id", "channel", "reason", "state")
    assert list(kept) == [
        ("pause", by_api.id, "api", "audit day", "succeeded"),
        ("pause", by_screen.id, "console", "audit day", "succeeded"),
        ("resume", by_screen.id, "console", "over", "succeeded"),
    ]
    assert AuditEvent.objects.filter(run=by_screen.id).count() == 2
