"""A backfill never repeats blindly what a tick's earlier run did outside: such ticks are left out, told, and judged
again when they are claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import children, retention
from pipelines.access import Actor
from pipelines.children import Wish
from pipelines.creation import Intent
from pipelines.models import Application, Environment, Run, Tick, Trigger
from recovery import backfill_work, backfills, forks
from recovery.models import Backfill, BackfillTick
from recovery.screens import backfill_lines
from recovery.states import OperationKind
from tests.cast import Api, Hand, Person, stage_of
from tests.clock import Clock
from tests.recovery.backfilled import finish, pipeline_of, runs_of, states, trigger_of, wish
from tests.recovery.stories import EXTERNAL, clear, effect_of

pytestmark = pytest.mark.django_db(transaction=True)
WINDOW = ("2026-05-20T08:00:00+00:00", "2026-05-22T08:00:00+00:00")


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    """Its runs charge somebody."""
    return trigger_of(people["admin"].actor, environment, application, {"name": "charge", **EXTERNAL}, slug="bills")


@pytest.fixture
def first(trigger: Trigger, operator: Actor, hand: Hand) -> list[Run]:
    """Three ticks whose runs failed."""
    done = backfills.start(wish(trigger, *WINDOW, max_concurrent=3), operator)
    for job in hand.pull(3):
        hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    backfills.carry_on()
    return runs_of(done.backfill.id)


def again(trigger: Trigger, reprocess: str = "failed", **more: Any) -> backfills.Wish:
    return wish(trigger, *WINDOW, reprocess=reprocess, max_concurrent=3, **more)


@pytest.mark.parametrize("reprocess", ["failed", "all"])
@pytest.mark.parametrize(
    ("state", "effect_class", "is_withheld"),
    [
        ("committed", "external_http", True),
        ("declared", "external_http", True),
        ("unknown", "external_http", True),
        ("reconciled_committed", "external_http", True),
        ("contradicted", "external_http", True),
        ("absent", "external_http", False),
        ("committed", "internal_state", False),
    ],
)
def test_a_tick_whose_run_did_something_outside_is_not_done_again(
    trigger: Trigger,
    operator: Actor,
    first: list[Run],
    reprocess: str,
    state: str,
    effect_class: str,
    is_withheld: bool,
) -> None:
    """O26–O28, F108: it is left out, counted and named; its neighbours are done again."""
    effect_of(first[1], "charge", state, effect_class=effect_class)
    plan = backfills.preview(again(trigger, reprocess), operator)
    told = plan.answer()
    assert (told["total_ticks"], told["skipped"], told["withheld"]) == ((2, 1, 1) if is_withheld else (3, 0, 0))
    done = backfills.start(again(trigger, reprocess), operator, plan_digest=plan.digest)
    assert [run.tick_at for run in runs_of(done.backfill.id)] == [
        run.tick_at for run in first if not is_withheld or run != first[1]
    ]
    named = dict(Tick.objects.values_list("at", "run"))
    assert first[1].tick_at
    assert (named[first[1].tick_at] == first[1].id) == is_withheld
    if is_withheld:
        for one in (told["ticks"][1], done.as_json()["ticks"][1]):
            assert (one["status"], one["reason"]) == ("skipped", "acted-outside")
            assert one["execution_id"] == str(first[1].id)
            assert one["error"]["code"] == (
                "recovery_denied" if state == "contradicted" else "operator_review_required"
            )
        assert told["withheld_ticks"][0]["execution_id"] == str(first[1].id)
        lines = [f"{line.word}: {line.text}" for line in backfill_lines.deeds(plan.as_json())]
        assert "Not again: 1 tick's run did something outside: replay each from its page" in lines


def test_what_is_cleared_may_be_done_again(
    trigger: Trigger, operator: Actor, first: list[Run], people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """O28, O44: key, clean sealed evidence and a reconciliation, as for a replay."""
    effect = effect_of(first[0], "charge", "committed")
    assert backfills.preview(again(trigger), operator).total_ticks == 2
    clear(effect, as_person(people["approver"]))
    assert backfills.preview(again(trigger), operator).total_ticks == 3
    assert len(runs_of(backfills.start(again(trigger), operator).backfill.id)) == 3


def test_a_stage_that_acted_without_saying_what_is_not_done_again(
    people: dict[str, Person], environment: Environment, application: Application, operator: Actor, hand: Hand
) -> None:
    """O26: unless the release that will run does not act outside there any more."""
    quiet = {"name": "send", "effect_mode": "external"}
    trigger = trigger_of(people["admin"].actor, environment, application, quiet, slug="mails")
    backfills.start(wish(trigger, *WINDOW, max_concurrent=3), operator)
    (job,) = hand.pull(1)
    hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    told = backfills.preview(again(trigger), operator).answer()
    assert (told["total_ticks"], told["withheld"]) == (0, 1)
    assert "never declared" in told["withheld_ticks"][0]["message"]
    pipeline_of(people["admin"].actor, environment, "send", slug="mails")
    assert backfills.preview(again(trigger), operator).total_ticks == 1


@pytest.mark.parametrize("ended", ["completed", "failed", "unseen", "unfinished"])
def test_a_tick_whose_run_had_others_act_outside_is_not_done_again(
    people: dict[str, Person],
    environment: Environment,
    application: Application,
    operator: Actor,
    hand: Hand,
    new_hand: Callable[..., Hand],
    ended: str,
) -> None:
    """O26, F129, I11: the tick's own stage did nothing outside; the run that it started did, and the new run, which
    knows nothing of that one, would start it anew."""
    trigger = trigger_of(people["admin"].actor, environment, application, "bill", slug="bills")
    backfills.start(wish(trigger, *WINDOW, max_concurrent=3), operator)
    jobs, helper = hand.pull(3), new_hand("helper", "Child")
    work = {"name": "charge", "handler": "Child", "effect_mode": "external" if ended == "unseen" else "idempotent"}
    started = children.start(
        hand.holder,
        jobs[0].stage.id,
        jobs[0].attempt_id,
        Wish("charge", Intent(name="charges", stages=[stage_of(work)]), on_parent_end="leave"),
    )
    assert started is not None
    if ended != "unfinished":
        job = helper.take()
        if ended != "unseen":
            effect_of(Run.objects.get(id=started.child.run_id), "charge", "committed")
        helper.report(job, "failed" if ended == "failed" else "succeeded")
    for job in jobs:
        hand.report(job, "failed", error_code="BUSINESS_REJECTED", retryable=False)
    backfills.carry_on()
    told = backfills.preview(again(trigger), operator).answer()
    assert (told["total_ticks"], told["withheld"]) == (2, 1)
    assert told["withheld_ticks"][0]["execution_id"] == str(started.child.run_id)
    code = "execution_state_invalid" if ended == "unfinished" else "operator_review_required"
    assert told["withheld_ticks"][0]["code"] == code


def test_what_is_told_after_the_plan_is_heeded_when_the_tick_is_claimed(
    trigger: Trigger, operator: Actor, first: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: a late report of a charge, between the plan and the claim."""
    monkeypatch.setattr(backfills, "fill_up", lambda _: None)
    done = backfills.start(again(trigger), operator)
    assert states(done.backfill.id) == {"pending": 3}
    effect_of(first[2], "charge", "committed")
    backfill_work.fill_up(done.backfill.id)
    assert states(done.backfill.id) == {"dispatched": 2, "skipped": 1}
    left = BackfillTick.objects.get(backfill=done.backfill, state="skipped")
    assert (left.run, left.error_code) == (first[2].id, "operator_review_required")
    assert "charge" in left.error_message
    assert Run.objects.filter(tick_at=first[2].tick_at).count() == 1


def test_a_tick_whose_replay_acted_or_still_goes_on_is_not_done_again(
    trigger: Trigger, operator: Actor, first: list[Run], hand: Hand
) -> None:
    """F80, F108: the ledger names the failed run; the charge was made by the run that somebody forked from it."""
    asked = forks.ask_fork(OperationKind.REPLAY, first[0], forks.Wish(), actor=operator)
    replay = Run.objects.get(id=forks.fork(asked, actor=operator).result["execution_id"])
    told = backfills.preview(again(trigger), operator).answer()
    assert (told["total_ticks"], told["withheld"]) == (2, 1)
    assert told["withheld_ticks"][0] | {"local_time": ""} == {
        "tick_time": WINDOW[0],
        "local_time": "",
        "execution_id": str(replay.id),
        "code": "execution_state_invalid",
        "message": "a run of it is queued",
    }
    job = hand.take()
    effect_of(replay, "charge", "committed")
    hand.report(job)
    told = backfills.preview(again(trigger), operator).answer()
    assert [one["code"] for one in told["withheld_ticks"]] == ["operator_review_required"]
    assert told["withheld_ticks"][0]["execution_id"] == str(replay.id)
    done = backfills.start(again(trigger), operator)
    assert len(runs_of(done.backfill.id)) == 2


def test_a_tick_whose_run_was_removed_is_not_done_again_where_the_release_acts_outside(
    trigger: Trigger, operator: Actor, first: list[Run], clock: Clock
) -> None:
    """Nobody knows any more what it did."""
    clock.advance(400 * 86_400)
    while retention.remove(clock.now(), 100):
        pass
    assert not Run.objects.exists()
    told = backfills.preview(again(trigger, "all"), operator).answer()
    assert (told["total_ticks"], told["withheld"]) == (0, 3)


def test_missed_ticks_are_filled_whatever_other_ticks_did(
    trigger: Trigger, operator: Actor, first: list[Run], hand: Hand
) -> None:
    """F108: `none` asks about no run, and a backfill with withheld ticks ends like any other."""
    effect_of(first[0], "charge", "committed")
    longer = wish(trigger, WINDOW[0], "2026-05-23T08:00:00+00:00", reprocess="failed", max_concurrent=3)
    done = backfills.start(longer, operator)
    assert states(done.backfill.id) == {"skipped": 1, "dispatched": 3}
    finish(hand, done.backfill.id)
    assert Backfill.objects.get(id=done.backfill.id).state == "completed"


def test_many_ticks_are_judged_by_as_many_statements_as_one(
    trigger: Trigger, operator: Actor, first: list[Run], people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    clear(effect_of(first[0], "charge", "committed"), as_person(people["approver"]))
    one = _statements(trigger, operator)
    for run in first[1:]:
        clear(effect_of(run, "charge", "committed"), as_person(people["approver"]))
    assert _statements(trigger, operator) == one


def _statements(trigger: Trigger, operator: Actor) -> int:
    with CaptureQueriesContext(connection) as asked:
        assert backfills.preview(again(trigger), operator).total_ticks == 3
    return len(asked)
