"""What was planned is what is done, or nothing is: with a world that moves in between, alone and at the same time."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from approvals.requests import Answer, decide_request
from pipelines import sweeps
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Run, Stage
from pipelines.moves import IllegalMove
from pipelines.sql import query
from recovery import transitions
from recovery.models import Operation
from recovery.operations import Done
from recovery.plans import Asked, Plan
from recovery.transitions import perform, preview
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.concurrency.crew import Crew, crew_of
from tests.engine_model.invariants import assert_invariants
from tests.recovery.stories import EXTERNAL, clear, effect_of
from tests.verbs import retry_stage

StartRun = Callable[..., Run]
People = dict[str, Person]

# table → how a row of it finds its run and its stage
TABLES = {
    "pipelines_run": ("id", "NULL"),
    "pipelines_stage": ("run_id", "id"),
    "pipelines_attempt": ("run_id", "stage_id"),
    "pipelines_gate": ("run_id", "stage_id"),
    "pipelines_deadletter": ("run_id", "stage_id"),
    "pipelines_effect": ("run_id", "stage_id"),
    "pipelines_checkpoint": ("run_id", "stage"),
    "pipelines_event": ("run_id", "stage"),
    "pipelines_stageoutput": ("NULL", "stage_id"),
    "pipelines_queueentry": ("NULL", "stage_id"),
}
DIAMOND: tuple[dict[str, Any], ...] = (
    {"name": "load", "depends_on": []},
    {"name": "rates", "depends_on": []},
    {"name": "price", "depends_on": ["load", "rates"], "options": {"max_retries": 1, "retry_interval": 30}},
    {"name": "check", "depends_on": ["price"], "approval": {"when": "before"}},
    {"name": "book", "depends_on": ["price"], "run_next_if_failed": True},
    {"name": "mail", "depends_on": ["check", "book"]},
)
Rows = dict[tuple[str, str], tuple[str | None, str | None, str]]


def rows() -> Rows:
    """Every row of every run: (table, key) → (run, stage, all of it)."""
    found: Rows = {}
    for table, (run, stage) in TABLES.items():
        key = "stage_id" if table == "pipelines_queueentry" else "id"
        for row_key, run_id, stage_id, text in query(
            f"SELECT {key}::text, {run}::text, {stage}::text, to_jsonb(t)::text FROM {table} t"
        ):
            found[table, row_key] = (run_id, stage_id, text)
    return found


def changed(before: Rows, after: Rows) -> dict[tuple[str, str], tuple[str | None, str | None, str]]:
    return {key: row for key, row in (before | after).items() if before.get(key) != after.get(key)}


def everything() -> dict[str, Any]:
    """All that anybody could have changed, operations and audit too."""
    more = ("recovery_operation", "pipelines_auditevent")
    return {"rows": rows(), **{table: query(f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY 1") for table in more}}


def assert_as_planned(plan: Plan, before: Rows, after: Rows) -> None:
    """Exactly the plan's lines changed: what is kept stands as it stood, and so does every other run."""
    stages = {stage.name: stage for stage in Stage.objects.filter(run=plan.execution_id)}
    for line in plan.lines:
        stage = stages[line.stage]
        assert (stage.state, stage.epoch, stage.stale) == (line.to, line.epoch, line.stale), line
    moved = {
        str(stages[line.stage].id)
        for line in (*plan.run_again, *plan.then)
        if line.action or (line.was, line.stale) != (line.to, stages[line.stage].stale) or line.was != line.to
    }
    other_runs_stages = {str(one) for one in Stage.objects.exclude(run=plan.execution_id).values_list("id", flat=True)}
    for (table, _), (run_id, stage_id, _text) in changed(before, after).items():
        assert run_id in (None, plan.execution_id), f"{table} of another run changed"
        assert stage_id not in other_runs_stages
        if table not in ("pipelines_checkpoint", "pipelines_queueentry"):  # a pause takes all entries of its run
            assert stage_id is None or stage_id in moved, f"{table} of a stage that is not in the plan changed"
    gone = [key for key in before if key not in after and key[0] != "pipelines_queueentry"]
    assert gone == [], "nothing is erased"


# random stories, one thing after another


def engine_step(dice: random.Random, hand: Hand, clock: Clock) -> None:
    """Whatever the machine might do next with any run."""
    what = dice.choice(["work", "work", "work", "fail", "wait", "lose", "take", "sweep"])
    if what == "wait":
        clock.advance(dice.choice([5, 31, 61]))
    elif what == "lose":
        hand.pull(2, acquire=dice.random() < 0.5)
    elif what == "sweep":
        sweeps.sweep()
    else:
        for job in hand.pull(dice.choice([1, 2])):
            if what != "take":
                failed = {"error_code": dice.choice(["BUSINESS_REJECTED", "FLAKY"])} if what == "fail" else {}
                hand.report(job, "failed" if failed else "succeeded", **failed)


def wishes(run: Run, dice: random.Random) -> list[Asked]:
    """All that a person might ask of the run, in any order."""
    asked = [
        transitions.ask_pause(run.id, reason="r"),
        transitions.ask_resume(run.id, reason="r"),
        transitions.ask_cancel(run.id, reason="r"),
    ]
    for stage in run.stages.all():
        for scope in ("stage", "stage_and_downstream"):
            asked.append(transitions.ask_retry(run.id, stage.id, scope=scope, reason="r"))
        asked.append(transitions.ask_skip(run.id, stage.id, output={"n": 1}, has_output=True, reason="r"))
    dice.shuffle(asked)
    asked.sort(key=lambda one: one.kind == "cancel")  # it ends the story, so it is rare
    return asked


def first_plan(asked: list[Asked], actor: Actor) -> tuple[Asked, Plan] | None:
    for one in asked:
        try:
            return one, preview(one, actor=actor)
        except Refusal as refused:
            if refused.status not in (400, 409):
                raise
    return None


def answer_of(asked: Asked, actor: Actor, plan_digest: str) -> Done | Refusal:
    try:
        return perform(asked, actor=actor, plan_digest=plan_digest)
    except Refusal as refused:
        return refused


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_is_carried_out_as_it_was_or_not_at_all(
    start_run: StartRun, hand: Hand, clock: Clock, people: People, seed: int
) -> None:
    """F51, O27: random states, a verb, and in between the world moves or does not."""
    dice, operator = random.Random(seed), people["operator"].actor
    run, _beside = start_run(*DIAMOND), start_run("first", "second")
    outcomes: list[Done | Refusal] = []
    for _ in range(6):
        for _ in range(dice.randrange(4)):
            engine_step(dice, hand, clock)
        found = first_plan(wishes(run, dice), operator)
        if found is None:
            break
        asked, plan = found
        disturbance = dice.choice(["none", "none", "engine", "person"])
        if disturbance == "engine":
            engine_step(dice, hand, clock)
        elif disturbance == "person" and (other := first_plan(wishes(run, dice), operator)):
            perform(other[0], actor=operator)
        before = rows()
        answer = answer_of(asked, operator, plan.digest)
        outcomes.append(answer)
        if isinstance(answer, Done):
            assert_as_planned(plan, before, rows())
        else:
            assert rows() == before, "a refusal changes nothing"
            assert disturbance != "none", answer
        if isinstance(answer, Refusal) and answer.code == "plan_changed":
            assert answer.extra["plan"] == {**preview(asked, actor=operator).as_json(), "blackout": None, "lane": None}
        assert_invariants()
    assert outcomes


# at the same time, on connections of their own


@pytest.fixture
def crew(transactional_db: None) -> Iterator[Crew]:
    with crew_of(4) as found:
        yield found


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seed", range(12))
def test_verbs_that_race_with_their_plans_do_them_or_say_that_they_changed(
    start_run: StartRun, hand: Hand, people: People, crew: Crew, seed: int
) -> None:
    """Each of them is held to the plan that it was shown; whoever comes second sees another world."""
    dice, operator = random.Random(seed), people["operator"].actor
    for _ in range(3):
        run = start_run(*DIAMOND)
        for _ in range(dice.randrange(4)):
            for job in hand.pull(1):
                hand.report(job, *(["failed"] if dice.random() < 0.3 else []))
        plans = [found for _ in range(3) if (found := first_plan(wishes(run, dice), operator))]
        acts = [
            lambda asked=asked, plan=plan: perform(asked, actor=operator, plan_digest=plan.digest)
            for asked, plan in plans
        ]
        answers = crew.at_once(*acts, lambda: hand.pull(1))
        kept = {str(one.id): one for one in Operation.objects.filter(run=run)}
        for (asked, plan), answer in zip(plans, answers, strict=False):
            if isinstance(answer, Done):
                operation = kept.pop(str(answer.operation_id))
                assert (operation.plan_digest, operation.plan) == (plan.digest, plan.as_json())
                assert operation.state == "succeeded"
            else:
                assert answer.status == 409, answer
                if answer.code == "plan_changed":
                    assert answer.extra["plan_digest"] != plan.digest
                    assert answer.extra["plan"]["kind"] == asked.kind
        assert kept == {}, "a refused verb leaves no operation"
        assert any(isinstance(answer, Done) for answer in answers)
        assert_invariants()


# over the API


@pytest.fixture
def clients(people: People, as_person: Callable[[Person], Api]) -> dict[str, Api]:
    return {role: as_person(person) for role, person in people.items()}


# a stage that fails, and work beside it that keeps the run going
BESIDE = (
    {"name": "first", "depends_on": []},
    {"name": "second", "depends_on": []},
    {"name": "third", "depends_on": ["second"]},
)


def failed_run(start_run: StartRun, hand: Hand, *stages: Any) -> tuple[Run, list[Stage]]:
    run = start_run(*(stages or ("first", "second")))
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return run, stages_of(run)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("executions/{run}/pause", {}),
        ("executions/{run}/cancel", {}),
        ("stages/{stage}/retry", {"scope": "stage_and_downstream"}),
        ("stages/{stage}/skip", {"reason": "not needed", "output": [1, 2]}),
        ("dead-letters/{letter}/acknowledge", {}),
        ("dead-letters/{letter}/redrive", {}),
        ("dead-letters/{letter}/discard", {"reason": "no"}),
    ],
)
def test_a_dry_run_changes_nothing_and_the_same_request_then_does_it(
    start_run: StartRun, hand: Hand, clients: dict[str, Api], path: str, body: dict[str, Any]
) -> None:
    """Every verb plans; whoever may view may look; the digest that was shown holds."""
    run, (first, *_) = failed_run(start_run, hand, *BESIDE)
    letter = query("SELECT id FROM pipelines_deadletter")[0][0]
    route = f"/v1/{path.format(run=run.id, stage=first.id, letter=letter)}"
    before = everything()
    planned = clients["viewer"].post(route, body | {"dry_run": True})
    assert planned.status_code == 200, planned.content
    plan = planned.json()
    assert plan["execution_id"] == str(run.id)
    assert {"kept", "run_again", "then", "may_repeat", "disposition", "reasons", "approvals"} <= set(plan)
    assert everything() == before, "no row, no operation, no audit event"
    refused = clients["viewer"].post(route, body)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    done = clients["operator"].post(route, body | {"plan_digest": plan["plan_digest"]})
    assert done.status_code == 200, done.content
    operation = Operation.objects.get()
    assert (operation.state, operation.plan_digest) == ("succeeded", plan["plan_digest"])
    assert AuditEvent.objects.filter(plan_digest=plan["plan_digest"]).exists()


def test_a_plan_that_changed_is_refused_with_the_new_one(
    start_run: StartRun, hand: Hand, clients: dict[str, Api]
) -> None:
    """409 `plan_changed`, and nothing was done; the new plan is one that can be carried out."""
    run, (first, _) = failed_run(start_run, hand)
    route = f"/v1/stages/{first.id}/retry"
    old = clients["operator"].post(route, {"dry_run": True}).json()
    clients["admin"].post(route)
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    before = rows()
    refused = clients["operator"].post(route, {"plan_digest": old["plan_digest"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "plan_changed")
    assert rows() == before
    assert Operation.objects.count() == 1
    new = refused.json()["plan"]
    assert [line["epoch"] for line in new["run_again"]] == [3]
    assert clients["operator"].post(route, {"plan_digest": new["plan_digest"]}).status_code == 200
    assert Stage.objects.get(id=first.id).epoch == 3
    last = AuditEvent.objects.filter(run=run.id, code="plan_changed").get()
    assert (last.action, last.outcome) == ("stage.retry", "failed")


def test_a_dry_run_of_what_the_state_does_not_take_says_so_and_keeps_no_event(
    start_run: StartRun, clients: dict[str, Api]
) -> None:
    run = start_run("first")
    before = everything()
    answer = clients["operator"].post(f"/v1/stages/{stages_of(run)[0].id}/retry", {"dry_run": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "stage_state_invalid")
    assert everything() == before


def test_a_dry_run_of_another_workspace_is_not_found(
    start_run: StartRun, hand: Hand, outsider: Person, as_person: Callable[[Person], Api], sibling_key: str
) -> None:
    """I16: an application's own key may look at plans of its own runs, and acts on none."""
    _, (first, _) = failed_run(start_run, hand)
    for someone in (as_person(outsider), Api({"X-API-Key": sibling_key})):
        answer = someone.post(f"/v1/stages/{first.id}/retry", {"dry_run": True})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_an_application_looks_at_plans_of_its_own_runs_and_acts_on_none(
    start_run: StartRun, hand: Hand, api: Api
) -> None:
    """Model §5."""
    _, (first, _) = failed_run(start_run, hand)
    route = f"/v1/stages/{first.id}/retry"
    assert api.post(route, {"dry_run": True}).status_code == 200
    for body in ({}, {"dry_run": False}, {"dry_run": "true"}, b"{", [{"dry_run": True}]):
        answer = api.post(route, body)
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), body
    assert Operation.objects.count() == 0


@pytest.mark.parametrize("body", [{"dry_run": "yes"}, {"dry_run": 1}, {"plan_digest": 7}, {"plan_digest": "x" * 65}])
def test_what_is_no_flag_and_no_digest_is_refused_by_name(
    start_run: StartRun, hand: Hand, clients: dict[str, Api], body: dict[str, Any]
) -> None:
    """Never taken for the real thing."""
    _, (first, _) = failed_run(start_run, hand)
    answer = clients["operator"].post(f"/v1/stages/{first.id}/retry", body)
    assert (answer.status_code, list(answer.json()["errors"])) == (400, list(body))
    assert Operation.objects.count() == 0


# verdicts that hold back


@pytest.fixture
def charged(start_run: StartRun, hand: Hand) -> tuple[Run, Stage]:
    """A stage that charged a card, told of it with its key, and then failed."""
    run = start_run({"name": "pay", **EXTERNAL}, "mail")
    job = hand.take()
    effect_of(run, "pay", "committed")
    hand.report(job, "failed", error_code="BUSINESS_REJECTED")
    return run, stages_of(run)[0]


THREE = ("operation_id", "disposition", "reasons")


def test_a_review_is_kept_with_its_key_and_answers_the_same_again(
    charged: tuple[Run, Stage], clients: dict[str, Api]
) -> None:
    """O28, O44, O45, I11: recorded, told with the three, nothing dispatched; one operation however often it is told."""
    run, pay = charged
    key = str(uuid.uuid4())
    before = rows()
    for _ in range(2):
        answer = clients["operator"].post(
            f"/v1/stages/{pay.id}/retry", {"client_request_id": key, "acknowledge_effects": True}
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "operator_review_required")
        assert answer.json()["disposition"] == "operator_review_required"
        assert [one["code"] for one in answer.json()["reasons"]] == ["evidence_missing", "reconciliation_missing"]
    assert rows() == before
    operation = Operation.objects.get()
    assert (str(operation.id), operation.state, operation.key) == (
        answer.json()["operation_id"],
        "review_required",
        key,
    )
    told = AuditEvent.objects.get(action="execution.recovery_disposition")
    assert (told.outcome, told.run, told.data["disposition"]) == ("denied", run.id, "operator_review_required")
    assert told.data["operation"] == str(operation.id)
    events = AuditEvent.objects.filter(action="stage.retry").values_list("outcome", "code")
    assert list(events) == [("denied", "operator_review_required")] * 2, "one event for each request"


def test_a_contradiction_is_denied_and_keeps_no_key(charged: tuple[Run, Stage], clients: dict[str, Api]) -> None:
    """O46: nobody overrides it; asked again with the same key it is looked at anew."""
    run, pay = charged
    effect = run.effects.get()
    route = f"/v1/executions/{run.id}/effects/{effect.id}/reconciliation"
    assert clients["approver"].post(route, {"outcome": "absent", "note": "no such charge"}).status_code == 201
    key = str(uuid.uuid4())
    ids = set()
    for _ in range(2):
        answer = clients["admin"].post(f"/v1/stages/{pay.id}/retry", {"client_request_id": key})
        assert (answer.status_code, answer.json()["code"]) == (409, "recovery_denied")
        assert set(THREE) <= set(answer.json())
        ids.add(answer.json()["operation_id"])
    assert len(ids) == 2
    assert set(Operation.objects.filter(kind="retry").values_list("state", "key", "disposition")) == {
        ("denied", "", "recovery_denied")
    }
    assert Stage.objects.get(id=pay.id).epoch == 1
    assert AuditEvent.objects.filter(action="execution.recovery_disposition", outcome="denied").count() == 2


def test_what_is_cleared_goes_on_as_reconciled(charged: tuple[Run, Stage], clients: dict[str, Api]) -> None:
    """O44: all three are there; the disposition is recorded before anything is handed out."""
    run, pay = charged
    clear(run.effects.get(), clients["approver"])
    answer = clients["operator"].post(f"/v1/stages/{pay.id}/retry")
    assert (answer.status_code, answer.json()["disposition"]) == (200, "recovery_allowed_reconciled")
    operation = Operation.objects.get(kind="retry")
    assert [reason["code"] for reason in operation.reasons] == ["effect_reconciled"]
    assert AuditEvent.objects.get(action="execution.recovery_disposition").outcome == "allowed"


def test_the_state_comes_before_the_disposition(start_run: StartRun, hand: Hand, clients: dict[str, Api]) -> None:
    """Model §5, last line: an effect in doubt does not hide that the run is over."""
    run, (first, *_) = failed_run(start_run, hand, *BESIDE)
    effect_of(run, "first", "unknown")
    clients["operator"].post(f"/v1/executions/{run.id}/cancel")
    answer = clients["operator"].post(f"/v1/stages/{first.id}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_state_invalid")
    assert not Operation.objects.filter(kind="retry").exists()


def let_go_on(operation: Operation, actor: Actor) -> Answer | Refusal:
    try:
        return decide_request(operation.id, actor=actor, approved=True)
    except Refusal as refusal:
        return refusal


def test_an_operation_in_review_goes_on_when_somebody_lets_it(
    charged: tuple[Run, Stage], clients: dict[str, Api], people: People
) -> None:
    """The disposition stays as recorded, with who resolved it; the same key then answers with what was done."""
    _, pay = charged
    key = str(uuid.uuid4())
    route, body = f"/v1/stages/{pay.id}/retry", {"client_request_id": key, "reason": "seen at the provider"}
    clients["operator"].post(route, body)
    done = let_go_on(Operation.objects.get(), people["approver"].actor)
    assert isinstance(done, Answer)
    operation = Operation.objects.get()
    assert (operation.state, operation.disposition) == ("succeeded", "operator_review_required")
    assert operation.resolved_by_id == people["approver"].user.pk
    assert Stage.objects.get(id=pay.id).epoch == 2
    again = clients["operator"].post(route, body)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["operation_id"] == str(operation.id)
    assert Stage.objects.get(id=pay.id).epoch == 2


def test_an_operation_in_review_is_judged_again_before_it_goes_on(
    charged: tuple[Run, Stage], clients: dict[str, Api], people: People
) -> None:
    """What contradicts by now denies it; nobody lets that go on."""
    run, pay = charged
    clients["operator"].post(f"/v1/stages/{pay.id}/retry")
    effect = run.effects.get()
    route = f"/v1/executions/{run.id}/effects/{effect.id}/reconciliation"
    clients["approver"].post(route, {"outcome": "absent", "note": "no such charge"})
    refused = let_go_on(Operation.objects.get(kind="retry"), people["admin"].actor)
    assert isinstance(refused, Refusal)
    assert refused.code == "recovery_denied"
    assert Operation.objects.get(kind="retry").state == "denied"
    assert Stage.objects.get(id=pay.id).epoch == 1


def test_an_operation_in_review_whose_world_moved_asks_anew_with_the_new_plan(
    charged: tuple[Run, Stage], clients: dict[str, Api], people: People
) -> None:
    run, pay = charged
    clients["operator"].post(f"/v1/stages/{pay.id}/retry")
    clients["operator"].post(f"/v1/stages/{stages_of(run)[1].id}/skip", {"reason": "sent by hand"})
    operation = Operation.objects.get(kind="retry")
    refused = let_go_on(operation, people["approver"].actor)
    assert isinstance(refused, Refusal)
    assert refused.code == "plan_changed"
    asked_anew = Operation.objects.get(kind="retry")
    assert asked_anew.state == "review_required"
    assert asked_anew.plan_digest == refused.extra["plan_digest"] != operation.plan_digest
    assert Stage.objects.get(id=pay.id).epoch == 1
    assert isinstance(let_go_on(asked_anew, people["approver"].actor), Answer)


def test_a_redrive_is_held_back_as_a_retry_is_and_its_letter_stays_open(
    charged: tuple[Run, Stage], clients: dict[str, Api]
) -> None:
    """F162: the letter is closed with the retry or not at all."""
    letter = query("SELECT id FROM pipelines_deadletter")[0][0]
    answer = clients["operator"].post(f"/v1/dead-letters/{letter}/redrive")
    assert (answer.status_code, answer.json()["code"]) == (409, "operator_review_required")
    assert query("SELECT state FROM pipelines_deadletter") == [("open",)]


def test_a_verb_that_would_do_otherwise_than_planned_commits_nothing(
    start_run: StartRun, hand: Hand, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F51: the last guard. A fault in walking the plan is no half-done verb."""
    _, (first, second) = failed_run(start_run, hand)
    walk = transitions._walk

    def wrong(moves: Any, run_row: Any, plan: Plan, reason: str) -> None:
        walk(moves, run_row, plan, reason)
        moves.touch(moves.stages[second.id], stale=True)

    monkeypatch.setattr(transitions, "_walk", wrong)
    before = rows()
    with pytest.raises(IllegalMove):
        retry_stage(first.id, actor=people["operator"].actor, reason="r")
    assert rows() == before
    assert Operation.objects.count() == 0
