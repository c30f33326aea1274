"""The run page: where it stands, why it does not move, and everything about the attempts (P86, N6)."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.console import run_page
from pipelines.models import Attempt, Gate, LogLine, Policy, Run, WorkerSession, Workspace
from pipelines.sql import database_now
from pipelines.sweeps import sweep
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.stories import EXTERNAL, effect_of, in_review
from tests.verbs import pause_run, resume_run, retry_stage, skip_stage

pytestmark = pytest.mark.django_db

RETRIED = {"name": "load", "options": {"max_retries": 2, "retry_interval": 60}}


def test_a_failed_run_opens_at_its_failed_stage_with_the_newest_attempt_first(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    """P86: errors and attempt history are on the page before anybody retries."""
    run = start_run("extract", RETRIED, "publish", name="orders", key="orders:2026-05-30")
    hand.report(hand.take(), output=1)
    for number in (1, 2, 3):
        hand.report(hand.take(), "failed", error_code="UNIQUE", error_message=f"row {number} is there\nDETAIL")
        clock.advance(61)
        sweep()
    page = operator.get(f"/console/runs/{run.id}/")
    told = text_of(page)
    assert "Failed at load" in told
    assert "1 of 3 done" in told
    assert "Failed with UNIQUE: retry it or skip it." in told
    errors = re.findall(r"row (\d) is there", _attempt_table(page))
    assert errors == ["3", "2", "1"]
    assert "DETAIL" not in _attempt_table(page)
    assert "load became a dead letter: the machine has given up on it" in told
    assert "2 of 2 retries are used" in told


def test_an_attempt_opens_to_traceback_input_output_and_logs(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """N6: what an operator needs to understand a failure is one click away, also without JavaScript."""
    run = start_run({"name": "load", "input": '{"day": "2026-05-30"}'})
    job = hand.take()
    line = {"level": "error", "message": "chunk 9 failed", "fields": {"table": "orders"}}
    LogLine.objects.create(attempt_id=job.attempt_id, at=database_now(), **line)
    hand.report(job, "failed", error_code="UNIQUE", error_message="is there", traceback="File 'load.py', line 88")
    page = operator.get(f"/console/runs/{run.id}/")
    assert f'href="/console/attempts/{job.attempt_id}/"' in page.content.decode()
    for answer in (
        operator.get(f"/console/attempts/{job.attempt_id}/"),
        operator.part(f"/console/attempts/{job.attempt_id}/"),
    ):
        told = text_of(answer)
        for words in ("File 'load.py', line 88", '{"day": "2026-05-30"}', "chunk 9 failed", '{"table": "orders"}'):
            assert words in unescape(told)
        assert "no retries: a positive maximum and a positive interval are both needed" in told.lower()
    assert "<html" not in operator.part(f"/console/attempts/{job.attempt_id}/").content.decode()


def test_an_attempt_of_an_earlier_epoch_shows_the_input_that_it_had(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, people: dict[str, Person]
) -> None:
    """A retry erases nothing (model §2): the first attempt keeps its own input and output."""
    run = start_run({"name": "load", "input": "first input"})
    first = hand.take()
    hand.report(first, output="first output")
    stage = run.stages.get()
    retry_stage(stage.id, actor=people["operator"].actor, reason="again", new_input="second input")
    second = hand.take()
    hand.report(second, output="second output")
    then, now = (text_of(operator.get(f"/console/attempts/{job.attempt_id}/")) for job in (first, second))
    assert "first input" in then
    assert "first output" in then
    assert "second" not in then
    assert "second input" in now
    assert "second output" in now
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "epoch 2" in told
    assert f"{people['operator'].actor.name} gave load a new input; the earlier one is kept" in told


def test_a_late_result_is_shown_as_evidence_that_changed_nothing(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    run = start_run("load")
    job = hand.take()
    clock.advance(90)
    sweep()
    assert not hand.report(job, output="too late").accepted
    assert "late result kept" in text_of(operator.get(f"/console/runs/{run.id}/"))
    told = text_of(operator.get(f"/console/attempts/{job.attempt_id}/"))
    assert "it changed nothing and is kept as evidence" in told
    assert "too late" in told
    assert "Lost" in told


def test_what_helps_stands_at_the_head_with_what_is_wrong(
    operator: Visitor,
    browse: Callable[[Person], Visitor],
    people: dict[str, Person],
    start_run: Callable[..., Run],
    hand: Hand,
) -> None:
    """O57, P86: whoever is woken finds error and remedy in one place; whoever may not act finds the error alone."""
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="LOCKED", error_message="the table is locked")
    stages = [str(stage.id) for stage in run.stages.order_by("position")]
    head = _head(operator.get(f"/console/runs/{run.id}/"))
    assert "LOCKED the table is locked" in _words(head)
    helps = [re.sub("<[^>]+>", "", words) for words in re.findall("<a [^>]*>(.*?)</a>", _note(head))]
    assert helps == ["Retry load…", "Skip load…", "Acknowledge…", "Discard…"]
    assert f'href="/console/stages/{stages[0]}/retry/"' in head
    page = operator.get(f"/console/runs/{run.id}/?stage=1")
    assert f'href="/console/stages/{stages[0]}/retry/"' in _head(page), "whatever stage is opened"
    assert page.content.decode().count('data-key="r"') == 1
    seen = _head(browse(people["viewer"]).get(f"/console/runs/{run.id}/"))
    assert "LOCKED the table is locked" in _words(seen)
    assert "<a " not in _note(seen)


def test_a_decision_that_a_run_waits_for_is_one_click_from_its_head(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    run = start_run({"name": "post", "approval": {"when": "before", "expires_in": 3600}})
    note = _note(_head(operator.get(f"/console/runs/{run.id}/")))
    assert "A decision is asked for about post ; it expires in" in _words(note)
    assert f'href="/console/approvals/{Gate.objects.get(run=run).id}/"' in note


def test_a_run_that_goes_on_beside_a_failed_stage_is_not_said_to_be_at_it(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    start_run("begin", {"name": "one", "depends_on": ["begin"]}, {"name": "two", "depends_on": ["begin"]})
    hand.report(hand.take(), output=1)
    first = hand.take()
    hand.take()
    hand.report(first, "failed", error_code="LOCKED", retryable=False)
    told = text_of(operator.get(f"/console/runs/{first.stage.run_id}/"))
    assert f"Running, {first.stage.name} failed" in told
    assert f"Retry {first.stage.name} …" in told


def test_nothing_at_the_head_promises_what_a_run_past_its_deadline_refuses(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    branches = [{"name": name, "depends_on": ["begin"]} for name in ("load", "slow")]
    run = start_run("begin", *branches, deadline_seconds=60)
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="LOCKED", retryable=False)
    clock.advance(90)
    sweep()
    run.refresh_from_db()
    assert run.failure_code == "deadline_exceeded"
    head = _head(operator.get(f"/console/runs/{run.id}/"))
    assert "deadline_exceeded" in head
    assert "Retry <bdi>" not in head


def test_an_open_gate_says_since_when_and_who_decides(operator: Visitor, start_run: Callable[..., Run]) -> None:
    run = start_run({"name": "post", "approval": {"when": "before", "expires_in": 3600}})
    page = operator.get(f"/console/runs/{run.id}/")
    told = text_of(page)
    assert "Waiting at post" in told
    assert "A decision is asked for before this stage starts" in told
    assert "the application billing may decide too, with its key" in told
    gate = Gate.objects.get(run=run)
    assert f'href="/console/approvals/{gate.id}/"' in page.content.decode()
    assert re.search(r"it expires in (59|60|1) (min|h)", told)


def test_a_stage_that_may_have_acted_outside_blocks_the_run_and_says_so(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    run = start_run({"name": "pay", "effect_mode": "external"}, "book")
    hand.take()
    clock.advance(90)
    sweep()
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "Blocked at pay" in told
    assert "What it did outside is unknown" in told
    assert "Retry: what it did outside is unknown: that must be reconciled first." in told
    assert "1 more stage waits only for others" in told


def test_a_cancelled_run_lists_what_may_still_go_on_outside(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, people: dict[str, Person]
) -> None:
    """P75, model §3.8: cancel is honest about outside work."""
    run = start_run("load", "publish")
    hand.take()
    cancel_run(run.id, actor=people["operator"].actor, reason="wrong file")
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "May still go on outside" in told
    assert "load: attempt 1 may still run at hand-1; it was told to stop" in told
    assert f"{people['operator'].actor.name} cancelled the run : wrong file" in told
    assert "stopped outside" not in told


def test_a_paused_run_says_who_paused_it_and_why(
    operator: Visitor, start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    run = start_run("load")
    pause_run(run.id, actor=people["operator"].actor, reason="file is late")
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert f"Paused by {people['operator'].actor.name}" in told
    assert "file is late" in told
    assert "Pause: the run is paused already." in told
    assert "A person must resume the run." in told
    assert "It goes on when the run is resumed." in told
    assert "whoever asks first" not in told, "nothing is handed out to anybody"


def test_another_stage_is_opened_by_its_link(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run("extract", {"name": "load", "description": "Writes the orders."})
    hand.report(hand.take(), output={"rows": 12})
    page = operator.get(f"/console/runs/{run.id}/?stage=0")
    assert '{"rows":12}' in unescape(text_of(page)).replace(" ", "")
    assert "Writes the orders." not in text_of(page)
    assert "Writes the orders." in text_of(operator.get(f"/console/runs/{run.id}/?stage=1"))
    for nonsense in ("99", "-1", "x", "9" * 40, "²"):
        assert operator.get(f"/console/runs/{run.id}/", {"stage": nonsense}).status_code == 200


def test_the_time_line_draws_every_attempt_and_the_waits_between(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    run = start_run(RETRIED)
    hand.report(hand.take(), "failed", error_code="UPSTREAM")
    clock.advance(61)
    hand.take()
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    pattern = r'<rect class="bar( gap)?" data-status="(\w+)" x="([\d.]+)" y="\d+" height="\d+" width="([\d.]+)"'
    bars = re.findall(pattern, page)
    assert [(gap.strip(), status) for gap, status, _, _ in bars] == [
        ("", "failed"),
        ("gap", "retry_scheduled"),
        ("", "running"),
    ]
    frame = re.search(r'<svg class="time" viewBox="0 0 ([\d.]+) 28"', page)
    assert frame
    assert all(float(x) >= 0 and float(x) + float(width) <= float(frame[1]) for _, _, x, width in bars)
    assert "<title>attempt 1 failed with UPSTREAM" in page
    assert page.count(" data-grows") == 1, "only what goes on grows"


def test_the_time_line_is_a_table_too(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    """What the drawing shows can be read: every attempt with its times, and every decision."""
    run = start_run(RETRIED, {"name": "post", "approval": {"when": "before"}})
    hand.report(hand.take(), "failed", error_code="UPSTREAM", error_message="no answer")
    clock.advance(61)
    hand.report(hand.take(), output=1)
    assert f'href="/console/runs/{run.id}/timeline/"' in operator.get(f"/console/runs/{run.id}/").content.decode()
    told = text_of(operator.get(f"/console/runs/{run.id}/timeline/"))
    assert told.index("load attempt 1 Failed UPSTREAM no answer") < told.index("load attempt 2 Succeeded")
    assert "post Open" in told


def test_pauses_and_epochs_are_drawn(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock, people: dict[str, Person]
) -> None:
    """What a person did to the run stands on the same axis as what its workers did."""
    run, actor = start_run("load", "publish"), people["operator"].actor
    hand.report(hand.take(), output=1)
    pause_run(run.id, actor=actor, reason="file is late")
    clock.advance(30)
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    assert f"<title>paused by {actor.name}, " in page
    assert "file is late</title>" in page
    resume_run(run.id, actor=actor)
    retry_stage(run.stages.get(name="load").id, actor=actor, reason="again")
    hand.report(hand.take(), output=2)
    page = operator.get(f"/console/runs/{run.id}/?stage=0").content.decode()
    assert re.search(r'<rect class="bar faded" data-status="succeeded"[^>]*><title>attempt 1 ', page)
    assert re.search(r'<rect class="bar" data-status="succeeded"[^>]*><title>attempt 2 ', page)
    assert "<title>epoch 2 begins, " in page
    assert "Begun anew 1 time by people" in unescape(page)


def test_the_graph_is_drawn_where_it_has_a_shape(operator: Visitor, start_run: Callable[..., Run]) -> None:
    plain = operator.get(f"/console/runs/{start_run('a', 'b', key='plain').id}/").content.decode()
    assert 'class="ways"' not in plain
    branches = [{"name": name, "depends_on": ["first"]} for name in ("left", "right")]
    run = start_run("first", *branches, {"name": "last", "depends_on": ["left", "right"]}, key="branched")
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    assert page.count('<svg class="ways"') == 4
    assert 'aria-label="after left, right"' in page


def test_equal_errors_are_one_line_and_each_can_be_seen(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """P86: the history stays readable when one error came often, and nothing of it is hidden."""
    run = start_run({"name": "load", "options": {"max_retries": 9, "retry_interval": 0.001}})
    for message in ("other", "same", "same", "same"):
        hand.report(hand.take(), "failed", error_code="X", error_message=message)
        sweep()
    table = _attempt_table(operator.get(f"/console/runs/{run.id}/"))
    assert table.count("same") == 1
    assert "× 3" in table
    assert 'href="?stage=0&amp;attempts=all#attempts"' in table
    assert table.index("same") < table.index("other")
    every = _attempt_table(operator.get(f"/console/runs/{run.id}/?stage=0&attempts=all"))
    assert every.count("same") == 3
    assert "×" not in every


def test_an_attempt_says_why_it_was_or_was_not_tried_again(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, workspace: Workspace, clock: Clock
) -> None:
    """F166, I15: policy, rule, class, delay and attempts left, which come out the same when computed again."""
    policy = Policy.objects.create(
        workspace=workspace,
        name="patient",
        kind="retry",
        match={"stage": "load"},
        rule={"max_retries": 1, "retry_interval": 30},
    )
    run = start_run("load")
    first = hand.take()
    hand.report(first, "failed", error_code="X", error_message="one")
    clock.advance(31)
    sweep()
    second = hand.take()
    hand.report(second, "failed", error_code="X", error_message="two")
    policy.delete()
    told = text_of(operator.get(f"/console/attempts/{first.attempt_id}/"))
    for words in (
        "policy:patient",
        '{"max_retries": 1, "retry_interval": 30}',
        "Class of error may be retried",
        "Delay 30s",
        "0 of 1 used before it, 0 left after it",
        "Computed again from what the attempt keeps, it comes out the same",
    ):
        assert words in unescape(told), words
    assert "1 of 1 retries are used" in text_of(operator.get(f"/console/attempts/{second.attempt_id}/"))
    table = unescape(_attempt_table(operator.get(f"/console/runs/{run.id}/")))
    assert "tried again after 30 s, 0 left" in table
    assert "not tried again: 1 of 1 retries used" in table


def test_a_decision_that_does_not_come_out_the_same_is_told_as_such(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """F166: what was stored is held against what it follows from, and not believed."""
    start_run(RETRIED)
    job = hand.take()
    hand.report(job, "failed", error_code="X")
    decision = Attempt.objects.get(id=job.attempt_id).decision
    assert run_page.is_recomputed(decision) is True
    assert run_page.is_recomputed({**decision, "delay": 1.0}) is False
    assert run_page.is_recomputed(None) is None


def test_the_policies_that_rule_a_stage_are_told_with_what_they_outrank(
    operator: Visitor, start_run: Callable[..., Run], workspace: Workspace
) -> None:
    """P47: the winner, the shadowed, and why."""
    for name, match in (("everywhere", {}), ("loading", {"stage": "load"})):
        Policy.objects.create(
            workspace=workspace, name=name, kind="retry", match=match, rule={"max_retries": 1, "retry_interval": 5}
        )
    told = text_of(operator.get(f"/console/runs/{start_run('load').id}/"))
    assert "Loading targets it by stage; the others are less specific." in told
    assert "Outranked: everywhere." in told
    assert "timeout: its own options" in told


def test_context_leads_to_the_runs_that_share_it(operator: Visitor, start_run: Callable[..., Run]) -> None:
    """P89: keys and values are visible and lead to a search; a sensitive value does neither."""
    items = [{"key": "orderId", "value": "A-77"}, {"key": "iban", "value": "DE00 1234", "is_sensitive": True}]
    page = operator.get(f"/console/runs/{start_run('load', context_items=items).id}/").content.decode()
    assert 'href="/console/?search=A-77"' in page
    assert 'href="/console/?search=orderId"' in page
    assert "DE00" not in page


def test_a_long_text_is_cut_and_can_be_had_as_a_whole(
    operator: Visitor, browse: Callable[[Person], Visitor], outsider: Person, start_run: Callable[..., Run], hand: Hand
) -> None:
    """The page stays light whatever workers send; the whole is plain text, and of others' runs there is none (I16)."""
    long = '"' + "x" * 9_000 + '"'
    run = start_run({"name": "load", "input": long})
    job = hand.take()
    hand.report(job, "failed", error_code="X", error_message="<b>" + "m" * 9_000, traceback="<i>" + "t" * 30_000)
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    assert "x" * 3_001 not in page
    assert "6,002 more characters" in page
    stage = run.stages.get()
    assert f'href="/console/whole/stage-input/{stage.id}/"' in page
    for kind, item, text in (
        ("stage-input", stage.id, long),
        ("attempt-input", job.attempt_id, long),
        ("error", job.attempt_id, "<b>" + "m" * 9_000),
        ("traceback", job.attempt_id, "<i>" + "t" * 30_000),
    ):
        answer = operator.get(f"/console/whole/{kind}/{item}/")
        assert answer.content.decode() == text
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert browse(outsider).get(f"/console/whole/{kind}/{item}/").status_code == 404
    for nothing in (f"output/{stage.id}", f"run-input/{run.id}", f"nonsense/{job.attempt_id}"):
        assert operator.get(f"/console/whole/{nothing}/").status_code == 404, nothing


def test_the_key_of_recovery_opens_the_act_that_one_came_for(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """One key leads to a dialog, never to an act; where nothing can be recovered there is none (P88)."""
    run = start_run("load")
    assert 'data-key="r"' not in operator.get(f"/console/runs/{run.id}/").content.decode()
    hand.report(hand.take(), "failed", error_code="X")
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    offered = re.findall(r'<a class="btn[^>]* href="([^"]+)"[^>]* data-key="r"', page)
    assert offered == [f"/console/stages/{run.stages.get().id}/retry/"]


def test_the_number_of_queries_does_not_grow_with_stages_or_attempts(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, clock: Clock
) -> None:
    small = start_run("a", key="small")
    hand.report(hand.take(), "failed", error_code="X")
    many = {"name": "first", "options": {"max_retries": 9, "retry_interval": 1}}
    large = start_run(many, *[f"stage-{number}" for number in range(30)], key="large")
    for _ in range(10):
        hand.report(hand.take(), "failed", error_code="X", error_message="again")
        clock.advance(40)
    assert _queries(operator, large) == _queries(operator, small)
    assert _queries(operator, large) <= 38


def test_every_step_is_told_on_a_page_of_its_own(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run("load")
    (job,) = hand.pull(acquire=False)
    steps = text_of(operator.get(f"/console/runs/{run.id}/events/"))
    assert "load was handed out, attempt 1" in steps
    assert "billing created the run" in steps
    page = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "billing created the run" in page
    assert "load was handed out" not in page
    hand.acquire(job)
    hand.report(job, output=1)
    assert "hand-1 completed load, attempt 1" in text_of(operator.get(f"/console/runs/{run.id}/"))


def test_what_a_worker_sends_is_text_and_never_markup(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    attack = "<script>alert(1)</script>"
    run = start_run({"name": attack, "input": attack}, name=attack, context_items=[{"key": attack, "value": attack}])
    job = hand.take()
    hand.report(job, "failed", error_code="X", error_message=attack, traceback=attack)
    for address in ("/console/", f"/console/runs/{run.id}/", f"/console/attempts/{job.attempt_id}/"):
        assert attack not in operator.get(address).content.decode(), address
    assert attack not in operator.get("/console/dead-letters/").content.decode()


def test_dead_letters_and_workers_lead_to_the_run(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run("load", "publish", name="orders")
    letters = text_of(operator.get("/console/dead-letters/"))
    assert "None open or acknowledged" in letters
    job = hand.take()
    workers = operator.get("/console/workers/")
    assert "hand-1" in text_of(workers)
    assert "Alive" in text_of(workers)
    assert f'href="/console/runs/{run.id}/?stage=0"' in workers.content.decode()
    hand.report(job, "failed", error_code="VALIDATION_ERROR", error_message="no such day")
    page = operator.get("/console/dead-letters/")
    assert "VALIDATION_ERROR no such day" in text_of(page)
    assert f'href="/console/runs/{run.id}/?stage=0"' in page.content.decode()
    assert "orders" not in text_of(operator.get("/console/dead-letters/?status=resolved"))
    assert operator.get("/console/dead-letters/?status=lost").status_code == 400


def test_a_worker_that_left_is_draining_only_while_it_holds_something(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    start_run("load")
    job = hand.take()
    WorkerSession.objects.update(state="draining")
    assert "Draining" in text_of(operator.get("/console/workers/"))
    hand.report(job, output=1)
    told = text_of(operator.get("/console/workers/"))
    assert "Shut down" in told
    assert "Draining" not in told


def test_one_cause_is_told_once_and_what_a_person_must_do_comes_first(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """Nine branches that wait for the same worker are one line, below the branch that failed."""
    branches = [{"name": f"branch-{number}", "depends_on": ["first"]} for number in range(9)]
    last = {"name": "last", "depends_on": [branch["name"] for branch in branches]}
    run = start_run("first", *branches, last)
    hand.report(hand.take(), output=1)
    broken, *_ = hand.pull(1)
    hand.report(broken, "failed", error_code="BAD", retryable=False)
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    panel = unescape(re.sub(r"<[^>]+>", " ", page[page.index('id="blockers-title"') : page.index('id="stages-title"')]))
    told = " ".join(panel.split())
    assert told.index("Failed with BAD: retry it or skip it. A person must act.") < told.index("Ready since")
    assert told.count("Ready since") == 1
    assert "and 2 more" in told
    assert "It goes to whoever asks first: hand-1." in told
    assert "Held by" not in told


def test_a_run_past_its_deadline_does_not_blame_a_stage(
    operator: Visitor, start_run: Callable[..., Run], clock: Clock
) -> None:
    run = start_run("load", deadline_seconds=60)
    clock.advance(61)
    sweep()
    told = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "Failed at its deadline" in told
    assert "Failed at load" not in told
    assert "Nothing in this run can change that." in told
    assert "No attempt." in told
    assert "No attempt yet" not in told


def test_text_in_another_direction_does_not_turn_what_stands_beside_it(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    run = start_run({"name": "\u062a\u062d\u0645\u064a\u0644"}, name="\u0637\u0644\u0628 \u202e evil", key="orders:7")
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    assert f"<bdi>{run.name}</bdi>" in page
    assert "<bdi>\u062a\u062d\u0645\u064a\u0644</bdi>" in page


def test_times_that_go_on_are_marked_for_the_browser_and_those_that_ended_are_not(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """By the server's clock, which the page brings along: this machine's may be wrong."""
    run = start_run("load")
    job = hand.take()
    page = operator.get(f"/console/runs/{run.id}/").content.decode()
    assert re.search(r'<body data-now="\d{4}-[^"]+Z"', page)
    assert f'<span data-since="{run.created_at.isoformat().replace("+00:00", "Z")}">' in page
    assert re.search(r'The engine looks again <span class="nowrap"><time [^>]* data-ago>in \d+ s</time>', page)
    hand.report(job, output=1)
    assert "data-since" not in operator.get(f"/console/runs/{run.id}/").content.decode()


def _attempt_table(page: Any) -> str:
    found = re.search(r'<caption class="sr">Attempts of .*?</table>', page.content.decode(), flags=re.S)
    assert found
    return re.sub(r'title="[^"]*"', "", found[0])


def test_outputs_of_earlier_epochs_stay_on_the_page(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, people: dict[str, Person]
) -> None:
    """Model §2, "retry never erases": also what a person gave in a stage's place, which no attempt shows."""
    run = start_run("load")
    hand.report(hand.take(), output="from the worker")
    load = run.stages.get().id
    actor = people["operator"].actor
    retry_stage(load, actor=actor, reason="wrong data")
    skip_stage(load, actor=actor, reason="by hand", output="from dana", has_output=True)
    retry_stage(load, actor=actor, reason="once more")
    page = text_of(operator.get(f"/console/runs/{run.id}/"))
    assert "Output of epoch 2" in page
    assert 'given by a person "from dana"' in page
    assert "Output of epoch 1" in page
    assert '"from the worker"' in page


def _queries(visitor: Visitor, run: Run) -> int:
    visitor.get("/console/workers/")  # the session is noted as seen once a minute
    with CaptureQueriesContext(connection) as captured:
        assert visitor.get(f"/console/runs/{run.id}/").status_code == 200
    return len(captured)


def test_a_retry_decision_that_was_not_applied_says_so(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """F62: the stage needs reconciliation; that a retry was due says nothing of what happens."""
    options = {"max_retries": 3, "retry_interval": 5}
    run = start_run({"name": "pay", "options": options, "effect_mode": "external", "effect_protocol": "intent"})
    job = hand.take()
    effect_of(run, "pay", "declared")
    hand.report(job, "failed", error_code="X")
    told = text_of(operator.get(f"/console/attempts/{job.attempt_id}/"))
    assert "Retry decision Not applied, since nobody knows what the attempt did outside." in told


def test_only_the_newest_attempts_are_drawn_and_all_are_counted(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is tried for weeks has a page that ends."""
    monkeypatch.setattr(run_page, "FEWEST_DRAWN", 2)
    monkeypatch.setattr(run_page, "MOST_DRAWN", 2)
    run = start_run({"name": "load", "options": {"max_retries": 9, "retry_interval": 0.001}})
    for _ in range(5):
        hand.report(hand.take(), "failed", error_code="X")
        sweep()
    page = operator.get(f"/console/runs/{run.id}/")
    assert re.findall(r"<title>attempt (\d)", page.content.decode()) == ["1", "4", "5"]
    assert "<title>2 more attempts, not drawn one by one" in page.content.decode()
    assert 'aria-label="Time line of load: 5 attempts"' in page.content.decode()
    assert "Only the newest attempts are drawn one by one." in text_of(page)


def test_why_it_does_not_move_leads_to_what_waits_for_a_decision(
    browse: Callable[[Person], Visitor],
    people: dict[str, Person],
    start_run: Callable[..., Run],
    hand: Hand,
) -> None:
    """P84: to the page of a gate, whether only people decide it or the application may too, and of a request.

    Where many gates have the same cause the stages lead to theirs.
    """
    asked = {"when": "before", "require_person": True}
    visitor = browse(people["approver"])
    for approval in (asked, {"when": "before"}):
        run = start_run({"name": "publish", "approval": approval})
        gate = Gate.objects.get(run=run)
        assert f'href="/console/approvals/{gate.id}/"' in _why(visitor, run)
    two = [{"name": name, "depends_on": [], "approval": asked} for name in ("a", "b")]
    run = start_run(*two, {"name": "last", "depends_on": ["a", "b"]})
    assert "/console/approvals/" not in _why(visitor, run)
    run = start_run(EXTERNAL | {"name": "pay"})
    job = hand.take()
    effect_of(run, "pay")
    hand.report(job, "failed", error_code="DECLINED", retryable=False)
    operation = in_review(Run.objects.get(id=run.id), from_step_id="pay")
    assert f'href="/console/approvals/{operation.id}/"' in _why(visitor, run)


def _why(visitor: Visitor, run: Run) -> str:
    page: str = visitor.get(f"/console/runs/{run.id}/").content.decode()
    return page[page.index('id="blockers-title"') : page.index('id="stages-title"')]


def _head(page: Any) -> str:
    (head,) = re.findall(r'<div class="part" id="part-head">.*?<div class="split">', page.content.decode(), flags=re.S)
    return head


def _note(head: str) -> str:
    """What stands at the head of what is wrong, with what helps."""
    (note,) = re.findall(r'<div class="note stands".*?</div>', head, flags=re.S)
    return note


def _words(part: str) -> str:
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", part).split()))
