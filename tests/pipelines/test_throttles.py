"""Policies of kind concurrency and rate: what is handed out, what waits, for how long, and what never waits for it.

F33, F52, F69, F76: a slot is a live attempt and nothing else, so none can be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from pipelines import catalog, leases, results, sweeps, throttle_lines
from pipelines.creation import Place
from pipelines.models import Attempt, Policy, QueueEntry, Run
from pipelines.models.runs import NO_THROTTLE
from pipelines.transitions import cancel_run
from pipelines.wake import Queue
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import states
from tests.verbs import pause_run, resume_run

StartRun = Callable[..., Run]
AddPolicy = Callable[..., Policy]
RETRIED = {"name": "first", "options": {"max_retries": 5, "retry_interval": 1}}


@pytest.fixture
def add(people: dict[str, Person], django_capture_on_commit_callbacks: Any) -> AddPolicy:
    """add("three", max_active=3, handler="Handler"), add("slow", count=2, per_seconds=10, environment="development")"""

    def make(name: str, status: str = "active", **told: Any) -> Policy:
        rule = {key: told.pop(key) for key in ("max_active", "count", "per_seconds") if key in told}
        kind = "concurrency" if "max_active" in rule else "rate"
        with django_capture_on_commit_callbacks(execute=True):
            return catalog.add_policy(
                actor=people["admin"].actor, name=name, kind=kind, match=told, rule=rule, status=status
            )

    return make


@pytest.fixture
def change(people: dict[str, Person], django_capture_on_commit_callbacks: Any) -> Callable[..., None]:
    def make(policy: Policy, **changes: Any) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            catalog.change_policy(policy.pk, actor=people["admin"].actor, changes=changes)

    return make


@pytest.fixture
def queue(place: Place) -> Queue:
    return Queue(place.application_id, place.environment_id, "Handler")


def lines() -> dict[str, int]:
    """How many wait in the line of each policy, by its name; nobody's is blank."""
    names = dict(Policy.objects.values_list("id", "name"))
    found: dict[str, int] = {}
    for throttle in QueueEntry.objects.values_list("throttle", flat=True):
        name = names.get(throttle, "")
        found[name] = found.get(name, 0) + 1
    return found


class TestSlots:
    def test_no_more_are_handed_out_than_there_are_slots_and_the_others_wait(
        self, start_run: StartRun, hand: Hand, add: AddPolicy
    ) -> None:
        policy = add("two", max_active=2, handler="Handler")
        runs = [start_run("first") for _ in range(5)]
        jobs = hand.pull(10)
        assert [job.run_id for job in jobs] == [run.id for run in runs[:2]]
        assert set(Attempt.objects.values_list("slot", "rate")) == {(policy.pk, None)}
        assert hand.pull(10) == []
        assert [states(run)["first"] for run in runs[2:]] == ["ready"] * 3
        assert lines() == {"two": 3}
        hand.report(jobs[0], output=1)
        assert [job.run_id for job in hand.pull(10)] == [runs[2].id]
        assert_invariants()

    @pytest.mark.parametrize("how", ["succeeded", "failed", "released", "cancelled", "paused"])
    def test_however_an_attempt_ends_its_slot_is_free(
        self, how: str, start_run: StartRun, hand: Hand, add: AddPolicy, people: dict[str, Person]
    ) -> None:
        """F33, F76."""
        add("one", max_active=1)
        first, second = start_run("first"), start_run("first")
        (job,) = hand.pull(10, acquire=how != "paused")
        assert hand.pull(10) == []
        if how == "cancelled":
            cancel_run(first.id, actor=people["operator"].actor)
        elif how == "paused":
            pause_run(first.id, actor=people["operator"].actor)
        elif how == "released":
            pause_run(first.id, actor=people["operator"].actor)
            leases.release(hand.holder, job.stage.id, job.attempt_id)
        else:
            hand.report(job, how)
        assert [job.run_id for job in hand.pull(10)] == [second.id]

    def test_a_lease_that_is_over_holds_no_slot_though_no_sweep_has_come_by(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        """F69: both sides of its end."""
        add("one", max_active=1)
        start_run("first")
        second = start_run("first")
        hand.take()
        clock.advance(55)
        assert hand.pull(10) == []
        clock.advance(5)
        assert [job.run_id for job in hand.pull(10)] == [second.id]
        assert Attempt.objects.filter(state="running").count() == 2, "nobody has swept"
        assert hand.pull(10) == []

    def test_what_was_handed_out_and_never_acquired_gives_its_slot_back_in_time(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        add("one", max_active=1)
        start_run("first")
        start_run("first")
        assert len(hand.pull(10, acquire=False)) == 1
        assert hand.pull(10, acquire=False) == []
        clock.advance(31)
        assert len(hand.pull(10, acquire=False)) == 1

    def test_a_recovered_stage_asks_for_a_slot_like_any_other(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        """F52: work that comes back stays within its limits."""
        add("two", max_active=2)
        for _ in range(6):
            start_run("first")
        for _ in range(4):
            assert len(hand.pull(10)) == 2
            clock.advance(61)
            sweeps.sweep()
            assert lines() == {"two": 6}
        assert_invariants()

    def test_the_most_specific_policy_rules_and_not_the_smallest(
        self, start_run: StartRun, hand: Hand, add: AddPolicy
    ) -> None:
        """Model §3.3."""
        add("one each", max_active=1, environment="development")
        add("three", max_active=3, stage="first")
        for _ in range(5):
            start_run("first")
            start_run("other")
        assert sorted(job.stage.name for job in hand.pull(10)) == ["first"] * 3 + ["other"]
        assert lines() == {"three": 2, "one each": 4}

    def test_stages_of_one_run_and_of_many_share_a_policys_slots(
        self, start_run: StartRun, new_hand: Callable[..., Hand], add: AddPolicy
    ) -> None:
        add("three", max_active=3)
        start_run(*({"name": f"leaf {number}", "handler": f"H{number % 2}", "depends_on": []} for number in range(1)))
        for number in range(6):
            start_run({"name": "leaf", "handler": f"H{number % 2}"})
        assert len(new_hand("both", "H0", "H1").pull(10)) == 3
        assert new_hand("one", "H1").pull(10) == []


class TestRates:
    def test_so_many_are_handed_out_in_any_stretch_of_time_and_no_more(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        policy = add("three in ten", count=3, per_seconds=10)
        for _ in range(9):
            start_run("first")
        assert len(hand.pull(2)) == 2
        clock.advance(6)
        assert len(hand.pull(10)) == 1
        assert hand.pull(10) == []
        clock.advance(4.5)
        assert len(hand.pull(10)) == 2, "the first two lie ten seconds back, the third does not"
        clock.advance(5)
        assert hand.pull(10) == []
        clock.advance(1)
        assert len(hand.pull(10)) == 1
        assert set(Attempt.objects.values_list("slot", "rate")) == {(None, policy.pk)}

    def test_an_attempt_that_has_ended_counts_for_its_rate_all_the_same(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        add("one a minute", count=1, per_seconds=60)
        start_run(RETRIED)
        hand.report(hand.take(), "failed", error_code="X")
        clock.advance(30)
        assert hand.pull(10) == []
        clock.advance(31)
        assert hand.take().number == 2

    def test_a_stage_that_both_kinds_rule_obeys_both(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        slots, rate = add("two", max_active=2), add("three in ten", count=3, per_seconds=10)
        for _ in range(9):
            start_run("first")
        jobs = hand.pull(10)
        assert len(jobs) == 2, "two slots"
        assert set(Attempt.objects.values_list("slot", "rate")) == {(slots.pk, rate.pk)}
        for job in jobs:
            hand.report(job, output=1)
        (third,) = hand.pull(10)
        hand.report(third, output=1)
        assert hand.pull(10) == [], "slots enough, and three have gone"
        clock.advance(11)
        assert len(hand.pull(10)) == 2
        assert lines() == {"two": 4}


class TestOthers:
    """What no policy rules waits for none."""

    @pytest.mark.parametrize("limit", [1, 3, 50])
    def test_older_heads_without_a_slot_hold_up_nothing(
        self, limit: int, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock
    ) -> None:
        add("one", max_active=1, stage="slow")
        for _ in range(60):
            start_run("slow")
        clock.advance(10)
        for _ in range(5):
            start_run("quick")
        names: list[str] = []
        while jobs := hand.pull(limit):
            names += [job.stage.name for job in jobs]
        assert sorted(names) == ["quick"] * 5 + ["slow"]

    def test_heads_that_wait_for_a_rate_besides_hold_up_nobody_else_in_need_of_the_slots(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock, queue: Queue
    ) -> None:
        """And nobody looks in a loop for them."""
        add("many", max_active=10)
        add("one an hour", count=1, per_seconds=3600, handler="Handler")
        for _ in range(8):
            start_run("first")
        clock.advance(1)
        other = start_run({"name": "first", "handler": "Other"})
        assert len(hand.pull(10)) == 1
        assert hand.pull(10) == []
        assert leases.next_due([queue]) == leases.CLOSED_SECONDS
        both = [queue, queue._replace(handler="Other")]
        assert leases.next_due(both) <= 0  # type: ignore[operator]
        assert [job.run_id for job in leases.claim(hand.holder, both, limit=10, acquire=True)] == [other.id]
        assert leases.next_due(both) == leases.CLOSED_SECONDS

    def test_another_workspace_has_slots_of_its_own(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, other_workspace: Any
    ) -> None:
        Policy.objects.create(workspace=other_workspace, name="theirs", kind="concurrency", rule={"max_active": 1})
        for _ in range(3):
            start_run("first")
        assert lines() == {"": 3}
        assert len(hand.pull(10)) == 3
        assert set(Attempt.objects.values_list("slot", flat=True)) == {None}

    def test_where_there_are_no_such_policies_none_is_counted_or_locked(
        self, start_run: StartRun, hand: Hand, people: dict[str, Person]
    ) -> None:
        """The price of a claim there: no statement more, and no row of a policy locked."""
        for _ in range(3):
            start_run("first")
        with CaptureQueriesContext(
            connection,
        ) as told:
            assert len(hand.pull(10)) == 3
        of_policies = [one["sql"] for one in told if "pipelines_policy" in one["sql"]]
        assert len(of_policies) == 2, "the claim itself, and one that reads time-outs too"
        assert not any("FROM pipelines_policy WHERE id = ANY" in sql for sql in of_policies)

    def test_the_statement_of_a_claim_is_kept_by_the_driver(self) -> None:
        """A longer one would be read anew for each claim, which costs more than running it."""
        assert len(leases._PICK) <= MAX_CACHED_STATEMENT_LENGTH


class TestWhenPoliciesChange:
    def test_what_waits_already_gets_its_line_and_is_ruled(
        self, start_run: StartRun, hand: Hand, add: AddPolicy
    ) -> None:
        for _ in range(3):
            start_run("first")
        assert lines() == {"": 3}
        add("one", max_active=1)
        assert lines() == {"one": 3}
        assert len(hand.pull(10)) == 1

    def test_what_was_under_way_holds_no_slot(self, start_run: StartRun, hand: Hand, add: AddPolicy) -> None:
        for _ in range(4):
            start_run("first")
        assert len(hand.pull(2)) == 2
        add("one", max_active=1)
        assert len(hand.pull(10)) == 1

    def test_a_paused_policy_lets_all_go_and_holds_again_when_it_is_active(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, change: Callable[..., None]
    ) -> None:
        policy = add("one", max_active=1)
        for _ in range(4):
            start_run("first")
        assert len(hand.pull(10)) == 1
        change(policy, status="paused")
        assert lines() == {"": 3}
        assert len(hand.pull(2)) == 2
        change(policy, status="active")
        assert lines() == {"one": 1}
        assert hand.pull(10) == [], "the first still holds its slot"

    def test_a_larger_and_a_smaller_limit_hold_from_now_on(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, change: Callable[..., None]
    ) -> None:
        policy = add("one", max_active=1)
        for _ in range(6):
            start_run("first")
        jobs = hand.pull(10)
        change(policy, rule={"max_active": 3})
        jobs += hand.pull(10)
        assert len(jobs) == 3
        change(policy, rule={"max_active": 2})
        for free in (0, 0, 1):
            assert len(hand.pull(10)) == free
            hand.report(jobs.pop(), output=1)

    def test_another_match_moves_what_waits_to_other_lines(
        self, start_run: StartRun, add: AddPolicy, change: Callable[..., None]
    ) -> None:
        policy = add("one", max_active=1, stage="first")
        add("all", count=5, per_seconds=1)
        start_run("first")
        start_run("other")
        assert lines() == {"one": 1, "all": 1}
        change(policy, match={"stage": "other", "handler": "Handler"})
        assert lines() == {"all": 1, "one": 1}
        assert dict(QueueEntry.objects.values_list("stage__name", "throttle"))["other"] == policy.pk
        change(policy, match={"stage": "nothing"})
        assert lines() == {"all": 2}

    def test_the_sweep_puts_right_what_came_in_by_policies_read_before(
        self, start_run: StartRun, add: AddPolicy, clock: Clock
    ) -> None:
        add("one", max_active=1)
        start_run("first")
        QueueEntry.objects.update(throttle=NO_THROTTLE)
        assert throttle_lines.sweep() == 0, "too early to be the last word"
        clock.advance(throttle_lines.SETTLED_SECONDS)
        assert throttle_lines.sweep() == 1
        assert lines() == {"one": 1}
        assert not Policy.objects.exclude(unlined_at=None).exists()
        QueueEntry.objects.update(throttle=NO_THROTTLE)
        assert throttle_lines.sweep() == 0, "it is done"

    def test_what_stands_in_a_wrong_line_is_ruled_as_is_right_and_put_there(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, queue: Queue
    ) -> None:
        """Claims ask the policies; a line only says where to look."""
        add("one", max_active=1)
        for _ in range(3):
            start_run("first")
        QueueEntry.objects.update(throttle=NO_THROTTLE)
        assert len(hand.pull(10)) == 1
        assert lines() == {"one": 2}
        assert leases.next_due([queue]) > 0  # type: ignore[operator]

    def test_a_large_backlog_is_put_right_in_batches(
        self, start_run: StartRun, add: AddPolicy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(throttle_lines, "BATCH", 3)
        for _ in range(10):
            start_run("first")
        add("one", max_active=1, handler="Handler")
        assert lines() == {"one": 10}


class TestWhenToLookAgain:
    def test_who_waits_for_a_slot_looks_when_a_lease_ends_and_never_in_a_loop(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock, queue: Queue
    ) -> None:
        add("one", max_active=1)
        start_run("first")
        start_run("first")
        assert leases.next_due([queue]) <= 0  # type: ignore[operator]
        hand.take()
        assert leases.next_due([queue]) == leases.CLOSED_SECONDS, "the lease ends later than one looks anyway"
        clock.advance(58)
        assert 0 < leases.next_due([queue]) <= 2  # type: ignore[operator]
        clock.advance(2)
        assert leases.next_due([queue]) <= 0  # type: ignore[operator]

    def test_who_waits_for_a_rate_looks_when_the_window_has_moved_on(
        self, start_run: StartRun, hand: Hand, add: AddPolicy, clock: Clock, queue: Queue
    ) -> None:
        add("two a second", count=2, per_seconds=2)
        for _ in range(3):
            start_run("first")
        hand.pull(10)
        assert 0 < leases.next_due([queue]) <= 2  # type: ignore[operator]
        clock.advance(2)
        assert leases.next_due([queue]) <= 0  # type: ignore[operator]

    def test_a_slot_given_back_wakes_every_queue_in_its_line(
        self,
        start_run: StartRun,
        hand: Hand,
        add: AddPolicy,
        monkeypatch: pytest.MonkeyPatch,
        queue: Queue,
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        add("one", max_active=1)
        start_run("first")
        job = hand.take()
        for _ in range(3):
            start_run("first")
            start_run({"name": "first", "handler": "Other"})
        woken: list[Queue] = []
        monkeypatch.setattr(throttle_lines.wake, "announce", woken.extend)
        with django_capture_on_commit_callbacks(execute=True):
            hand.report(job, output=1)
        assert sorted(woken) == [queue, queue._replace(handler="Other")]


class TestHandingOn:
    def test_what_waits_for_no_policy_is_handed_on_and_the_rest_goes_through_the_queue(
        self, start_run: StartRun, hand: Hand, add: AddPolicy
    ) -> None:
        add("one", max_active=1, stage="second")
        start_run("first", "second", {"name": "third", "depends_on": ["first"]})
        job = hand.take()
        result = results.Result(job.stage.id, job.attempt_id, job.number, "succeeded")
        _, jobs = results.report_and_claim(hand.holder, [result], served=lambda _: True, limit=10)
        assert [one.stage.name for one in jobs] == ["third"]
        assert lines() == {"one": 1}
        assert hand.take().stage.name == "second"
        assert_invariants()


def test_the_stages_page_of_policies_names_the_winner_of_each_kind(
    start_run: StartRun, add: AddPolicy, api: Api
) -> None:
    """P47."""
    add("wide", max_active=5)
    add("narrow", max_active=1, stage="first")
    add("slow", count=1, per_seconds=60)
    stage = stages_of(start_run("first"))[0]
    told = {view["kind"]: view for view in api.get(f"/v1/stages/{stage.id}/policies").json()["policies"]}
    assert told["concurrency"]["winner"]["name"] == "narrow"
    assert [one["name"] for one in told["concurrency"]["shadowed"]] == ["wide"]
    assert told["concurrency"]["reason"] == "narrow targets it by stage; the others are less specific"
    assert told["rate"]["winner"]["rule"] == {"count": 1, "per_seconds": 60}
    assert told["retry"]["winner"] is None


def test_a_resumed_run_comes_back_into_its_line(
    start_run: StartRun, hand: Hand, add: AddPolicy, people: dict[str, Person]
) -> None:
    add("one", max_active=1)
    start_run("first")
    hand.take()
    run = start_run("first")
    pause_run(run.id, actor=people["operator"].actor)
    assert lines() == {}
    resume_run(run.id, actor=people["operator"].actor)
    assert lines() == {"one": 1}
    assert hand.pull(10) == []
