"""What people start while a blackout holds: refused, unless they say why it is to start all the same (contract §4).

And what starts without them: an application's run waits, what has begun goes on, a due retry waits for the end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from pipelines import blackout_rows, queries, sweeps
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Blackout, DeadLetter, Environment, Run, Workspace
from recovery.models import Operation
from tests.approvals.asked import agree, join, rounds, rule, states
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.pipelines.blackout_nights import on_dates, period

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
FAILED = {"error_code": "BUSINESS_REJECTED"}
RETRIED = {"name": "load", "options": {"max_retries": 2, "retry_interval": 60}}
WHY = "the auditors wait for it"
VERBS = ("retry", "redrive", "rerun", "replay")


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def run(start_run: StartRun, hand: Hand) -> Run:
    """It has failed, with a dead letter and a checkpoint."""
    made = start_run("load", "publish")
    hand.report(hand.take(), "failed", **FAILED)
    return Run.objects.get(id=made.id)


def freeze(workspace: Workspace, **more: Any) -> Blackout:
    return period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True, reason="a move", **more)


def path(verb: str, run: Run) -> str:
    match verb:
        case "retry":
            return f"/v1/stages/{stages_of(run)[0].id}/retry"
        case "redrive":
            return f"/v1/dead-letters/{DeadLetter.objects.get(run=run).id}/redrive"
        case _:
            return f"/v1/executions/{run.id}/{verb}"


def started(verb: str, run: Run, answer: Any) -> Run:
    """The run that the verb has made start."""
    assert answer.status_code in (200, 201), answer.content
    return Run.objects.get(id=answer.json()["execution_id"] if verb in ("rerun", "replay") else run.id)


# people's starts


@pytest.mark.parametrize("verb", VERBS)
def test_a_start_is_refused_and_says_by_what_until_when_and_what_overrides_it(
    verb: str, run: Run, workspace: Workspace, operator: Api, hand: Hand
) -> None:
    """409 `blackout_active`; nothing moves, no key is kept, one event in the audit."""
    freeze(workspace)
    before = [(stage.state, stage.epoch) for stage in stages_of(run)], Run.objects.count()
    key = str(uuid.uuid4())
    answer = operator.post(path(verb, run), {"reason": "again", "client_request_id": key})
    assert (answer.status_code, answer.json()["code"]) == (409, "blackout_active")
    told = answer.json()
    assert told["override"] == "override_reason"
    assert (told["blackout"]["name"], told["blackout"]["is_freeze"]) == ("the freeze", True)
    assert "give override_reason" in told["detail"]
    assert before == ([(stage.state, stage.epoch) for stage in stages_of(run)], Run.objects.count())
    assert not Operation.objects.exists()
    assert AuditEvent.objects.filter(code="blackout_active").count() == 1
    assert hand.pull() == []

    again = operator.post(path(verb, run), {"reason": "again", "client_request_id": key, "override_reason": WHY})
    assert started(verb, run, again)


@pytest.mark.parametrize("verb", VERBS)
def test_with_a_reason_it_starts_is_handed_out_and_the_audit_says_why(
    verb: str, run: Run, workspace: Workspace, operator: Api, hand: Hand
) -> None:
    freeze(workspace)
    made = started(verb, run, operator.post(path(verb, run), {"reason": "again", "override_reason": WHY}))
    assert made.through_blackout
    job = hand.take()
    assert (job.run_id, job.stage.name) == (made.id, "load")
    action = {"retry": "stage.retry", "redrive": "dead_letter.redrive"}.get(verb, f"run.{verb}")
    event = AuditEvent.objects.get(action=action, outcome="allowed")
    assert event.data["override_reason"] == WHY
    sentences = [one["sentence"] for one in operator.get(f"/v1/audit-events?action={action}").json()["results"]]
    assert f"in spite of any blackout: {WHY}" in sentences[0]
    assert Operation.objects.get().request["override_reason"] == WHY


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("reason", ["", "   ", "r" * 10_001, 7])
def test_a_reason_that_is_none_overrides_nothing(
    verb: str, reason: Any, run: Run, workspace: Workspace, operator: Api
) -> None:
    freeze(workspace)
    answer = operator.post(path(verb, run), {"reason": "again", "override_reason": reason})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["override_reason"])
    assert Run.objects.count() == 1


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_says_what_holds_and_whether_or_not_its_plan_is_the_same(
    verb: str, run: Run, workspace: Workspace, operator: Api
) -> None:
    """So a plan that was looked at before the blackout may be carried out with a reason while it holds, or after."""
    ask = {"reason": "again", "dry_run": True}
    before = operator.post(path(verb, run), ask).json()
    assert before["blackout"] is None
    holds = freeze(workspace)
    during = operator.post(path(verb, run), ask).json()
    assert (during["blackout"]["id"], during["blackout"]["until"]) == (str(holds.id), None)
    assert during["plan_digest"] == before["plan_digest"]
    told = {"reason": "again", "plan_digest": during["plan_digest"]}
    assert operator.post(path(verb, run), told).json()["code"] == "blackout_active"
    Blackout.objects.update(enabled=False)
    made = started(verb, run, operator.post(path(verb, run), told))
    assert not made.through_blackout


def test_what_starts_nothing_needs_no_reason(
    start_run: StartRun, run: Run, workspace: Workspace, operator: Api
) -> None:
    """Pause, resume, cancel, skip, acknowledge, discard: people may always stop, and leave out."""
    other = start_run("first", "second")
    freeze(workspace)
    letter = DeadLetter.objects.get(run=run)
    for route in (
        f"executions/{other.id}/pause",
        f"executions/{other.id}/resume",
        f"stages/{stages_of(other)[0].id}/skip",
        f"executions/{other.id}/cancel",
        f"dead-letters/{letter.id}/acknowledge",
        f"dead-letters/{letter.id}/discard",
    ):
        answer = operator.post(f"/v1/{route}", {"reason": "not now"})
        assert answer.status_code == 200, (route, answer.content)


def test_a_blackout_of_elsewhere_holds_nothing_back(
    run: Run, environments: dict[str, Environment], workspace: Workspace, other_workspace: Workspace, operator: Api
) -> None:
    freeze(other_workspace)
    freeze(workspace, environment=environments["production"])
    on_dates(workspace, "2020-01-01")
    period(workspace, "2020-01-01T00:00:00", "2020-01-02T00:00:00")
    period(workspace, "2020-01-01T00:00:00", None, enabled=False)
    assert operator.post(path("retry", run), {"reason": "again"}).status_code == 200


def test_a_reason_without_a_blackout_changes_nothing_but_is_kept(run: Run, operator: Api) -> None:
    answer = operator.post(path("retry", run), {"reason": "again", "override_reason": WHY})
    assert not started("retry", run, answer).through_blackout
    assert Operation.objects.get().request["override_reason"] == WHY


def test_state_comes_before_the_blackout_and_the_blackout_before_the_environment(
    start_run: StartRun, run: Run, workspace: Workspace, operator: Api
) -> None:
    """Model §5, last line, contract §4."""
    freeze(workspace)
    other = start_run("first")
    assert operator.post(path("rerun", other), {"environment": "staging"}).json()["code"] == "execution_state_invalid"
    retry = operator.post(f"/v1/stages/{stages_of(other)[0].id}/retry", {"reason": "again"})
    assert retry.json()["code"] == "stage_state_invalid"
    assert operator.post(path("rerun", run), {"environment": "staging"}).json()["code"] == "blackout_active"
    answer = operator.post(path("rerun", run), {"environment": "staging", "override_reason": WHY})
    assert answer.json()["code"] == "recovery_environment_mismatch"


def test_a_repeat_is_answered_in_a_blackout_too(run: Run, workspace: Workspace, operator: Api) -> None:
    """The key is looked at first: it starts nothing a second time."""
    told = {"client_request_id": str(uuid.uuid4())}
    first = operator.post(path("rerun", run), told)
    freeze(workspace)
    again = operator.post(path("rerun", run), told)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["execution_id"] == first.json()["execution_id"]


# what others agree to


def test_what_was_agreed_to_waits_open_for_the_end_of_a_blackout(
    run: Run, workspace: Workspace, operator: Api, hand: Hand, clock: Clock
) -> None:
    """The last approval is refused and not kept; decided again after the end, it is carried out. F150, F51."""
    rule(workspace, "rerun", count=1)
    ann = join(workspace, "approver", "ann")
    asked = operator.post(path("rerun", run), {})
    assert asked.status_code == 202
    operation = uuid.UUID(asked.json()["operation_id"])
    freeze(workspace)
    with pytest.raises(Refusal) as refused:
        agree(operation, ann)
    assert refused.value.code == "blackout_active"
    assert states(operation) == ("open", "awaiting_approval")
    assert not rounds(operation)[-1].decisions.exists()
    assert Run.objects.count() == 1
    Blackout.objects.update(enabled=False)
    answer = agree(operation, ann)
    assert answer.target is not None
    assert not Run.objects.get(id=answer.target).through_blackout


def test_what_was_asked_for_in_spite_of_a_blackout_is_carried_out_once_it_is_agreed_to(
    run: Run, workspace: Workspace, operator: Api, hand: Hand
) -> None:
    rule(workspace, "rerun", "retry", count=1)
    ann = join(workspace, "approver", "ann")
    freeze(workspace)
    for verb in ("rerun", "retry"):
        asked = operator.post(path(verb, run), {"reason": "again", "override_reason": WHY})
        assert asked.status_code == 202
        operation = uuid.UUID(asked.json()["operation_id"])
        assert rounds(operation)[-1].plan["choices"]["override_reason"] == WHY
        target = agree(operation, ann).target or run.id
        assert Run.objects.get(id=target).through_blackout
        assert hand.take().run_id == target


# starts without people


def test_an_application_s_run_is_taken_and_waits_and_goes_when_the_freeze_is_lifted(
    workspace: Workspace, api: Api, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """Contract §4: 201, queued, not handed out; why, by whom and until when is said."""
    releaser = people["release_manager"].actor
    blackout_rows.declare(actor=releaser, reason="a move")
    stage = {"stageName": "first", "stageHandlerName": "Handler"}
    answer = api.post("/pipelines/idempotent", {"idempotencyKey": "k", "name": "nightly", "stages": [stage]})
    assert answer.status_code == 201
    run = Run.objects.get(id=answer.json()["pipeline"]["id"])
    assert run.status == "queued"
    assert hand.pull() == []
    (blocker,) = queries.blockers(run)
    who = people["release_manager"].user.username
    assert (blocker.stage, blocker.holder, blocker.next_look) == ("first", who, None)
    assert f"; nothing starts: freeze 'freeze' by {who} since 20" in blocker.cause
    assert blocker.cause.endswith(", until it is lifted")

    clock.advance(3_600)
    sweeps.sweep()
    assert hand.pull() == []
    assert blackout_rows.lift(actor=releaser)
    assert hand.take().run_id == run.id


def test_a_due_retry_waits_for_the_end(start_run: StartRun, workspace: Workspace, hand: Hand, clock: Clock) -> None:
    retried = start_run(RETRIED)
    hand.report(hand.take(), "failed", error_code="TIMEOUT", retryable=True)
    holds = freeze(workspace)
    clock.advance(61)
    sweeps.sweep()
    assert hand.pull(5) == []
    (blocker,) = queries.blockers(Run.objects.get(id=retried.id))
    assert blocker.cause.startswith("retry 1 after TIMEOUT has been due since ")
    assert "; nothing starts: freeze 'the freeze'" in blocker.cause
    Blackout.objects.filter(id=holds.id).update(ends_at=clock.now())
    assert hand.take().run_id == retried.id


def test_the_next_stage_of_a_run_that_has_begun_is_handed_out(
    start_run: StartRun, workspace: Workspace, hand: Hand
) -> None:
    run = start_run("load", "publish")
    job = hand.take()
    freeze(workspace)
    hand.report(job)
    assert hand.take().stage.name == "publish"
    assert Run.objects.get(id=run.id).status == "running"


def test_a_blackout_s_end_is_when_the_engine_looks_again(
    start_run: StartRun, workspace: Workspace, hand: Hand, clock: Clock
) -> None:
    run = start_run("first")
    now = clock.now()
    today = now.date().isoformat()
    on_dates(workspace, today, name="a holiday")
    (blocker,) = queries.blockers(run)
    assert blocker.holder == "the clock"
    assert blocker.next_look is not None
    assert blocker.next_look > now
    assert f"nothing starts: blackout 'a holiday', until {blocker.next_look:%Y-%m-%d} 00:00:00 UTC" in blocker.cause
    Run.objects.update(through_blackout=True)
    assert "blackout" not in queries.blockers(Run.objects.get(id=run.id))[0].cause


def test_lifting_wakes_those_who_wait_for_what_was_held_back(
    start_run: StartRun, workspace: Workspace, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run("first")
    woken: list[Any] = []
    releaser = people["release_manager"].actor
    blackout_rows.declare(actor=releaser, reason="a move")
    monkeypatch.setattr(blackout_rows.wake, "announce", woken.extend)
    blackout_rows.lift(actor=releaser)
    assert woken == [(run.application_id, run.environment_id, "Handler")]
