"""Each fact that needs somebody leaves one notice, whatever makes it true; and what needs nobody leaves none."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from approvals import requests
from approvals.models import ApprovalRequest
from approvals.notifications.expiring import warn_expiring
from approvals.notifications.notices import take_up
from approvals.transitions import decide_gate
from pipelines.creation import Place
from pipelines.errors import Refusal
from pipelines.models import Environment, Notice, Run, Workspace
from pipelines.states import NoticeKind
from pipelines.sweeps import expire_gates
from recovery import forks
from recovery.states import OperationKind
from tests.approvals.notified import GATED, StartRun, fail, rule_of, sent
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.recovery.stories import EXTERNAL, effect_of, in_review, leave_uncertain


def kinds() -> dict[str, int]:
    """How many notices there are of each kind, all taken away."""
    found = Counter(Notice.objects.values_list("kind", flat=True))
    Notice.objects.all().delete()
    return dict(found)


@pytest.fixture
def in_production(start_run: StartRun, place: Place, environments: dict[str, Environment]) -> Run:
    """A run of the protected environment that failed."""
    there = Place(place.workspace_id, place.application_id, environments["production"].id, "production")
    run = start_run("first", in_place=there)
    fail(Hand(there, "hand-2", ["Handler"]))
    Notice.objects.all().delete()
    return run


def ask_rerun(run: Run, person: Person) -> None:
    asked = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(), actor=person.actor)
    forks.fork(asked, actor=person.actor)


def asked_of(run: Run) -> uuid.UUID:
    """What waits for somebody about the run."""
    subject: uuid.UUID = ApprovalRequest.objects.get(run=run, state="open").subject
    return subject


def test_a_gate_from_its_opening_to_its_decision(start_run: StartRun, people: dict[str, Person], hand: Hand) -> None:
    run = start_run({"name": "charge", "approval": {"when": "before", "count": 2}})
    assert kinds() == {"gate_opened": 1}
    stage = run.stages.get()
    decide_gate(stage.id, actor=people["approver"].actor, approved=True)
    assert kinds() == {}, "one of two is no decision yet"
    decide_gate(stage.id, actor=people["approver"].actor, approved=True)
    assert kinds() == {}, "told again it changes nothing"
    decide_gate(stage.id, actor=people["admin"].actor, approved=True)
    assert kinds() == {"decided": 1}
    assert hand.finish() == 1
    assert kinds() == {}


def test_a_gate_that_nobody_decides(start_run: StartRun, clock: Clock) -> None:
    start_run({"name": "charge", "approval": {"when": "before", "expires_in": 600}})
    clock.advance(595)
    assert warn_expiring() == 1
    assert kinds() == {"gate_opened": 1, "expiring": 1}
    clock.advance(5)
    assert (expire_gates(), expire_gates()) == (1, 0)
    assert kinds() == {"expired": 1}


def test_a_dead_letter_and_a_run_that_is_blocked(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    start_run("first")
    fail(hand)
    assert kinds() == {"dead_letter": 1}
    leave_uncertain(start_run({"name": "charge", **EXTERNAL}), hand, clock)
    assert kinds() == {"run_blocked": 1}


def test_a_request_from_its_asking_to_its_decision(in_production: Run, people: dict[str, Person]) -> None:
    ask_rerun(in_production, people["operator"])
    assert kinds() == {"approval_asked": 1}
    with pytest.raises(Refusal):
        requests.decide_request(asked_of(in_production), actor=people["operator"].actor, approved=True)
    assert kinds() == {}, "a refused decision is none"
    requests.decide_request(asked_of(in_production), actor=people["approver"].actor, approved=True)
    assert kinds() == {"decided": 1}


def test_a_request_that_nobody_decides_or_that_is_withdrawn(
    in_production: Run, people: dict[str, Person], clock: Clock
) -> None:
    ask_rerun(in_production, people["operator"])
    clock.advance(days=6, hours=23, minutes=30)
    assert (warn_expiring(), warn_expiring()) == (1, 0)
    clock.advance(hours=1)
    assert (requests.expire_due(), requests.expire_due()) == (1, 0)
    assert kinds() == {"approval_asked": 1, "expiring": 1, "expired": 1}
    ask_rerun(in_production, people["operator"])
    requests.withdraw(asked_of(in_production), actor=people["operator"].actor)
    assert kinds() == {"approval_asked": 1}, "who withdraws knows it, and nobody is asked any more"


def test_a_review(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    run = start_run({"name": "charge", **EXTERNAL})
    fail(hand)
    effect_of(run, "charge")
    kinds()
    operation = in_review(run, people["operator"].actor)
    assert kinds() == {"review_asked": 1}
    requests.decide_request(operation.id, actor=people["approver"].actor, approved=False, reason="not cleared")
    assert kinds() == {"decided": 1}


def test_each_kind_is_told_in_its_words(
    start_run: StartRun, in_production: Run, hand: Hand, people: dict[str, Person], clock: Clock, workspace: Workspace
) -> None:
    """End to end: from the deed to the line in a message, with the decision page of what is to be decided."""
    rule_of(workspace)
    lines: dict[str, str] = {}

    def hear() -> None:
        warn_expiring()
        take_up()
        lines.update({line["kind"]: line["sentence"] for line in sent()})

    gated = start_run({"name": "ship", "approval": {"when": "before", "expires_in": 3600}})
    ask_rerun(in_production, people["operator"])
    run = start_run({"name": "charge", **EXTERNAL})
    leave_uncertain(run, hand, clock)
    hear()
    failed = start_run({"name": "charge", **EXTERNAL})
    fail(hand)
    effect_of(failed, "charge")
    hear()
    in_review(failed, people["operator"].actor)
    hear()
    clock.advance(3300)
    hear()
    clock.advance(600)
    assert expire_gates() == 1
    hear()
    requests.decide_request(asked_of(in_production), actor=people["approver"].actor, approved=True)
    hear()
    assert set(lines) == set(NoticeKind.values)
    assert gated.stages.get().state == "failed"
    assert lines["approval_asked"].startswith(
        "operator-acme asks for agreement to rerun nightly in production (1 approver, expires "
    )
    assert lines["review_asked"].startswith(
        "operator-acme asks to rerun nightly in development, and somebody must look at the evidence first (1 "
    )
    assert lines["decided"] == "approver-acme approved operator-acme's request to rerun nightly in production"
    assert lines["expired"] == "Nobody decided about ship of nightly in development in time: it expired"


def test_work_that_needs_nobody_leaves_no_notice(start_run: StartRun, hand: Hand) -> None:
    start_run("first", {"name": "second", "options": {"max_retries": 1, "retry_interval": 1}})
    assert hand.finish() == 2
    assert kinds() == {}
    start_run(GATED)
    assert kinds() == {"gate_opened": 1}
