"""The list of dead letters: by error and handler, narrowed by its address, acted on in groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import DeadLetter, Run
from recovery.models import BulkItem, BulkOperation
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of

pytestmark = pytest.mark.django_db

LIST = "/console/dead-letters/"
Start = Callable[..., Run]


@pytest.fixture
def fail(start_run: Start, new_hand: Callable[..., Hand]) -> Callable[..., list[Run]]:
    def failing(count: int, code: str, handler: str = "Handler", **more: Any) -> list[Run]:
        hand = new_hand(f"hand of {handler} {code}", handler)
        runs = [start_run({"name": "load", "handler": handler}, **more) for _ in range(count)]
        for _ in runs:
            hand.report(hand.take(), "failed", error_code=code, error_message=f"{code} is there", retryable=False)
        return runs

    return failing


def groups_of(page: Any) -> list[tuple[int, str, str]]:
    return [(one.count, one.error_code, one.handler) for one in page.context["groups"].rows]


def test_letters_are_grouped_by_error_and_handler_with_the_oldest(
    operator: Visitor, fail: Callable[..., list[Run]], clock: Clock
) -> None:
    fail(1, "UNIQUE", "Load")
    clock.advance(7200)
    fail(2, "UNIQUE", "Load")
    fail(2, "TIMEOUT", "Charge")
    fail(1, "UNIQUE", "Charge")
    page = operator.get(LIST)
    assert groups_of(page) == [(3, "UNIQUE", "Load"), (2, "TIMEOUT", "Charge"), (1, "UNIQUE", "Charge")]
    assert "3 letters UNIQUE Load oldest 2 h ago" in text_of(page)
    assert len(page.context["letters"]) == 6


def test_a_group_opens_to_its_letters(operator: Visitor, fail: Callable[..., list[Run]]) -> None:
    fail(2, "UNIQUE", "Load", name="orders")
    fail(1, "TIMEOUT", "Charge", name="payments")
    page = operator.get(LIST)
    link = re.search(r'<a id="g-1" class="mono" href="([^"]+)"', page.content.decode())
    assert link
    opened = operator.get(f"{LIST}{unescape(link[1])}")
    assert {letter.run.name for letter, _, _ in opened.context["letters"]} == {"orders"}
    assert groups_of(opened) == []
    assert "Remove the filter error code UNIQUE" in opened.content.decode()


def test_all_of_a_group_become_a_draft(operator: Visitor, fail: Callable[..., list[Run]]) -> None:
    fail(3, "UNIQUE", "Load")
    fail(1, "TIMEOUT", "Load")
    group = operator.get(LIST).context["groups"].rows[0]
    operator.post("/console/bulk/new/", {"all": "yes", "filter": group.filter, "kind": "redrive"})
    bulk = BulkOperation.objects.get()
    assert (bulk.kind, bulk.total) == ("redrive", 3)
    chosen = DeadLetter.objects.filter(id__in=BulkItem.objects.values("dead_letter"))
    assert set(chosen.values_list("error_code", "handler", "state")) == {("UNIQUE", "Load", "open")}


def test_groups_of_a_narrowed_list_regard_its_filter(operator: Visitor, fail: Callable[..., list[Run]]) -> None:
    fail(2, "UNIQUE", "Load")
    fail(1, "UNIQUE", "Charge")
    fail(1, "TIMEOUT", "Charge")
    assert groups_of(operator.get(f"{LIST}?handler=Charge")) in (
        [(1, "UNIQUE", "Charge"), (1, "TIMEOUT", "Charge")],
        [(1, "TIMEOUT", "Charge"), (1, "UNIQUE", "Charge")],
    )
    assert groups_of(operator.get(f"{LIST}?status=discarded")) == []


def test_caps_are_told(operator: Visitor, fail: Callable[..., list[Run]], monkeypatch: pytest.MonkeyPatch) -> None:
    """F161: what was not counted to its end says so, and offers to narrow."""
    from pipelines.console import letter_list

    fail(3, "UNIQUE", "Load")
    fail(1, "TIMEOUT", "Charge")
    monkeypatch.setattr(letter_list, "CAP", 2)
    assert [one.count for one in operator.get(LIST).context["groups"].rows] == [3, 1]
    assert "of the newest 1,000 that match; narrow the list to count all" in text_of(
        operator.get(f"{LIST}?reason=terminal_error")
    )
    fail(1, "OTHER", "Charge")
    monkeypatch.setattr(letter_list, "MOST_GROUPS", 2)
    assert "the first 2 groups; narrow the list to see others" in text_of(operator.get(LIST))


def test_every_filter_is_a_chip_that_can_be_removed(operator: Visitor, fail: Callable[..., list[Run]]) -> None:
    fail(1, "UNIQUE", "Load")
    given = {
        "reason": "terminal_error",
        "handler": "Load",
        "error_code": "UNIQUE",
        "status": "open",
        "application": "billing",
    }
    page = operator.get(LIST, given)
    assert page.status_code == 200
    for name, value in given.items():
        words = "state" if name == "status" else name.replace("_", " ")
        assert f'aria-label="Remove the filter {words} {value}"' in page.content.decode()
    assert len(page.context["letters"]) == 1
    for nobody in ({"application": "zebra"}, {"pipeline": "zebra"}, {"handler": "zebra"}):
        assert operator.get(LIST, nobody).context["letters"] == []
    assert operator.get(f"{LIST}?hander=Load").status_code == 400


def test_letters_of_others_are_in_no_group(
    browse: Callable[[Person], Visitor], outsider: Person, fail: Callable[..., list[Run]]
) -> None:
    fail(2, "UNIQUE", "Load")
    fail(2, "TIMEOUT", "Load")
    page = browse(outsider).get(LIST)
    assert groups_of(page) == []
    assert "UNIQUE" not in page.content.decode()


def test_the_number_of_queries_does_not_grow_with_the_letters(
    operator: Visitor, fail: Callable[..., list[Run]]
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(LIST).status_code == 200
        return len(captured)

    fail(1, "UNIQUE", "Load")
    fail(1, "TIMEOUT", "Load")
    few = queries()
    fail(9, "UNIQUE", "Load")
    fail(3, "OTHER", "Charge")
    assert queries() == few
    assert few <= 18
