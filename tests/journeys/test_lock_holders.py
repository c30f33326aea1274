"""What changes a run holds a lock that ends with its holder, and with nothing else (R21, R22, R23, R24, model §3.7).

There is no lock file: whoever holds a run is a connection of the database, and its process has a number there. Real
processes, one of them killed in the middle of a change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from config.environment import BASE_DIR
from pipelines import holders, queries
from pipelines.models import Event, Run, Stage
from pipelines.sql import query
from pipelines.sweeps import sweep
from tests.cast import Api, Hand, Person, stages_of
from tests.contract.conftest import url_of_test_database
from tests.verbs import pause_run, skip_stage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
StartRun = Callable[..., Run]

HOLD = """
import os, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
import django
django.setup()
from django.db import transaction
from pipelines.moves import Moves
with transaction.atomic():
    moves = Moves.lock([sys.argv[1]], actor="somebody")
    stage = next(iter(moves.stages.values()))
    moves.stage(stage, "skip", reason="half done")
    moves.settle()
    moves.save()
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(run: Run) -> Iterator[subprocess.Popen[str]]:
    """A process that has changed the run, and has not committed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.id)],
        cwd=BASE_DIR,
        env=os.environ | {"DATABASE_URL": url_of_test_database("holder"), "RECOURSE_PROCESS": "command"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait(30)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def is_held(run: Run) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pipelines_run WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED", [run.id])
        return cursor.rowcount == 0


def test_a_lock_ends_with_its_holder_who_leaves_nothing_half_done(
    start_run: StartRun, people: dict[str, Person], hand: Hand
) -> None:
    """R21, R23: killed in the middle of a change; the next one goes on at once, from what was before."""
    run = start_run("first", "second")
    before = Event.objects.filter(run=run).count()
    with holding(run) as process:
        assert is_held(run)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        skip_stage(stages_of(run)[0].id, actor=people["operator"].actor, reason="not needed")
    assert not is_held(run)
    assert [stage.state for stage in stages_of(run)] == ["skipped", "ready"]
    assert not Event.objects.filter(run=run, reason="half done").exists()
    assert Event.objects.filter(run=run).count() > before
    assert hand.finish() == 1


def test_nothing_is_unlocked_for_having_been_quiet(
    start_run: StartRun, people: dict[str, Person], hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24: a holder that says nothing for long keeps what it holds: sweeps pass it by, and its change is committed."""
    run = start_run("first", "second")
    with holding(run) as process:
        quiet_since = time.monotonic()
        for _ in range(5):
            sweep()
            assert not hand.pull(5), "what is held is handed out by nobody"
            assert is_held(run)
            time.sleep(0.3)
        assert time.monotonic() - quiet_since > 1
        ((idle,),) = query("SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'")
        assert idle == "0", "nor does the console have the database end it"
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0
    assert Stage.objects.get(run=run, name="first").state == "skipped"
    assert not is_held(run)


def test_an_operator_sees_who_holds_the_run(
    start_run: StartRun, people: dict[str, Person], as_person: Callable[[Person], Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22: the number of its process, what it calls itself, since when; nobody is asked to wait for that answer."""
    monkeypatch.setattr(holders, "LONG_SECONDS", 0.0)
    run = start_run("first")
    operator = as_person(people["operator"])
    path = f"/v1/executions/{run.id}/blockers"
    assert not [one for one in operator.get(path).json()["results"] if "database" in one["holder"]]
    with holding(run):
        ((pid,),) = query("SELECT pid FROM pg_stat_activity WHERE application_name = 'holder'")
        (first, *_) = operator.get(path).json()["results"]
        assert first["holder"] == f"process {pid} of the database"
        assert first["cause"].startswith("holder has held the run since ")
        assert "waits for its client; it lets go when its transaction or its process ends" in first["cause"]
    assert not [one for one in queries.blockers(run) if "database" in one.holder]
    pause_run(run.id, actor=people["operator"].actor)


def test_a_lock_of_a_moment_is_no_news(start_run: StartRun) -> None:
    run = start_run("first")
    with holding(run):
        assert holders.look(run.id)[1] is None
