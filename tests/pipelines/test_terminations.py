"""What workers tell of how an attempt's processes ended: kept once, shown, and what runs on is put up to be settled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, transaction

from pipelines import retention
from pipelines.models import Event, ReconciliationItem, Run, Termination
from pipelines.sql import database_now
from pipelines.sweeps import sweep
from pipelines.terminations import sentence
from tests.cast import Api, Person, Worker, unknown_id
from tests.clock import Clock

pytestmark = pytest.mark.django_db

Start = Callable[..., Run]
NewWorker = Callable[..., Worker]

ENDED = {
    "reason": "cancelled",
    "signals": [
        {"signal": "SIGTERM", "afterSeconds": 4.0, "processes": 3},
        {"signal": "SIGKILL", "afterSeconds": 14.0, "processes": 3},
    ],
    "signal": "SIGKILL",
    "durationSeconds": 14.5,
    "graceSeconds": 10,
    "cpuSeconds": 1.5,
    "maxRssBytes": 4096,
    "processesSeen": 4,
    "left": [],
    "complete": True,
    "platform": "linux",
}
LEFT = [
    {"pid": 41, "command": "sleep 100", "why": "it did not end after SIGKILL"},
    {"pid": 42, "command": "<b>dd</b>", "why": "it did not end after SIGKILL"},
]
NOT_ALL = ENDED | {"left": LEFT, "complete": False}


def told(job: dict[str, Any], termination: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"/stages/{job['stageId']}/termination", {"executionId": job["executionId"], "termination": termination}


def cancel(api: Api, run: Run) -> None:
    assert api.post(f"/pipelines/{run.id}/cancel", {"reason": "not needed"}).status_code == 200


def test_the_end_is_kept_after_the_run_was_cancelled_and_nothing_else_changes(
    api: Api, worker: Worker, start_run: Start
) -> None:
    """R39: that is when it matters most; the attempt itself stays as the cancel left it."""
    run = start_run("first")
    job = worker.take()
    cancel(api, run)
    before = run.attempts.values().get()
    answer = worker.post(*told(job, ENDED))
    assert (answer.status_code, answer.json()) == (202, {"accepted": True})
    kept = Termination.objects.get(attempt_id=job["executionId"])
    assert (kept.complete, kept.body["processes_seen"], str(kept.session)) == (True, 4, worker.session["workerId"])
    assert run.attempts.values().get() == before
    assert not ReconciliationItem.objects.filter(kind="process_left").exists()
    event = Event.objects.get(run=run, kind="stage.terminated")
    assert event.reason == "ended by SIGKILL after 10 s grace, since the run was cancelled"
    assert event.actor == "worker-1"


def test_what_could_not_be_stopped_is_put_up_to_be_settled_whatever_the_run_became(
    worker: Worker, start_run: Start
) -> None:
    """R39, R37: also when the run completed."""
    run = start_run("first")
    job = worker.take()
    assert worker.report(job).status_code == 202
    assert worker.post(*told(job, NOT_ALL)).status_code == 202
    items = ReconciliationItem.objects.filter(run=run).order_by("detail")
    assert [(item.kind, item.detail, item.attempt_number, str(item.subject)) for item in items] == [
        ("process_left", f"process {pid} ({command}) on worker-1: it did not end after SIGKILL", 1, job["executionId"])
        for pid, command in ((41, "sleep 100"), (42, "<b>dd</b>"))
    ]
    assert items[0].resolved_at is None
    run.refresh_from_db()
    assert run.status == "completed"


def test_a_long_list_is_bounded_and_says_how_many_more_there_are(worker: Worker, start_run: Start) -> None:
    """R39: nothing that was left goes untold."""
    run = start_run("first")
    job = worker.take()
    many = [LEFT[0] | {"pid": pid} for pid in range(1, 202)]
    refused = worker.post(*told(job, NOT_ALL | {"left": many}))
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["termination.left"])
    assert worker.post(*told(job, NOT_ALL | {"left": many[:200], "leftCount": 500})).status_code == 202
    assert ReconciliationItem.objects.filter(run=run).count() == 201
    assert ReconciliationItem.objects.filter(detail="300 further processes on worker-1").exists()
    assert "500 processes could not be stopped" in Event.objects.get(run=run, kind="stage.terminated").reason


def test_the_same_again_adds_nothing_and_another_end_is_refused(worker: Worker, start_run: Start) -> None:
    """R39: the first word stays."""
    run = start_run("first")
    job = worker.take()
    for _ in range(2):
        assert worker.post(*told(job, NOT_ALL)).status_code == 202
    refused = worker.post(*told(job, ENDED))
    assert (refused.status_code, refused.json()["code"]) == (409, "stale_execution")
    assert ReconciliationItem.objects.filter(run=run).count() == 2
    assert Event.objects.filter(run=run, kind="stage.terminated").count() == 1
    assert Termination.objects.get().body["complete"] is False


def test_the_session_that_lost_the_attempt_may_tell_and_another_may_not(
    worker: Worker, new_worker: NewWorker, start_run: Start, clock: Clock
) -> None:
    """P58, R39: who lost the lease is who must say what became of its processes."""
    start_run("first")
    job = worker.take()
    clock.advance(3600)
    sweep()
    other = new_worker("worker-2")
    newer = other.take()
    assert newer["executionId"] != job["executionId"]
    refused = other.post(*told(job, ENDED))
    assert (refused.status_code, refused.json()["code"]) == (409, "stale_execution")
    assert not Termination.objects.exists()
    assert worker.post(*told(job, ENDED)).status_code == 202
    assert worker.post(*told(newer, ENDED)).status_code == 409


def test_what_is_not_one_s_own_does_not_exist(
    worker: Worker, new_worker: NewWorker, start_run: Start, sibling_key: str, foreign_key: str
) -> None:
    """I16: 404 for another application's and another workspace's attempt, for nobody's, and for another stage's."""
    start_run("first")
    start_run("first")
    job, other = worker.take(), worker.take()
    for secret in (sibling_key, foreign_key):
        assert new_worker("w", "Handler", key=secret).post(*told(job, ENDED)).status_code == 404
    assert worker.post(*told(job | {"executionId": unknown_id()}, ENDED)).status_code == 404
    assert worker.post(*told(job | {"stageId": other["stageId"]}, ENDED)).status_code == 404
    assert worker.post(*told(job | {"stageId": unknown_id()}, {"nonsense": 1})).status_code == 404
    assert not Termination.objects.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"complete": True, "left": LEFT}, "termination.complete"),
        ({"complete": "yes"}, "termination.complete"),
        ({"durationSeconds": -1}, "termination.durationSeconds"),
        ({"cpuSeconds": "much"}, "termination.cpuSeconds"),
        ({"left": [{"pid": 0, "why": "x"}], "complete": False}, "termination.left[0].pid"),
        ({"left": [{"pid": 5, "why": "x" * 1001}], "complete": False}, "termination.left[0].why"),
        ({"left": [{"pid": 5, "why": ""}], "complete": False}, "termination.left[0].why"),
        ({"reason": "a\nb"}, "termination.reason"),
        ({"signals": [{"signal": "SIGTERM"}]}, "termination.signals[0].afterSeconds"),
        ({"more": 1}, "termination.more"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(
    worker: Worker, start_run: Start, change: dict[str, Any], field: str
) -> None:
    """Contract §5: bounded and typed; nothing is kept of it."""
    start_run("first")
    job = worker.take()
    answer = worker.post(*told(job, ENDED | change))
    assert answer.status_code == 400
    assert field in answer.json()["errors"]
    assert not Termination.objects.exists()


def test_the_row_is_never_changed(worker: Worker, start_run: Start) -> None:
    """I7."""
    start_run("first")
    worker.post(*told(worker.take(), ENDED))
    for change in (lambda: Termination.objects.update(complete=False), Termination.objects.all().delete):
        with pytest.raises(Error, match="only ever added"), transaction.atomic():
            change()
    assert Termination.objects.get().complete is True


def test_attempts_tell_how_they_ended_and_whether_their_usage_is_whole(
    worker: Worker, start_run: Start, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """R34: usage is complete only where its worker says so; R39: the end is seen, in words too."""
    run = start_run("first", "second", "third")
    usages = [{"cpu_seconds": 1.0, "complete": True}, {"tokens": 7}, None]
    for usage in usages:
        job = worker.take()
        worker.report(job, **({"usage": usage} if usage else {}))
        if usage == usages[0]:
            worker.post(*told(job, NOT_ALL))
    viewer = as_person(people["viewer"])
    rows = viewer.get(f"/v1/executions/{run.id}/attempts").json()["results"]
    by_stage = {row["stage"]: row for row in rows}
    assert [by_stage[name]["usage_complete"] for name in ("first", "second", "third")] == [True, False, None]
    end = by_stage["first"]["termination"]
    assert end["summary"] == (
        "ended by SIGKILL after 10 s grace, since the run was cancelled; 2 processes could not be stopped"
    )
    assert (end["left"], end["complete"], end["signals"][1]["after_seconds"]) == (LEFT, False, 14.0)
    assert by_stage["second"]["termination"] is None


def test_the_console_shows_the_end_in_a_sentence_and_what_usage_lacks(
    worker: Worker, start_run: Start, people: dict[str, Person], client: Any
) -> None:
    """R34, R39: on the row of the attempt and below it; what a process is called is only text."""
    run = start_run("first")
    job = worker.take()
    worker.report(job, usage={"tokens": 7})
    worker.post(*told(job, NOT_ALL))
    client.force_login(people["viewer"].user)
    row = client.get(f"/console/runs/{run.id}/").content.decode()
    whole = client.get(f"/console/attempts/{job['executionId']}/").content.decode()
    words = "nded by SIGKILL after 10 s grace, since the run was cancelled; 2 processes could not be stopped"
    assert words in row
    assert words in whole
    assert "&lt;b&gt;dd&lt;/b&gt;" in whole
    assert "<b>dd</b>" not in whole
    assert "incomplete: the worker did not say that nothing is missing from it" in whole


def test_a_run_stays_while_something_of_it_runs_on(worker: Worker, start_run: Start) -> None:
    """Model §3.13: retention takes the end with its run, once all is settled."""
    run = start_run("first")
    job = worker.take()
    worker.report(job)
    worker.post(*told(job, NOT_ALL))
    later = database_now() + timedelta(days=1)
    assert retention.remove(later) == 0
    ReconciliationItem.objects.update(resolved_at=database_now(), note="they are gone")
    assert retention.remove(later) == 1
    assert not Run.objects.filter(id=run.id).exists()
    assert not Termination.objects.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"signals": []}, "ended by themselves"),
        ({"signals": [], "complete": False}, "whether all of them ended is not known"),
        ({"signals": [{"signal": "SIGTERM"}], "reason": "drain"}, "ended by SIGTERM, since the worker ended"),
        (
            {"signals": [{"signal": "SIGTERM"}], "reason": "left_behind"},
            "what the command left behind was ended by SIGTERM",
        ),
        ({"signals": [{"signal": "SIGKILL"}], "reason": "of its own"}, "ended by SIGKILL"),
        ({"signals": [], "left": [{}], "complete": False}, "1 process could not be stopped"),
    ],
)
def test_the_sentence_says_what_is_known(change: dict[str, Any], words: str) -> None:
    """R38, R39: and claims nothing more."""
    body = {"reason": "cancelled", "signals": [], "left": [], "complete": True}
    assert sentence(body | change) == words
