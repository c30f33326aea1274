"""What somebody reads who is woken by a trigger that failed, a run that does not move, or a freeze."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest

from approvals.models import ApprovalRequest, ApprovalRule
from pipelines import blackout_rows, dispatch, lanes, ledger, triggers
from pipelines.models import Application, Environment, Run, Trigger, Workspace
from recovery import backfills
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import runs_of, trigger_of, wish

pytestmark = pytest.mark.django_db

START, END = "2026-05-20T00:00Z", "2026-05-22T23:00Z"


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    """Daily at 08:00 UTC."""
    return trigger_of(people["admin"].actor, environment, application, name="rates")


def panel(page: str, title: str) -> str:
    """One panel of a page, by the id of its heading."""
    return page.partition(f'aria-labelledby="{title}"')[2].partition("</section>")[0]


def test_the_ledger_says_why_a_ticks_run_failed(operator: Visitor, trigger: Trigger, clock: Clock, hand: Hand) -> None:
    """O49: the error stands beside the tick, not a page further."""
    assert trigger.next_at is not None
    clock.advance((trigger.next_at - clock.now()).total_seconds() + 5)
    ledger.record()
    dispatch.dispatch_due()
    hand.report(
        hand.take(), "failed", error_code="VENDOR_DOWN", error_message="no answer <from the bank>", retryable=False
    )
    run = Run.objects.get(status="failed")
    page = operator.get(f"/console/triggers/{trigger.id}/").content.decode()
    told = panel(page, "ledger-title")
    assert "VENDOR_DOWN" in told
    assert "no answer &lt;from the bank&gt;" in told
    assert f"/console/runs/{run.id}/" in told


def test_a_run_that_its_backfill_holds_is_held_in_the_ledger_and_leads_to_the_backfill(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """O54: of three ticks one is in; what a person must do is one click away, above the fold."""
    made = backfills.start(wish(trigger, START, END), people["operator"].actor).backfill
    lanes.let_in([made.id])
    ledger_told = text_of(operator.get(f"/console/triggers/{trigger.id}/"))
    assert ledger_told.count("Held") == 2
    held = next(run for run in runs_of(made.id) if run.held)
    why = panel(operator.get(f"/console/runs/{held.id}/").content.decode(), "blockers-title")
    assert f'<a href="/console/backfills/{made.id}/">its backfill</a>' in why
    assert "A person must act" not in why, "the engine lets it in"
    backfills.pause(made.id, people["operator"].actor, "a moment")
    why = panel(operator.get(f"/console/runs/{held.id}/").content.decode(), "blockers-title")
    assert f'A person must act: <a href="/console/backfills/{made.id}/">its backfill</a>' in why


def test_what_a_freeze_holds_is_never_said_to_be_resumed_or_handed_to_who_froze_it(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """O60: neither a run that waits to be let in nor a stage that is ready; the page leads to what holds it."""
    made = backfills.start(wish(trigger, START, END), people["operator"].actor).backfill
    lanes.let_in([made.id])
    blackout_rows.declare(actor=people["admin"].actor, reason="a move")
    for run in runs_of(made.id):
        why = panel(operator.get(f"/console/runs/{run.id}/").content.decode(), "blockers-title")
        assert 'href="/console/blackouts/"' in why
        assert "must resume the run" not in why
        assert "whoever asks first" not in why


def test_a_trigger_whose_ticks_cannot_become_runs_says_so_before_they_fail(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """F117: nobody waits for the first failed tick to learn that no release is in force there."""
    assert "No run can be made now" not in text_of(operator.get(f"/console/triggers/{trigger.id}/"))
    wanted = {
        "pipeline": "rates",
        "environment": "staging",
        "application": trigger.application.name,
        "name": "elsewhere",
        "cron": "0 8 * * *",
        "timezone": "UTC",
    }
    elsewhere = triggers.create(actor=people["admin"].actor, wanted=wanted)
    told = unescape(text_of(operator.get(f"/console/triggers/{elsewhere.id}/")))
    assert "No run can be made now Pipeline 'rates' has no active release in this environment." in told


def test_nothing_is_chosen_for_whoever_makes_a_trigger_where_there_are_several(
    browse: Callable[[Person], Visitor], people: dict[str, Person], trigger: Trigger, workspace: Workspace
) -> None:
    """A schedule for the first application of the alphabet would be somebody else's work done twice."""
    manager = browse(people["release_manager"])
    only = manager.get("/console/triggers/new/").content.decode()
    chooser = only.partition('id="application"')[2].partition("</select>")[0]
    assert "choose one" not in chooser
    assert trigger.application.name in chooser
    Application.objects.create(workspace=workspace, name="another")
    several = manager.get("/console/triggers/new/").content.decode()
    for name in ("environment", "application"):
        chooser = several.partition(f'id="{name}"')[2].partition("</select>")[0]
        assert chooser.index('<option value="">choose one') < chooser.index("<option>")


def test_while_a_freeze_holds_a_backfill_tells_no_time_that_it_will_take(
    operator: Visitor, trigger: Trigger, people: dict[str, Person]
) -> None:
    """F115: nobody knows when the freeze is lifted; the banner leads to where it is."""
    made = backfills.start(wish(trigger, START, END), people["operator"].actor).backfill
    lanes.let_in([made.id])
    assert "how long it takes is not known yet" in text_of(operator.get(f"/console/backfills/{made.id}/"))
    blackout_rows.declare(actor=people["admin"].actor, reason="a move")
    page = operator.get(f"/console/backfills/{made.id}/")
    told = text_of(page)
    assert "how long it takes" not in told
    assert "left" not in told.partition("over")[2].partition("All its ticks")[0]
    banner = page.content.decode().partition("Frozen: nothing starts")[2].partition("</div>")[0]
    assert 'href="/console/blackouts/"' in banner


def test_a_form_is_refused_in_its_own_words(operator: Visitor, trigger: Trigger, people: dict[str, Person]) -> None:
    """F51: at the field as above the form; nobody is told to give what only the API calls so."""
    planner = f"/console/triggers/{trigger.id}/backfill/"
    told = text_of(operator.get(planner, {"from": "2026-05-22", "to": "2026-05-20"}))
    assert told.count("From must not be after to") == 2
    assert "_time" not in told
    page = operator.get(planner, {"from": "2026-05-20", "to": "2026-05-22"})
    form = page.content.decode().partition('backfill/start/"')[2].partition("</form>")[0]
    carried = {name: unescape(value) for name, value in re.findall(r'hidden" name="(\w+)" value="([^"]*)"', form)}
    blackout_rows.declare(actor=people["admin"].actor, reason="a move")
    refused = text_of(operator.post(f"{planner}start/", carried))
    assert "say why to start it all the same" in refused
    assert "override_reason" not in refused


def test_whoever_is_to_approve_reads_that_a_freeze_holds_it_and_what_can_be_done(
    browse: Callable[[Person], Visitor], people: dict[str, Person], trigger: Trigger, workspace: Workspace
) -> None:
    """O57, F150: an approval cannot say why it starts all the same, so nobody is asked for that."""
    ApprovalRule.objects.create(workspace=workspace, name="backfills", kinds=["backfill"], role="approver", count=1)
    asked = backfills.start(wish(trigger, START, END), people["operator"].actor).backfill
    address = f"/console/approvals/{asked.id}/"
    approver = browse(people["approver"])
    assert "as things stand" not in text_of(approver.get(address))
    blackout_rows.declare(actor=people["admin"].actor, reason="a move")
    page = approver.get(address)
    told = unescape(text_of(page))
    assert "It could not be done as things stand Nothing starts: freeze 'freeze' by" in told
    assert "approve it once that is over, or have it withdrawn and asked for anew" in told
    digest = re.search(r'name="plan_digest" value="([^"]+)"', page.content.decode())
    assert digest
    refused = approver.post(f"{address}approve/", {"plan_digest": digest[1]})
    assert refused.status_code == 409
    assert "override_reason" not in text_of(refused)
    assert ApprovalRequest.objects.get(subject=asked.id).state == "open", "it waits for the end of the freeze"
    assert not Run.objects.exists()
    blackout_rows.lift(actor=people["admin"].actor)
    assert approver.post(f"{address}approve/", {"plan_digest": digest[1]}).status_code in (302, 303)
    assert Run.objects.count() == 3


def test_stages_that_wait_for_others_are_counted_once_whatever_each_waits_for(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    """The line folds stages, not the arrows between them."""
    run = start_run(
        {"name": "fetch"},
        {"name": "check", "depends_on": ["fetch"]},
        {"name": "store", "depends_on": ["fetch", "check"]},
    )
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "2 more stages wait only for others" in told
