"""The dialog shows the plan that is carried out: what moved in between is shown anew, marked, and nothing is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from pipelines.models import AuditEvent, Run
from recovery.models import Operation
from tests.cast import Hand, Person, stages_of
from tests.console.conftest import Visitor, text_of
from tests.recovery.stories import EXTERNAL, effect_of
from tests.verbs import retry_stage, skip_stage

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]


def shown(page: Any) -> str:
    """What the form carries of the plan that it shows."""
    found = re.search(r'name="shown" value="([^"]+)"', page.content.decode())
    assert found
    return unescape(found[1])


def test_what_was_shown_is_what_is_done_and_the_operation_keeps_its_plan(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    """O57, F51."""
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="X")
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    page = operator.get(address)
    answer = operator.post(address, {"shown": shown(page), "reason": "again"})
    assert answer.status_code == 303
    operation = Operation.objects.get()
    assert operation.plan_digest[:12] in text_of(page)
    assert operation.plan is not None
    assert operation.plan["run_again"][0]["stage"] == "load"


def test_when_the_world_moved_the_new_plan_comes_back_with_what_changed_marked_and_nothing_is_done(
    operator: Visitor, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """F51, F56: two people with the same dialog open; the second one sees what the first one did."""
    run = start_run({"name": "load", "run_next_if_failed": True}, "publish")
    hand.report(hand.take(), "failed", error_code="X")
    load, publish = stages_of(run)
    address = f"/console/stages/{load.id}/retry/"
    page = operator.get(address)
    skip_stage(publish.id, actor=people["admin"].actor, reason="not today")
    answer = operator.post(address, {"shown": shown(page), "reason": "again"})
    assert answer.status_code == 409
    told = text_of(answer)
    assert "This is another plan than the one before" in told
    assert "New: 1 stage: publish · made from the older result" in told
    assert "No longer: 1 stage: publish" in told
    assert 'value="again"' in answer.content.decode(), "the reason is still there"
    assert stages_of(run)[0].epoch == 1
    denied = AuditEvent.objects.get(action="stage.retry")
    assert (denied.outcome, denied.code) == ("failed", "plan_changed")
    assert operator.post(address, {"shown": shown(answer), "reason": "again"}).status_code == 303
    assert stages_of(run)[0].epoch == 2


def test_a_choice_that_leads_to_another_plan_is_shown_before_it_is_done(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    """Without JavaScript too: confirming with another choice than the one looked at only shows its plan."""
    run = start_run({"name": "load", "run_next_if_failed": True}, "publish")
    hand.report(hand.take(), "failed", error_code="X")
    hand.report(hand.take(), output=1)
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    chosen = {"scope": "stage_and_downstream", "reason": "again"}
    answer = operator.post(address, {"shown": shown(operator.get(address)), **chosen})
    assert answer.status_code == 200
    assert "New: 2 stages: load, publish · begins epoch 2" in text_of(answer)
    assert [stage.epoch for stage in stages_of(run)] == [1, 1]
    assert not AuditEvent.objects.filter(action="stage.retry").exists()
    operator.post(address, {"shown": shown(answer), **chosen})
    assert [stage.epoch for stage in stages_of(run)] == [2, 2]


def test_sending_the_same_form_twice_does_it_once(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """Model §3.6: a reload or a double click is a duplicate request, and is told as one."""
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="X")
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    form = {"shown": shown(operator.get(address)), "reason": "again"}
    operator.post(address, form)
    again = operator.post(address, form, follow=True)
    assert "A duplicate request" in text_of(again)
    assert stages_of(run)[0].epoch == 2
    assert Operation.objects.count() == 1


def test_a_form_that_was_altered_has_shown_nothing(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="X")
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    token = shown(operator.get(address))
    for nonsense in (f"{token}x", "x", "a:b:c", "9" * 5000):
        page = operator.post(address, {"shown": nonsense, "look": "yes"})
        assert page.status_code == 200
        assert "New: " not in text_of(page)


def test_what_cannot_be_done_says_why_and_has_no_button(
    operator: Visitor, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """Model §2: every state and action either moves or is a typed 409; the dialog shows it before anybody types."""
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="X")
    load = stages_of(run)[0]
    retry_stage(load.id, actor=people["admin"].actor, reason="mine first")
    page = operator.get(f"/console/stages/{load.id}/retry/")
    assert page.status_code == 409
    assert "A stage that is ready cannot be retried" in text_of(page)
    assert 'class="btn primary' not in page.content.decode()


def test_a_pause_may_end_by_itself(operator: Visitor, start_run: StartRun) -> None:
    """P60: at a time to come, in UTC; anything else is refused by name."""
    run = start_run("load")
    address = f"/console/runs/{run.id}/pause/"
    for nonsense in ("yesterday", "2020-01-01T00:00"):
        answer = operator.post(address, {"until": nonsense, "reason": "audit day"})
        assert answer.status_code == 400
        assert "Give a time to come" in text_of(answer)
    page = operator.get(address)
    answer = operator.post(address, {"shown": shown(page), "until": "2099-01-01T12:00", "reason": "audit day"})
    assert answer.status_code == 303, "the end is typed on the form that does it: it is not asked for a second time"
    run.refresh_from_db()
    assert run.paused_until is not None
    assert f"{run.paused_until:%Y-%m-%d %H:%M}" == "2099-01-01 12:00"
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "the engine resumes it at 2099-01-01 12:00:00 UTC" in told
    assert "A person may resume it sooner." in told


def test_a_plan_of_many_stages_is_counted_and_cut(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """Numbers, not adjectives; and no page without an end."""
    run = start_run(*[f"stage-{number}" for number in range(30)])
    hand.finish()
    page = text_of(operator.get(f"/console/stages/{stages_of(run)[0].id}/retry/"))
    assert "Then 29 stages: stage-1, stage-2," in page
    assert "and 21 more · made from the older result" in page


def test_names_in_a_plan_are_text_and_never_markup(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    attack = '"><script>alert(1)</script>'
    run = start_run({"name": attack, "effect_mode": "external"}, f"{attack}2")
    hand.report(hand.take(), "failed", error_code="X")
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    page = operator.get(address)
    assert attack not in page.content.decode()
    again = operator.post(address, {"shown": shown(page), "look": "yes"})
    assert attack not in again.content.decode()


def test_after_a_contradiction_the_dialog_says_what_still_helps_and_that_does_help(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    """O46: a retry is denied for good, and leaving the stage out is not."""
    run = start_run({"name": "pay", **EXTERNAL}, "book")
    job = hand.take()
    effect_of(run, "pay", "contradicted")
    hand.report(job, "failed", error_code="X", retryable=False)
    pay = stages_of(run)[0]
    told = text_of(operator.get(f"/console/stages/{pay.id}/retry/"))
    assert "pay: external http; what is known of it contradicts itself" in told
    assert "Instead skip pay, if the run may go on without it" in told
    assert "Retry pay</button>" not in told
    assert "acted outside: before that is done again" not in told, "no checklist for what will not be done"
    skip = f"/console/stages/{pay.id}/skip/"
    page = operator.get(skip)
    assert "Instead" not in text_of(page)
    assert operator.post(skip, {"shown": shown(page), "reason": "paid by hand"}).status_code == 303
    hand.finish()
    assert Run.objects.get(id=run.id).status == "completed"


def test_many_effects_with_the_same_reason_are_counted(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """Three hundred effects are one line and not six hundred; what is rare among them still shows."""
    run = start_run({"name": "pay", **EXTERNAL}, "book")
    job = hand.take()
    for number in range(30):
        effect_of(run, "pay", key=f"k-{number}")
    effect_of(run, "pay", "contradicted", key="odd")
    hand.report(job, "failed", error_code="X", retryable=False)
    told = text_of(operator.get(f"/console/runs/{run.id}/replay/"))
    assert "Because 30 times, in pay: no clean sealed evidence from outside tells of it" in told
    assert "Because 30 times, in pay: no reconciliation confirms it" in told
    assert "Because pay: external http; what is known of it contradicts itself" in told
    assert told.count("May repeat") == 13
    assert "May repeat and 19 more" in told


def test_two_effects_with_the_same_reason_give_it_once(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """A few are not counted, and the same words twice tell nothing more."""
    run = start_run({"name": "pay", **EXTERNAL}, "book")
    job = hand.take()
    for key in ("k-1", "k-2"):
        effect_of(run, "pay", key=key)
    hand.report(job, "failed", error_code="X", retryable=False)
    told = text_of(operator.get(f"/console/runs/{run.id}/replay/"))
    assert told.count("Because pay: external http; no reconciliation confirms it") == 1
    assert told.count("May repeat") == 2
