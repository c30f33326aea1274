"""Lists on a screen as narrow as a hand: a row is a card, and nothing of it lies beyond the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.looking import Window
from tests.browser.test_every_page import start_run  # noqa: F401  names that no column is as wide as
from tests.cast import Person
from tests.pipelines.test_everything_has_a_rule import address_of, parts  # noqa: F401  one of each thing

pytestmark = pytest.mark.django_db(transaction=True)

LISTS = (
    *("runs", "dead-letters", "operations", "bulk-list", "bulk", "bulk-items"),
    *("run", "run-timeline", "effects", "checkpoints"),
)
# tables of which one has to push the rest into sight
PUSHED = """[...document.querySelectorAll("main .scroll")]
    .filter((part) => part.checkVisibility() && part.scrollWidth > part.clientWidth + 1)
    .map((part) => part.querySelector("caption")?.textContent ?? part.outerHTML.slice(0, 80))"""


def test_no_list_of_an_operators_is_pushed_sideways(
    window: Callable[..., Window],
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """O57: what failed is read with one hand."""
    one = window(people["operator"], viewport={"width": 390, "height": 844})
    found = {}
    for name in LISTS:
        assert one.go(address_of(name, parts)).status == 200, name
        found[name] = one.page.evaluate(PUSHED)
    assert {name: tables for name, tables in found.items() if tables} == {}
