"""What every page has around it: the sections, the search, the account menu, and pages that say what went wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client

from pipelines.models import Run
from tests.cast import Person
from tests.console.conftest import Visitor, text_of

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]
SECTIONS = {
    "g r": "/console/",
    "g d": "/console/dead-letters/",
    "g a": "/console/approvals/",
    "g b": "/console/triggers/",
    "g o": "/console/operations/",
    "g p": "/console/pipelines/",
    "g w": "/console/workers/",
    "g l": "/console/audit/",
}
GATED = {"name": "publish", "approval": {"when": "before"}}


def body_of(response: Any) -> str:
    return str(response.content.decode())


def test_every_section_stands_in_the_top_bar_in_order_with_its_key(operator: Visitor) -> None:
    page = body_of(operator.get("/console/workers/"))
    found = {keys: address for address, keys in re.findall(r'<a href="([^"]+)" data-key="(g \w)"', page)}
    assert list(found.items()) == list(SECTIONS.items())


@pytest.mark.parametrize(
    ("address", "section"),
    [
        ("/console/backfills/", "Triggers"),
        ("/console/blackouts/", "Triggers"),
        ("/console/bulk/", "Operations"),
        ("/console/pipelines/", "Pipelines"),
    ],
)
def test_the_section_one_is_in_is_marked_and_no_other(operator: Visitor, address: str, section: str) -> None:
    page = body_of(operator.get(address))
    bar = page[page.index("<header") : page.index("</header>")]
    assert re.findall(r'aria-current="page">([^<]+)<', bar) == [section]


def test_a_run_belongs_to_the_section_of_runs(operator: Visitor, start_run: Callable[..., Run]) -> None:
    page = body_of(operator.get(f"/console/runs/{start_run('first').id}/"))
    assert re.findall(r'aria-current="page">([^<]+)<', page[: page.index("</header>")]) == ["Runs"]


def test_signing_keys_belong_to_the_section_of_the_audit(operator: Visitor) -> None:
    page = body_of(operator.get("/console/signing-keys/"))
    assert re.findall(r'aria-current="page">([^<]+)<', page[: page.index("</header>")]) == ["Audit"]


def test_the_search_stands_on_every_page_and_keeps_the_filters_of_the_run_list(operator: Visitor) -> None:
    elsewhere = body_of(operator.get("/console/workers/"))
    assert 'role="search" method="get" action="/console/"' in elsewhere
    assert 'data-key="/"' in elsewhere
    here = body_of(operator.get("/console/", {"status": "failed", "search": "orders", "cursor": ""}))
    form = here[here.index('class="find"') : here.index("</form>", here.index('class="find"'))]
    assert re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', form) == [("status", "failed")]
    assert 'value="orders"' in form
    assert 'type="hidden"' not in elsewhere[elsewhere.index('class="find"') : elsewhere.index('class="zone')]


def test_the_menu_says_who_one_is_and_where_and_leads_out(operator: Visitor) -> None:
    page = operator.get("/console/workers/")
    assert "operator-acme is operator in acme . Times are in UTC." in text_of(page)
    assert 'action="/console/logout/"' in body_of(page)
    assert "Administration" not in text_of(page), "it is for staff alone"


def test_who_is_not_logged_in_sees_no_section_and_may_change_the_theme(client: Client) -> None:
    page = body_of(client.get("/console/login/"))
    assert "data-key" not in page
    assert 'name="theme"' in page


def test_the_count_of_what_waits_keeps_itself_and_costs_nothing_while_nothing_changes(
    browse: Browse, people: dict[str, Person], start_run: Callable[..., Run]
) -> None:
    """Polled, it is 204 until somebody is asked for something; then it says so to who listens, too."""
    approver = browse(people["approver"])
    page = body_of(approver.get("/console/workers/"))
    polled = re.search(r'id="waiting" hx-get="([^"]+)"', page)
    assert polled
    assert approver.part(unescape(polled[1])).status_code == 204
    start_run(GATED)
    part = approver.part(unescape(polled[1]))
    assert text_of(part) == "1"
    assert 'data-says="1 waits for your approval"' in body_of(part)
    assert "seen=1" in body_of(part)


def test_who_decides_nothing_is_not_counted_for(operator: Visitor, start_run: Callable[..., Run]) -> None:
    start_run(GATED)
    assert 'id="waiting"' not in body_of(operator.get("/console/workers/"))
    assert operator.part("/console/approvals/waiting/", seen="0").status_code == 204


def test_a_filter_that_cannot_be_read_is_named_and_the_others_stay(operator: Visitor) -> None:
    """Never an empty list, and never all that was typed lost: the way on is without just that filter."""
    page = operator.get("/console/triggers/", {"enabled": "perhaps", "pipeline": "rates"})
    assert page.status_code == 400
    told = unescape(text_of(page))
    assert "A part of this address cannot be read" in told
    assert re.search(r"Enabled : 'perhaps' is none of", told)
    assert "pipeline rates" in told
    body = body_of(page)
    assert 'href="?pipeline=rates">Go on without enabled' in body
    assert 'href="/console/triggers/">Without any filter' in body


def test_a_page_that_is_not_there_leads_on(operator: Visitor) -> None:
    page = operator.get("/console/nowhere/")
    assert page.status_code == 404
    assert "There is no page at /console/nowhere/" in text_of(page)
    assert 'href="/console/dead-letters/"' in body_of(page)


def test_what_was_typed_into_an_address_is_shown_as_text(operator: Visitor) -> None:
    attack = '"><script>alert(1)</script>'
    for page in (
        operator.get("/console/triggers/", {"enabled": attack, attack: "1"}),
        operator.get(f"/console/{attack}/"),
    ):
        assert page.status_code in (400, 404)
        assert b"<script>alert" not in page.content
