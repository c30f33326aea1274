"""The console has acted and its answer is lost: the client asks again by itself, hears the same, and nothing was done
twice. Through a relay that closes the connection once the console has answered.
"""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recourse import Client, SyncClient

from approvals.models import ApprovalRule
from pipelines.models import (
    Application,
    Artifact,
    AuditEvent,
    Blackout,
    DeadLetter,
    Environment,
    Policy,
    Release,
    Run,
    Stage,
    Trigger,
)
from recovery.models import Backfill, BulkOperation, Operation
from tests.cast import Hand, Person, stages_of
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.relay import Relay

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

DEFINITION = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}]}
SECOND_TIME = {"replayed", "created", "wasExisting"}


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with web_server(url_of_test_database("lost")) as started:
        yield started


@pytest.fixture
def relay(web: tuple[str, subprocess.Popen[bytes]]) -> Iterator[Relay]:
    relay = Relay(web[0])
    yield relay
    relay.close()


@pytest.fixture(params=["sync", "async"])
def ask(
    request: pytest.FixtureRequest, relay: Relay, people: dict[str, Person], api_key: str
) -> Callable[[Callable[[Any], Any]], Any]:
    who = {"api_key": api_key, "token": people["admin"].token, "first_wait": 0.01, "timeout": 30.0}

    def sync(call: Callable[[Any], Any]) -> Any:
        with SyncClient(relay.url, **who) as client:
            return call(client)

    async def by_loop(call: Callable[[Any], Any]) -> Any:
        async with Client(relay.url, **who) as client:
            return await call(client)

    return sync if request.param == "sync" else lambda call: asyncio.run(by_loop(call))


class Things:
    """One of each thing that is acted on."""

    def __init__(self, run: Run, letter: DeadLetter, environment: Environment, application: Application) -> None:
        self.run, self.stage = str(run.id), str(stages_of(run)[0].id)
        self.letter = str(letter.id)
        self.where = {"pipeline": "nightly", "environment": environment.slug}
        self.schedule = self.where | {"application": application.name, "cron": "0 8 * * *", "timezone": "UTC"}
        self.release = self.trigger = ""


@pytest.fixture
def things(
    start_run: Callable[..., Run],
    hand: Hand,
    web: tuple[str, subprocess.Popen[bytes]],
    people: dict[str, Person],
    environment: Environment,
    application: Application,
) -> Things:
    run = start_run("first", "second")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    things = Things(run, DeadLetter.objects.get(), environment, application)
    with SyncClient(web[0], token=people["admin"].token) as admin:
        admin.pipelines.save(slug="nightly", name="Nightly")
        things.release = admin.releases.register(definition=DEFINITION, activate=False, **things.where)["id"]
        admin.releases.register(definition=DEFINITION | {"name": "Later"}, activate=True, **things.where)
        things.trigger = admin.triggers.create(enabled=False, **things.schedule)["id"]
    return things


def runs() -> int:
    return Run.objects.count()


def epochs() -> int:
    return sum(Stage.objects.values_list("epoch", flat=True))


def operations() -> int:
    return Operation.objects.count()


def allowed(action: str) -> Callable[[], int]:
    return AuditEvent.objects.filter(action=action, outcome="allowed").count


STAGES = [{"stageName": "a", "stageHandlerName": "Nobody"}]
WINDOW = {"from_time": "2026-05-20T08:00:00Z", "to_time": "2026-05-22T08:00:00Z"}
# what is asked; what is counted; by how much that grows, however often it was asked
WRITES: dict[str, tuple[Callable[[Any, Things], Any], Callable[[], int], int]] = {
    "runs.create": (lambda c, t: c.runs.create(idempotency_key="k", name="n", stages=STAGES), runs, 1),
    "executions.replay": (lambda c, t: c.executions.replay(t.run), runs, 1),
    "executions.rerun": (lambda c, t: c.executions.rerun(t.run, from_step_id="first"), runs, 1),
    "stages.retry": (lambda c, t: c.stages.retry(t.stage, reason="again"), epochs, 1),
    "stages.skip": (lambda c, t: c.stages.skip(t.stage, reason="by hand"), operations, 1),
    "dead_letters.redrive": (lambda c, t: c.dead_letters.redrive(t.letter), epochs, 1),
    "dead_letters.acknowledge": (lambda c, t: c.dead_letters.acknowledge(t.letter), operations, 1),
    "bulk_operations.start": (
        lambda c, t: c.bulk_operations.start(kind="retry", execution_ids=[t.run], reason="all"),
        BulkOperation.objects.count,
        1,
    ),
    "triggers.create": (lambda c, t: c.triggers.create(**t.schedule | {"name": "other"}), Trigger.objects.count, 1),
    "triggers.backfill": (
        lambda c, t: c.triggers.backfill(trigger_binding_id=t.trigger, **WINDOW),
        Backfill.objects.count,
        1,
    ),
    "releases.register": (
        lambda c, t: c.releases.register(definition=DEFINITION | {"name": "Third"}, **t.where),
        Release.objects.count,
        1,
    ),
    "releases.activate": (lambda c, t: c.releases.activate(t.release), allowed("release.activate"), 1),
    "policies.add": (
        lambda c, t: c.policies.add(name="calm", kind="timeout", rule={"seconds": 5}),
        Policy.objects.count,
        1,
    ),
    "approval_rules.add": (
        lambda c, t: c.approval_rules.add(name="four eyes", kinds=["rerun"], role="approver"),
        ApprovalRule.objects.count,
        1,
    ),
    "blackouts.create": (
        lambda c, t: c.blackouts.create(name="new year", kind="dates", dates=["2027-01-01"]),
        Blackout.objects.count,
        1,
    ),
    "blackouts.freeze": (lambda c, t: c.blackouts.freeze(reason="stop"), Blackout.objects.count, 1),
    "artifacts.add_baseline": (lambda c, t: c.artifacts.add_baseline("rates", b"1,2"), Artifact.objects.count, 1),
    "environments.save": (lambda c, t: c.environments.save("fifth"), Environment.objects.count, 1),
    "applications.save": (lambda c, t: c.applications.save("fx"), Application.objects.count, 1),
    "signing_keys.rotate": (lambda c, t: c.signing_keys.rotate("yearly"), allowed("key.rotate"), 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_was_done_is_answered_again_and_not_done_again(
    ask: Callable[[Callable[[Any], Any]], Any], relay: Relay, things: Things, name: str
) -> None:
    """O29, O31, F118, F127: two requests, word for word the same; one effect; the answer that was lost."""
    call, count, more = WRITES[name]
    before = count()
    answer = ask(lambda client: call(client, things))
    assert count() == before + more
    lost, given = relay.passed
    assert lost[:3] == given[:3]
    assert 200 <= lost[3] < 300, lost[4]
    assert first_time(given[4]) == first_time(lost[4])
    assert answer == given[4]


def test_a_verb_that_is_asked_for_once_more_is_another_act(
    ask: Callable[[Callable[[Any], Any]], Any], relay: Relay, things: Things
) -> None:
    """O31: the key is the call's, not the words'."""
    before = runs()
    first, second = (ask(lambda c: c.executions.replay(things.run))["execution_id"] for _ in range(2))
    assert first != second
    assert (runs(), len(relay.passed)) == (before + 2, 4)


def test_a_key_that_was_kept_finds_what_came_of_it(ask: Callable[[Callable[[Any], Any]], Any], things: Things) -> None:
    """O29, F127: in another process, tomorrow."""
    kept = str(uuid.uuid4())
    first, second = (ask(lambda c: c.executions.replay(things.run, client_request_id=kept)) for _ in range(2))
    assert (first["execution_id"], second["replayed"]) == (second["execution_id"], True)


def first_time(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in SECOND_TIME}
