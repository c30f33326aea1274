"""Nobody agrees to what they could not read: what somebody wrote for a stage, and a plan that took another's place."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from approvals.models import RequestDecision
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Run, Workspace
from tests.approvals.asked import agree, join, reject, rounds, rule
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.stories import EXTERNAL, leave_uncertain
from tests.verbs import retry_stage, skip_stage

StartRun = Callable[..., Run]
People = dict[str, Person]
PAYEE = '{"to": "mallory", "note": "<b>&"}'


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    """A run that failed at its first stage of three."""
    run = start_run("pay", "tell", "file")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    return Run.objects.get(id=run.id)


@pytest.fixture
def browse(people: People) -> Callable[[Person], Visitor]:
    def log_in(person: Person) -> Visitor:
        visitor = Visitor()
        visitor.force_login(person.user)
        return visitor

    return log_in


def told(page: Any) -> str:
    return unescape(text_of(page))


@pytest.mark.parametrize(
    ("verb", "chosen", "given", "line"),
    [
        ("retry", {"new_input": PAYEE}, ("input", PAYEE), "New input its stage gets another input"),
        ("retry", {"new_input": ""}, ("input", ""), "New input its stage gets another input"),
        (
            "skip",
            {"has_output": True, "output": {"paid": True}},
            ("output", '{\n  "paid": true\n}'),
            "Given output what waits for it gets",
        ),
        ("skip", {"has_output": True, "output": None}, ("output", "null"), "an output that who asks wrote, null"),
    ],
)
def test_what_somebody_wrote_for_a_stage_is_read_by_whoever_is_to_agree(
    verb: str,
    chosen: dict[str, Any],
    given: tuple[str, str],
    line: str,
    failed: Run,
    workspace: Workspace,
    people: People,
    as_person: Callable[[Person], Api],
    browse: Callable[[Person], Visitor],
) -> None:
    """P84, F51: a digest alone would have somebody agree to a payment without its payee."""
    rule(workspace, verb, count=1)
    do = retry_stage if verb == "retry" else skip_stage
    asked = do(stages_of(failed)[0].id, actor=people["operator"].actor, reason="checked", **chosen)
    approver = as_person(people["approver"])
    looked = approver.post(f"/v1/approvals/{asked.operation_id}/decision", {"approved": True, "dry_run": True})
    assert looked.json()["given"] == {"what": given[0], "text": given[1]}
    page = browse(people["approver"]).get(f"/console/approvals/{asked.operation_id}/")
    assert line in told(page)
    assert f"The {given[0]} that was written for it" in told(page)
    assert unescape(page.content.decode()).count(f">{given[1]}</pre>") == 1
    assert "<b>" not in page.content.decode()


def test_what_nobody_wrote_is_not_told_of(
    failed: Run,
    workspace: Workspace,
    people: People,
    as_person: Callable[[Person], Api],
    browse: Callable[[Person], Visitor],
) -> None:
    rule(workspace, "retry", "skip", count=1)
    for verb in (retry_stage, skip_stage):
        asked = verb(stages_of(failed)[0].id, actor=people["operator"].actor, reason="as it is")
        path = f"/v1/approvals/{asked.operation_id}/decision"
        assert as_person(people["approver"]).post(path, {"approved": True, "dry_run": True}).json().get("given") is None
        page = told(browse(people["approver"]).get(f"/console/approvals/{asked.operation_id}/"))
        assert not any(words in page for words in ("written for it", "New input", "Given output", "Acknowledged"))
        reject(asked.operation_id, people["approver"].actor)


def test_what_somebody_says_to_have_checked_is_told_as_their_word(
    start_run: StartRun,
    hand: Hand,
    workspace: Workspace,
    people: People,
    browse: Callable[[Person], Visitor],
) -> None:
    """P87: it lifts a review, so whoever agrees must see that it was said, and by whom."""
    rule(workspace, "retry", count=1)
    run = start_run({"name": "pay", "effect_mode": "external"})
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    stage, actor = stages_of(run)[0], people["operator"].actor
    asked = retry_stage(stage.id, actor=actor, acknowledge_effects=True, reason="asked the bank")
    page = told(browse(people["approver"]).get(f"/console/approvals/{asked.operation_id}/"))
    assert "Acknowledged who asks says that they have checked outside" in page


def test_a_plan_that_took_the_place_of_another_is_agreed_to_by_its_digest_alone(
    failed: Run, workspace: Workspace, people: People
) -> None:
    """F51, F131: whoever looked at the first round and names no plan would agree to one that they never saw."""
    rule(workspace, "retry", count=1)
    anna = join(workspace, "approver", "anna")
    asked = retry_stage(stages_of(failed)[0].id, actor=people["operator"].actor, reason="again")
    skip_stage(stages_of(failed)[2].id, actor=people["admin"].actor, reason="not needed")
    moved = _refused(asked.operation_id, anna)  # hers asks anew; somebody else looked before that
    blind = _refused(asked.operation_id, people["approver"].actor)
    assert (moved.code, blind.code) == ("plan_changed", "plan_changed")
    assert blind.extra["plan_digest"] == rounds(asked.operation_id)[1].plan_digest
    assert {one["stage"] for one in blind.extra["changed"]} == {"file"}
    assert (len(rounds(asked.operation_id)), RequestDecision.objects.count()) == (2, 0)
    assert (stages_of(failed)[0].state, stages_of(failed)[0].epoch) == ("failed", 1)
    done = agree(asked.operation_id, people["approver"].actor, plan_digest=blind.extra["plan_digest"])
    assert (done.state, stages_of(failed)[0].epoch) == ("approved", 2)


def test_whoever_rejects_need_not_name_a_plan(failed: Run, workspace: Workspace, people: People) -> None:
    """It may always be stopped."""
    rule(workspace, "retry", count=1)
    asked = retry_stage(stages_of(failed)[0].id, actor=people["operator"].actor, reason="again")
    skip_stage(stages_of(failed)[2].id, actor=people["admin"].actor, reason="not needed")
    _refused(asked.operation_id, people["approver"].actor)
    assert reject(asked.operation_id, people["approver"].actor).state == "rejected"


@pytest.mark.parametrize(
    ("approval", "why"),
    [
        ({"when": "before"}, "left out on purpose, and its gate with it"),
        ({"when": "after"}, "left out on purpose, and its gate with it"),
        (None, "left out on purpose"),
    ],
)
def test_a_skip_says_that_it_leaves_out_a_gate_and_a_rule_has_others_agree_to_that(
    approval: dict[str, Any] | None, why: str, start_run: StartRun, workspace: Workspace, people: People
) -> None:
    """R12, F132: while it waits it is not skipped at all; before that a rule makes it two people's word."""
    rule(workspace, "skip", count=1)
    run = start_run("load", {"name": "post", "approval": approval, "depends_on": ["load"]})
    asked = skip_stage(stages_of(run)[1].id, actor=people["operator"].actor, reason="not today")
    (round_one,) = rounds(asked.operation_id)
    assert [one["why"] for one in round_one.plan["then"] if one["stage"] == "post"] == [why]
    assert stages_of(run)[1].state == "pending"
    assert agree(asked.operation_id, people["approver"].actor).state == "approved"
    assert stages_of(run)[1].state == "skipped"


def test_the_dialog_says_that_what_is_found_committed_goes_to_the_gate(
    start_run: StartRun, hand: Hand, clock: Clock, people: People, browse: Callable[[Person], Visitor]
) -> None:
    """F132: of a stage without a gate it says that it is completed."""
    for gated, says in (
        (True, "the gate after pay opens for the output"),
        (False, "pay is completed, with the output"),
    ):
        approval = {"approval": {"when": "after"}} if gated else {}
        run = start_run({"name": "pay", **EXTERNAL, **approval}, key=says)
        (effect,) = leave_uncertain(run, hand, clock)
        approver = browse(people["approver"])
        approver.post(f"/console/effects/{effect.id}/reconcile/", {"outcome": "committed", "reason": "seen"})
        dialog = f"/console/stages/{effect.stage_id}/reconcile/"
        assert says in told(approver.get(dialog))
        approver.post(dialog, {"outcome": "committed", "output": '"ok"', "reason": "seen"})
        assert stages_of(run)[0].state == ("waiting" if gated else "completed")


def _refused(subject: uuid.UUID, actor: Actor) -> Refusal:
    with pytest.raises(Refusal) as refused:
        agree(subject, actor)
    return refused.value
