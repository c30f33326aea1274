"""Two workers of the library, each with an adapter of its own, on stages that name their recipients (R40, R41)."""

from __future__ import annotations

from typing import Any

import pytest
from recourse import Recipient, Registry, StageContext, StageFailure, SyncClient, Worker

from pipelines.models import Attempt
from tests.sdk.test_against_the_console import Web, client, reaches, web  # noqa: F401 - fixtures

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
FIRST = Recipient("Model House", "large", "prepaid", "none")
SECOND = Recipient("Other House", "small", "monthly", "30 days")


def test_the_fallback_takes_over_once_the_first_has_failed(
    web: Web,  # noqa: F811
    client: SyncClient,  # noqa: F811
    api_key: str,
) -> None:
    """R41: only then, in the declared order, and each is recorded with its attempt."""
    sent: list[str] = []

    def adapter(recipient: Recipient, fails: bool) -> Registry:
        registry = Registry()

        @registry.handler("Ask", recipients=[recipient])
        def ask(ctx: StageContext) -> Any:
            assert ctx.recipient == recipient
            sent.append(recipient.organisation)
            if fails:
                raise StageFailure("OVERLOADED", "try elsewhere", retryable=True)
            return recipient.organisation

        return registry

    started = [
        Worker(web[0], api_key, registry=adapter(recipient, fails), name=recipient.organisation, wait_seconds=1)
        for recipient, fails in ((SECOND, False), (FIRST, True))
    ]
    stage = {
        "stageName": "Ask",
        "stageHandlerName": "Ask",
        "recipients": [FIRST.as_wire(), SECOND.as_wire()],
        "options": {"maxRetries": 200, "retryInterval": 0.1},
    }
    for worker in started:
        worker.start()
    try:
        run = client.runs.create(idempotency_key="k", name="asks", stages=[stage])["pipeline"]
        reaches(client, run, "completed")
    finally:
        for worker in started:
            worker.stop()
    *failed, last = sent
    assert failed
    assert set(failed) == {"Model House"}, "who sends to the first alone may get it again before somebody else looks"
    assert last == "Other House"
    attempts = Attempt.objects.filter(run_id=run["id"]).order_by("number")
    told = [(one.worker, one.recipient["position"]) for one in attempts if one.recipient]
    assert told == [*(("Model House", 0) for _ in failed), ("Other House", 1)]
