"""How runs go through their graph: failures passed over, branches beside each other, cancelling in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines import sweeps
from pipelines.access import Actor
from pipelines.models import AuditEvent, Run
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.factories import PolicyFactory
from tests.pipelines.engine import attempt, attempts, everything, gate, kinds, letters, refused, stage, states, status

StartRun = Callable[..., Run]


def test_a_failure_may_be_passed_over_when_its_stage_says_so(start_run: StartRun, hand: Hand) -> None:
    """`runNextIfFailed` sits on the stage that may fail: the next one starts, the run completes."""
    run = start_run({"name": "may fail", "run_next_if_failed": True}, "next")
    hand.report(hand.take(), "failed", error_code="FOO")
    assert states(run) == {"may fail": "failed", "next": "ready"}
    job = hand.take()
    assert job.dependencies == {"may fail": None}
    hand.report(job)
    assert (status(run), letters(run)) == ("completed", {"may fail": ("terminal_error", "open")})
    assert_invariants()


def test_a_failed_branch_does_not_stop_another(start_run: StartRun, hand: Hand) -> None:
    run = start_run(
        "top",
        {"name": "left", "depends_on": ["top"]},
        {"name": "right", "depends_on": ["top"]},
        {"name": "right end", "depends_on": ["right"]},
        {"name": "join", "depends_on": ["left", "right end"]},
    )
    hand.report(hand.take())
    left, right = sorted(hand.pull(2), key=lambda job: job.stage.position)
    hand.report(left, "failed", error_code="FOO")
    assert status(run) == "running"
    hand.report(right)
    assert hand.take().stage.name == "right end"
    assert states(run)["join"] == "pending"
    assert status(run) == "running"
    assert_invariants()


def test_a_run_with_a_failed_branch_ends_when_nothing_is_left(start_run: StartRun, hand: Hand) -> None:
    run = start_run("a", "b", {"name": "join", "depends_on": ["a", "b"]})
    a, b = hand.pull(2)
    hand.report(a, "failed", error_code="FOO")
    assert status(run) == "running"
    hand.report(b)
    assert (status(run), states(run)["join"]) == ("failed", "pending")
    assert kinds(run).count("run.failed") == 1
    assert_invariants()


def test_a_join_starts_once_when_its_last_branch_is_done(start_run: StartRun, hand: Hand) -> None:
    names = [f"branch {number}" for number in range(10)]
    run = start_run(*names, {"name": "join", "depends_on": names})
    for job in hand.pull(10):
        assert states(run)["join"] == "pending"
        hand.report(job)
    assert kinds(run, "join") == ["stage.make_ready"]
    assert_invariants()


def test_two_stages_have_options_of_their_own(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """P30."""
    run = start_run(
        {"name": "patient", "options": {"max_retries": 2, "retry_interval": 10}},
        {"name": "hasty"},
        {"name": "join", "depends_on": ["patient", "hasty"]},
    )
    for job in hand.pull(2):
        hand.report(job, "failed", error_code="FOO")
    assert states(run) == {"patient": "retry_scheduled", "hasty": "failed", "join": "pending"}
    assert status(run) == "waiting"


def test_retries_end_where_their_number_says(start_run: StartRun, hand: Hand, clock: Clock) -> None:
    """P31: one and three; the decision of each is on its attempt (F166)."""
    run = start_run({"name": "a", "options": {"max_retries": 3, "retry_interval": 10, "backoff": "linear"}})
    delays = []
    while jobs := hand.pull():
        hand.report(jobs[0], "failed", error_code="FOO")
        delays.append(attempt(jobs[0]).decision["delay"])
        clock.advance(delays[-1] or 0)
    assert delays == [10, 20, 30, None]
    assert letters(run) == {"a": ("retries_exhausted", "open")}
    assert stage(run, "a").failure_disposition == "retries_exhausted"
    clock.advance(days=365)
    assert hand.pull() == []
    assert_invariants()


def test_the_decision_on_an_attempt_is_computed_again_from_its_row(start_run: StartRun, hand: Hand, place: Any) -> None:
    """F166, P45: also after the policy that ruled it is gone."""
    from pipelines.retries import recompute

    policy = PolicyFactory(
        workspace_id=place.workspace_id,
        name="gentle",
        match={"stage": "a", "error_codes": ["FOO"]},
        rule={"max_retries": 1, "retry_interval": 60, "jitter": True},
    )
    run = start_run({"name": "a", "options": {"max_retries": 9, "retry_interval": 1}}, "b")
    job = hand.take()
    hand.report(job, "failed", error_code="foo")
    policy.delete()
    stored = attempt(job).decision
    assert recompute(stored).as_json() == stored
    assert (stored["source"], stored["retries_left"], stored["max_retries"]) == ("policy:gentle", 0, 1)
    assert 54 <= stored["delay"] <= 66
    assert states(run) == {"a": "retry_scheduled", "b": "pending"}


def test_a_policy_that_does_not_list_the_code_fails_the_stage_whatever_its_options_say(
    start_run: StartRun, hand: Hand, place: Any
) -> None:
    """P46."""
    PolicyFactory(
        workspace_id=place.workspace_id,
        match={"handler": "Handler", "error_codes": ["BAR"]},
        rule={"max_retries": 5, "retry_interval": 1},
    )
    run = start_run({"name": "a", "options": {"max_retries": 9, "retry_interval": 1}})
    hand.report(hand.take(), "failed", error_code="FOO")
    assert (states(run), letters(run)) == ({"a": "failed"}, {"a": ("terminal_error", "open")})


def test_another_workspaces_policy_rules_nothing(start_run: StartRun, hand: Hand, other_workspace: Any) -> None:
    """I16."""
    PolicyFactory(workspace=other_workspace, match={}, rule={"max_retries": 5, "retry_interval": 1})
    run = start_run("a")
    hand.report(hand.take(), "failed", error_code="FOO")
    assert states(run) == {"a": "failed"}


def test_a_cancel_ends_everything_in_one_transaction_and_lists_what_may_go_on(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """P73, P75, F30, F65, F75: stages, gates, attempts and timers; nobody waits for the worker."""
    run = start_run(
        "working",
        {"name": "retrying", "options": {"max_retries": 1, "retry_interval": 60}},
        {"name": "gated", "approval": {"when": "before"}},
        {"name": "paying", "effect_mode": "external"},
        "untouched",
        {"name": "join", "depends_on": ["working", "retrying", "gated", "paying", "untouched"]},
    )
    jobs = {job.stage.name: job for job in hand.pull(4)}
    clock.advance(30)
    hand.renew(jobs["working"])
    clock.advance(30)
    sweeps.expire_leases()
    for job in hand.pull(4):
        if job.stage.name == "retrying":
            hand.report(job, "failed", error_code="FOO")
    before = states(run)
    assert (before["working"], before["retrying"], before["paying"]) == (
        "running",
        "retry_scheduled",
        "needs_reconciliation",
    )
    cancelled = cancel_run(run.id, actor=people["operator"].actor, reason="wrong month")
    assert not cancelled.repeated
    assert set(states(run).values()) == {"cancelled"}
    assert gate(run, "gated").state == "cancelled"
    kinds_of = sorted((item["kind"], item["stageId"]) for item in cancelled.reconciliation)
    assert ("uncertain_effect", str(stage(run, "paying").id)) in kinds_of
    assert ("open_gate", str(stage(run, "gated").id)) in kinds_of
    assert ("running_attempt", str(stage(run, "working").id)) in kinds_of
    told = " ".join(item["detail"] for item in cancelled.reconciliation)
    assert "stopped" not in told
    (lease,) = hand.renew(jobs["working"])
    assert (lease.acquired, lease.reason) == (False, "run_terminal")
    assert lease.commands[0]["command"] == "cancel"
    assert hand.report(jobs["working"]).code == "stale_execution"
    clock.advance(days=1)
    before_all = everything()
    assert not any(sweeps.sweep().values())
    assert hand.pull(10) == []
    again = cancel_run(run.id, actor=people["operator"].actor, reason="once more")
    assert (again.repeated, again.reconciliation) == (True, cancelled.reconciliation)
    assert everything() == before_all
    assert list(
        AuditEvent.objects.filter(action="run.cancel").order_by("at", "id").values_list("outcome", flat=True)
    ) == [
        "allowed",
        "no_op",
    ]
    assert_invariants()


def test_a_scheduled_retry_does_not_outlive_its_run(
    start_run: StartRun, hand: Hand, clock: Clock, application_actor: Actor
) -> None:
    """F63, F70: retry at +60 s, cancelled at +10 s: nothing at +60 s, and no new run either."""
    run = start_run({"name": "a", "options": {"max_retries": 3, "retry_interval": 60}})
    hand.report(hand.take(), "failed", error_code="FOO")
    clock.advance(10)
    cancel_run(run.id, actor=application_actor)
    clock.advance(60)
    assert hand.pull() == []
    assert attempts(run, "a") == ["failed"]
    assert Run.objects.count() == 1
    assert_invariants()


def test_an_ended_run_is_not_cancelled(start_run: StartRun, hand: Hand, application_actor: Actor) -> None:
    done, failed = start_run("a"), start_run("a")
    hand.report(hand.take())
    hand.report(hand.take(), "failed", error_code="FOO")
    for run in (done, failed):
        with refused("execution_state_invalid"):
            cancel_run(run.id, actor=application_actor)


def test_another_applications_run_is_not_known(
    start_run: StartRun, application_actor: Actor, outsider: Person, environments: dict[str, Any]
) -> None:
    """I16, F151: no change."""
    from dataclasses import replace

    run = start_run("a")
    for stranger in (
        outsider.actor,
        replace(application_actor, application_id=environments["staging"].id),
        replace(application_actor, environment_id=environments["staging"].id),
    ):
        with refused("not_found"):
            cancel_run(run.id, actor=stranger)
