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
from pipelines.models import Gate, LogLine, Run, WorkerSession
from pipelines.sql import database_now
from pipelines.sweeps import sweep
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.stories import EXTERNAL, effect_of, in_review
from tests.verbs import pause_run, retry_stage, skip_stage

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


def test_the_living_part_is_204_until_something_happened_and_ends_with_the_run(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load")
    address = _live_address(operator.get(f"/console/runs/{run.id}/"))
    assert operator.part(address).status_code == 204
    job = hand.take()
    part = operator.part(address)
    assert "Running at load" in text_of(part)
    assert "<html" not in part.content.decode()
    assert operator.part(_live_address(part)).status_code == 204
    hand.report(job, output=1)
    ended = operator.part(_live_address(part))
    assert "Completed" in text_of(ended)
    assert "hx-trigger" not in ended.content.decode()


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
    bars = re.findall(r'<rect class="bar( gap)?" data-status="(\w+)" x="([\d.]+)" y="\d+" width="([\d.]+)"', page)
    assert [(gap.strip(), status) for gap, status, _, _ in bars] == [
        ("", "failed"),
        ("gap", "retry_scheduled"),
        ("", "running"),
    ]
    assert all(0 <= float(x) <= 1000 and float(x) + float(width) <= 1000.1 for _, _, x, width in bars)
    assert "<title>attempt 1 failed with UPSTREAM" in page


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
    assert _queries(operator, large) <= 32


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


def _live_address(page: Any) -> str:
    link = re.search(r'id="run" data-live hx-get="([^"]+)"', page.content.decode())
    assert link
    return unescape(link[1])


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
    monkeypatch.setattr(run_page, "ATTEMPTS_DRAWN", 2)
    run = start_run({"name": "load", "options": {"max_retries": 9, "retry_interval": 0.001}})
    for _ in range(3):
        hand.report(hand.take(), "failed", error_code="X")
        sweep()
    page = operator.get(f"/console/runs/{run.id}/")
    assert page.content.decode().count("<title>attempt ") == 2
    assert "attempt 3 failed" in page.content.decode()
    assert "3 attempts of load" in page.content.decode()
    assert "Only the newest attempts are drawn." in text_of(page)


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
