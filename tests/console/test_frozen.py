"""What people meet on screens while nothing starts: the banner on every page, and dialogs that ask why all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import blackout_rows
from pipelines.models import AuditEvent, Blackout, DeadLetter, Environment, Run, Workspace
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.pipelines.blackout_nights import period

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
WHY = "the auditors wait for it"
PAGES = ("", "dead-letters/", "approvals/", "operations/", "triggers/", "workers/")


@pytest.fixture
def run(start_run: StartRun, hand: Hand) -> Run:
    made = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    return Run.objects.get(id=made.id)


def dialog(verb: str, run: Run) -> str:
    match verb:
        case "retry":
            return f"/console/stages/{stages_of(run)[0].id}/retry/"
        case "redrive":
            return f"/console/dead-letters/{DeadLetter.objects.get(run=run).id}/redrive/"
        case _:
            return f"/console/runs/{run.id}/{verb}/"


def form_of(page: Any, **answers: str) -> dict[str, str]:
    found = re.search(r'name="shown" value="([^"]+)"', page.content.decode())
    assert found
    return {"shown": unescape(found[1]), **answers}


def queries_of(visitor: Visitor, address: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert visitor.get(address).status_code == 200
    return len(captured)


def test_every_page_says_who_froze_what_why_and_since_when(
    operator: Visitor,
    workspace: Workspace,
    environments: dict[str, Environment],
    people: dict[str, Person],
    other_workspace: Workspace,
    clock: Clock,
) -> None:
    releaser = people["release_manager"]
    period(other_workspace, "2020-01-01T00:00:00", None, is_freeze=True, reason="not theirs")
    period(workspace, "2020-01-01T00:00:00", None, reason="no freeze")
    blackout_rows.declare(actor=releaser.actor, reason="an incident <at the bank>")
    blackout_rows.declare(actor=releaser.actor, reason="a move", environment="production")
    since = f"{Blackout.objects.get(reason='a move').starts_at:%Y-%m-%d %H:%M} UTC"
    who = releaser.user.username
    for name in PAGES:
        page = operator.get(f"/console/{name}")
        told = unescape(text_of(page))
        assert f"Frozen: nothing starts in this workspace {who} since {since}: an incident <at the bank>" in told, name
        assert f"Frozen: nothing starts in production {who} since {since}: a move" in told, name
        assert "<at the bank>" not in page.content.decode()
        assert "not theirs" not in told
        assert "no freeze" not in told
    blackout_rows.lift(actor=releaser.actor)
    blackout_rows.lift(actor=releaser.actor, environment="production")
    assert "Frozen" not in text_of(operator.get("/console/"))


def test_the_banner_costs_a_page_one_query_and_a_part_of_it_none(
    operator: Visitor, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries_of(operator, "/console/workers/")
    asked = queries_of(operator, "/console/workers/")
    with CaptureQueriesContext(connection) as captured:
        operator.get("/console/workers/")
    looks = [one["sql"] for one in captured if "pipelines_blackout" in one["sql"]]
    assert len(looks) == 1
    for _ in range(3):
        blackout_rows.declare(actor=people["admin"].actor, reason="a move", environment="production")
        blackout_rows.declare(actor=people["admin"].actor, reason="another")
    assert queries_of(operator, "/console/workers/") == asked
    with CaptureQueriesContext(connection) as captured:
        operator.part("/console/")
    assert not [one for one in captured if "pipelines_blackout" in one["sql"]]


@pytest.mark.parametrize("verb", ["retry", "redrive", "rerun", "replay"])
def test_a_dialog_says_what_holds_asks_why_all_the_same_and_then_does_it(
    verb: str, run: Run, operator: Visitor, workspace: Workspace, hand: Hand
) -> None:
    """Contract §4: without a reason nothing is done; with one it starts, and the audit keeps it."""
    before = operator.get(dialog(verb, run))
    assert "override_reason" not in before.content.decode()
    period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True, reason="a move")

    refused = operator.post(dialog(verb, run), form_of(before, reason="again"))
    assert refused.status_code == 409
    told = unescape(text_of(refused))
    assert "Nothing starts: freeze 'the freeze' since 2020-01-01 00:00:00 UTC, until it is lifted (a move)" in told
    assert "This is another plan than the one before" not in told
    assert 'name="override_reason"' in refused.content.decode()
    assert Run.objects.count() == 1
    assert stages_of(run)[0].epoch == 1

    answer = operator.post(dialog(verb, run), form_of(refused, reason="again", override_reason=f" {WHY}\0 "))
    assert answer.status_code == 303, text_of(answer)
    newest = Run.objects.latest("created_at")
    assert newest.through_blackout
    assert hand.take().run_id == newest.id
    assert AuditEvent.objects.filter(outcome="allowed", data__override_reason=WHY).count() == 1


def test_a_reason_that_is_too_long_is_told_at_its_field_and_kept(
    run: Run, operator: Visitor, workspace: Workspace
) -> None:
    period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True)
    page = operator.get(dialog("retry", run))
    answer = operator.post(dialog("retry", run), form_of(page, reason="again", override_reason="r" * 10_001))
    assert answer.status_code == 400
    assert "At most 10000 characters" in text_of(answer)
    assert 'id="override-error"' in answer.content.decode()
    assert stages_of(run)[0].epoch == 1


def test_an_input_that_no_text_of_the_database_may_hold_is_told_at_its_field(run: Run, operator: Visitor) -> None:
    page = operator.get(dialog("retry", run))
    answer = operator.post(dialog("retry", run), form_of(page, reason="again", change_input="1", input="a\0b"))
    assert answer.status_code == 400
    assert 'id="input-error"' in answer.content.decode()
    assert stages_of(run)[0].epoch == 1


def test_a_blackout_that_ended_while_the_dialog_was_open_needs_no_reason(
    run: Run, operator: Visitor, workspace: Workspace
) -> None:
    holds = period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True)
    page = operator.get(dialog("retry", run))
    assert "this starts all the same, with a reason" in text_of(page)
    Blackout.objects.filter(id=holds.id).update(enabled=False)
    assert operator.post(dialog("retry", run), form_of(page, reason="again")).status_code == 303
    assert not Run.objects.get().through_blackout


def test_a_run_that_waits_says_so_on_its_page(start_run: StartRun, operator: Visitor, workspace: Workspace) -> None:
    run = start_run("load")
    period(workspace, "2020-01-01T00:00:00", None, name="the freeze", is_freeze=True)
    told = unescape(text_of(operator.get(f"/console/runs/{run.id}/")))
    assert "nothing starts: freeze 'the freeze' since 2020-01-01 00:00:00 UTC, until it is lifted" in told
