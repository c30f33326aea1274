"""What is over says so in the inbox with the very code with which a decision, and a look at one, is refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from approvals import inbox
from approvals.requests import decide_request, preview, withdraw
from approvals.transitions import decide_gate
from pipelines import sweeps
from pipelines.errors import Refusal
from pipelines.models import Gate, Run, Workspace
from tests.approvals.asked import reject, rule
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.verbs import cancel_as_operation, retry_stage, skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]
End = Callable[[Run, People, Clock], Any]


def cancel(run: Run, people: People, clock: Clock) -> None:
    cancel_as_operation(run.id, actor=people["operator"].actor, reason="enough")


def late(run: Run, people: People, clock: Clock) -> None:
    clock.advance(60)


def too_late(run: Run, people: People, clock: Clock) -> None:
    clock.advance(600)


def swept(end: End) -> End:
    def and_swept(run: Run, people: People, clock: Clock) -> None:
        end(run, people, clock)
        sweeps.sweep()

    and_swept.__name__ = f"{end.__name__}_and_swept"
    return and_swept


def late_and_then_cancelled(run: Run, people: People, clock: Clock) -> None:
    swept(late)(run, people, clock)
    cancel(run, people, clock)


def code_of(act: Callable[[], Any]) -> str:
    with pytest.raises(Refusal) as refused:
        act()
    return refused.value.code


# gates


def decide(run: Run, people: People, approved: bool) -> None:
    decide_gate(stages_of(run)[1].id, actor=people["admin"].actor, approved=approved, reason="looked at it")


def approved_by_another(run: Run, people: People, clock: Clock) -> None:
    decide(run, people, True)


def rejected_by_another(run: Run, people: People, clock: Clock) -> None:
    decide(run, people, False)


def rejected_and_then_cancelled(run: Run, people: People, clock: Clock) -> None:
    decide(run, people, False)
    cancel(run, people, clock)


def stepped_back(run: Run, people: People, clock: Clock) -> None:
    """What the stage was made from is made anew, so its gate is not asked any more."""
    retry_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="another baseline")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (approved_by_another, "gate_decision_conflict"),
        (rejected_by_another, "gate_decision_conflict"),
        (rejected_and_then_cancelled, "gate_decision_conflict"),
        (late, "approval_stale"),
        (swept(late), "approval_stale"),
        (stepped_back, "stage_state_invalid"),
        (cancel, "execution_state_invalid"),
        (late_and_then_cancelled, "execution_state_invalid"),
        (too_late, "deadline_exceeded"),
        (swept(too_late), "deadline_exceeded"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_gate_that_is_over_says_what_a_decision_is_told(
    end: End, code: str, start_run: StartRun, hand: Hand, people: People, as_person: Any, clock: Clock
) -> None:
    """Model §6, F136."""
    gated = {"name": "scope", "approval": {"when": "before", "expires_in": 60}, "depends_on": ["load"]}
    run = start_run("load", gated, {"name": "other", "depends_on": ["load"]}, deadline_seconds=600)
    hand.report(hand.take(), output=1)
    gate = Gate.objects.get(run=run)
    end(run, people, clock)
    approver = people["approver"]
    refused = code_of(
        lambda: decide_gate(gate.stage_id, actor=approver.actor, approved=True, reason="at last", gate_id=gate.id)
    )
    assert (refused, *told(approver, as_person(approver), gate.id)) == (code, code, code)


# requests


def rejected(run: Run, people: People, clock: Clock) -> None:
    reject(_subject(run), people["admin"].actor)


def taken_back(run: Run, people: People, clock: Clock) -> None:
    withdraw(_subject(run), actor=people["operator"].actor)


def taken_back_and_then_cancelled(run: Run, people: People, clock: Clock) -> None:
    taken_back(run, people, clock)
    cancel(run, people, clock)


def _subject(run: Run) -> uuid.UUID:
    found: uuid.UUID = run.approval_requests.get().subject
    return found


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (rejected, "gate_decision_conflict"),
        (taken_back, "approval_stale"),
        (late, "approval_stale"),
        (swept(late), "approval_stale"),
        (cancel, "execution_state_invalid"),
        (swept(cancel), "execution_state_invalid"),
        (taken_back_and_then_cancelled, "execution_state_invalid"),
        (late_and_then_cancelled, "execution_state_invalid"),
        (too_late, "deadline_exceeded"),
        (swept(too_late), "deadline_exceeded"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_request_that_is_over_says_what_a_decision_is_told(
    end: End,
    code: str,
    start_run: StartRun,
    workspace: Workspace,
    people: People,
    as_person: Any,
    clock: Clock,
) -> None:
    """Model §6, F136."""
    rule(workspace, "skip", count=1, expires_in=60)
    run = start_run("scope", "other", deadline_seconds=600)
    skip_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="not needed")
    end(run, people, clock)
    approver, subject = people["approver"], _subject(run)
    refused = code_of(lambda: decide_request(subject, actor=approver.actor, approved=True, reason="at last"))
    assert code_of(lambda: preview(subject, actor=approver.actor)) == code
    assert (refused, *told(approver, as_person(approver), subject)) == (code, code, code)


def told(approver: Person, api: Api, item_id: uuid.UUID) -> tuple[str, str]:
    """What the inbox says, and what a look at a decision is refused with."""
    item = inbox.find(approver.actor, item_id)
    assert item.over is not None
    assert not item.may_decide
    looked = api.post(f"/v1/approvals/{item_id}/decision", {"approved": True, "dry_run": True})
    return item.over.code, looked.json()["code"]


# what somebody decided before it was over


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (late, "approval_stale"),
        (swept(late), "approval_stale"),
        (cancel, "execution_state_invalid"),
        (too_late, "deadline_exceeded"),
        (swept(too_late), "deadline_exceeded"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
@pytest.mark.parametrize("reason", ["looked at it", "looked at it again"])
def test_who_agreed_before_it_was_over_hears_the_same_of_gates_and_of_requests(
    end: End, code: str, reason: str, start_run: StartRun, workspace: Workspace, people: People, clock: Clock
) -> None:
    """P81, F136: what ended undecided takes no decision, nor the same once more; what was decided takes the same."""
    rule(workspace, "skip", count=2, expires_in=60)
    approver = people["approver"].actor
    gated = {"name": "scope", "approval": {"when": "before", "expires_in": 60, "count": 2}}
    run = start_run(gated, "other", deadline_seconds=600)
    skip_stage(stages_of(run)[1].id, actor=people["operator"].actor, reason="not needed")
    acts: list[Callable[..., Any]] = [
        lambda why: decide_gate(stages_of(run)[0].id, actor=approver, approved=True, reason=why),
        lambda why: decide_request(_subject(run), actor=approver, approved=True, reason=why),
    ]
    for act in acts:
        assert act("looked at it").have == 1
    end(run, people, clock)
    assert [code_of(lambda act=act: act(reason)) for act in acts] == [code, code]
