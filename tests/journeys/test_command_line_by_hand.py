"""A new user at a terminal, with a console that runs: runs steered, forked, repaired, watched, filled and audited by
`recourse` alone. What it says is held against what the API says.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.models import Application, Environment
from tests.cast import Hand, Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.engine_model.invariants import assert_invariants
from tests.journeys.test_practice_by_command_line import Desk
from tests.recovery.backfilled import trigger_of
from tests.sdk.pseudo_terminal import Terminal

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.xdist_group("kills")]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Console(Desk):
    """A desk with real terminals."""

    key = ""

    def run(self, name: str, *stages: str) -> str:
        """A run of stages that the worker of the desk has handlers for, one after another."""
        told = [{"stageName": stage, "stageHandlerName": "scope"} for stage in stages]
        body = {"idempotencyKey": name, "name": name, "stages": told}
        found: str = self._ok(self.application.post("/pipelines/idempotent", json=body))["pipeline"]["id"]
        return found

    def attempt(self, status: str = "succeeded", **told: Any) -> str:
        """The next job ends like this; answers its stage's name."""
        (job,) = self._ok(self.application.post("/jobs/pull", json={"acquire": True}, headers=self.worker))["jobs"]
        body = {"executionId": job["executionId"], "attempt": job["attempt"], "status": status, **told}
        self._ok(self.application.post(f"/stages/{job['stageId']}/result", json=body, headers=self.worker))
        return str(job["stageName"])

    def sees(self, role: str, *words: str, width: int = 120) -> Terminal:
        environment = {
            "RECOURSE_URL": self.url,
            "RECOURSE_TOKEN": self.tokens[role],
            "RECOURSE_API_KEY": self.key,
            "PYTHONPATH": ":".join(sys.path),
        }
        return Terminal([sys.executable, "-m", "recourse", *words], environment=environment, width=width)

    def json(self, role: str, *words: str) -> Any:
        code, told = self.says(role, *words, "--json")
        assert code == 0, told
        return json.loads(told)


@pytest.fixture
def console(api_key: str, people: dict[str, Person]) -> Iterator[Console]:
    with web_server(url_of_test_database("by-hand")) as (url, _):
        told = Console(url, api_key, people)
        told.key = api_key
        yield told
        told.close()


def test_a_run_is_paused_resumed_and_looked_at_as_the_source_says(console: Console) -> None:
    """O11, O14: the source's three commands; O13: after step k it is at step k, with the route's own fields."""
    run = console.run("nightly", "load_request", "retrieve_context")
    assert console.says("operator", "execution", "pause", run) == (0, f"{run}: pause signal sent\n")
    assert console.nothing_to_do()
    assert console.json("viewer", "execution", "show", run)["execution"]["status"] == "paused"
    assert console.says("operator", "execution", "resume", run) == (0, f"{run}: resume signal sent\n")
    assert console.attempt() == "load_request"
    route = console.json("viewer", "execution", "snapshot", run)
    code, told = console.says("viewer", "execution", "snapshot", run)
    assert code == 0
    assert {line.split()[0] for line in told.splitlines()} == set(route)
    assert dict(line.split(maxsplit=1) for line in told.splitlines()) == {
        name: "-" if value in (None, "") else str(value) for name, value in route.items()
    }
    assert console.says("viewer", "execution", "pause", run)[0] == 2, "a viewer may not"
    assert_invariants()


def test_a_failed_run_is_found_repaired_and_forked_by_whoever_is_new_to_it(console: Console) -> None:
    run = console.run("invoice-7", "load", "post", "tell")
    assert console.attempt() == "load"
    assert console.attempt("failed", errorCode="VALIDATION_ERROR", errorMessage="line 9") == "post"

    with console.sees("operator", "execution", "list", "--status", "failed", width=80) as seen:
        assert seen.end() == 0
        assert run in seen.screen
        assert seen.has_colours
    with console.sees("operator", "execution", "show", "key:invoice-7") as seen:
        assert seen.end() == 0
        assert "VALIDATION_ERROR" in seen.screen
        assert "retry it or skip it" in seen.screen
    with console.sees("operator", "stage", "policies", f"{run}/post", width=60) as seen:
        assert seen.end() == 0
        assert "its own options" in " ".join(seen.screen.split())

    (letter,) = console.json("operator", "dead-letter", "list", "--status", "open")["results"]
    assert console.says("operator", "dead-letter", "acknowledge", letter["id"])[0] == 0
    with console.sees("operator", "dead-letter", "redrive", letter["id"]) as seen:
        seen.until("do it? [y/N]")
        seen.type("n\n")
        assert seen.end() == 2
    assert console.json("viewer", "execution", "show", run)["execution"]["status"] == "failed", "no is no"
    with console.sees("operator", "stage", "retry", f"{run}/post") as seen:
        seen.until("why is it retried?")
        seen.type("line 9 is mended\n")
        seen.until("do it? [y/N]")
        seen.type("y\n")
        assert seen.end() == 0
        assert "epoch 2, ready" in seen.screen
    assert console.attempt() == "post"

    with console.sees("operator", "stage", "skip", f"{run}/tell", "--reason", "told by phone", "--yes") as seen:
        assert seen.end() == 0
    assert console.says("viewer", "watch", run)[0] == 0
    plan = console.json("operator", "execution", "rerun", run, "--from-step-id", "post", "--dry-run")
    forked = console.json(
        "operator", "execution", "rerun", run, "--from-step-id", "post", "--plan-digest", plan["plan_digest"]
    )
    assert console.attempt() == "post"
    code, told = console.says(
        "operator", "execution", "rerun", run, "--from-step-id", "load", "--plan-digest", plan["plan_digest"]
    )
    assert (code, "plan_changed" in told) == (2, True), told
    with console.sees("operator", "execution", "cancel", forked["execution_id"]) as seen:
        seen.until("do it? [y/N]")
        seen.type("y\n")
        assert seen.end() == 0
    assert console.says("viewer", "watch", forked["execution_id"])[0] == 3
    sentences = [event["sentence"] for event in console.json("admin", "audit", "--execution-id", run)["results"]]
    assert any("line 9 is mended" in one for one in sentences)
    assert_invariants()


def test_a_run_is_watched_while_it_goes_on(console: Console) -> None:
    run = console.run("watched", "first", "second")
    with console.sees("viewer", "watch", run, "--every", "0.2") as seen:
        seen.until("first")
        assert console.attempt() == "first"
        seen.until("completed")
        assert console.attempt() == "second"
        assert seen.end() == 0
        assert seen.screen.splitlines()[0].startswith("watched in development: completed")
        assert seen.screen.count("first") == 1
    failed = console.run("watched in a pipe", "only")
    assert console.attempt("failed", errorCode="NO_PROOF") == "only"
    code, told = console.says("viewer", "watch", failed)
    assert (code, "run: failed, NO_PROOF" in told, "\x1b" in told) == (3, True, False)


def test_what_was_missed_is_planned_started_watched_and_listed(
    console: Console,
    hand: Hand,
    people: dict[str, Person],
    environment: Environment,
    application: Application,
) -> None:
    """O49–O56 from a terminal: a plan first, then just that plan, a bar until its end."""
    trigger_of(people["admin"].actor, environment, application, slug="rates", name="rates-daily")
    window = ("--from", "2026-03-02T00:00+00:00", "--to", "2026-03-04T23:59+00:00")
    plan = console.json("operator", "backfill", "plan", "rates-daily", *window)
    assert (plan["total_ticks"], plan["dry_run"]) == (3, True)
    assert console.json("viewer", "backfill", "list")["results"] == [], "a plan makes nothing"
    start = ("backfill", "start", "rates-daily", *window, "--max-concurrent", "3", "--reason", "away", "--watch")
    with console.sees("operator", *start, "--every", "0.2") as seen:
        seen.until("3 to fill")
        seen.until("do it? [y/N]")
        seen.type("y\n")
        told = seen.until("0 of 3")
        assert UUID.search(told)
        (made,) = console.json("viewer", "backfill", "list", "--trigger", "rates-daily")["results"]
        assert console.says("operator", "backfill", "pause", made["id"])[0] == 0
        assert seen.end() == 3, "it stands still until somebody acts"
        assert f"recourse backfill resume {made['id']}" in seen.screen
    assert console.says("operator", "backfill", "resume", made["id"])[0] == 0
    assert hand.finish() == 3
    with console.sees("viewer", "backfill", "show", made["id"], width=40) as seen:
        assert seen.end() == 0
        assert "3 completed" in seen.screen
    code, told = console.says("operator", "backfill", "start", "rates", *window)
    assert (code, "there are: rates-daily" in told) == (2, True)
    assert_invariants()
