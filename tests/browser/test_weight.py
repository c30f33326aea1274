"""What pages weigh on their way to a browser that has seen nothing yet, and what they fetch by themselves from then on.

Measured in Chromium, at the console's own web server: what came through the wire, headers too, of a page full of rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from pipelines.ids import new_id
from pipelines.models import Attempt, Run
from tests.cast import Hand, Person, stages_of
from tests.contract.conftest import url_of_test_database, web_server
from tests.pipelines.test_everything_has_a_rule import address_of, parts  # noqa: F401  one of each thing

pytestmark = pytest.mark.django_db(transaction=True)

FIRST_LOAD, LIVE_UPDATE = 150_000, 15_000
STAGES, ATTEMPTS = 100, 20
SECTIONS = (
    "runs", "dead-letters", "approvals", "triggers", "backfills", "operations", "bulk-list", "pipelines", "workers",
    "audit", "account", "backfill-planner",
)  # fmt: skip


@pytest.fixture
def address(django_db_setup: None) -> Iterator[str]:
    with web_server(url_of_test_database("weight")) as (address, _):
        yield address


@pytest.fixture
def full(start_run: Callable[..., Run], hand: Hand) -> Run:
    """More failed runs than a page shows, and a run of a hundred stages that were tried twenty times each."""
    for number in range(60):
        start_run("load", name=f"nightly-import-{number}", key=f"nightly-import:2026-05-{number}")
    while jobs := hand.pull(100):
        for job in jobs:
            hand.report(job, "failed", error_code="UNIQUE", error_message=f"row {number} is there " * 8)
    run = start_run(*[{"name": f"load-part-{number}"} for number in range(STAGES)], name="rates")
    Attempt.objects.bulk_create(
        Attempt(
            id=new_id(),
            run=run,
            stage=stage,
            epoch=1,
            number=number,
            state="failed",
            started_at=run.created_at,
            finished_at=run.created_at,
            expires_at=run.created_at,
            error_code="TIMEOUT",
            error_message="no answer within 30 s",
        )
        for stage in stages_of(run)[1:]
        for number in range(1, ATTEMPTS + 1)
    )
    return run


def test_no_page_weighs_more_than_it_may(
    chromium: Any,
    address: str,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
    full: Run,
    hand: Hand,
    start_run: Callable[..., Run],
) -> None:
    """First load at most 150 kB, whatever is fetched for it; each live part at most 15 kB after something moved."""
    heavy: list[str] = []
    pages = {"run": f"/console/runs/{full.id}/"} | {name: address_of(name, parts) for name in SECTIONS}
    for name, path in pages.items():
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.add_cookies([session_of(people["admin"], address)])
        page = context.new_page()
        wire = page.context.new_cdp_session(page)
        wire.send("Network.enable")
        came: list[float] = []
        wire.on("Network.loadingFinished", lambda event, came=came: came.append(event["encodedDataLength"]))
        page.goto(address + path, wait_until="load")
        weight = sum(came)
        sys.stderr.write(f"{name}: {weight:,.0f} bytes\n")
        assert len(came) >= 4, "a page, its looks and its scripts"
        if weight > FIRST_LOAD:
            heavy.append(f"{name}: {weight:,.0f} bytes")
        for part in page.eval_on_selector_all(
            "[data-live]", "(parts) => parts.map((one) => one.getAttribute('hx-get'))"
        ):
            start_run("load", name="one-more")
            hand.take()
            update = weight_of_update(page, part)
            sys.stderr.write(f"{name}, live: {update:,} bytes\n")
            if update > LIVE_UPDATE:
                heavy.append(f"{name}, live: {update:,} bytes of {part}")
        context.close()
    assert heavy == []


def weight_of_update(page: Any, part: str) -> int:
    """What comes over the wire when a live part asks what is new."""
    answer: dict[str, Any] = page.evaluate(
        """async (part) => {
            const address = new URL(part, location.href);
            performance.clearResourceTimings();
            const answer = await fetch(address, { headers: { "HX-Request": "true" } });
            const body = await answer.text();
            const timing = performance.getEntriesByName(address.href).at(-1);
            return { status: answer.status, size: timing ? timing.transferSize : body.length };
        }""",
        part,
    )
    assert answer["status"] in (200, 204), part
    return int(answer["size"])


def session_of(person: Person, address: str) -> dict[str, str]:
    client = Client()
    client.force_login(person.user)
    name = settings.SESSION_COOKIE_NAME
    return {"name": name, "value": client.cookies[name].value, "url": address}
