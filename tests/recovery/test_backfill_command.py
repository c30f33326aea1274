"""`manage.py backfill`: planned, run, waited for and steered in the name of a member (contract §1)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from pipelines import lanes
from pipelines.ids import new_id
from pipelines.models import Application, AuditEvent, Environment, Run, Tick, Trigger
from recovery.models import Backfill
from tests.cast import Hand, Person
from tests.recovery.backfilled import finish, trigger_of
from tests.services import database_url

ROOT = Path(__file__).resolve().parents[2]
WINDOW = ("--from", "2026-05-20T08:00:00Z", "--to", "2026-05-22T10:00:00+02:00")

pytestmark = pytest.mark.django_db


@pytest.fixture
def trigger(people: dict[str, Person], environment: Environment, application: Application) -> Trigger:
    return trigger_of(people["release_manager"].actor, environment, application)


@pytest.fixture
def olga(people: dict[str, Person]) -> str:
    return str(people["operator"].user.username)


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, what was asked for, and what is said to the person at the terminal."""
    out, err = StringIO(), StringIO()
    try:
        call_command("backfill", *arguments, stdout=out, stderr=err)
    except CommandError as error:
        return error.returncode, out.getvalue(), str(error)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def test_a_dry_run_says_what_would_be_done_and_does_nothing(trigger: Trigger, people: dict[str, Person]) -> None:
    """O51: a viewer may look."""
    code, out, _ = run("rates", *WINDOW, "--dry-run", "--by", people["viewer"].user.username)
    assert code == 0
    assert "3 to fill, 0 have a run already; nothing was changed" in out
    assert "! no live worker has the handler Handler" in out
    assert "protected" not in out
    assert out.count("pending") == 3
    assert not Run.objects.exists()
    assert not Tick.objects.exists()
    assert not Backfill.objects.exists()


def test_for_machines_it_answers_what_the_api_answers(trigger: Trigger, olga: str) -> None:
    """O52: a dry run and a real one, in the document's shape; standard output holds nothing else."""
    _, planned, _ = run(str(trigger.id), *WINDOW, "--dry-run", "--by", olga, "--json")
    plan = json.loads(planned)
    assert (plan["total_ticks"], plan["dispatched"], plan["dry_run"]) == (3, 0, True)
    code, made, _ = run("rates", *WINDOW, "--by", olga, "--no-wait", "--json", "--plan-digest", plan["plan_digest"])
    answer = json.loads(made)
    assert (code, answer["dispatched"], answer["dry_run"], answer["status"]) == (0, 3, False, "running")
    assert {tick["execution_id"] for tick in answer["ticks"]} == {str(run.id) for run in Run.objects.all()}


def test_it_acts_in_the_name_of_a_member_with_the_right_and_the_audit_says_so(
    trigger: Trigger, olga: str, people: dict[str, Person]
) -> None:
    """F142, F145."""
    viewer = people["viewer"].user.username
    for by, why in ((viewer, "may not fork"), ("nobody", "is no member")):
        code, _, said = run("rates", *WINDOW, "--by", by, "--reason", "the service was away")
        assert (code, why in said) == (2, True), said
    assert not Run.objects.exists()
    assert run("rates", *WINDOW, "--by", olga, "--reason", "the service was away", "--no-wait")[0] == 0
    events = AuditEvent.objects.filter(action="backfill.start").order_by("at", "id")
    assert [(one.actor, one.channel, one.outcome) for one in events][-1] == (olga, "command", "allowed")
    assert [one.outcome for one in events] == ["denied", "denied", "allowed"]
    assert events.last().reason == "the service was away"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rates", "--from", "2026-05-20T08:00:00Z"), "--to"),
        (("--from", "2026-05-20T08:00:00Z", "--to", "2026-05-20T08:00:00Z"), "TRIGGER"),
        (("rates", "--from", "2026-05-23T08:00:00Z", "--to", "2026-05-20T08:00:00Z"), "must not be after"),
        (("rates", "--from", "2026-05-20T08:00:00Z", "--to", "2199-01-01T00:00:00Z"), "future"),
        (("unheard-of", *WINDOW), "unheard-of"),
        (("rates", *WINDOW, "--cron", "0 8 30 2 *"), "cron"),
        (("rates", *WINDOW, "--timezone", "Mars/Olympus"), "timezone"),
        (("rates", *WINDOW, "--cron", "* * * * *"), "max_ticks"),
        (("rates", *WINDOW, "--plan-digest", "0" * 64), "has changed"),
        (("--resume", str(new_id())), "there is no backfill"),
    ],
)
def test_what_is_refused_says_why_exits_with_2_and_changes_nothing(
    trigger: Trigger, olga: str, arguments: tuple[str, ...], said: str
) -> None:
    code, out, error = run(*arguments, "--by", olga)
    assert (code, out) == (2, "")
    assert said in error
    assert not Run.objects.exists()
    assert not Tick.objects.exists()


@pytest.mark.parametrize("wrong", ["2026-05-20T08:00:00", "yesterday", "2026-13-01T00:00:00Z"])
def test_a_time_without_its_zone_is_no_time(trigger: Trigger, olga: str, wrong: str) -> None:
    code, _, said = run("rates", "--from", wrong, "--to", "2026-05-22T08:00:00Z", "--by", olga)
    assert code != 0
    assert "offset from UTC" in said
    assert not Run.objects.exists()


def test_where_others_must_agree_it_exits_with_4(
    people: dict[str, Person], olga: str, environments: dict[str, Environment], application: Application
) -> None:
    trigger_of(people["release_manager"].actor, environments["production"], application)
    assert "! production is protected" in run("rates", *WINDOW, "--by", olga, "--dry-run")[1]
    code, out, said = run("rates", *WINDOW, "--by", olga)
    assert code == 4
    assert "awaiting approval" in out
    assert f"/console/approvals/{Backfill.objects.get().id}/" in said
    assert not Run.objects.exists()


def test_a_name_that_two_triggers_have_is_told_with_their_ids(
    trigger: Trigger, olga: str, people: dict[str, Person], environments: dict[str, Environment], application: Any
) -> None:
    other = trigger_of(people["release_manager"].actor, environments["staging"], application)
    code, _, said = run("rates", *WINDOW, "--by", olga, "--dry-run")
    assert code == 2
    assert str(trigger.id) in said
    assert str(other.id) in said


def test_a_failed_run_is_told_with_its_error_and_exits_with_3(trigger: Trigger, olga: str, hand: Hand) -> None:
    run("rates", *WINDOW, "--by", olga, "--no-wait", "--max-concurrent", "3")
    lanes.let_in()
    hand.report(hand.take(), "failed", error_code="MISSING_REQUIRED_DATA", error_message="no rates on that day")
    backfill = Backfill.objects.get()
    finish(hand, backfill.id)
    code, out, _ = run("--watch", str(backfill.id), "--by", olga)
    assert code == 3
    assert "completed with failures: 2 of 3 completed" in out
    assert "no rates on that day" in out


def test_what_a_worker_said_is_shown_and_no_terminal_obeys_it(trigger: Trigger, olga: str, hand: Hand) -> None:
    """An error message that would clear the screen, rename the window, and write from right to left."""
    run("rates", *WINDOW, "--by", olga, "--no-wait", "--max-concurrent", "3")
    lanes.let_in()
    said = "bad \x1b[2J\x1b]0;owned\x07\x9b31m \u202eleft [red]as is[/red]"
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", error_message=said, retryable=False)
    finish(hand, Backfill.objects.get().id)
    _, out, _ = run("--watch", str(Backfill.objects.get().id), "--by", olga)
    assert "[red]as is[/red]" in " ".join(out.split())
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_it_is_cancelled_and_what_was_held_is_missed_again(trigger: Trigger, olga: str) -> None:
    run("rates", *WINDOW, "--by", olga, "--no-wait")
    backfill = Backfill.objects.get()
    code, out, _ = run("--cancel", str(backfill.id), "--by", olga, "--reason", "not needed")
    assert (code, "cancelled" in out) == (0, True)
    assert not Run.objects.exclude(status="cancelled").exists()
    assert not Tick.objects.filter(state="dispatched").exists()


# with real processes


@pytest.fixture
def started(trigger: Trigger, olga: str) -> Iterator[Any]:
    """Starts the command as a process of its own; whatever it does, it is ended with the test."""
    made: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "backfill", *arguments, "--by", olga],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        made.append(process)
        return process

    yield start
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate()


def eventually(holds: Any) -> None:
    wait = threading.Event()
    for _ in range(600):
        if holds():
            return
        wait.wait(0.05)
    raise AssertionError("it never came to that")


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_its_runs_and_ends_well(started: Any, hand: Hand) -> None:
    """Nobody else lets its runs in or completes it here: the command does what a console's clock does."""
    process = started("rates", *WINDOW, "--max-concurrent", "2")
    done = 0

    def work() -> bool:
        nonlocal done
        assert Run.objects.filter(held=False).exclude(status="completed").count() <= 2
        done += hand.finish()
        return process.poll() is not None

    eventually(work)
    out, said = process.communicate()
    assert (process.returncode, done) == (0, 3), said
    assert "completed: 3 of 3 completed" in out
    assert Backfill.objects.get().state == "completed"


@pytest.mark.django_db(transaction=True)
def test_an_interrupt_pauses_it_and_says_how_to_go_on(started: Any, hand: Hand) -> None:
    process = started("rates", *WINDOW)
    eventually(lambda: Run.objects.filter(held=False).count() == 1)
    process.send_signal(signal.SIGINT)
    _out, said = process.communicate(timeout=60)
    backfill = Backfill.objects.get()
    assert (process.returncode, backfill.state) == (130, "paused"), said
    assert f"--resume {backfill.id}" in said
    assert Run.objects.filter(held=True).count() == 2, "nothing more was let in, nothing was lost"

    again = started("--resume", str(backfill.id))
    eventually(lambda: hand.finish() == 0 and again.poll() is not None)
    assert again.returncode == 0, again.communicate()
    assert Backfill.objects.get().state == "completed"
    assert Run.objects.filter(status="completed").count() == 3
