"""What a run's limits have no room for is refused to people too, before anything is changed: no verb gives more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Attempt, DeadLetter, Event, Run, Stage
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.bulked import K, begun, counted, of, outcomes, work_through
from tests.recovery.stories import EXTERNAL, leave_uncertain

StartRun = Callable[..., Run]
SMALL = {"max_output_bytes": 100}
ONE_ATTEMPT = [
    (
        {"attempts_per_stage": 1},
        "attempts_exhausted",
        "attempts_per_stage",
        "only: all 1 attempts of the stage are used",
    ),
    ({"total_attempts": 1}, "attempts_exhausted", "total_attempts", "only: 1 of the run's 1 attempts are used"),
    ({"total_output_bytes": 199}, "budget_exhausted", "total_output_bytes", "only: 100 bytes of output would be"),
]


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def fail(hand: Hand) -> None:
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)


def standing(run: Run) -> list[tuple[Any, ...]]:
    """All that a refusal must leave as it was."""
    return [
        *Run.objects.filter(id=run.id).values_list("status", "updated_at"),
        *Stage.objects.filter(run=run).order_by("position").values_list("state", "epoch", "stale", "available_at"),
        *DeadLetter.objects.filter(run=run).values_list("state"),
        (Attempt.objects.filter(run_id=run.id).count(), Event.objects.filter(run_id=run.id).count()),
    ]


@pytest.mark.parametrize(("limits", "code", "limit", "message"), ONE_ATTEMPT)
@pytest.mark.parametrize("dry", [True, False])
def test_a_manual_retry_of_what_is_used_up_is_refused_and_changes_nothing(
    start_run: StartRun,
    hand: Hand,
    operator: Api,
    limits: dict[str, int],
    code: str,
    limit: str,
    message: str,
    dry: bool,
) -> None:
    """R11, R25, R27, R28, I13: the failed attempt stays charged; by a retry, and by its dead letter."""
    run = start_run({"name": "only", "options": SMALL}, limits=limits)
    fail(hand)
    before = standing(run)
    letter = DeadLetter.objects.get(run=run)
    for path in (f"/v1/stages/{stages_of(run)[0].id}/retry", f"/v1/dead-letters/{letter.id}/redrive"):
        answer = operator.post(path, {"dry_run": dry})
        assert answer.status_code == 409, answer.content
        told = answer.json()
        assert (told["code"], told["limit"]) == (code, limit)
        assert (told["used"], told["most"]) == ((100, 199) if limit == "total_output_bytes" else (1, 1))
        assert message in told["detail"]
        assert "skip it, or rerun" in told["detail"]
    assert standing(run) == before
    assert not Operation.objects.exists()


def test_a_retry_with_downstream_that_needs_more_than_is_left_is_refused_whole(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """R26: two attempts are left, and three stages would be done again; alone the first may."""
    chain = [{"name": name, "options": SMALL} for name in "abc"]
    run = start_run(*chain, limits={"total_attempts": 5})
    assert hand.finish() == 3
    before = standing(run)
    first = stages_of(run)[0]
    answer = operator.post(f"/v1/stages/{first.id}/retry", {"scope": "stage_and_downstream", "reason": "again"})
    assert (answer.status_code, answer.json()["code"]) == (409, "attempts_exhausted")
    assert "a, b, c: 3 of the run's 5 attempts are used" in answer.json()["detail"]
    assert standing(run) == before
    assert operator.post(f"/v1/stages/{first.id}/retry", {"reason": "again"}).status_code == 200
    assert hand.finish() == 1


def test_what_falls_back_behind_it_gives_its_reservation_up(start_run: StartRun, hand: Hand, operator: Api) -> None:
    """A follower that was ready waits again: its attempt is reserved once it is due again, and not now."""
    run = start_run("a", "b", limits={"total_attempts": 2})
    hand.report(hand.take(), output=1)
    assert [stage.state for stage in stages_of(run)] == ["completed", "ready"]
    answer = operator.post(f"/v1/stages/{stages_of(run)[0].id}/retry", {"reason": "again"})
    assert answer.status_code == 200, answer.content
    hand.report(hand.take(), output=2)
    assert [stage.state for stage in stages_of(run)] == ["completed", "failed"]
    assert stages_of(run)[1].failure_disposition == "attempts_exhausted"
    assert Attempt.objects.filter(run_id=run.id).count() == 2


def test_absent_is_another_attempt_and_refused_where_there_is_none(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """R13 with R25: skipping it, or telling it as committed, remain, and the refusal says so."""
    run = start_run({"name": "charge", **EXTERNAL}, limits={"total_attempts": 1})
    (effect,) = leave_uncertain(run, hand, clock, {"key": "k-1"})
    approver, found = as_person(people["approver"]), {"note": "looked at the provider"}
    path = f"/v1/executions/{run.id}/effects/{effect.id}/reconciliation"
    assert approver.post(path, {"outcome": "absent", **found}).status_code == 201
    before, stage = standing(run), stages_of(run)[0]
    answer = approver.post(f"/v1/stages/{stage.id}/reconcile", {"outcome": "absent", **found})
    assert (answer.status_code, answer.json()["code"]) == (409, "attempts_exhausted")
    assert "skip the stage, or tell it as committed" in answer.json()["detail"]
    assert standing(run) == before
    answer = approver.post(f"/v1/stages/{stage.id}/reconcile", {"outcome": "committed", "output": "", **found})
    assert answer.status_code == 200, answer.content
    assert stages_of(run)[0].state == "completed"


def test_what_a_skip_lets_go_on_fails_where_nothing_is_left_and_the_plan_says_so(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    run = start_run("a", "b", limits={"total_attempts": 1})
    fail(hand)
    path = f"/v1/stages/{stages_of(run)[0].id}/skip"
    plan = operator.post(path, {"reason": "not needed", "dry_run": True}).json()
    (line,) = [line for line in plan["then"] if line["stage"] == "b"]
    assert (line["to"], line["why"]) == ("failed", "b: 1 of the run's 1 attempts are used or reserved")
    assert operator.post(path, {"reason": "not needed"}).status_code == 200
    assert [stage.state for stage in stages_of(run)] == ["skipped", "failed"]
    assert DeadLetter.objects.get(run=run, stage=stages_of(run)[1]).reason == "terminal_error"
    assert operator.post(f"/v1/stages/{stages_of(run)[1].id}/skip", {"reason": "neither"}).status_code == 200
    assert Run.objects.get(id=run.id).status == "completed"


@pytest.mark.django_db(transaction=True)
def test_a_bulk_retry_of_two_hundred_that_are_used_up_tries_none(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """F152: each is denied by its limits, the one beside them that has room is done."""
    runs = [start_run("only", limits={"total_attempts": 1}) for _ in range(200)]
    free = start_run("only")
    for job in hand.pull(201):
        hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    attempts = Attempt.objects.count()
    bulk = work_through(begun(of(K.RETRY, [*runs, free]), people["operator"].actor), clock)
    assert counted(bulk) == {"done": 1, "denied": 200}
    assert outcomes(bulk).count(("denied", "attempts_exhausted")) == 200
    assert Attempt.objects.count() == attempts == 201
    assert not Stage.objects.filter(run__in=runs, epoch__gt=1).exists()
    assert Stage.objects.get(run=free).state == "ready"


def test_the_dialog_says_what_is_used_up_and_does_nothing(
    start_run: StartRun, hand: Hand, people: dict[str, Person], client: Any
) -> None:
    run = start_run("only", limits={"attempts_per_stage": 1})
    fail(hand)
    before = standing(run)
    client.force_login(people["operator"].user)
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    for answer in (client.get(address), client.post(address, {"reason": "again"})):
        assert "all 1 attempts of the stage are used" in answer.content.decode()
    assert standing(run) == before


def test_a_release_that_has_no_room_for_what_would_begin_makes_no_fork(
    start_run: StartRun, hand: Hand, operator: Api
) -> None:
    """R26: two stages would begin at once, and one attempt is all that there is."""
    beside = [{"name": name, "depends_on": ["a"]} for name in "bc"]
    run = start_run("a", *beside, limits={"total_attempts": 1})
    hand.report(hand.take(), output=1)
    assert [stage.state for stage in stages_of(run)] == ["completed", "failed", "failed"]
    answer = operator.post(f"/v1/executions/{run.id}/rerun", {"from_step_id": "b", "reason": "again"})
    assert (answer.status_code, answer.json()["code"]) == (409, "attempts_exhausted")
    assert "b, c: 0 of the run's 1 attempts" in answer.json()["detail"]
    assert not Run.objects.filter(recovered_from=run).exists()
    assert not Operation.objects.exists()
