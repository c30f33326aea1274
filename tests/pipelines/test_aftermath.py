"""What may still go on outside after a run was ended: listed with its end, worked off by people, once each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import Error, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines import intents, retention, sweeps
from pipelines.audit_names import names_of
from pipelines.audit_sentences import tell
from pipelines.effects import Told
from pipelines.models import Attempt, AuditEvent, Effect, Event, Gate, ReconciliationItem, Run
from pipelines.moves import insert_events
from pipelines.sql import database_now, execute
from pipelines.transitions import cancel_run
from tests.cast import Api, Hand, Person, stages_of, unknown_id
from tests.clock import Clock
from tests.pipelines.engine import gate, stage

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
PAY: Mapping[str, Any] = {"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}


@pytest.fixture
def approver(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def viewer(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["viewer"])


@pytest.fixture
def left(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> Run:
    """A cancelled run of which an attempt may still run at its worker."""
    run = start_run("first", "second")
    hand.take()
    cancel_run(run.id, actor=people["operator"].actor, reason="wrong month")
    return run


def items_of(run: Run) -> list[ReconciliationItem]:
    return list(ReconciliationItem.objects.filter(run=run).order_by("opened_at", "id"))


def only(run: Run) -> ReconciliationItem:
    (item,) = items_of(run)
    return item


def settle(client: Api, item: ReconciliationItem, note: Any = "it was killed by hand", **more: Any) -> Any:
    address = f"/v1/executions/{item.run_id}/reconciliation/{item.id}/settle"
    return client.post(address, {"note": note, **more})


def declare(hand: Hand, job: Any, key: str = "invoice-42") -> Effect:
    intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", "declared", key=key)])
    return Effect.objects.get(attempt=job.attempt_id, key=key)


# what is listed


def test_a_cancel_lists_in_rows_all_that_may_go_on(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """R37, P75: what runs, what is uncertain, what was begun outside, what is decided or made elsewhere; no more."""
    run = start_run(
        "working",
        dict(PAY),
        {"name": "asked", "approval": {"when": "before"}},
        {"name": "score", "mode": "import"},
        "untouched",
        {"name": "last", "depends_on": ["working", "pay", "asked", "score", "untouched"]},
    )
    jobs = {job.stage.name: job for job in hand.pull(2)}
    effect = declare(hand, jobs["pay"])
    hand.report(jobs["pay"], "failed", error_code="FOO")
    cancelled = cancel_run(run.id, actor=people["operator"].actor)
    by_kind = {item.kind: item for item in items_of(run)}
    attempts = {one.stage.name: one for one in Attempt.objects.filter(stage__run=run).select_related("stage")}
    assert {kind: (item.stage.name, item.attempt_number, item.subject) for kind, item in by_kind.items()} == {
        "running_attempt": ("working", 1, jobs["working"].attempt_id),
        "uncertain_effect": ("pay", 1, jobs["pay"].attempt_id),
        "open_effect": ("pay", 1, effect.id),
        "open_gate": ("asked", 0, gate(run, "asked").id),
        "awaited_import": ("score", 1, attempts["score"].id),
    }
    assert len(items_of(run)) == 5
    assert [one["itemId"] for one in cancelled.reconciliation] == [str(item.id) for item in items_of(run)]
    digest = attempts["score"].request_digest
    assert by_kind["awaited_import"].detail == (
        f"score: requested elsewhere under digest {digest}; somebody may still be at work on it"
    )
    event = Event.objects.get(run_id=run.id, kind="run.reconciliation_list")
    assert [one["item"] for one in event.data] == [str(item.id) for item in items_of(run)]


def test_no_word_of_it_says_that_outside_work_stopped(
    start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """R38."""
    asked, score = {"name": "asked", "approval": {"when": "before"}}, {"name": "score", "mode": "import"}
    run = start_run(dict(PAY), asked, score, {"name": "last", "depends_on": ["pay", "asked", "score"]})
    declare(hand, hand.take())
    cancel_run(run.id, actor=people["operator"].actor)
    said = " ".join(item.detail for item in items_of(run))
    assert len(items_of(run)) == 4
    assert not [word for word in ("stopped", "was cancelled", "ended", "undone", "killed") if word in said]


def test_a_deadline_lists_it_too(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """R30: a run that its deadline ends leaves the same outside as one that a person ends."""
    run = start_run("first", deadline_seconds=10)
    job = hand.take()
    clock.advance(11)
    sweeps.enforce_deadlines()
    run.refresh_from_db()
    assert (run.status, run.failure_code) == ("failed", "deadline_exceeded")
    assert (only(run).kind, only(run).subject) == ("running_attempt", job.attempt_id)


def test_what_never_began_leaves_nothing(start_run: StartRun, people: dict[str, Person]) -> None:
    run = start_run("first", "second")
    assert cancel_run(run.id, actor=people["operator"].actor).reconciliation == []
    assert not items_of(run)
    assert not Event.objects.filter(run_id=run.id, kind="run.reconciliation_list").exists()


def test_an_import_whose_answer_waits_for_a_decision_is_an_open_gate(
    start_run: StartRun, people: dict[str, Person], application_actor: Any
) -> None:
    """R37: only what is still awaited is listed as awaited."""
    from pipelines import imports

    run = start_run({"name": "score", "mode": "import", "approval": {"when": "after"}})
    awaited = Attempt.objects.get(stage__run=run)
    imports.take(stage(run, "score").id, imports.Answer(awaited.request_digest, output=1), actor=application_actor)
    assert Gate.objects.get(run=run).state == "open"
    cancel_run(run.id, actor=people["operator"].actor)
    assert only(run).kind == "open_gate"


def test_cancelling_again_answers_the_list_with_what_is_settled(api: Api, left: Run, approver: Api) -> None:
    first = api.post(f"/pipelines/{left.id}/cancel").json()["reconciliation"]
    assert [(one["kind"], one["settledAt"], one["note"]) for one in first] == [("running_attempt", None, None)]
    settle(approver, only(left))
    (again,) = api.post(f"/pipelines/{left.id}/cancel").json()["reconciliation"]
    assert (again["itemId"], again["detail"]) == (first[0]["itemId"], first[0]["detail"])
    assert (again["settledBy"], again["note"]) == ("approver-acme", "it was killed by hand")
    assert again["settledAt"]


# working it off


def test_a_note_settles_an_item_and_moves_nothing(left: Run, approver: Api) -> None:
    """R37: with the name of who looked, in the audit and in the run's own history."""
    before = [(one.state, one.epoch) for one in stages_of(left)]
    answer = settle(approver, only(left))
    assert answer.status_code == 200, answer.content
    body = answer.json()
    assert (body["settled_by"], body["note"], body["replayed"]) == ("approver-acme", "it was killed by hand", False)
    assert body["settled_at"]
    left.refresh_from_db()
    assert left.status == "cancelled"
    assert [(one.state, one.epoch) for one in stages_of(left)] == before
    event = AuditEvent.objects.get(action="reconciliation.settle")
    assert (event.outcome, event.run, event.reason) == ("allowed", left.id, "it was killed by hand")
    assert event.data == {"item": body["id"], "kind": "running_attempt", "note": "it was killed by hand"}
    assert "approver-acme settled what was left outside by first of nightly" in tell(event, names_of([event]))
    assert Event.objects.get(kind="run.reconciliation_settled").reason == "it was killed by hand"


def test_the_same_again_changes_nothing_and_anything_else_is_refused(
    left: Run, approver: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    item = only(left)
    first = settle(approver, item).json()
    again = settle(approver, item)
    assert (again.status_code, again.json()) == (200, first | {"replayed": True})
    for other in (settle(approver, item, "it ended by itself"), settle(as_person(people["admin"]), item)):
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
        assert "approver-acme settled it at" in other.json()["detail"]
    assert (only(left).note, only(left).resolved_name) == ("it was killed by hand", "approver-acme")
    told = AuditEvent.objects.filter(action="reconciliation.settle").order_by("at", "id")
    assert [one.outcome for one in told] == ["allowed", "no_op", "failed", "failed"]
    assert Event.objects.filter(kind="run.reconciliation_settled").count() == 1


@pytest.mark.parametrize("note", ["", "   ", None, 5, "x" * 10_001, "a\x00b"])
def test_it_takes_a_note(left: Run, approver: Api, note: Any) -> None:
    answer = settle(approver, only(left), note)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["note"])
    assert only(left).resolved_at is None


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_who_may_not_resolve_may_look_and_no_more(
    left: Run, people: dict[str, Person], as_person: AsPerson, role: str
) -> None:
    client = as_person(people[role])
    answer = settle(client, only(left))
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert only(left).resolved_at is None
    assert AuditEvent.objects.get(action="reconciliation.settle").outcome == "denied"
    assert len(client.get("/v1/reconciliation").json()["results"]) == 1
    assert len(client.get(f"/v1/executions/{left.id}/reconciliation").json()["results"]) == 1


def test_nobody_else_knows_of_it(
    left: Run, outsider: Person, as_person: AsPerson, start_run: StartRun, approver: Api, sibling_key: str, api: Api
) -> None:
    """F144: another workspace's people and keys, another application's key, another run's address."""
    stranger, sibling, item = as_person(outsider), Api({"X-API-Key": sibling_key}), only(left)
    assert settle(stranger, item).status_code == 404
    for one in (stranger, sibling):
        assert one.get("/v1/reconciliation").json()["results"] == []
        assert one.get(f"/v1/executions/{left.id}/reconciliation").status_code == 404
    assert len(api.get("/v1/reconciliation").json()["results"]) == 1
    assert settle(api, item).status_code == 403
    other = start_run("other")
    for address in (f"{other.id}/reconciliation/{item.id}", f"{left.id}/reconciliation/{unknown_id()}"):
        assert approver.post(f"/v1/executions/{address}/settle", {"note": "gone"}).status_code == 404
    assert only(left).resolved_at is None


def test_what_is_found_out_about_an_effect_settles_its_item_and_says_so(
    start_run: StartRun, hand: Hand, people: dict[str, Person], approver: Api
) -> None:
    """R37, O46: a note alone does not settle it while nobody knows whether it happened."""
    run = start_run(dict(PAY))
    effect = declare(hand, hand.take())
    cancel_run(run.id, actor=people["operator"].actor)
    items = {item.kind: item for item in items_of(run)}
    refused = settle(approver, items["open_effect"])
    assert (refused.status_code, refused.json()["code"]) == (409, "needs_reconciliation")
    assert refused.json()["effectId"] == str(effect.id)
    found = {"outcome": "absent", "note": "the bank has no such order"}
    address = f"/v1/executions/{run.id}/effects/{effect.id}/reconciliation"
    assert approver.post(address, found).status_code == 201
    items = {item.kind: item for item in items_of(run)}
    assert items["open_effect"].note == "settled with its effect, reconciled absent: the bank has no such order"
    assert (items["open_effect"].resolved_name, items["running_attempt"].resolved_at) == ("approver-acme", None)
    event = AuditEvent.objects.get(action="reconciliation.settle", outcome="allowed")
    assert event.data["effect"] == str(effect.id)


# lists


def test_lists_are_narrowed_and_cut_by_key(
    start_run: StartRun, hand: Hand, people: dict[str, Person], viewer: Api, approver: Api
) -> None:
    after = {"name": "last", "depends_on": ["first", "score"]}
    runs = [start_run("first", {"name": "score", "mode": "import"}, after) for _ in range(3)]
    hand.pull(3)
    for run in runs:
        cancel_run(run.id, actor=people["operator"].actor)
    page = viewer.get("/v1/reconciliation?page_size=4").json()
    rest = viewer.get(page["next"].partition("testserver")[2]).json()
    seen = [one["id"] for one in page["results"] + rest["results"]]
    newest = ReconciliationItem.objects.order_by("-opened_at", "-id")
    assert seen == [str(item.id) for item in newest]
    assert (len(seen), rest["next"]) == (6, None)
    assert len(viewer.get("/v1/reconciliation?kind=awaited_import").json()["results"]) == 3
    assert len(viewer.get(f"/v1/reconciliation?execution_id={runs[0].id}").json()["results"]) == 2
    assert viewer.get("/v1/reconciliation?kind=other").status_code == 400
    assert viewer.get("/v1/reconciliation?settled=true").status_code == 400
    settle(approver, items_of(runs[0])[0])
    of_run = f"/v1/executions/{runs[0].id}/reconciliation"
    settled = viewer.get(f"{of_run}?settled=true").json()["results"]
    assert [one["settled_by"] for one in settled] == ["approver-acme"]
    assert [one["settled_by"] for one in viewer.get(f"{of_run}?settled=false").json()["results"]] == [None]
    assert len(viewer.get(of_run).json()["results"]) == 2
    assert len(viewer.get("/v1/reconciliation").json()["results"]) == 5


def test_a_list_costs_the_same_however_long_it_is(
    start_run: StartRun, hand: Hand, people: dict[str, Person], viewer: Api
) -> None:
    counts = []
    for number in (1, 9):
        for _ in range(number):
            run = start_run("first")
            hand.take()
            cancel_run(run.id, actor=people["operator"].actor)
        viewer.get("/v1/reconciliation")  # notes that the token was used
        with CaptureQueriesContext(connection) as captured:
            assert viewer.get("/v1/reconciliation").status_code == 200
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_metrics_tell_how_much_is_open(left: Run, approver: Api, client: Client) -> None:
    line = 'recourse_reconciliation_items{{kind="running_attempt"}} {}'
    assert line.format("1.0") in client.get("/metrics").content.decode()
    settle(approver, only(left))
    assert line.format("0.0") in client.get("/metrics").content.decode()


# what stays


def test_a_run_stays_until_its_list_is_worked_off(left: Run, approver: Api) -> None:
    """Model §3.13."""
    later = database_now() + timedelta(days=400)
    assert retention.remove(later) == 0
    settle(approver, only(left))
    assert retention.remove(later) == 1
    assert not ReconciliationItem.objects.exists()


@pytest.mark.parametrize(
    ("change", "when"),
    [
        ("UPDATE pipelines_reconciliationitem SET note = 'other'", "settled"),
        ("UPDATE pipelines_reconciliationitem SET resolved_at = NULL, resolved_by = NULL, note = ''", "settled"),
        ("UPDATE pipelines_reconciliationitem SET detail = 'nothing'", "open"),
        ("UPDATE pipelines_reconciliationitem SET kind = 'open_gate'", "open"),
        ("UPDATE pipelines_reconciliationitem SET resolved_at = recourse_now()", "open"),
        ("UPDATE pipelines_reconciliationitem SET note = 'half'", "open"),
        ("DELETE FROM pipelines_reconciliationitem", "open"),
        ("DELETE FROM pipelines_reconciliationitem", "settled"),
    ],
)
def test_the_database_keeps_what_was_listed_and_settled(left: Run, approver: Api, change: str, when: str) -> None:
    """R44: no way to set it back, to reword it or to be rid of it; and none to settle it without a word."""
    if when == "settled":
        settle(approver, only(left))
    before = ReconciliationItem.objects.values().get()
    with pytest.raises(Error), transaction.atomic():
        execute(change)
    assert ReconciliationItem.objects.values().get() == before


# what earlier cancels told


def earlier_cancel(run: Run, *told: dict[str, Any]) -> None:
    """The run as an earlier version left it: its list in an event, no rows."""
    with transaction.atomic():
        execute("SET LOCAL recourse.retention = 'on'")
        ReconciliationItem.objects.filter(run=run).delete()
    row = Event.objects.filter(run_id=run.id, kind="run.reconciliation_list").values().get()
    insert_events([{**{name: value for name, value in row.items() if name not in ("id", "at")}, "data": list(told)}])


def make_items() -> None:
    with connection.schema_editor() as editor:
        import_module("pipelines.migrations.0024_items_of_earlier_cancels").make_items(apps, editor)


def test_what_earlier_cancels_told_becomes_rows_once(
    start_run: StartRun, hand: Hand, people: dict[str, Person], approver: Api
) -> None:
    """Effects that were reconciled since are left out; what is open can be told by its own row."""
    run = start_run(dict(PAY), "first")
    job = next(job for job in hand.pull(2) if job.stage.name == "pay")
    effects = [declare(hand, job, key) for key in ("a", "b")]
    cancel_run(run.id, actor=people["operator"].actor)
    kept = [(item.kind, item.stage_id, item.attempt_number, item.detail, item.subject) for item in items_of(run)]
    told = [{"stageId": str(one[1]), "attempt": one[2], "kind": one[0], "detail": one[3]} for one in kept]
    earlier_cancel(run, *told)
    found = {"outcome": "absent", "note": "not there"}
    approver.post(f"/v1/executions/{run.id}/effects/{effects[0].id}/reconciliation", found)
    for _ in range(2):
        make_items()
    still = [(item.kind, item.stage_id, item.attempt_number, item.detail) for item in items_of(run)]
    assert still == [one[:4] for one in kept if one[4] != effects[0].id]
    assert {item.subject for item in items_of(run)} == {None, effects[1].id}
    assert all(item.resolved_at is None for item in items_of(run))
