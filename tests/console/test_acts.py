"""What people do on screens: consequences first, a reason, then the verb; every refusal says why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import Any

import pytest

from pipelines.access import CAPABILITIES, RECOVER, STEER
from pipelines.models import AuditEvent, Event, Role, Run, Stage
from pipelines.sweeps import sweep
from pipelines.transitions import cancel_run
from recovery.models import Operation
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.console.conftest import HTMX, Visitor, text_of
from tests.factories import MemberFactory
from tests.verbs import pause_run

pytestmark = pytest.mark.django_db

CHECKED = {
    "check_history": "yes",
    "note_history": "DECLINED, three times, by the same bank",
    "check_outside": "yes",
    "note_outside": "the bank has no such file",
    "check_cause": "yes",
    "note_cause": "IBAN corrected",
    "check_repeat": "yes",
    "note_repeat": "the bank refuses a second file of that name",
}


def test_a_run_is_paused_and_resumed_with_the_reason_in_the_audit(
    operator: Visitor, start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    """P60, P63 on the screen; who and why come from the session and the form."""
    run = start_run("load")
    form = operator.get(f"/console/runs/{run.id}/pause/")
    assert "nothing more of this run is handed out" in text_of(form)
    assert _status(run) == "queued"
    answer = operator.post(f"/console/runs/{run.id}/pause/", {"reason": "file is late"})
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/console/runs/{run.id}/")
    assert _status(run) == "paused"
    assert "The run is paused." in text_of(operator.get(f"/console/runs/{run.id}/"))
    operator.post(f"/console/runs/{run.id}/resume/", {"reason": "it came"})
    assert _status(run) == "queued"
    told = list(AuditEvent.objects.order_by("at").values_list("action", "outcome", "user_id", "channel", "reason"))
    who = people["operator"].user.id
    assert told == [
        ("run.pause", "allowed", who, "console", "file is late"),
        ("run.resume", "allowed", who, "console", "it came"),
    ]


def test_a_cancel_shows_what_may_go_on_asks_for_a_reason_and_lists_what_remains(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P73, P75: the list is shown before and after."""
    run = start_run("load", "publish")
    hand.take()
    address = f"/console/runs/{run.id}/cancel/"
    form = text_of(operator.get(address))
    assert "2 stages: load, publish" in form
    assert "load: attempt 1 may still run at hand-1; it is told to stop" in form
    refused = operator.post(address, {"reason": "  "})
    assert refused.status_code == 400
    assert "A reason is needed" in text_of(refused)
    assert _status(run) == "running"
    page = operator.post(address, {"reason": "wrong file"}, follow=True)
    assert "The run is cancelled. 1 to look after outside, listed below." in text_of(page)
    assert "May still go on outside" in text_of(page)
    assert _status(run) == "cancelled"
    assert Operation.objects.get().reason == "wrong file"


def test_a_failed_stage_is_retried_alone_or_with_everything_behind_it(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P65–P67, P88: the button stands at the failed stage; the scope is a choice with its consequences."""
    run = start_run({"name": "load", "run_next_if_failed": True}, "publish")
    hand.report(hand.take(), "failed", error_code="X", error_message="broken")
    hand.report(hand.take(), output="published")
    load, publish = stages_of(run)
    address = f"/console/stages/{load.id}/retry/"
    assert f'href="{address}"' in operator.get(f"/console/runs/{run.id}/?stage=0").content.decode()
    form = text_of(operator.get(address))
    assert "Run again 1 stage: load · begins epoch 2; its counters start anew" in form
    assert "Then 1 stage: publish · made from the older result" in form
    other = text_of(operator.post(address, {"scope": "stage_and_downstream", "look": "yes"}))
    assert "Run again 2 stages: load, publish · begins epoch 2; its counters start anew" in unescape(other)
    assert [stage.state for stage in stages_of(run)] == ["failed", "completed"], "looking changes nothing"
    operator.post(address, {"scope": "stage_and_downstream", "reason": "table was locked"})
    load, publish = stages_of(run)
    assert (load.state, load.epoch, publish.state, publish.epoch) == ("ready", 2, "pending", 2)


def test_a_retry_of_one_stage_leaves_what_is_done_and_marks_it(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", "publish")
    hand.finish()
    load, _ = stages_of(run)
    address = f"/console/stages/{load.id}/retry/"
    refused = operator.post(address, {"scope": "stage"})
    assert refused.status_code == 400
    answer = operator.post(address, {"scope": "stage", "reason": "source was corrected"}, follow=True)
    load, publish = stages_of(run)
    assert (load.state, publish.state, publish.stale) == ("ready", "completed", True)
    assert "load runs again, in epoch 2." in text_of(answer)


def test_a_retry_may_replace_the_input_and_keeps_it_when_not_asked(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P44: what will not go away by itself says so where the input is changed."""
    run = start_run({"name": "load", "input": "old"})
    hand.report(hand.take(), "failed", error_code="VALIDATION_ERROR")
    (load,) = stages_of(run)
    address = f"/console/stages/{load.id}/retry/"
    assert "VALIDATION_ERROR will not go away by itself: correct the input first" in text_of(operator.get(address))
    operator.post(address, {"input": "typed but not asked for"})
    assert stages_of(run)[0].input == "old"
    hand.report(hand.take(), "failed", error_code="VALIDATION_ERROR")
    operator.post(address, {"change_input": "yes", "input": " new\n"})
    assert stages_of(run)[0].input == " new\n"


def test_a_stage_that_acts_outside_is_retried_only_with_the_four_checks_and_their_notes(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P6, P59, P68, P87: the warning, four required ticks, four required notes, all kept in the audit."""
    run = start_run({"name": "pay", "effect_mode": "external"})
    hand.report(hand.take(), "failed", error_code="REJECTED", error_message="IBAN is not valid")
    (pay,) = stages_of(run)
    address = f"/console/stages/{pay.id}/retry/"
    form = text_of(operator.get(address))
    assert "A retry replays side effects, it compensates nothing. Exactly once is not promised" in form
    assert "May repeat pay: it acts outside, and never declared what it did" in form
    for left_out in CHECKED:
        given = {name: value for name, value in CHECKED.items() if name != left_out}
        answer = operator.post(address, {**given, "reason": "again"})
        assert answer.status_code == 400, left_out
        assert "Needed, with its tick and its note." in text_of(answer)
        assert stages_of(run)[0].state == "failed", left_out
    operator.post(address, {**CHECKED, "reason": "again"})
    assert stages_of(run)[0].state == "ready"
    audit = AuditEvent.objects.get(action="stage.retry", outcome="allowed")
    assert audit.data["acknowledge_effects"] is True
    for note in ("again", "the bank has no such file", "IBAN corrected", "refuses a second file"):
        assert note in audit.reason


def test_stages_behind_that_acted_outside_need_the_checks_only_when_they_are_done_again(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P59, P68, P87, and model §3.9: nothing that acted outside is repeated blindly, whichever button led there."""
    run = start_run("load", {"name": "pay", "effect_mode": "external"})
    hand.finish()
    load, _ = stages_of(run)
    address = f"/console/stages/{load.id}/retry/"
    assert "pay acted outside" not in text_of(operator.get(address))
    looked = text_of(operator.post(address, {"scope": "stage_and_downstream", "look": "yes"}))
    assert "pay acted outside: before that is done again" in looked
    refused = operator.post(address, {"scope": "stage_and_downstream", "reason": "again"})
    assert refused.status_code == 400
    assert "Needed, with its tick and its note." in text_of(refused)
    assert [stage.state for stage in stages_of(run)] == ["completed", "completed"]
    operator.post(address, {**CHECKED, "scope": "stage_and_downstream", "reason": "again"})
    assert [stage.state for stage in stages_of(run)] == ["ready", "pending"]
    assert AuditEvent.objects.get(action="stage.retry", outcome="allowed").data["acknowledge_effects"] is True
    other = start_run("load", {"name": "pay", "effect_mode": "external"})
    hand.finish()
    operator.post(f"/console/stages/{stages_of(other)[0].id}/retry/", {"scope": "stage", "reason": "again"})
    assert [stage.state for stage in stages_of(other)] == ["ready", "completed"]


def test_an_idempotent_stage_asks_for_no_checks(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="X")
    form = operator.get(f"/console/stages/{run.stages.get().id}/retry/").content.decode()
    assert "check_outside" not in form


def test_a_stage_is_skipped_with_a_reason_and_may_hand_on_an_output(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P69–P71: a reason is required; what depends on it goes on."""
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="X")
    load, _ = stages_of(run)
    address = f"/console/stages/{load.id}/skip/"
    assert "Then 1 stage: publish · waits for load no longer" in text_of(operator.get(address))
    assert operator.post(address, {}).status_code == 400
    bad = operator.post(address, {"reason": "not needed", "output": "{not json"})
    assert bad.status_code == 400
    assert "This is not JSON" in text_of(bad)
    assert "{not json" in unescape(bad.content.decode())
    assert operator.post(address, {"reason": "not needed", "output": "NaN"}).status_code == 400
    assert stages_of(run)[0].state == "failed"
    operator.post(address, {"reason": "not needed", "output": '{"rows": 0}'})
    load, publish = stages_of(run)
    assert (load.state, publish.state) == ("skipped", "ready")
    assert load.output is not None
    assert load.output.body == '{"rows":0}'


def test_what_cannot_be_done_any_more_is_answered_with_how_it_stands_now(
    operator: Visitor, start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    """F49, P62, P76: 409 shows the new truth, on the same form, and nothing changes."""
    run = start_run("load")
    cancel_run(run.id, actor=people["admin"].actor, reason="mine first")
    for verb, words in (("pause", "paused"), ("resume", "resumed")):
        answer = operator.post(f"/console/runs/{run.id}/{verb}/", {"reason": "mine"})
        assert answer.status_code == 409
        assert "Not done: this is how it stands now" in text_of(answer)
        assert f"A run that is cancelled cannot be {words}" in text_of(answer)
        assert 'value="mine"' in answer.content.decode()
    stage = run.stages.get()
    answer = operator.post(f"/console/stages/{stage.id}/retry/", {"reason": "mine"})
    assert answer.status_code == 409
    assert "a cancelled run stays cancelled" in text_of(answer).lower()
    assert stages_of(run)[0].state == "cancelled"
    failed = AuditEvent.objects.filter(outcome="failed").values_list("action", flat=True)
    assert sorted(failed) == ["run.pause", "run.resume", "stage.retry"]


def test_a_dialog_gets_parts_and_leads_on_by_its_header(operator: Visitor, start_run: Callable[..., Run]) -> None:
    run = start_run("load")
    address = f"/console/runs/{run.id}/pause/"
    form = operator.part(address)
    assert "<html" not in form.content.decode()
    assert f'hx-post="{address}"' in form.content.decode()
    answer = operator.post(address, {"reason": "late"}, headers=HTMX)
    assert answer.headers["HX-Redirect"] == f"/console/runs/{run.id}/"
    again = operator.post(address, {"reason": "late"}, headers=HTMX)
    assert again.status_code == 409
    assert "<html" not in again.content.decode()


@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "retry", "skip"])
def test_each_role_may_do_on_the_screen_what_the_table_says(
    role: str,
    verb: str,
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    browse: Callable[[Person], Visitor],
) -> None:
    """Model §5: a missing right is a page of its own and an audit event, and the button says so beforehand."""
    run = _run_for(verb, start_run, hand, people)
    target = run.id if verb in ("pause", "resume", "cancel") else stages_of(run)[0].id
    address = f"/console/{'runs' if target == run.id else 'stages'}/{target}/{verb}/"
    visitor = browse(people[role])
    before = _picture(run)
    page = visitor.get(f"/console/runs/{run.id}/?stage=0")
    allowed = role in CAPABILITIES[STEER if target == run.id else RECOVER]
    assert (f'href="{address}"' in page.content.decode()) == allowed
    assert visitor.get(address).status_code == (200 if allowed else 403)
    answer = visitor.post(address, {"reason": "because", "scope": "stage"})
    events = AuditEvent.objects.filter(user=people[role].user).exclude(action="execution.recovery_disposition")
    outcome = events.values_list("outcome", flat=True)
    if allowed:
        assert answer.status_code == 303
        assert _picture(run) != before
        assert list(outcome) == ["allowed"]
    else:
        assert answer.status_code == 403
        assert "You may not do this" in text_of(answer)
        assert f"Your role, {role.replace('_', ' ')}, may not do this; it needs one of" in _reasons(page)
        assert _picture(run) == before
        assert list(outcome) == ["denied"]


def test_a_form_from_elsewhere_is_refused_in_our_own_style(
    start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    from django.test import Client

    run = start_run("load")
    visitor = Client(enforce_csrf_checks=True)
    visitor.force_login(people["operator"].user)
    answer = visitor.post(f"/console/runs/{run.id}/pause/", {"reason": "x"})
    assert answer.status_code == 403
    assert "Nothing was changed." in text_of(answer)
    assert _status(run) == "queued"


def test_what_is_typed_is_bounded_and_shown_as_text(operator: Visitor, start_run: Callable[..., Run]) -> None:
    run = start_run("load")
    address = f"/console/runs/{run.id}/pause/"
    long = operator.post(address, {"reason": "x" * 2001})
    assert long.status_code == 400
    assert "At most 2000 characters" in text_of(long)
    attack = '"><script>alert(1)</script>'
    assert attack not in operator.post(address, {"reason": attack + "x" * 2000}).content.decode()
    assert _status(run) == "queued"
    assert not Event.objects.filter(run=run, kind="run.pause").exists()


def test_a_stage_to_be_reconciled_cannot_be_retried_but_says_so(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    """R13, F34: neither the screen nor the form gets round it."""
    run = start_run({"name": "pay", "effect_mode": "external"})
    hand.take()
    clock.advance(90)
    sweep()
    (pay,) = stages_of(run)
    answer = operator.post(f"/console/stages/{pay.id}/retry/", {**CHECKED, "reason": "again"})
    assert answer.status_code == 409
    assert "What pay did outside is unknown: reconcile it first" in text_of(answer)
    assert stages_of(run)[0].state == "needs_reconciliation"


def _run_for(verb: str, start_run: Callable[..., Run], hand: Hand, people: dict[str, Person]) -> Run:
    """A run in a state in which the verb is possible."""
    run = start_run("load", "publish")
    if verb == "resume":
        # by somebody else, so that the person under test has no audit event yet
        earlier = replace(
            people["operator"].actor, user_id=MemberFactory(workspace=run.workspace, role="admin").user.pk
        )
        pause_run(run.id, actor=earlier, reason="earlier")
    if verb in ("retry", "skip"):
        hand.report(hand.take(), "failed", error_code="X")
    return run


def _picture(run: Run) -> Any:
    return _status(run), list(Stage.objects.filter(run=run).order_by("position").values_list("state", "epoch"))


def _status(run: Run) -> str:
    return Run.objects.values_list("status", flat=True).get(id=run.id)


def _reasons(page: Any) -> str:
    """The reasons given beside what is not possible."""
    return " ".join(
        unescape(text) for text in re.findall(r'class="btn[^>]*aria-description="([^"]+)"', page.content.decode())
    )


def test_a_retry_asks_what_runs_again_only_where_something_depends_on_the_stage(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", "publish")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
    load, publish = stages_of(run)
    assert "What runs again" in text_of(operator.get(f"/console/stages/{load.id}/retry/"))
    address = f"/console/stages/{publish.id}/retry/"
    assert "What runs again" not in text_of(operator.get(address))
    assert operator.post(address, {}).status_code == 303
    assert stages_of(run)[1].epoch == 2
