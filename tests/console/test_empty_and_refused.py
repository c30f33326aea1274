"""What a page says where there is nothing, and where something may not or cannot be done."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client

from pipelines.models import Workspace
from tests.cast import Person
from tests.console.conftest import Visitor, text_of
from tests.factories import MemberFactory
from tests.routes import every_route

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]
LISTS = ("", "dead-letters/", "triggers/", "backfills/", "blackouts/", "operations/", "bulk/", "pipelines/", "workers/")


@pytest.mark.parametrize("path", [*LISTS, "approvals/", "audit/"])
def test_an_empty_list_of_a_workspace_that_the_address_names_offers_no_filter_to_take_away(
    path: str, browse: Browse, people: dict[str, Person], other_workspace: Workspace
) -> None:
    """The chooser of workspaces leads to such addresses; nobody has filtered anything yet."""
    MemberFactory(workspace=other_workspace, user=people["admin"].user, role="admin")
    visitor = browse(people["admin"])
    told = text_of(visitor.get(f"/console/{path}?workspace={other_workspace.slug}"))
    assert re.search(r"None that match|No \w+ matches", told) is None


def test_a_list_that_a_filter_has_emptied_says_so_and_leads_to_all_of_it(operator: Visitor) -> None:
    for path, way_out in (("triggers/?enabled=true", "All triggers"), ("workers/?status=active", "All workers")):
        told = text_of(operator.get(f"/console/{path}"))
        assert "None that match" in told
        assert way_out in told


def test_what_takes_only_forms_tells_who_opens_it_as_a_page(operator: Visitor) -> None:
    """Browsers show a page of their own where an answer has no body."""
    answer = operator.get("/console/logout/")
    assert (answer.status_code, answer["Allow"]) == (405, "POST, OPTIONS")
    assert "There is no page here" in text_of(answer)
    assert "only takes what a form sends" in text_of(answer)
    sent = operator.post("/console/workers/")
    assert (sent.status_code, sent["Allow"]) == (405, "GET, HEAD")
    assert "which is only read" in text_of(sent)
    assert operator.get("/console/").status_code == 200, "and nobody was logged out"


def test_no_address_of_the_console_answers_another_method_without_a_word(operator: Visitor) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    for route, _ in every_route():
        if not route.startswith("console/") or "<" in route:
            continue
        for ask in (operator.get, operator.put):
            answer = ask(f"/{route}".replace("<uuid>", unknown))
            assert answer.status_code != 405 or "405 unsupported" in text_of(answer), route


def test_an_api_still_answers_another_method_as_a_problem() -> None:
    answer = Client().put("/v1/executions")
    assert answer["Content-Type"] == "application/problem+json"


def test_who_may_not_is_told_so_and_not_that_a_form_was_forged(people: dict[str, Person], browse: Browse) -> None:
    user = people["viewer"].user
    user.is_staff = True
    user.save()
    answer = browse(people["viewer"]).get("/admin/pipelines/blackout/add/")
    assert answer.status_code == 403
    told = unescape(text_of(answer))
    assert "You may not do this" in told
    assert "not sent from a page of this console" not in told
    assert "Log out" in told, "where no workspace is chosen one can leave, too"


def test_a_form_that_was_not_sent_from_a_page_is_told_apart(people: dict[str, Person]) -> None:
    stranger = Client(enforce_csrf_checks=True)
    answer = stranger.post("/console/login/", {"username": "x", "password": "y"})
    assert answer.status_code == 403
    assert "not sent from a page of this console" in text_of(answer)


def test_a_request_that_cannot_be_read_is_told_on_a_page(operator: Visitor) -> None:
    answer = operator.post("/console/preferences/", {f"field-{number}": "" for number in range(2000)})
    assert answer.status_code == 400
    assert "That cannot be read" in text_of(answer)
