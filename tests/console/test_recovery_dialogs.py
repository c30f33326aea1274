"""The recovery dialog says what will happen before anything does, and asks what somebody must have looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import AuditEvent, Run
from recovery.answers import CHECKS
from recovery.fork_choices import choices
from tests.cast import Hand, Person, stages_of
from tests.console.conftest import Visitor, text_of
from tests.recovery.stories import EXTERNAL, effect_of

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]


def title_of(page: Any) -> str:
    found = re.search(r'<h\d id="act-title"[^>]*>([^<]*)<', page.content.decode())
    assert found
    return unescape(found[1])


def buttons_of(page: Any) -> list[str]:
    return re.findall(r'<button class="btn primary[^"]*">([^<]*)<', page.content.decode())


def test_the_title_is_the_sentence_of_what_will_happen_and_the_button_says_the_outcome(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    """Numbers, not adjectives; another choice, another sentence."""
    run = start_run("extract", "load", "publish")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    load = stages_of(run)[1]
    address = f"/console/stages/{load.id}/retry/"
    page = operator.get(address)
    assert title_of(page) == "Retry load of nightly: 1 stage runs again, 1 stage waits, 1 stage is kept"
    assert buttons_of(page) == ["Retry load"]
    skip = operator.get(f"/console/stages/{load.id}/skip/")
    assert title_of(skip) == "Skip load of nightly: 1 stage is left out, 1 stage goes on, 1 stage is kept"
    rerun = operator.get(f"/console/runs/{run.id}/rerun/")
    assert title_of(rerun) == "Rerun nightly as a new run: 2 stages run, 1 stage is kept"
    assert buttons_of(rerun) == ["Make the new run from load"]


def test_a_retry_with_all_behind_it_says_how_many_on_its_button(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    run = start_run("load", "publish", "notify")
    hand.finish()
    page = operator.post(
        f"/console/stages/{stages_of(run)[0].id}/retry/", {"scope": "stage_and_downstream", "look": "yes"}
    )
    assert title_of(page) == "Retry load of nightly: 3 stages run again"
    assert buttons_of(page) == ["Retry load and 2 behind it"]


def test_a_cancel_counts_what_ends_and_what_may_go_on(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    run = start_run("load", "publish")
    hand.take()
    page = operator.get(f"/console/runs/{run.id}/cancel/")
    assert title_of(page) == "Cancel nightly: 2 stages end, 1 thing may go on outside"


def test_what_cannot_be_undone_is_said_beside_the_plan(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """P86: the numbers of a plan do not take the place of what its verb means."""
    run = start_run("load", name="nightly")
    assert "A cancelled run stays so." in text_of(operator.get(f"/console/runs/{run.id}/cancel/"))
    hand.report(hand.take(), "failed", error_code="LOCKED", retryable=False)
    told = text_of(operator.get(f"/console/stages/{run.stages.get().id}/skip/"))
    assert "Skip only when the process can do without this result." in told


def test_names_as_long_as_may_be_leave_room_for_the_numbers_in_titles_and_on_buttons(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    run = start_run("s" * 200, "publish", name="n" * 200)
    hand.report(hand.take(), "failed", error_code="LOCKED", retryable=False)
    page = operator.get(f"/console/stages/{run.stages.order_by('position')[0].id}/retry/").content.decode()
    (title,) = re.findall(r'id="act-title"[^>]*>([^<]+)<', page)
    assert title == f"Retry {'s' * 59}… of {'n' * 59}…: 1 stage runs again, 1 stage waits"
    assert f">Retry {'s' * 59}…</button>" in page


def test_what_failed_and_how_often_stands_in_the_dialog(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """P86: the error and the attempts are read before anything is done again."""
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="a row is there\nand more")
    told = text_of(operator.get(f"/console/stages/{stages_of(run)[0].id}/retry/"))
    assert "Now failed, epoch 1, 1 attempt in all" in told
    assert "Last error UNIQUE: a row is there" in told
    assert "and more" not in told


def test_the_checklist_shows_the_history_and_the_effects_that_it_asks_about(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    """P59, P86, P87: read the history, check the outside system, resolve the cause, confirm idempotence; what is known
    of the first two is one click away, and equal ends are told once."""
    run = start_run({"name": "pay", **EXTERNAL, "options": {"max_retries": 2, "retry_interval": 1}})
    job = hand.take()
    effect = effect_of(run, "pay", key="charge-7")
    hand.report(job, "failed", error_code="DECLINED", error_message="no funds", retryable=False)
    page = operator.get(f"/console/stages/{stages_of(run)[0].id}/retry/")
    told = text_of(page)
    order = [told.index(claim) for _, claim, _ in CHECKS]
    assert order == sorted(order)
    assert "attempt 1 DECLINED no funds" in told
    assert f'href="/console/effects/{effect.id}/"' in page.content.decode()
    assert "charge-7" in told
    body = page.content.decode()
    for name, _, question in CHECKS:
        assert re.search(rf'name="check_{name}" value="yes" required', body)
        assert re.search(rf'name="note_{name}"[^>]*aria-label="{re.escape(question)}"[^>]* required', unescape(body))


def test_each_note_that_is_missing_is_named_where_it_is_missing(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    """P87: nothing is done, and what was typed stays."""
    run = start_run({"name": "pay", "effect_mode": "external"})
    hand.report(hand.take(), "failed", error_code="X")
    given = {f"{kind}_{name}": "seen" for name, _, _ in CHECKS for kind in ("check", "note")}
    del given["note_cause"]
    page = operator.post(f"/console/stages/{stages_of(run)[0].id}/retry/", {**given, "reason": "again"})
    assert page.status_code == 400
    assert re.findall(r'id="check-(\w+)-error"', page.content.decode()) == ["cause"]
    assert page.content.decode().count('value="seen"') == 3
    assert stages_of(run)[0].state == "failed"


def test_a_plan_of_a_hundred_stages_folds_and_every_name_is_in_it(
    operator: Visitor, start_run: StartRun, hand: Hand
) -> None:
    run = start_run(*[f"stage-{number}" for number in range(100)])
    hand.finish(limit=1)
    address = f"/console/stages/{stages_of(run)[0].id}/retry/"
    page = operator.post(address, {"scope": "stage_and_downstream", "look": "yes"})
    body = page.content.decode()
    shown, _, folded = body.partition('<details class="all-names">')
    assert "stage-99" not in shown.partition('class="consequences"')[2]
    assert "<li><bdi>stage-99</bdi></li>" in folded
    assert "All 100 by name" in body
    assert title_of(page) == "Retry stage-0 of nightly: 100 stages run again"
    assert len(body) < 60_000


def test_a_rerun_says_of_each_stage_where_it_leads(operator: Visitor, start_run: StartRun, hand: Hand) -> None:
    """O57: an explicit from_step_id is a choice between known ends; the plan of the chosen one says the same."""
    after = {"load": ["extract"], "publish": ["load"], "audit": ["extract"]}
    run = start_run("extract", *({"name": name, "depends_on": needs} for name, needs in after.items()))
    hand.report(hand.take(), output=1)
    jobs = {job.stage.name: job for job in hand.pull(5)}
    hand.report(jobs["audit"], output=2)
    hand.report(jobs["load"], "failed", error_code="X", retryable=False)
    address = f"/console/runs/{run.id}/rerun/"
    told = unescape(text_of(operator.get(address)))
    assert "load, from a clean start: keeps 2, runs 2" in told
    assert "extract, from a clean start: keeps 0, runs 4" in told
    assert "publish, from a clean start: only from an older checkpoint: load before it is not done now" in told
    for one in choices(Run.objects.select_related("release", "pipeline").get(id=run.id)):
        if not one.problem:
            page = operator.post(address, {"from_step_id": one.stage, "look": "yes"})
            kept = f", {one.keeps} {'stage is' if one.keeps == 1 else 'stages are'} kept" if one.keeps else ""
            assert title_of(page).endswith(f"{one.runs} stages run{kept}")


@pytest.mark.parametrize("verb", ["rerun", "replay"])
def test_a_fork_shows_the_checklist_of_its_source_and_where_the_evidence_will_be(
    operator: Visitor, start_run: StartRun, hand: Hand, verb: str
) -> None:
    """O57, O58: status, release, workload, workspace, snapshot, policies; that it is a dry run; when to take which."""
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    told = text_of(operator.get(f"/console/runs/{run.id}/{verb}/"))
    for term in ("Status failed", "Workload billing", "Workspace acme", "Snapshot checkpoint", "Release", "Policies"):
        assert term in told
    assert "A dry run, plan " in told
    assert "the new run links to its evidence" in told
    assert "A replay starts from the beginning, for an investigation" in told
    assert "It is the safer one." in told
    assert not Run.objects.filter(recovered_from=run).exists()


def test_looking_ahead_costs_the_same_however_many_stages_there_are(start_run: StartRun, hand: Hand) -> None:
    counts = []
    for number in (2, 60):
        run = start_run(*[f"stage-{one}" for one in range(number)], key=str(number))
        hand.report(hand.take(), "failed", error_code="X", retryable=False)
        found = Run.objects.select_related("release", "pipeline").get(id=run.id)
        with CaptureQueriesContext(connection) as captured:
            assert len(choices(found)) == number
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 12


def test_a_viewer_sees_the_reason_and_no_dialog(
    browse: Callable[[Person], Visitor], people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    run = start_run("load")
    hand.report(hand.take(), "failed", error_code="X")
    page = browse(people["viewer"]).get(f"/console/stages/{stages_of(run)[0].id}/retry/")
    assert page.status_code == 403
    assert "You are viewer in acme" in text_of(page)
    assert not AuditEvent.objects.filter(action="stage.retry", outcome="allowed").exists()
