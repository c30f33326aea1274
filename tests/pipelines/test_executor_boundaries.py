"""Handlers under the console's own executor: to whom they send, and on what their runs stand (R16, R40)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from recourse import Recipient, Registry, StageContext

import pipelines.executor as module
from pipelines.executor import Executor, Scope
from pipelines.models import Attempt, Run, WorkerSession
from tests.pipelines.test_pinned import edit

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]
HOUSE = {"organisation": "Model House", "service": "large", "billing": "", "retention": "none"}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.02)
    return Registry()


def drain(registry: Registry) -> int:
    """As a Celery task would."""
    try:
        return Executor(Scope(dict.fromkeys(registry.names)), registry).drain(threading.Event())
    finally:
        connection.close()


def test_it_sends_to_whom_its_handlers_declare_and_to_nobody_else(registry: Registry, start_run: StartRun) -> None:
    """R40: what it may not send stays where it is, and holds up nothing behind it."""
    seen: list[Recipient | None] = []

    @registry.handler("Handler", recipients=[Recipient(" Model House ", "large", retention="none")])
    def ask(ctx: StageContext) -> None:
        seen.append(ctx.recipient)

    other = start_run({"name": "ask", "recipients": [HOUSE | {"organisation": "Other House"}]})
    own, plain = start_run({"name": "ask", "recipients": [HOUSE]}), start_run("plain")
    assert drain(registry) == 2
    assert set(Run.objects.filter(status="completed").values_list("id", flat=True)) == {own.id, plain.id}
    assert not Attempt.objects.filter(run_id=other.id).exists()
    assert sorted(seen, key=str) == sorted([Recipient("Model House", "large", "", "none"), None], key=str)
    assert WorkerSession.objects.get().recipients == [{"handler": "Handler", **HOUSE}]


def test_it_begins_nothing_of_a_changed_definition(registry: Registry, start_run: StartRun) -> None:
    """R16."""

    @registry.handler("Handler")
    def work(ctx: StageContext) -> None:
        pass

    run = start_run("first", "second")
    edit(run)
    assert drain(registry) == 0
    run.refresh_from_db()
    assert (run.status, bool(run.changed)) == ("blocked", True)
