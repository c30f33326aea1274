"""What holds back, refuses or calls off a run that would be retried by itself; each once, with its reason, for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from approvals.models import ApprovalRequest
from approvals.transitions import decide_gate
from pipelines import catalog, queries, sweeps
from pipelines.creation import Place
from pipelines.models import Application, AuditEvent, Environment, Policy, Run, Stage, Workspace
from pipelines.retention import remove_older_than
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from recovery import run_retry_work
from recovery.models import Operation, RunRetry
from recovery.run_retries import recompute
from recovery.states import ENDED_RUN_RETRY, RUN_RETRY_MOVES, RunRetryState
from tests.approvals.asked import rule
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.laned import hold, inside, open_lane, waiting
from tests.pipelines.blackout_nights import period
from tests.pipelines.engine import kinds, last_event, letters, states, status
from tests.recovery.bulked import K, begun, letters_of, of, work_through
from tests.recovery.retried import fail, fork_of, newest, pass_time, policy_of, retries
from tests.recovery.stories import EXTERNAL, effect_of
from tests.scheduled import MakeTrigger
from tests.verbs import acknowledge, retry_stage

StartRun = Callable[..., Run]
People = dict[str, Person]


@pytest.fixture
def failing(start_run: StartRun, hand: Hand, workspace: Workspace) -> Callable[..., Run]:
    """Makes a run that fails at its first stage, under a policy for whole runs."""

    def make(*stages: Any, code: str = "UPSTREAM_DOWN", told: dict[str, Any] | None = None, **ruled: Any) -> Run:
        if not Policy.objects.exists():
            policy_of(workspace, **ruled)
        run = start_run(*(stages or ("first", "second")))
        fail(hand, code, **(told or {}))
        return Run.objects.get(id=run.id)

    return make


def called_off(run: Run, why: str) -> None:
    """It is, with this reason, and nothing ever comes of it."""
    retry = newest(run)
    assert (retry.state, retry.why) == ("called_off", why)
    assert last_event(run, "run.retry_called_off").reason == why


# what failed


@pytest.mark.parametrize(
    ("code", "told", "verdict"),
    [
        ("VALIDATION_ERROR", {}, "terminal_error"),
        ("UPSTREAM_DOWN", {"retryable": False}, "not_retryable"),
    ],
)
def test_what_would_fail_again_as_surely_is_declined_once_and_says_why(
    failing: Callable[..., Run], clock: Clock, code: str, told: dict[str, Any], verdict: str
) -> None:
    """I15: the no is kept too, with all that it was decided on."""
    run = failing(code=code, told=told)
    retry = newest(run)
    assert (retry.state, retry.due_at, retry.decision["verdict"]) == ("declined", None, verdict)
    assert recompute(retry.decision).as_json() == {**retry.decision, "failures": tuple(retry.decision["failures"])}
    assert last_event(run, "run.retry_declined").reason == retry.explanation
    assert pass_time(clock, 86_400) == 0
    assert status(run) == "failed"


def test_a_rejected_gate_stays_rejected(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, clock: Clock
) -> None:
    """I9: neither in place nor as a new run is anybody asked anew unasked."""
    policy_of(workspace, mode="new_run")
    run = start_run({"name": "post", "approval": {"when": "before", "require_person": True}})
    decide_gate(stages_of(run)[0].id, actor=people["approver"].actor, approved=False, reason="no")
    assert status(run) == "failed"
    assert newest(run).decision["verdict"] == "gate_denied"
    assert pass_time(clock, 86_400) == 0
    assert Run.objects.count() == 1


def test_what_a_deadline_or_a_cancel_ended_is_never_looked_at(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, clock: Clock
) -> None:
    """I8: there is no decision about such runs, and so nothing that could come of one."""
    policy_of(workspace)
    late, cancelled = start_run("first", deadline_seconds=30), start_run("first")
    cancel_run(cancelled.id, actor=people["operator"].actor)
    clock.advance(31)
    assert sweeps.enforce_deadlines() == 1
    assert (status(late), status(cancelled)) == ("failed", "cancelled")
    assert not RunRetry.objects.exists()
    assert pass_time(clock, 86_400) == 0


def test_a_deadline_before_the_retry_declines_it(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    policy_of(workspace)
    run = start_run("first", deadline_seconds=50)
    fail(hand)
    assert newest(run).decision["verdict"] == "past_deadline"
    assert pass_time(clock, 100) == 0
    assert status(run) == "failed"


def test_only_runs_of_the_policys_place_and_codes(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    policy_of(workspace, match={"environment": "production"})
    run = start_run("first")
    fail(hand)
    assert not RunRetry.objects.exists()
    policy_of(workspace, "here", match={"environment": "development", "error_codes": ["TIMEOUT"]})
    other, same = start_run("first"), start_run("first")
    fail(hand)
    fail(hand, "timeout")
    assert newest(other).decision["verdict"] == "code_not_listed"
    assert newest(same).state == "due"
    assert pass_time(clock) == 1
    assert [status(one) for one in (run, other, same)] == ["failed", "failed", "running"]


def test_every_stage_at_fault_begins_anew_and_what_is_passed_by_stays(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """N4: all failed stages in one go; a failure that others passed by is no fault; all or nothing."""
    policy_of(workspace)
    run = start_run(
        {"name": "left", "depends_on": []},
        {"name": "right", "depends_on": []},
        {"name": "cosmetic", "depends_on": [], "run_next_if_failed": True},
        {"name": "after", "depends_on": ["cosmetic"]},
        {"name": "join", "depends_on": ["left", "right"]},
    )
    for _ in range(3):
        fail(hand)
    hand.report(hand.take())
    assert status(run) == "failed"
    assert pass_time(clock) == 1
    told = {"left": "ready", "right": "ready", "cosmetic": "failed", "after": "completed", "join": "pending"}
    assert states(run) == told
    assert {name: state for name, (_, state) in letters(run).items()} == {
        "left": "redriven",
        "right": "redriven",
        "cosmetic": "open",
    }
    assert len(newest(run).operations) == 2
    hand.finish()
    assert status(run) == "completed"


def test_what_is_behind_a_failed_stage_and_was_done_before_is_done_anew(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, clock: Clock
) -> None:
    """Model §2: with everything behind it, as a revision of the run (R25)."""
    run = start_run("first", "second")
    hand.finish()
    policy_of(workspace)
    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="another look")
    fail(hand)
    assert states(run) == {"first": "failed", "second": "completed"}
    assert pass_time(clock) == 1
    assert states(run) == {"first": "ready", "second": "pending"}
    (operation,) = Operation.objects.filter(requested_by=None)
    assert operation.request["scope"] == "stage_and_downstream"


# what holds it back


def test_a_freeze_holds_it_back_and_lets_it_go(
    failing: Callable[..., Run], workspace: Workspace, clock: Clock, hand: Hand
) -> None:
    """F117: it waits, nothing is refused, and it says by what."""
    run = failing()
    freeze = period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True, reason="a move")
    for _ in range(3):
        assert pass_time(clock) == 0
    assert retries(run) == [("due", 1)]
    (blocker,) = [one for one in queries.blockers(run, stages_of(run)) if "retries itself" in one.cause]
    assert (blocker.holder, blocker.closed_by) == ("the clock", "blackout")
    assert "freeze 'the freeze'" in blocker.cause
    assert not AuditEvent.objects.filter(channel="policy").exists()
    execute("UPDATE pipelines_blackout SET enabled = false WHERE id = %s", [freeze.id])
    assert run_retry_work.carry_on() == 1
    assert states(run)["first"] == "ready"


def test_a_freeze_that_begins_between_looking_and_doing_holds_it_back(
    failing: Callable[..., Run], workspace: Workspace, clock: Clock
) -> None:
    """The plan is asked once more under the lock."""
    run, anew = failing(), failing()
    RunRetry.objects.filter(run=anew)
    clock.advance(60)
    due = [run_retry_work._Due(one.id, one.run_id, workspace.id, one.policy_name) for one in RunRetry.objects.all()]
    period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True, reason="a move")
    assert [run_retry_work._carry_out(one) for one in due] == [False, False]
    assert (status(run), retries(run)) == ("failed", [("due", 1)])
    assert not Operation.objects.exists()


# what refuses it


@pytest.mark.parametrize("mode", ["resume", "new_run"])
def test_an_effect_that_needs_review_is_never_repeated_by_itself(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock, mode: str
) -> None:
    """O28, O44, I11: refused once with its disposition, told and audited; nobody is asked, nothing loops."""
    policy_of(workspace, mode=mode)
    run = start_run({"name": "pay", **EXTERNAL}, "book")
    job = hand.take()
    effect_of(run, "pay", key="charge-7")
    hand.report(job, "failed", error_code="UPSTREAM_DOWN")
    assert pass_time(clock) == 1
    retry = newest(run)
    assert (retry.state, retry.code, retry.disposition) == ("refused",) + ("operator_review_required",) * 2
    assert "evidence" in retry.why
    assert states(run) == {"pay": "failed", "book": "pending"}
    assert letters(run) == {"pay": ("terminal_error", "open")}
    assert Run.objects.count() == 1
    assert not Operation.objects.exists()
    assert not ApprovalRequest.objects.exists()
    verdict, refused = AuditEvent.objects.filter(run=run.id, channel="policy").order_by("at", "id")
    assert (verdict.action, verdict.outcome, verdict.code) == (
        "execution.recovery_disposition",
        "denied",
        "operator_review_required",
    )
    assert "operation" not in verdict.data
    assert refused.outcome != "allowed"
    assert refused.code == "operator_review_required"
    for _ in range(3):
        assert pass_time(clock, 3600) == 0
    assert retries(run) == [("refused", 1)]
    assert "operator_review_required" in last_event(run, "run.retry_refused").reason


def test_a_contradicted_effect_is_denied(start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock) -> None:
    """O27: recovery_denied, which nobody overrides, a policy least of all."""
    policy_of(workspace)
    run = start_run({"name": "pay", **EXTERNAL})
    job = hand.take()
    effect_of(run, "pay", "contradicted")
    hand.report(job, "failed", error_code="UPSTREAM_DOWN")
    assert pass_time(clock) == 1
    assert (newest(run).code, newest(run).disposition) == ("recovery_denied", "recovery_denied")
    assert status(run) == "failed"


def test_where_one_of_several_is_refused_none_is_done(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """All of it or nothing: what had been begun anew before is undone with its events."""
    policy_of(workspace)
    run = start_run(
        {"name": "load", "depends_on": []},
        {"name": "pay", "depends_on": [], **EXTERNAL},
        {"name": "join", "depends_on": ["load", "pay"]},
    )
    fail(hand)
    job = hand.take()
    effect_of(run, "pay")
    hand.report(job, "failed", error_code="UPSTREAM_DOWN")
    before = list(Stage.objects.filter(run=run).order_by("position").values_list("state", "epoch"))
    assert pass_time(clock) == 1
    assert newest(run).state == "refused"
    assert list(Stage.objects.filter(run=run).order_by("position").values_list("state", "epoch")) == before
    assert "stage.retry" not in kinds(run)
    assert not Operation.objects.exists()
    assert not AuditEvent.objects.filter(channel="policy", outcome="allowed", action="dead_letter.redrive").exists()
    assert hand.pull() == []


@pytest.mark.parametrize(
    ("limits", "code"),
    [({"attempts_per_stage": 1}, "attempts_exhausted"), ({"total_output_bytes": 300_000}, "budget_exhausted")],
)
def test_what_the_limits_have_no_room_for_is_refused_with_the_reason(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock, limits: dict[str, int], code: str
) -> None:
    """R25, I13: no automatic retry gives a run more than it has."""
    policy_of(workspace)
    run = start_run("only", limits=limits)
    fail(hand)
    assert pass_time(clock) == 1
    assert (newest(run).state, newest(run).code) == ("refused", code)
    assert status(run) == "failed"
    assert pass_time(clock, 3600) == 0


def test_what_others_must_agree_to_is_refused_and_nobody_is_asked(
    failing: Callable[..., Run], workspace: Workspace, clock: Clock
) -> None:
    """A rule binds every role, and a policy too."""
    rule(workspace, "redrive")
    run = failing()
    assert pass_time(clock) == 1
    assert (newest(run).state, newest(run).code) == ("refused", "approval_stale")
    assert "others must agree" in newest(run).why
    assert not ApprovalRequest.objects.exists()


def test_a_fault_of_the_console_ends_it(
    failing: Callable[..., Run], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that would come again with every sweep is told once."""
    run = failing()

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(run_retry_work, "_in_place", broken)
    assert pass_time(clock) == 1
    assert (newest(run).state, newest(run).code) == ("refused", "internal_error")
    assert pass_time(clock) == 0


# what calls it off


def test_a_retry_by_a_person_in_between_calls_it_off(
    failing: Callable[..., Run], people: People, clock: Clock, hand: Hand
) -> None:
    run = failing()
    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor)
    called_off(run, "operator-acme asked for a retry")
    hand.report(hand.take())
    assert pass_time(clock) == 0
    assert states(run) == {"first": "completed", "second": "ready"}
    assert not Operation.objects.filter(requested_by=None).exists()


@pytest.mark.parametrize("verb", ["skip", "redrive", "rerun", "replay", "discard"])
def test_whatever_a_person_does_about_the_run_calls_it_off(
    failing: Callable[..., Run], people: People, as_person: Callable[[Person], Api], clock: Clock, verb: str
) -> None:
    run = failing()
    api = as_person(people["operator"])
    (letter,) = letters_of([run])
    path = {
        "skip": f"/v1/stages/{stages_of(run)[0].id}/skip",
        "redrive": f"/v1/dead-letters/{letter.id}/redrive",
        "discard": f"/v1/dead-letters/{letter.id}/discard",
    }.get(verb, f"/v1/executions/{run.id}/{verb}")
    answer = api.post(path, {"reason": "mine"})
    assert answer.status_code in (200, 201), answer.content
    called_off(run, f"operator-acme asked for a {verb}")
    assert newest(run).ended_by == "operator-acme"
    assert pass_time(clock) == 0


def test_acknowledging_its_dead_letter_leaves_it_due(failing: Callable[..., Run], people: People, clock: Clock) -> None:
    """To look at it is not to take it over."""
    run = failing()
    acknowledge(letters_of([run])[0], actor=people["operator"].actor)
    assert pass_time(clock) == 1
    assert letters(run) == {"first": ("terminal_error", "redriven")}


def test_a_bulk_calls_it_off_for_each_of_its_targets(failing: Callable[..., Run], people: People, clock: Clock) -> None:
    runs = [failing(), failing(), failing()]
    bulk = begun(of(K.REDRIVE, letters_of(runs[:2])), people["operator"].actor)
    assert work_through(bulk, clock).state == "completed"
    assert [newest(run).state for run in runs] == ["called_off", "called_off", "due"]


def test_what_a_person_asked_for_and_waits_for_others_calls_it_off(
    start_run: StartRun, hand: Hand, workspace: Workspace, people: People, clock: Clock
) -> None:
    """Also where they asked before the run had failed."""
    rule(workspace, "retry")
    policy_of(workspace, max_retries=9)
    run = start_run(
        {"name": "left", "depends_on": []},
        {"name": "right", "depends_on": []},
        {"name": "join", "depends_on": ["left", "right"]},
    )
    fail(hand)
    done = retry_stage(stages_of(run)[0].id, actor=people["operator"].actor)
    assert done.status == "awaiting_approval"
    fail(hand)
    assert retries(run) == [("due", 1)]
    assert pass_time(clock) == 1
    called_off(run, "the retry that operator-acme asked for waits for others")
    assert status(run) == "failed"


@pytest.mark.parametrize("what", ["paused", "deleted"])
def test_a_policy_that_rules_no_more_calls_it_off(
    failing: Callable[..., Run], people: People, clock: Clock, what: str
) -> None:
    run = failing()
    policy = Policy.objects.get()
    if what == "paused":
        catalog.change_policy(policy.id, actor=people["admin"].actor, changes={"status": "paused"})
    else:
        policy.delete()
    assert pass_time(clock) == 1
    called_off(run, "policy again is paused" if what == "paused" else "policy again is there no more")
    assert status(run) == "failed"


def test_a_policy_that_is_changed_leaves_what_was_decided(
    failing: Callable[..., Run], people: People, clock: Clock
) -> None:
    """Model §3.3: decisions already taken keep the rule they were taken by."""
    run = failing()
    changes = {"rule": {"mode": "new_run", "max_retries": 1, "retry_interval": 5}, "name": "another"}
    catalog.change_policy(Policy.objects.get().id, actor=people["admin"].actor, changes=changes)
    assert pass_time(clock, 59) == 0
    assert pass_time(clock, 1) == 1
    assert states(run)["first"] == "ready"


def test_a_run_that_was_reopened_in_another_way_is_left_alone(failing: Callable[..., Run], clock: Clock) -> None:
    """Whatever moved it: the sweep looks at the run as it stands."""
    run = failing()
    execute("UPDATE pipelines_run SET finished_at = finished_at + interval '1 second' WHERE id = %s", [run.id])
    assert pass_time(clock) == 1
    called_off(run, "the run was gone on with, and failed again")


# over the API


@pytest.fixture
def operator(people: People, as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


def test_it_is_told_and_called_off_over_the_api(failing: Callable[..., Run], operator: Api, clock: Clock) -> None:
    run = failing(backoff="exponential")
    path = f"/v1/executions/{run.id}"
    told = operator.get(path).json()["run_retry"]
    assert (told["status"], told["mode"], told["number"], told["max_retries"]) == ("due", "resume", 1, 3)
    assert (told["policy"], told["held_by"], told["made"]) == ("again", None, None)
    assert told["explanation"] == "retry 1 of 3 in 60 s by policy again (exponential), at the stages that failed"
    causes = [one["cause"] for one in operator.get(f"{path}/blockers").json()["results"]]
    assert any(one.startswith("retries itself at ") and one.endswith(" by policy again, 1 of 3") for one in causes)
    assert any("retries itself" in line for line in [operator.get(f"{path}/account").json()["standing"]])

    answer = operator.post(f"{path}/run-retry/stop", {"reason": "the upstream is gone"})
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["why"]) == ("called_off", "the upstream is gone")
    assert answer.json()["ended_by"] == "operator-acme"
    again = operator.post(f"{path}/run-retry/stop")
    assert (again.status_code, again.json()) == (200, answer.json())
    first, second = AuditEvent.objects.filter(action="run_retry.stop").order_by("at", "id")
    assert (first.outcome, second.outcome) == ("allowed", "no_op")
    assert pass_time(clock) == 0
    (listed,) = operator.get(f"{path}/run-retry").json()["results"]
    assert listed == operator.get(path).json()["run_retry"]


def test_where_nothing_is_due_there_is_nothing_to_stop(start_run: StartRun, hand: Hand, operator: Api) -> None:
    run = start_run("first")
    assert operator.get(f"/v1/executions/{run.id}").json()["run_retry"] is None
    assert operator.get(f"/v1/executions/{run.id}/run-retry").json()["results"] == []
    answer = operator.post(f"/v1/executions/{run.id}/run-retry/stop")
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_state_invalid")


def test_nobody_stops_what_is_not_theirs(
    failing: Callable[..., Run],
    people: People,
    outsider: Person,
    as_person: Callable[[Person], Api],
    api: Api,
    sibling_key: str,
) -> None:
    """I16: another workspace's or application's is 404; a viewer lacks the right; a key may look, not stop."""
    run = failing()
    path = f"/v1/executions/{run.id}/run-retry"
    assert as_person(outsider).post(f"{path}/stop").status_code == 404
    assert as_person(outsider).get(path).status_code == 404
    assert Api({"X-API-Key": sibling_key}).get(path).status_code == 404
    assert api.get(path).status_code == 200
    assert api.post(f"{path}/stop").status_code == 403
    for role in ("viewer", "approver"):
        assert as_person(people[role]).post(f"{path}/stop").status_code == 403
    assert newest(run).state == "due"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"match": {"stage": "first"}}, "match.stage"),
        ({"match": {"handler": "Handler"}}, "match.handler"),
        ({"rule": {"max_retries": 0, "retry_interval": 60}}, "rule.max_retries"),
        ({"rule": {"max_retries": 101, "retry_interval": 60}}, "rule.max_retries"),
        ({"rule": {"max_retries": 1, "retry_interval": 0}}, "rule.retry_interval"),
        ({"rule": {"max_retries": 1, "retry_interval": 2_678_401}}, "rule.retry_interval"),
        ({"rule": {"retry_interval": 60}}, "rule.max_retries"),
        ({"rule": {"max_retries": 1, "retry_interval": 60, "mode": "again"}}, "rule.mode"),
        ({"rule": {"max_retries": 1, "retry_interval": 60, "backoff": "wild"}}, "rule.backoff"),
        ({"rule": {"max_retries": 1, "retry_interval": 60, "max_retry_interval": "x"}}, "rule.max_retry_interval"),
        ({"rule": {"max_retries": 1, "retry_interval": 60, "jitter": "yes"}}, "rule.jitter"),
    ],
)
def test_a_wrong_policy_is_refused_by_its_field(
    people: People, as_person: Callable[[Person], Api], change: dict[str, Any], field: str
) -> None:
    """Bad input: the field and its limit are named, and nothing is made."""
    good = {"name": "again", "kind": "run_retry", "rule": {"max_retries": 1, "retry_interval": 60}}
    admin = as_person(people["admin"])
    answer = admin.post("/v1/policies", {**good, **change})
    assert answer.status_code == 400, answer.content
    assert field in answer.json()["errors"]
    assert not Policy.objects.exists()
    assert admin.post("/v1/policies", good).status_code == 201


# beside lanes, rows and time


@pytest.mark.parametrize("mode", ["resume", "new_run"])
def test_a_run_of_a_backfill_comes_back_to_its_lane(
    make_trigger: MakeTrigger,
    hand: Hand,
    workspace: Workspace,
    clock: Clock,
    django_capture_on_commit_callbacks: Callable[..., Any],
    mode: str,
) -> None:
    """F52: what is retried by itself stands in its lane, and waits for its turn there."""
    from pipelines import lanes

    policy_of(workspace, mode=mode)
    trigger = make_trigger()
    lane = open_lane(trigger, 1)
    runs = hold(trigger, lane, 2)
    with django_capture_on_commit_callbacks(execute=True):
        lanes.let_in([lane])
        fail(hand)
    assert inside(lane) == [1]
    assert newest(runs[0]).state == "due"
    with django_capture_on_commit_callbacks(execute=True):
        assert pass_time(clock) == 1
    assert inside(lane) == [1]
    assert waiting(lane) == [0]
    again = runs[0] if mode == "resume" else fork_of(runs[0])
    again.refresh_from_db()
    assert (again.held, again.lane_id, again.lane_rank) == (True, lane, 0)
    with django_capture_on_commit_callbacks(execute=True):
        hand.report(hand.take())
    assert inside(lane) == [0]


def test_a_run_that_completes_costs_no_statement_and_one_that_fails_one(
    start_run: StartRun, hand: Hand, workspace: Workspace
) -> None:
    """N1: without a policy there is one statement, at the end of a failed run; with one, none for what completes."""
    start_run("first")
    start_run("first")
    policy_of(workspace)
    done, lost = hand.pull(2)
    with CaptureQueriesContext(connection) as asked:
        hand.report(done)
    assert not [one for one in asked.captured_queries if "run_retry" in one["sql"] or "runretry" in one["sql"]]
    Policy.objects.all().delete()
    with CaptureQueriesContext(connection) as asked:
        hand.report(lost, "failed", error_code="UPSTREAM_DOWN")
    assert len([one for one in asked.captured_queries if "run_retry" in one["sql"] or "runretry" in one["sql"]]) == 1


def test_many_that_fail_at_once_are_decided_in_a_few_statements(
    start_run: StartRun, hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """No statement for each run: they are decided together."""
    policy_of(workspace)
    counts = []
    for number in (1, 12):
        for _ in range(number):
            start_run({"name": "first", "options": {"max_recoveries": 0}})
        assert len(hand.pull(20)) == number
        clock.advance(120)
        with CaptureQueriesContext(connection) as asked:
            sweeps.expire_leases()
        counts.append(len(asked.captured_queries))
    assert RunRetry.objects.filter(state="due").count() == 13
    assert counts[0] == counts[1]


def test_rows_are_kept_and_go_with_their_run(failing: Callable[..., Run], clock: Clock) -> None:
    """Model §3.13: a run that is to be retried stays; else its decisions go with it."""
    run = failing()
    clock.advance(days=31)
    assert remove_older_than(30) == 0
    RunRetry.objects.filter(run=run).update(state="called_off", ended_at=clock.now(), why="tests")
    assert remove_older_than(30) == 1
    assert not RunRetry.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        "explanation = 'other'",
        "due_at = due_at + interval '1 hour'",
        "number = 2",
        "mode = 'new_run'",
        "decision = '{}'",
        "failed_at = now()",
    ],
)
def test_what_was_decided_never_changes(failing: Callable[..., Run], change: str) -> None:
    """I15, by the database itself."""
    failing()
    with pytest.raises(IntegrityError, match="stay as they are"), transaction.atomic():
        execute(f"UPDATE recovery_runretry SET {change}")


def test_rows_are_not_taken_away(failing: Callable[..., Run]) -> None:
    failing()
    with pytest.raises(IntegrityError), transaction.atomic():
        execute("DELETE FROM recovery_runretry")
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(IntegrityError), transaction.atomic():
        execute("TRUNCATE recovery_runretry")


@pytest.mark.parametrize("state", sorted(ENDED_RUN_RETRY))
def test_what_has_ended_stays_so(failing: Callable[..., Run], clock: Clock, state: str) -> None:
    run = failing()
    if state == "declined":
        run = failing(code="VALIDATION_ERROR")
    else:
        RunRetry.objects.filter(run=run).update(state=state, ended_at=clock.now())
    for other in RunRetryState.values:
        if other != state:
            with pytest.raises(IntegrityError), transaction.atomic():
                RunRetry.objects.filter(run=run).update(state=other)


def test_every_move_leads_from_due_to_an_end() -> None:
    for moves in RUN_RETRY_MOVES.values():
        assert set(moves) == {RunRetryState.DUE}
        assert set(moves.values()) < ENDED_RUN_RETRY


def test_in_a_protected_environment_it_needs_no_approval_of_its_own(
    start_run: StartRun,
    application: Application,
    environments: dict[str, Environment],
    workspace: Workspace,
    clock: Clock,
) -> None:
    """Admins made the policy; only a rule asks for more. Model §5: without a rule one approver of operators only."""
    production = environments["production"]
    place = Place(workspace.id, application.id, production.id, production.slug)
    policy_of(workspace, mode="new_run", match={"environment": "production"})
    run = start_run("first", in_place=place)
    fail(Hand(place, "hand-9", ["Handler"]))
    assert pass_time(clock) == 1
    assert fork_of(run).environment_id == production.id
