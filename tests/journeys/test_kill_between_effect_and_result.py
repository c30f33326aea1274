"""kill -9 between effect and result, at every position, in real worker processes over HTTP and under Celery.

Outside stands a ledger that remembers each time it was asked. A stage that acts outside is never asked for twice unless
somebody found out that it had not acted; one that is safe to repeat always comes to its end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psutil
import pytest

from pipelines.models import Attempt, Effect, Run, Stage, WorkerSession
from pipelines.models.base import RecourseNow
from pipelines.sweeps import sweep
from tests.cast import Api, Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.journeys import effect_handlers
from tests.journeys.effect_handlers import BEFORE_ANSWER, BEFORE_INTENT, POSITIONS
from tests.journeys.ledger import LEDGER, MARKS, Ledger
from tests.pipelines.engine import attempts, stage, states, status
from tests.pipelines.test_executor_celery import Console

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
StartRun = Callable[..., Run]
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 600
LEASE_SECONDS = 60  # only the leases of the dead are ended early, by `bury`

KINDS = {
    "intent": {"effect_mode": "external", "effect_protocol": "intent"},
    "undeclared": {"effect_mode": "external", "effect_protocol": "none"},
    "idempotent": {"effect_mode": "idempotent"},
}


class Crew(Protocol):
    """Worker processes, each replaced when it dies. `kills`: how many of them a long proof takes."""

    kills: ClassVar[int]

    def log(self) -> str: ...


@dataclass
class Farm:
    """Workers over HTTP."""

    kills: ClassVar[int] = 300
    process: subprocess.Popen[bytes]
    path: Path

    def log(self) -> str:
        return self.path.read_text(errors="replace")[-4000:]


@dataclass
class Executors:
    """The console's own executors under Celery, which takes seconds to replace one."""

    kills: ClassVar[int] = 100
    console: Console

    def log(self) -> str:
        return self.console.log()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger()
    yield made
    made.close()


@pytest.fixture
def environment_of(ledger: Ledger, tmp_path: Path) -> dict[str, str]:
    marks = tmp_path / "marks"
    marks.mkdir()
    return {LEDGER: ledger.address, MARKS: str(marks), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'sdk'}"}


@pytest.fixture
def over_http(
    django_db_setup: None, api_key: str, environment_of: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., Crew]]:
    """over_http(count, at_once): so many processes, each with so many stages at once."""
    with contextlib.ExitStack() as stack:

        def start(count: int, at_once: int) -> Crew:
            url, _ = stack.enter_context(
                web_server(url_of_test_database("kills"), RECOURSE_LEASE_SECONDS=str(LEASE_SECONDS))
            )
            with (tmp_path / "farm").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.journeys.worker_farm", str(count), str(at_once)],
                    env=os.environ | environment_of | {"RECOURSE_URL": url, "RECOURSE_API_KEY": api_key},
                    cwd=ROOT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return Farm(process, tmp_path / "farm")

        yield start


@pytest.fixture
def under_celery(environment_of: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """As `over_http`."""
    made = Console(tmp_path, "filesystem://", effect_handlers.__name__, LEASE_SECONDS)

    def start(count: int, at_once: int) -> Crew:
        made.processes = count
        made.environment = environment_of | {"RECOURSE_TEST_THREADS": str(at_once)}
        made.start()
        return Executors(made)

    yield start
    made.kill_all()


@pytest.fixture(params=["over_http", "under_celery"])
def start_crew(request: pytest.FixtureRequest) -> Callable[..., Crew]:
    start: Callable[..., Crew] = request.getfixturevalue(request.param)
    return start


def bury() -> None:
    """Ends the leases of processes that are dead, as their time would, and no others."""
    held = Attempt.objects.filter(state__in=("dispatched", "running"))
    holders = WorkerSession.objects.filter(id__in=held.values("session_id")).values_list("id", "pid")
    dead = [session_id for session_id, pid in holders if not _lives(pid)]
    if dead:
        held.filter(session_id__in=dead).update(expires_at=RecourseNow())
    sweep()


def _lives(pid: int | None) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def working() -> list[int]:
    """The processes that hold an attempt just now."""
    held = Attempt.objects.filter(state="running").values("session_id")
    pids = WorkerSession.objects.filter(id__in=held).values_list("pid", flat=True)
    return [pid for pid in pids if _lives(pid)]


def until(crew: Crew, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, crew.log()
        bury()
        time.sleep(0.1)


def is_quiet(run: Run) -> bool:
    return status(run) in ("completed", "failed", "blocked")


def begin(start_run: StartRun, kind: str, told: str) -> Run:
    act = {"name": "act", "handler": "journey.act", "input": told, "options": {"max_recoveries": 1000}, **KINDS[kind]}
    return start_run(act, {"name": "after", "handler": "journey.after", "options": {"max_recoveries": 1000}})


class Clerk:
    """Somebody with the right to it looks into the ledger and says what happened."""

    def __init__(self, api: Api, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger

    def find_out(self, run: Run) -> str:
        """Settles the stage that is in doubt, its effects first; returns what had happened."""
        doubtful = stage(run, "act")
        key = f"{doubtful.id}:{doubtful.epoch}:charge"
        outcome = "committed" if key in self._ledger.booked else "absent"
        for effect in Effect.objects.filter(stage=doubtful, state__in=("declared", "unknown")):
            self._say(doubtful, outcome, effect_id=str(effect.id))
        found = {"output": {"ref": self._ledger.booked[key]}} if outcome == "committed" else {}
        self._say(doubtful, outcome, **found)
        return outcome

    def _say(self, doubtful: Stage, outcome: str, **more: Any) -> None:
        body = {"outcome": outcome, "note": "looked into the ledger", **more}
        answer = self._api.post(f"/v1/stages/{doubtful.id}/reconcile", body)
        assert answer.status_code == 200, answer.content


@pytest.fixture
def clerk(people: dict[str, Person], as_person: Callable[[Person], Api], ledger: Ledger) -> Clerk:
    return Clerk(as_person(people["approver"]), ledger)


def is_doubtful(kind: str, position: str) -> bool:
    """Whether a death there leaves a question: nothing had been delivered, and something may have been done."""
    if kind == "idempotent" or position == BEFORE_ANSWER:
        return False
    return kind == "undeclared" or position != BEFORE_INTENT


def times_asked(ledger: Ledger, run: Run) -> int:
    return ledger.asked[f"{stage(run, 'act').id}:1:charge"]


def test_death_at_every_position_repeats_nothing_blindly(
    start_crew: Callable[..., Crew], start_run: StartRun, ledger: Ledger, clerk: Clerk
) -> None:
    """R3, R4, R5, I2, I12, P1, F16: each of fifteen stages dies once, in the middle of its attempt.

    Before the intent it goes back and completes; after it, it waits for somebody; safe to repeat, it is repeated.
    """
    dying = [(kind, position) for kind in KINDS for position in POSITIONS]
    runs = {(kind, position): begin(start_run, kind, f'{{"die": "{position}"}}') for kind, position in dying}
    crew = start_crew(4, 1)
    until(crew, lambda: all(is_quiet(run) for run in runs.values()))
    for (kind, position), run in runs.items():
        doubtful = is_doubtful(kind, position)
        assert states(run)["act"] == ("needs_reconciliation" if doubtful else "completed"), (kind, position)
        once = position == BEFORE_ANSWER
        assert attempts(run, "act") == (["lost"] if doubtful else ["succeeded"] if once else ["lost", "succeeded"])
        if kind != "idempotent":
            acted = POSITIONS.index(position) >= 2 or not doubtful
            assert times_asked(ledger, run) == int(acted), (kind, position)
    assert len(list(Path(crew_marks(crew)).iterdir())) == len(dying)
    in_doubt = [run for run in runs.values() if status(run) == "blocked"]
    asked = ledger.asked.copy()
    bury()
    assert all(states(run)["act"] == "needs_reconciliation" for run in in_doubt)
    assert ledger.asked == asked, "asked again before anybody had found out"
    found = [clerk.find_out(run) for run in in_doubt]
    assert {"committed", "absent"} == set(found)
    until(crew, lambda: all(status(run) == "completed" for run in runs.values()))
    assert sorted(ledger.booked) == sorted(f"{stage(run, 'act').id}:1:charge" for run in runs.values())
    for (kind, _), run in runs.items():
        assert kind == "idempotent" or times_asked(ledger, run) == 1
        assert set(attempts(run, "after")) <= {"succeeded", "lost"}
    assert_invariants()


def crew_marks(crew: Crew) -> Path:
    folder = crew.path.parent if isinstance(crew, Farm) else crew.console.folder  # type: ignore[attr-defined]
    return folder / "marks"


@pytest.mark.prove
def test_hundreds_of_kills_at_random_repeat_nothing_blindly(
    start_crew: Callable[..., Crew], start_run: StartRun, ledger: Ledger, clerk: Clerk
) -> None:
    """R3, R4, I2, I12, F23: processes with several stages at once die again and again, wherever they stand."""
    crew = start_crew(3, 4)
    chance = random.Random(7)
    runs: dict[Run, str] = {}
    kills = 0
    while kills < crew.kills:
        if Stage.objects.filter(name="act", state__in=("ready", "running")).count() < 24:
            for kind in KINDS:
                runs[begin(start_run, kind, '{"linger": 0.2}')] = kind
        bury()
        time.sleep(chance.uniform(0.0, 0.2))
        at_work = working()
        if at_work:
            os.kill(chance.choice(at_work), signal.SIGKILL)
            kills += 1
    until(crew, lambda: all(is_quiet(run) for run in runs))
    assert Attempt.objects.filter(state="lost").count() >= crew.kills / 2
    for run, kind in runs.items():
        assert kind == "idempotent" or times_asked(ledger, run) <= 1
        assert kind != "idempotent" or status(run) == "completed"
    for run in runs:
        if status(run) == "blocked":
            clerk.find_out(run)
    until(crew, lambda: all(status(run) == "completed" for run in runs))
    for run, kind in runs.items():
        asked = times_asked(ledger, run)
        assert asked >= 1 if kind == "idempotent" else asked == 1
    assert_invariants()
