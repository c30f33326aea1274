"""Bulks from choosing to their end: what is frozen, what is done, what is left alone, and that it always adds up."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import queries, retention
from pipelines.access import Actor
from pipelines.creation import Place
from pipelines.filters import RunFilter
from pipelines.models import AuditEvent, Blackout, DeadLetter, Environment, Run, Stage, Workspace
from pipelines.paging import Cut
from pipelines.sql import execute
from pipelines.states import DeadLetterReason, RunStatus
from recovery import bulk_targets, bulk_work, bulks, transitions
from recovery.bulks import Selection, Wish
from recovery.models import BulkItem, BulkOperation, Operation
from recovery.plans import Asked, Plan
from recovery.world import World
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.recovery.bulked import (
    REASON,
    K,
    begun,
    counted,
    fail,
    failing,
    item_of,
    letters_of,
    of,
    outcomes,
    refused,
    work_through,
)
from tests.recovery.stories import EXTERNAL, effect_of

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]
KEY = "0b7e3d1c-1111-4222-8333-444455556666"


# every verb


@pytest.mark.parametrize("kind", bulks.KINDS)
def test_every_verb_is_done_on_what_takes_it_and_skips_the_rest(
    kind: K, start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F164, F152, F153, I19: failed runs, and each verb; what it does not act on is skipped, no row of it is touched,
    and what was done, skipped, denied and failed is all that was asked for."""
    *failed, over = failing(start_run, hand, 3)
    going = [start_run("first") for _ in range(2)]
    if kind == K.RESUME:
        work_through(begun(of(K.PAUSE, going), operator), clock)
    targets: list[Any] = letters_of(failed) if kind in (K.REDRIVE, K.DISCARD) else failed
    other = over
    if kind in (K.CANCEL, K.PAUSE, K.RESUME):
        targets = [*going, over]
    elif kind in (K.RERUN, K.REPLAY):
        other = going[0]
        targets = [*failed, other]
    untouched = Run.objects.filter(id=other.id).values().get()
    bulk = work_through(begun(of(kind, targets), operator), clock)
    assert counted(bulk) == {"done": 2, **({"skipped": 1} if len(targets) == 3 else {})}, outcomes(bulk)
    assert bulk.state == "completed"
    assert Run.objects.filter(id=other.id).values().get() == untouched
    bulk_work.carry_on()
    assert set(BulkItem.objects.filter(bulk=bulk, state="done").values_list("verified", "found")) == {(True, "")}
    bulk.refresh_from_db()
    assert bulk.verified_at is not None
    assert Operation.objects.filter(kind=kind).exclude(key__startswith=f"bulk:{bulk.id}:").count() == 0


def test_a_draft_does_nothing_and_is_its_makers_alone(
    start_run: StartRun, hand: Hand, operator: Actor, people: dict[str, Person], clock: Clock
) -> None:
    runs = [start_run() for _ in range(2)]
    draft = bulks.draft(of(K.CANCEL, runs), actor=operator)
    assert (draft.state, draft.total, counted(draft)) == ("draft", 2, {"pending": 2})
    clock.advance(30)
    assert bulk_work.step(draft.id) == 0
    assert bulk_work.carry_on() == {"hinted": 0, "given_up": 0, "verified": 0, "expired": 0}
    refused("not_found", lambda: bulks.find(people["admin"].actor, draft.id))
    refused("not_found", lambda: bulks.start(draft.id, actor=people["admin"].actor, reason=REASON))
    assert {run.status for run in Run.objects.all()} == {"queued"}
    started = bulks.start(draft.id, actor=operator, reason=REASON, rate=5)
    assert (started.status, started.bulk.rate, started.replayed) == ("running", 5, False)
    assert bulks.start(draft.id, actor=operator, reason=REASON, rate=9).replayed, "a second start changes nothing"
    assert bulks.find(people["viewer"].actor, draft.id).rate == 5


def test_a_draft_that_nobody_starts_is_gone_after_an_hour(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    draft = bulks.draft(of(K.CANCEL, [start_run()]), actor=operator)
    clock.advance(3599)
    assert bulk_work.carry_on()["expired"] == 0
    clock.advance(2)
    assert bulk_work.carry_on()["expired"] == 1
    assert not BulkItem.objects.exists()
    refused("stale_request", lambda: bulks.start(draft.id, actor=operator, reason=REASON))


# targets


def test_targets_are_frozen_and_what_comes_later_is_none_of_them(
    start_run: StartRun, operator: Actor, clock: Clock
) -> None:
    """F41: what was previewed is what is done, whatever is made meanwhile."""
    for _ in range(3):
        start_run()
    wish = Wish(K.CANCEL, Selection(runs=RunFilter(status=("queued",))), reason=REASON, rate=100)
    plan = bulks.preview(wish, actor=operator)
    assert (plan.total, plan.acts, plan.skips) == (3, 3, 0)
    assert not BulkOperation.objects.exists(), "nothing is kept of a look"
    bulk = bulks.create(wish, actor=operator, plan_digest=plan.digest).bulk
    late = start_run()
    work_through(bulk, clock)
    assert counted(bulk) == {"done": plan.acts}
    late.refresh_from_db()
    assert late.status == "queued"


def test_a_filter_takes_what_the_list_shows_with_it(
    start_run: StartRun, workspace: Workspace, operator: Actor, environments: dict[str, Environment], place: Place
) -> None:
    """F154: three filters, 40 of many; the targets are those of the list, in its order."""
    elsewhere = Place(workspace.id, place.application_id, environments["staging"].id, "staging")
    for number in range(40):
        start_run(keywords=[{"key": "batch", "value": "spring"}], key=f"spring-{number}")
    for number in range(20):
        start_run(keywords=[{"key": "batch", "value": "autumn"}], key=f"autumn-{number}")
        start_run(keywords=[{"key": "batch", "value": "spring"}], in_place=elsewhere, key=f"staging-{number}")
    wanted = RunFilter(status=("queued",), environment=("development",), search=("spring",))
    shown = [run.id for run in queries.run_list(operator, wanted, Cut(200)).rows]
    draft = bulks.draft(Wish(K.CANCEL, Selection(runs=wanted)), actor=operator)
    assert list(draft.items.order_by("position").values_list("run", flat=True)) == shown
    assert draft.total == len(shown) == 40
    assert draft.chosen["filter"] == {"status": ["queued"], "environment": ["development"], "search": ["spring"]}


def test_a_filter_of_dead_letters_takes_those_that_wait(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F154, F55: by error and handler, the open and the acknowledged; closed ones are none of it."""
    letters = letters_of(failing(start_run, hand, 4))
    DeadLetter.objects.filter(id=letters[0].id).update(state="discarded")
    DeadLetter.objects.filter(id=letters[1].id).update(state="acknowledged")
    selection = Selection(letters={"error_code": ["BUSINESS_REJECTED"], "handler": ["Handler"]})
    bulk = begun(Wish(K.REDRIVE, selection, reason=REASON, rate=100), operator)
    assert list(bulk.items.order_by("position").values_list("dead_letter", flat=True)) == [
        one.id for one in letters[1:]
    ]
    work_through(bulk, clock)
    assert counted(bulk) == {"done": 3}
    assert Counter(DeadLetter.objects.values_list("state", flat=True)) == {"redriven": 3, "discarded": 1}


@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(runs=RunFilter()),
        Selection(runs=RunFilter(status=("queued",)), ids=(uuid.uuid4(),)),
        Selection(stage_ids=(uuid.uuid4(),)),
        Selection(letters={"status": ["open"]}),
    ],
)
def test_an_empty_filter_and_a_choice_of_nothing_are_refused(selection: Selection, operator: Actor) -> None:
    """F154: a mistyped filter never takes everything."""
    refusal = refused("validation_error", lambda: bulks.draft(Wish(K.CANCEL, selection), actor=operator))
    assert list(refusal.errors) == ["filter"]
    for empty in ({}, {"status": []}, {"error_code": [""], "cursor": ["x"]}):
        refused("validation_error", partial(bulks.draft, Wish(K.REDRIVE, Selection(letters=empty)), actor=operator))
    assert not BulkOperation.objects.exists()


def test_too_many_are_refused_and_not_cut_off(
    start_run: StartRun, hand: Hand, operator: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F161: it says at least how many match and what to do; nothing is kept."""
    failing(start_run, hand, 3)
    monkeypatch.setattr(bulk_targets, "MOST_TARGETS", 2)
    for wish in (
        Wish(K.RETRY, Selection(runs=RunFilter(status=("failed",)))),
        Wish(K.REDRIVE, Selection(letters={"error_code": ["BUSINESS_REJECTED"]})),
    ):
        refusal = refused("bulk_too_many_targets", partial(bulks.draft, wish, actor=operator))
        assert refusal.status == 422
        assert "at least 3 match" in refusal.detail
        assert "narrow the filter" in refusal.detail
    assert not BulkOperation.objects.exists()
    assert not BulkItem.objects.exists()


def test_ids_of_others_are_not_there_and_name_none(
    start_run: StartRun, hand: Hand, operator: Actor, outsider: Person
) -> None:
    """F151: one foreign id among many refuses all; a foreign bulk is not there either."""
    runs = failing(start_run, hand, 2)
    letters, stages = letters_of(runs), [stages_of(run)[0] for run in runs]
    for wish in (of(K.CANCEL, runs), of(K.REDRIVE, letters), Wish(K.RETRY, Selection(stage_ids=(stages[0].id,)))):
        refusal = refused("not_found", partial(bulks.draft, wish, actor=outsider.actor))
        assert str(runs[0].id) not in refusal.detail
    refused("not_found", lambda: bulks.draft(of(K.CANCEL, [*runs, uuid.uuid4()]), actor=operator))
    bulk = begun(of(K.CANCEL, runs), operator)
    for verb in (bulks.pause, bulks.resume, bulks.abort):
        refused("not_found", partial(verb, bulk.id, actor=outsider.actor))
    assert not bulks.visible(outsider.actor).exists()


@pytest.mark.parametrize(
    ("kind", "selection"),
    [
        (K.CANCEL, Selection(runs=RunFilter())),
        (K.CANCEL, Selection(runs=RunFilter(status=tuple(RunStatus.values)))),
        (K.CANCEL, Selection(runs=RunFilter(created_before=datetime(2999, 1, 1, tzinfo=UTC)))),
        (K.REDRIVE, Selection(letters={"status": ["open", "acknowledged"]})),
        (K.REDRIVE, Selection(letters={"reason": list(DeadLetterReason.values), "error_code": [" "]})),
    ],
)
def test_a_filter_that_leaves_nothing_out_is_an_empty_one(
    kind: K, selection: Selection, start_run: StartRun, hand: Hand, operator: Actor
) -> None:
    """F161: whoever ticked every status did not mean to narrow, and would take everything there is."""
    failing(start_run, hand, 2)
    refusal = refused("validation_error", partial(bulks.draft, Wish(kind, selection), actor=operator))
    assert "narrow it" in refusal.detail
    assert not BulkOperation.objects.exists()
    some = [*RunStatus.values][1:]
    assert bulks.draft(Wish(K.CANCEL, Selection(runs=RunFilter(status=tuple(some)))), actor=operator).total == 2


def test_only_so_many_drafts_of_one_person_wait(
    start_run: StartRun, operator: Actor, people: dict[str, Person], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft keeps its targets for an hour: the refusal names the limit, keeps nothing, and holds up nobody else."""
    monkeypatch.setattr(bulks, "MOST_DRAFTS", 2)
    wish = of(K.CANCEL, [start_run()])
    first = bulks.draft(wish, actor=operator, key=KEY)
    bulks.draft(wish, actor=operator)
    refusal = refused("rate_limited", partial(bulks.draft, wish, actor=operator))
    assert (refusal.status, refusal.extra["most"], "2 drafts of yours" in refusal.detail) == (429, 2, True)
    assert BulkOperation.objects.count() == BulkItem.objects.count() == 2
    assert bulks.draft(wish, actor=operator, key=KEY).id == first.id, "a repeat makes none"
    bulks.draft(wish, actor=people["admin"].actor)
    bulks.create(wish, actor=operator)
    bulks.start(first.id, actor=operator, reason=REASON)
    bulks.draft(wish, actor=operator)
    clock.advance(hours=2)
    bulks.draft(wish, actor=operator)


def test_a_pause_until_what_is_past_is_refused(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    """Each target would fail of it: it is told once, before anything is kept."""
    run = start_run()
    for until in (clock.now() - timedelta(seconds=1), (clock.now() - timedelta(days=1)).isoformat()):
        refusal = refused(
            "validation_error", partial(bulks.create, of(K.PAUSE, [run], choices={"until": until}), actor=operator)
        )
        assert refusal.errors == {"until": ["must lie ahead"]}
    assert not BulkOperation.objects.exists()
    begun(of(K.PAUSE, [run], choices={"until": clock.now() + timedelta(hours=1)}), operator)


def test_a_target_that_is_named_twice_is_one(start_run: StartRun, operator: Actor) -> None:
    run = start_run()
    assert bulks.draft(of(K.CANCEL, [run, run]), actor=operator).total == 1


def test_more_than_one_request_takes_are_one_job(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    """F164: 1,200 selected by hand; all of them are targets, and each is dealt with once."""
    runs = [start_run(name="many") for _ in range(4)]
    execute(
        "INSERT INTO pipelines_run SELECT (jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid()))).*"
        " FROM pipelines_run r, generate_series(1, 299)"
    )
    ids = list(Run.objects.filter(name="many").values_list("id", flat=True))
    assert len(ids) == 1200
    draft = bulks.draft(of(K.PAUSE, ids), actor=operator)
    assert draft.total == 1200 == draft.items.values("run").distinct().count()
    assert {run.id for run in runs} <= set(draft.items.values_list("run", flat=True))


# where a rerun starts


def mixed(start_run: StartRun, hand: Hand) -> dict[str, Run]:
    """Runs of three shapes: one failed at its second stage, one at its first, and one that has no stage b."""
    later = start_run("a", "b", "c")
    hand.report(hand.take())
    fail(hand)
    first = start_run("a", "b", "c")
    fail(hand)
    other = start_run("x", "y")
    fail(hand)
    return {"later": later, "first": first, "other": other}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("failed_stage", {"later": "b", "first": "a", "other": "x"}),
        ("checkpoint", {"later": "b", "first": "a", "other": "x"}),
        ("a", {"later": "a", "first": "a", "other": None}),
        ("b", {"later": "b", "first": None, "other": None}),
    ],
)
def test_reruns_start_at_the_right_point_of_each(
    start: str, expected: dict[str, str | None], start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F39: from the first failed stage, a stage named so, or the last checkpoint; the others are listed."""
    runs = mixed(start_run, hand)
    bulk = work_through(begun(of(K.RERUN, runs.values(), choices={"from": start}), operator), clock)
    for name, run in runs.items():
        item = item_of(bulk, run.id)
        if expected[name] is None:
            assert (item.state, item.made) != ("done", item.run), name
            assert item.state == ("skipped" if item.code == "not_applicable" else "failed"), (name, item.code)
            assert not Run.objects.filter(recovered_from=run).exists()
            continue
        assert item.state == "done", (name, item.code, item.message)
        made = Run.objects.get(id=item.made, recovered_from=run)
        again = [stage.name for stage in stages_of(made) if stage.state != "completed"]
        assert again[0] == expected[name]
    counted(bulk)


def test_a_retry_of_runs_begins_each_failed_stage_and_lists_those_without(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """F39: one target for each failed stage; a run that has none is told as not applicable."""
    failed, fine = failing(start_run, hand, 1)[0], start_run("fine")
    bulk = begun(of(K.RETRY, [failed, fine]), operator)
    assert bulk.total == 2
    assert bulks.plan_of(bulk, actor=operator).stands_otherwise == {"not_applicable": 1}
    work_through(bulk, clock)
    assert sorted(outcomes(bulk)) == [("done", ""), ("skipped", "not_applicable")]
    assert [stage.epoch for stage in stages_of(failed)] == [2]


# the plan


def test_a_plan_counts_how_targets_stand_and_where_they_are(
    start_run: StartRun, hand: Hand, operator: Actor, people: dict[str, Person], clock: Clock
) -> None:
    failed = failing(start_run, hand, 3)
    charged = failing(start_run, hand, 1, {"name": "charge", **EXTERNAL})[0]
    effect_of(charged, "charge")
    going = start_run()
    draft = bulks.draft(of(K.REPLAY, [*failed, charged, going], rate=2), actor=operator)
    plan = bulks.plan_of(draft, actor=operator)
    assert (plan.total, plan.acts, plan.stands_otherwise, plan.may_repeat) == (5, 4, {"queued": 1}, 1)
    assert (plan.by_environment, plan.protected, plan.seconds) == ([("development", 5)], 0, 2.0)
    assert [one.state for one in plan.samples] == ["queued", *["failed"] * 4]
    assert plan.as_json()["plan_digest"] == plan.digest
    with CaptureQueriesContext(connection) as asked:
        bulks.plan_of(draft, actor=operator)
    assert len(asked) <= 6
    moved = bulks.plan_of(draft, actor=operator).digest
    fail(hand)
    assert bulks.plan_of(draft, actor=operator).digest == moved, "targets move; what is done to them does not"


def test_a_start_is_held_to_the_plan_that_was_seen(start_run: StartRun, hand: Hand, operator: Actor) -> None:
    """F51: other choices make another plan, and the refusal brings it."""
    failing(start_run, hand, 2)
    wish = Wish(K.RETRY, Selection(runs=RunFilter(status=("failed",))), reason=REASON)
    draft = bulks.draft(wish, actor=operator)
    seen = bulks.plan_of(draft, actor=operator).digest
    begin = partial(bulks.start, draft.id, actor=operator, reason=REASON, plan_digest=seen)
    refusal = refused("plan_changed", lambda: begin(choices={"scope": "stage_and_downstream"}))
    assert refusal.extra["plan"]["choices"] == {"scope": "stage_and_downstream"}
    draft.refresh_from_db()
    assert (draft.state, draft.choices) == ("draft", {"scope": "stage"})
    digest = refusal.extra["plan_digest"]
    done = begin(choices={"scope": "stage_and_downstream"}, plan_digest=digest)
    assert (done.status, done.bulk.choices["scope"]) == ("running", "stage_and_downstream")
    failing(start_run, hand, 1)
    refused("plan_changed", lambda: bulks.create(wish, actor=operator, plan_digest=seen))


def test_another_start_of_a_rerun_finds_its_stages_anew(start_run: StartRun, hand: Hand, operator: Actor) -> None:
    runs = mixed(start_run, hand)
    draft = bulks.draft(of(K.RERUN, runs.values(), choices={"from": "b"}), actor=operator)
    assert counted(draft) == {"pending": 2, "skipped": 1}
    done = bulks.start(draft.id, actor=operator, reason=REASON, choices={"from": "failed_stage"})
    assert counted(done.bulk) == {"pending": 3}


# keys, terms, rights


def test_the_same_request_twice_is_one_bulk(start_run: StartRun, operator: Actor, people: dict[str, Person]) -> None:
    """F123."""
    runs = [start_run() for _ in range(2)]
    first = bulks.create(of(K.CANCEL, runs), actor=operator, key=KEY)
    again = bulks.create(of(K.CANCEL, runs[::-1]), actor=operator, key=KEY)
    assert (again.bulk.id, again.replayed, first.replayed) == (first.bulk.id, True, False)
    assert BulkItem.objects.count() == 2
    for other, actor in ((of(K.CANCEL, runs[:1]), operator), (of(K.CANCEL, runs), people["admin"].actor)):
        refused("recovery_idempotency_conflict", partial(bulks.create, other, actor=actor, key=KEY))
    assert BulkOperation.objects.count() == 1


@pytest.mark.parametrize(
    ("terms", "field"),
    [({"rate": 0}, "rate"), ({"rate": 1001}, "rate"), ({"canary": -1}, "canary"), ({"stop_ratio": 1.1}, "stop_ratio")],
)
def test_terms_that_cannot_be_meant_are_refused_by_name(
    terms: dict[str, Any], field: str, start_run: StartRun, operator: Actor
) -> None:
    draft = bulks.draft(of(K.CANCEL, [start_run()]), actor=operator)
    for act in (
        partial(bulks.draft, of(K.CANCEL, [Run.objects.get()], **terms), actor=operator),
        partial(bulks.start, draft.id, actor=operator, reason=REASON, **terms),
    ):
        assert list(refused("validation_error", act).errors) == [field]
    draft.refresh_from_db()
    assert draft.state == "draft"


def test_what_a_verb_does_not_take_is_refused(start_run: StartRun, hand: Hand, operator: Actor) -> None:
    run = failing(start_run, hand, 1)[0]
    for kind, choices in (
        (K.CANCEL, {"scope": "stage"}),
        (K.RETRY, {"scope": "everything"}),
        (K.REPLAY, {"from": "a"}),
    ):
        refused("validation_error", partial(bulks.draft, of(kind, [run], choices=choices), actor=operator))
    refused(
        "environment_unknown", lambda: bulks.draft(of(K.REPLAY, [run], choices={"environment": "x"}), actor=operator)
    )
    for kind in (K.SKIP, K.DISCARD):
        targets = letters_of([run]) if kind == K.DISCARD else [run]
        refused("validation_error", partial(bulks.create, of(kind, targets, reason=""), actor=operator))
    assert not BulkOperation.objects.exists()


def test_who_may_not_do_it_once_may_not_do_it_often(
    start_run: StartRun, people: dict[str, Person], operator: Actor, application_actor: Actor
) -> None:
    """Model §5: a viewer looks, and no more; an application's key does neither."""
    run = start_run()
    viewer = people["viewer"].actor
    for kind in (K.CANCEL, K.PAUSE, K.REPLAY):
        refused("permission_denied", partial(bulks.draft, of(kind, [run]), actor=viewer))
        refused("permission_denied", partial(bulks.create, of(kind, [run]), actor=application_actor))
        assert bulks.preview(of(kind, [run]), actor=viewer).total == 1
        refused("permission_denied", partial(bulks.preview, of(kind, [run]), actor=application_actor))
    bulk = begun(of(K.CANCEL, [run]), operator)
    for verb in (bulks.pause, bulks.resume, bulks.abort):
        refused("permission_denied", partial(verb, bulk.id, actor=viewer))
        refused("permission_denied", partial(verb, bulk.id, actor=application_actor))
    assert bulks.find(viewer, bulk.id).state == "running"
    assert not bulks.visible(application_actor).exists()


def test_whose_right_is_lost_midway_does_nothing_more(
    start_run: StartRun, operator: Actor, people: dict[str, Person], workspace: Workspace, clock: Clock
) -> None:
    """F150: the right is looked at for each target; the rest is denied and says why."""
    runs = [start_run() for _ in range(4)]
    bulk = begun(of(K.CANCEL, runs, rate=1), operator)
    bulk_work.step(bulk.id)
    assert counted(bulk) == {"pending": 3, "done": 1}
    workspace.members.filter(user=people["operator"].user).update(role="viewer")
    clock.advance(1)
    bulk_work.step(bulk.id)
    workspace.members.filter(user=people["operator"].user).delete()
    work_through(bulk, clock)
    assert (counted(bulk), bulk.state) == ({"done": 1, "denied": 3}, "completed_with_failures")
    assert Counter(Run.objects.values_list("status", flat=True)) == {"cancelled": 1, "queued": 3}
    messages = list(bulk.items.filter(state="denied").order_by("position").values_list("code", "message"))
    assert {code for code, _ in messages} == {"permission_denied"}
    assert "may not cancel" in messages[0][1]
    assert "no member any more" in messages[-1][1]


# what may repeat something outside


@pytest.mark.parametrize("kind", [K.RETRY, K.REDRIVE, K.RERUN, K.REPLAY])
def test_what_may_repeat_something_outside_is_denied_and_nobody_is_asked(
    kind: K, start_run: StartRun, hand: Hand, operator: Actor, clock: Clock
) -> None:
    """I11, O26: each target is judged; the others go on. It leaves its verdict in the audit, and nothing to decide."""
    charged = failing(start_run, hand, 1, {"name": "charge", **EXTERNAL})[0]
    effect_of(charged, "charge")
    fine = failing(start_run, hand, 2)
    targets: list[Any] = [charged, *fine]
    bulk = work_through(begun(of(kind, letters_of(targets) if kind == K.REDRIVE else targets), operator), clock)
    assert (counted(bulk), bulk.state) == ({"done": 2, "denied": 1}, "completed_with_failures")
    denied = item_of(bulk, charged.id)
    assert (denied.state, denied.code, denied.operation) == ("denied", "operator_review_required", None)
    assert "charge" in denied.message
    assert [(stage.state, stage.epoch) for stage in stages_of(charged)] == [("failed", 1)]
    assert not Run.objects.filter(recovered_from=charged).exists()
    assert not Operation.objects.filter(run=charged).exists()
    verdict = AuditEvent.objects.get(action="execution.recovery_disposition", run=charged.id)
    assert (verdict.outcome, verdict.code) == ("denied", "operator_review_required")


def test_a_fault_of_one_target_is_its_own(
    start_run: StartRun, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F64: what goes wrong with one never stops the others; it is told, and its run is untouched."""
    runs = [start_run() for _ in range(3)]
    real = transitions.plan_from

    def broken(world: World, asked: Asked, **more: Any) -> Plan:
        if asked.run_id == runs[1].id:
            raise RuntimeError("a fault")
        return real(world, asked, **more)

    monkeypatch.setattr(transitions, "plan_from", broken)
    bulk = work_through(begun(of(K.CANCEL, runs), operator), clock)
    assert (counted(bulk), bulk.state) == ({"done": 2, "failed": 1}, "completed_with_failures")
    failed = item_of(bulk, runs[1].id)
    assert (failed.state, failed.code) == ("failed", "internal_error")
    assert Counter(Run.objects.values_list("status", flat=True)) == {"cancelled": 2, "queued": 1}
    event = AuditEvent.objects.get(action="run.cancel", run=runs[1].id)
    assert (event.outcome, event.code) == ("failed", "internal_error")


# the audit


def test_a_bulk_is_one_event_and_one_for_each_of_its_targets(
    start_run: StartRun, operator: Actor, clock: Clock
) -> None:
    """F146: 1 + n, linked by the bulk's id; each child in the words of the single verb."""
    runs = [start_run() for _ in range(12)]
    bulk = work_through(begun(of(K.CANCEL, runs), operator), clock)
    events = AuditEvent.objects.filter(data__bulk=str(bulk.id))
    assert Counter(events.values_list("action", flat=True)) == {"bulk.start": 1, "run.cancel": 12}
    parent = events.get(action="bulk.start")
    assert (parent.outcome, parent.reason, parent.data["total"], parent.user_id) == (
        "allowed",
        REASON,
        12,
        operator.user_id,
    )
    assert {(one.outcome, one.reason, one.user_id) for one in events.filter(action="run.cancel")} == {
        ("allowed", REASON, operator.user_id)
    }
    assert set(events.filter(action="run.cancel").values_list("run", flat=True)) == {run.id for run in runs}


def test_steering_leaves_one_event_each(start_run: StartRun, operator: Actor) -> None:
    bulk = begun(of(K.CANCEL, [start_run() for _ in range(2)], rate=1), operator)
    bulks.pause(bulk.id, actor=operator, reason="wait")
    bulks.pause(bulk.id, actor=operator)
    bulks.resume(bulk.id, actor=operator)
    bulks.abort(bulk.id, actor=operator, reason="enough")
    refused("execution_state_invalid", lambda: bulks.resume(bulk.id, actor=operator))
    told = list(
        AuditEvent.objects.filter(action__startswith="bulk.").order_by("at").values_list("action", "outcome", "code")
    )
    assert told == [
        ("bulk.start", "allowed", ""),
        ("bulk.pause", "allowed", ""),
        ("bulk.pause", "no_op", ""),
        ("bulk.resume", "allowed", ""),
        ("bulk.abort", "allowed", ""),
        ("bulk.resume", "failed", "execution_state_invalid"),
    ]


# comparing


def test_what_stands_otherwise_than_it_was_left_is_shown(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    """F153: accepted is not applied; each target is looked at after the end, and again when somebody asks."""
    runs = [start_run() for _ in range(3)]
    bulk = work_through(begun(of(K.PAUSE, runs), operator), clock)
    work_through(begun(of(K.RESUME, runs[:1]), operator), clock)
    bulk_work.carry_on()
    assert bulks.progress(bulk).mismatched == 1
    odd = item_of(bulk, runs[0].id)
    assert (odd.state, odd.verified, odd.found) == ("done", False, "queued")
    work_through(begun(of(K.PAUSE, runs[:1]), operator), clock)
    assert bulks.verify(bulk.id) == 3
    assert bulks.progress(bulk).mismatched == 0


def test_a_target_that_is_removed_is_gone_and_not_in_the_way(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F162: retention keeps the runs of a bulk, but may have removed one while the targets were being frozen."""
    runs = failing(start_run, hand, 2)
    bulk = begun(of(K.REPLAY, runs), operator)
    start_run()
    monkeypatch.setattr(retention, "KEPT_BY", [])
    Run.objects.filter(id=runs[0].id).update(finished_at=clock.now() - timedelta(days=9))
    assert retention.remove_older_than(8) == 1
    assert bulks.plan_of(bulk, actor=operator).stands_otherwise == {"gone": 1}
    work_through(bulk, clock)
    assert sorted(outcomes(bulk)) == [("done", ""), ("skipped", "not_found")]


def test_items_are_paged_in_their_order_with_how_they_stand(start_run: StartRun, operator: Actor, clock: Clock) -> None:
    runs = [start_run(key=f"order-{number}") for number in range(5)]
    bulk = begun(of(K.CANCEL, runs, rate=2), operator)
    clock.advance(0.5)
    bulk_work.step(bulk.id)
    first = bulks.items(bulk, cut=Cut(3))
    assert [line.position for line in first.rows] == [1, 2, 3]
    assert [(line.state, line.stands) for line in first.rows] == [
        ("done", "cancelled"),
        ("done", "cancelled"),
        ("pending", "queued"),
    ]
    assert [line.key for line in first.rows] == ["order-4", "order-3", "order-2"]
    assert first.next is not None
    assert [line.position for line in bulks.items(bulk, states=["done"], cut=Cut(3)).rows] == [1, 2]
    with CaptureQueriesContext(connection) as asked:
        bulks.items(bulk, cut=Cut(50))
        bulks.progress(bulk)
    assert len(asked) <= 5


# a blackout


def test_a_blackout_that_begins_midway_holds_all_of_it(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock, workspace: Workspace
) -> None:
    """F117: it waits and says why; nothing is written of a target meanwhile; afterwards it goes on."""
    runs = failing(start_run, hand, 4)
    bulk = begun(of(K.RETRY, runs, rate=1), operator)
    bulk_work.step(bulk.id)
    frozen = Blackout.objects.create(
        workspace_id=workspace.id, name="audit", kind="period", starts_at=clock.now(), is_freeze=True
    )
    events = AuditEvent.objects.count()
    for _ in range(3):
        clock.advance(1)
        assert bulk_work.step(bulk.id) == 0
    bulk.refresh_from_db()
    assert (bulk.state, counted(bulk)) == ("running", {"pending": 3, "done": 1})
    assert "freeze 'audit'" in bulk.held_reason
    assert AuditEvent.objects.count() == events
    assert Stage.objects.filter(epoch=2).count() == 1
    frozen.delete()
    clock.advance(1)
    bulk_work.step(bulk.id)
    bulk.refresh_from_db()
    assert (bulk.state, bulk.held_reason) == ("running", "")
    work_through(bulk, clock)
    assert (counted(bulk), bulk.held_reason) == ({"done": 4}, "")


def test_in_a_blackout_it_starts_only_with_a_reason(
    start_run: StartRun, hand: Hand, operator: Actor, clock: Clock, workspace: Workspace
) -> None:
    runs = failing(start_run, hand, 2)
    Blackout.objects.create(workspace_id=workspace.id, name="night", kind="period", starts_at=clock.now())
    assert bulks.preview(of(K.RETRY, runs), actor=operator).is_held
    refused("blackout_active", lambda: bulks.create(of(K.RETRY, runs), actor=operator))
    assert not BulkOperation.objects.exists()
    bulk = work_through(begun(of(K.RETRY, runs, override_reason="month end"), operator), clock)
    assert counted(bulk) == {"done": 2}
    assert set(Run.objects.values_list("through_blackout", flat=True)) == {True}
    event = AuditEvent.objects.get(action="bulk.start", outcome="allowed")
    assert event.data["override_reason"] == "month end"
    work_through(begun(of(K.CANCEL, runs), operator), clock)
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}, "what starts nothing is not held"
