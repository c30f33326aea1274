"""What no longer stands on what it pinned is not made to go on by anybody: no verb does; a fork and a cancel do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from approvals.transitions import decide_gate
from pipelines import pinned, queries, sweeps
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import Attempt, DeadLetter, Event, Run
from recovery import dead_letters
from recovery.reconciliation import Finding, reconcile_stage
from recovery.transitions import ask_cancel, ask_pause, ask_resume, ask_retry, ask_skip, perform, preview
from tests.cast import Api, Hand, Person, stages_of
from tests.pipelines.test_pinned import edit

StartRun = Callable[..., Run]


@pytest.fixture
def actor(people: dict[str, Person]) -> Actor:
    return people["admin"].actor


def refused(act: Callable[[], Any], run: Run) -> Refusal:
    """Says what differs, and begins nothing."""
    before = Attempt.objects.filter(run_id=run.id).count()
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == "definition_changed"
    (difference,) = caught.value.extra["changed"]
    assert difference["pinned"] == run.release_digest != difference["found"]
    assert Attempt.objects.filter(run_id=run.id).count() == before
    return caught.value


def test_no_stage_is_retried_or_left_out(start_run: StartRun, hand: Hand, actor: Actor) -> None:
    """R16: neither done nor planned; the failed run stays as it is."""
    run = start_run("first", "second")
    hand.report(hand.take(), "failed", error_code="E")
    edit(run)
    stage = stages_of(run)[0]
    for asked in (ask_retry(run.id, stage.id), ask_skip(run.id, stage.id, reason="not needed")):
        refused(lambda asked=asked: preview(asked, actor=actor), run)  # type: ignore[misc]
        refused(lambda asked=asked: perform(asked, actor=actor), run)  # type: ignore[misc]
    letter = DeadLetter.objects.get(run_id=run.id)
    refused(lambda: perform(dead_letters.ask_redrive(letter), actor=actor), run)
    assert [one.state for one in stages_of(run)] == ["failed", "pending"]


def test_a_paused_run_is_not_resumed_and_says_so_from_then_on(
    start_run: StartRun, hand: Hand, actor: Actor, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """R16: also on its page, in its blockers and over the operations API; told once, though it was asked twice."""
    run = start_run("first")
    perform(ask_pause(run.id), actor=actor)
    edit(run)
    for _ in range(2):
        refused(lambda: perform(ask_resume(run.id), actor=actor), run)
    assert not hand.pull(10)
    run.refresh_from_db()
    assert run.changed
    assert Event.objects.filter(run_id=run.id, kind="run.definition_changed").count() == 1
    causes = [blocker.cause for blocker in queries.blockers(run)]
    assert any("the definition has changed: definition nightly is" in cause for cause in causes)
    assert not any("may pull it" in cause for cause in causes)
    body = as_person(people["viewer"]).get(f"/v1/executions/{run.id}").json()
    assert [one["what"] for one in body["definition_changed"]] == ["definition"]
    client = Client()
    client.force_login(people["viewer"].user)
    page = client.get(f"/console/runs/{run.id}/").content.decode()
    assert "Definition changed" in page
    assert run.release_digest in page


def test_it_stays_so_when_the_text_is_put_back(start_run: StartRun, hand: Hand) -> None:
    run = start_run("first")
    edit(run)
    assert not hand.pull(10)
    edit(run, "Other", "Handler")
    assert not hand.pull(10)
    assert pinned.found([run.id])


def test_it_is_cancelled_and_forked_as_ever(
    start_run: StartRun, hand: Hand, actor: Actor, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    run = start_run("first")
    edit(run)
    assert not hand.pull(10)
    answer = as_person(people["admin"]).post(f"/v1/executions/{run.id}/cancel", {})
    assert answer.status_code == 200, answer.content
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert perform(ask_cancel(run.id), actor=actor)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_no_gate_lets_it_go_on(start_run: StartRun, hand: Hand, actor: Actor, moment: str) -> None:
    """An approval is refused; a rejection lets nothing go on, and is taken."""
    run = start_run({"name": "first", "approval": {"when": moment}}, "second")
    if moment == "after":
        hand.report(hand.take(), output=1)
    edit(run)
    stage = stages_of(run)[0]
    refused(lambda: decide_gate(stage.id, actor=actor, approved=True), run)
    assert stages_of(run)[0].state == "waiting"
    assert decide_gate(stage.id, actor=actor, approved=False, reason="no").stage_state == "failed"


def test_what_did_not_happen_outside_is_not_done_again(
    start_run: StartRun, hand: Hand, actor: Actor, clock: Any
) -> None:
    run = start_run({"name": "first", "effect_mode": "external"})
    hand.take()
    clock.advance(days=1)
    sweeps.expire_leases()
    edit(run)
    (stage,) = stages_of(run)
    assert stage.state == "needs_reconciliation"
    refused(lambda: reconcile_stage(stage, Finding("absent", "looked"), actor=actor), run)
    done = reconcile_stage(stage, Finding("committed", "found", output=1, has_output=True), actor=actor)
    assert done.result["stage_status"] == "completed"
