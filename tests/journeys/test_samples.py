"""The samples as a newcomer meets them: a fresh `up`, two months of days, and a worker that is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from config import embedded
from samples.feeder import FIRST_DAYS
from samples.fx_daily import PLAUSIBLE_CHANGE
from samples.local_http import Faults, Request
from samples.rates_service import RatesService
from tests.config.console_process import ConsoleProcess, manage, processes_of, wait_until

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("up")]

EASTER = {f"2026-04-{day:02}" for day in (1, 2, 3, 6, 7, 8, 9, 10)}
# Short, so that what a killed worker held comes back within the test.
LEASE = {"RECOURSE_LEASE_SECONDS": "5"}
UNFINISHED = "SELECT count(*) FROM pipelines_run WHERE status NOT IN ('completed', 'failed', 'cancelled')"
DAYS = "SELECT substr(i.key, 10), r.status, r.id FROM pipelines_run r JOIN pipelines_runidentity i ON i.run_id = r.id"
DAYS += " WHERE i.key LIKE 'fx-daily:%' ORDER BY i.key DESC LIMIT 60"
ATTEMPTS = (
    "SELECT s.name, s.state, s.recovery_count, s.last_error_code, array_agg(a.state ORDER BY a.number)"
    " FROM pipelines_stage s JOIN pipelines_attempt a ON a.stage_id = s.id WHERE s.run_id = ANY(%s) GROUP BY s.id"
)
PUBLISHED = "SELECT day, revision FROM published"
INVOICE_WORKERS = "SELECT pid FROM pipelines_workersession WHERE worker_name = 'invoices' AND pid = ANY(%s)"
RUNNING_IN_A_WORKER = (
    "SELECT w.pid FROM pipelines_attempt a JOIN pipelines_workersession w ON w.id = a.session_id"
    " WHERE a.state = 'running' AND w.application_id IS NULL GROUP BY w.pid ORDER BY count(*) DESC LIMIT 1"
)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    directory.mkdir()
    yield directory
    # Whatever a failed test left running is this test's own.
    for pid in processes_of(directory):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(data_dir: Path) -> Iterator[Callable[[], ConsoleProcess]]:
    """Starts a console with samples and waits until it is ready."""
    consoles: list[ConsoleProcess] = []

    def new() -> ConsoleProcess:
        console = ConsoleProcess(data_dir, samples=True, environment=LEASE)
        consoles.append(console)
        console.wait_until_ready()
        return console

    yield new
    for console in consoles:
        console.end(signal.SIGKILL)
        # Shown with a failed test.
        sys.stderr.write(console.log_path.read_text())


class Database:
    """The console's rows and the samples' own, as they are now. Its connection goes with the console that it asks."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.connection: psycopg.Connection[Any] | None = None

    def rows(self, statement: str, *values: Any) -> list[Any]:
        if self.connection is None:
            where = {"host": str(embedded.socket_directory(self.data_dir)), "port": embedded.PORT}
            self.connection = psycopg.connect(user=embedded.USER, dbname=embedded.DATABASE, autocommit=True, **where)
        return self.connection.execute(statement, values or None).fetchall()

    def one(self, statement: str, *values: Any) -> Any:
        return self.rows(statement, *values)[0][0]

    def own(self, file: str, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.data_dir / "samples" / file)) as connection:
            return connection.execute(statement).fetchall()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


@pytest.fixture
def database(data_dir: Path) -> Iterator[Database]:
    database = Database(data_dir)
    yield database
    database.close()


def kill_a_busy_worker(database: Database) -> None:
    """kill -9 of a Celery child that holds running attempts; of those, some are still its own afterwards."""
    held = "SELECT count(*) FROM pipelines_attempt a JOIN pipelines_workersession w ON w.id = a.session_id"
    for _ in range(20):
        wait_until(lambda: database.rows(RUNNING_IN_A_WORKER), seconds=90, why="no stage ran under Celery")
        ((pid,),) = database.rows(RUNNING_IN_A_WORKER) or [(0,)]
        if pid not in processes_of(database.data_dir):
            continue
        os.kill(pid, signal.SIGKILL)
        if database.one(f"{held} WHERE a.state = 'running' AND w.pid = %s", pid):
            return
    raise AssertionError("no worker was caught in the middle")


def expected_days() -> tuple[set[str], set[str], set[str]]:
    """The first days' fate by the bank's own file: published, missing, and with a jump that a person must judge."""
    service = RatesService(Faults("quiet", {"nothing": 0.0}))

    def get(path: str) -> Any:
        return service.answer(Request("GET", path, {}, b""))

    newest = date.fromisoformat(get("/rates").body["newest"])
    days = {(newest - timedelta(days=back)).isoformat() for back in range(FIRST_DAYS)}
    answers = {day: get(f"/rates/{day}") for day in days}
    missing = {day for day, answer in answers.items() if answer.status == 404}
    jumps = {
        day
        for day, answer in answers.items()
        if day not in missing
        for name, rate in answer.body["previous"]["rates"].items()
        if abs(answer.body["rates"].get(name, rate) / rate - 1) > PLAUSIBLE_CHANGE
    }
    return days - missing - jumps, missing, jumps


def test_sixty_days_arrive_once_each_though_services_fail_and_a_worker_is_killed(
    data_dir: Path, start: Callable[[], ConsoleProcess], database: Database
) -> None:
    """P2, P3, P30, P41, F16: retries for what may pass, none for what cannot, and recovery after kill -9."""
    console = start()
    kill_a_busy_worker(database)
    keys = {name: (data_dir / "samples" / f"{name}.key").read_text().strip() for name in ("fx", "billing")}
    foreign = {
        "billing": create(console, keys["billing"], "fx.fetch"),
        "fx": create(console, keys["fx"], "ValidateInvoiceHandler"),
    }
    wait_until(
        lambda: len(database.rows(DAYS)) == FIRST_DAYS and database.one(UNFINISHED) == len(foreign),
        seconds=240,
        why="not all runs ended",
    )
    published, missing, jumps = expected_days()
    rows = database.rows(DAYS)
    assert {day for day, status, _ in rows if status == "completed"} == published
    assert {day for day, status, _ in rows if status == "failed"} == missing | jumps
    assert len(published) > 30
    assert len(missing) > 10

    # Stored and published once each, and nothing of a day that failed.
    assert {day for (day,) in database.own("fx.sqlite", "SELECT day FROM rate_day")} >= published
    failed_rows = "SELECT day FROM rate_day WHERE day IN ({})".format(", ".join(f"'{day}'" for day in missing | jumps))
    assert database.own("fx.sqlite", failed_rows) == []
    sent = dict(database.own("published.sqlite", PUBLISHED))
    assert {day: sent.get(day) for day in published} == dict.fromkeys(published, 1)
    assert not sent.keys() & (missing | jumps)
    assert database.own("published.sqlite", "SELECT count(*) FROM request GROUP BY day HAVING count(*) > 1") == []

    stages = database.rows(ATTEMPTS, [run for _, _, run in rows])
    retried = {name for name, state, _, _, attempts in stages if state == "completed" and "failed" in attempts}
    assert retried == {"fetch", "publish"}
    recovered = [attempts for _, state, count, _, attempts in stages if count and state == "completed"]
    assert recovered, "the killed worker's stages came back"
    assert all("lost" in attempts for attempts in recovered)
    final = [attempts for _, _, _, code, attempts in stages if code == "MISSING_REQUIRED_DATA"]
    assert len(final) == len(missing)
    letters = database.rows(
        "SELECT d.reason, d.state, count(*) FROM pipelines_deadletter d WHERE d.run_id = ANY(%s) GROUP BY 1, 2",
        [run for _, _, run in rows],
    )
    assert letters == [("terminal_error", "open", len(missing | jumps))]
    decided = database.rows(
        "SELECT DISTINCT a.decision->>'verdict' FROM pipelines_attempt a JOIN pipelines_stage s ON s.id = a.stage_id"
        " WHERE a.error_code = 'MISSING_REQUIRED_DATA' AND s.run_id = ANY(%s)",
        [run for _, _, run in rows],
    )
    assert decided == [("terminal_error",)]

    # Two invoices went through the HTTP worker.
    assert lookup(console, keys["billing"], "invoice-40:validate:v1")["status"] == "completed"
    bad = lookup(console, keys["billing"], "invoice-41:validate:v1")
    assert (bad["status"], bad["failure"]["code"], bad["stages"][0]["attempt"]) == ("failed", "VALIDATION_ERROR", 1)
    # Nobody took what belongs to another application, though there was a handler of that name.
    for name, key in foreign.items():
        assert lookup(console, keys[name], key)["status"] == "queued"

    judge_the_jumps(console, database, {str(run) for day, _, run in rows if day in jumps})
    assert {day: revision for day, revision in database.own("published.sqlite", PUBLISHED) if day in jumps} == (
        dict.fromkeys(jumps, 1)
    )
    fill_the_spring(console, database)
    rows = database.rows(DAYS)

    database.close()
    assert console.end() == 0
    assert processes_of(data_dir) == {}

    # A second start finds everything as it was.
    console = start()
    wait_until(
        lambda: database.rows(INVOICE_WORKERS, list(processes_of(data_dir))),
        why="the invoice worker did not come back",
    )
    assert database.rows(DAYS)[:FIRST_DAYS] == rows
    assert database.one("SELECT count(*) FROM pipelines_release WHERE pipeline_id IS NOT NULL") == 1
    assert database.one("SELECT count(*) FROM pipelines_apikey") == len(keys)
    assert {name: (data_dir / "samples" / f"{name}.key").read_text().strip() for name in keys} == keys
    database.close()
    assert console.end() == 0
    assert processes_of(data_dir) == {}


def judge_the_jumps(console: ConsoleProcess, database: Database, runs: set[str]) -> None:
    """As in the guide: an operator looks at the days that did not pass, skips the check, and the days go their way."""
    issued = manage(database.data_dir, "issue_token", "--user=olga", "--workspace=samples", "--role=operator")
    headers = {"Authorization": f"Bearer {issued.stdout.strip()}"}
    with httpx.Client(base_url=console.url, headers=headers, timeout=20) as operator:
        query = {"pipeline": "fx-daily", "status": "failed", "error_code": "VALIDATION_ERROR"}
        found = operator.get("/v1/executions", params=query).json()["results"]
        assert {item["execution_id"] for item in found} == runs
        assert runs, "the file that the lock names has such a day"
        for item in found:
            stage = item["failure"]["stage_id"]
            assert operator.post(f"/v1/stages/{stage}/skip", json={}).status_code == 400, "a reason is needed"
            answer = operator.post(f"/v1/stages/{stage}/skip", json={"reason": "checked by hand"})
            assert (answer.status_code, answer.json()["stage_status"]) == (200, "skipped")
        completed = "SELECT count(*) FROM pipelines_run WHERE id = ANY(%s::uuid[]) AND status = 'completed'"
        wait_until(lambda: database.one(completed, list(runs)) == len(runs), why="the skipped days did not go on")
        letters = operator.get("/v1/dead-letters", params={"status": "open"}).json()["results"]
        assert not runs & {letter["execution_id"] for letter in letters}
        letter = next(letter for letter in letters if letter["error_code"] == "MISSING_REQUIRED_DATA")
        answer = operator.post(f"/v1/dead-letters/{letter['id']}/discard", json={"reason": "no rates on this day"})
        assert answer.status_code == 200, answer.text


def fill_the_spring(console: ConsoleProcess, database: Database) -> None:
    """As in the guide: three weeks of working days around Easter 2026, with a change of clocks. Two of them are bank
    holidays: their runs fail, an operator skips the fetch, and the runs come to their end (O49, O53, O56)."""
    days = sorted({f"2026-03-{day}" for day in (23, 24, 25, 26, 27, 30, 31)} | EASTER)
    window = ("fx-daily", "--from=2026-03-23T00:00+01:00", "--to=2026-04-10T23:59+02:00", "--by=olga")
    looked = manage(database.data_dir, "backfill", *window, "--dry-run", "--json")
    ticks = json.loads(looked.stdout)["ticks"]
    assert [tick["local_time"] for tick in ticks] == [
        f"{day}T16:15:00+0{1 if day < '2026-03-29' else 2}:00" for day in days
    ]
    done = manage(database.data_dir, "backfill", *window, "--max-concurrent=3", "--reason=never fetched", timeout=180)
    assert done.returncode == 3, done.stderr
    assert "completed with failures: 13 of 15 completed, 2 failed" in done.stdout
    made = dict(database.rows("SELECT to_char(tick_at, 'YYYY-MM-DD'), id FROM pipelines_run WHERE lane_id IS NOT NULL"))
    assert sorted(made) == days
    failed = {day: run for day, run in made.items() if str(run) in done.stdout}
    assert sorted(failed) == ["2026-04-03", "2026-04-06"], "Good Friday and Easter Monday"

    issued = manage(database.data_dir, "issue_token", "--user=olga", "--workspace=samples", "--role=operator")
    headers = {"Authorization": f"Bearer {issued.stdout.strip()}"}
    with httpx.Client(base_url=console.url, headers=headers, timeout=20) as operator:
        for run in failed.values():
            failure = operator.get(f"/v1/executions/{run}").json()["failure"]
            assert failure["code"] == "MISSING_REQUIRED_DATA"
            answer = operator.post(f"/v1/stages/{failure['stage_id']}/skip", json={"reason": "no fixing"})
            assert (answer.status_code, answer.json()["stage_status"]) == (200, "skipped")
        completed = "SELECT count(*) FROM pipelines_run WHERE id = ANY(%s) AND status = 'completed'"
        wait_until(lambda: database.one(completed, list(made.values())) == 15, why="the skipped days did not end")
        again = operator.post(
            "/v1/triggers/backfill",
            json={
                "trigger_binding_id": operator.get("/v1/triggers").json()["results"][0]["id"],
                "from_time": "2026-03-23T00:00:00+01:00",
                "to_time": "2026-04-10T23:59:00+02:00",
            },
        ).json()
        assert (again["total_ticks"], again["skipped"], again["status"]) == (0, 15, "completed")
    sent = dict(database.own("published.sqlite", PUBLISHED))
    assert {day for day in days if day in sent} == set(days) - failed.keys()


def create(console: ConsoleProcess, key: str, handler: str) -> str:
    """A run with one stage for `handler`: its idempotency key."""
    name = f"foreign:{handler}"
    stage = {"stageName": "foreign", "stageHandlerName": handler, "input": '{"date": "2026-05-29"}'}
    body = {"idempotencyKey": name, "name": "foreign", "stages": [stage]}
    answer = httpx.post(f"{console.url}/pipelines/idempotent", json=body, headers={"X-API-Key": key}, timeout=20)
    assert answer.status_code == 201, answer.text
    return name


def lookup(console: ConsoleProcess, key: str, idempotency_key: str) -> Any:
    answer = httpx.post(
        f"{console.url}/pipelines/by-idempotency-key",
        json={"idempotencyKey": idempotency_key},
        headers={"X-API-Key": key},
        timeout=20,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()
