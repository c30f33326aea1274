"""Whatever is on a page can be told from what lies behind it: each text, glyph, field and drawing, in both themes.

test_colours.py computes the pairs of tokens; what pages really make of them is measured, on pictures: on each
page while test_every_page.py has it open; here what lies over a page, and the measure itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.contrast import contrast, faint
from tests.browser.test_every_page import Open
from tests.cast import Person
from tests.pipelines.test_everything_has_a_rule import parts  # noqa: F401  one of each thing

pytestmark = pytest.mark.django_db(transaction=True)

THEMES = ("light", "dark")
UNFOLD = "(where) => document.querySelectorAll(where).forEach((part) => part.open = true)"


def test_everything_in_menus_and_in_the_keys_can_be_told_from_what_lies_behind_it(
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """Whatever lies over a page; what a shadow falls on is not looked at."""
    one = window(people["admin"], viewport={"width": 390, "height": 900})
    wrong = []
    for theme in THEMES:
        one.go("/console/members/")
        one.look(theme=theme)
        for menu in ("details.menu", "details.sections"):
            one.page.evaluate(UNFOLD, menu)
            wrong += [f"{theme} {menu} {fault}" for fault in faint(one, within="header")]
            one.page.keyboard.press("Escape")
        one.page.keyboard.press("?")
        one.page.locator("dialog#keys[open]").wait_for()
        wrong += [f"{theme} keys {fault}" for fault in faint(one, within="dialog#keys")]
    assert wrong == []


@pytest.mark.parametrize(
    ("token", "kind"), [("--ink-3", "text"), ("--ink-3", "placeholder"), ("--s-solid", "glyph"), ("--control", "edge")]
)
def test_a_token_that_went_wrong_is_seen(
    token: str,
    kind: str,
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """The measure itself: a token that is as its ground is found on the page, by what it makes unreadable."""
    one = window(people["admin"])
    one.go("/console/")
    assert faint(one) == []
    change = (
        "(token) => document.querySelectorAll('*').forEach((part) => part.style.setProperty(token, 'var(--surface)'))"
    )
    one.page.evaluate(change, token)
    assert any(fault.startswith(f"{kind} ") for fault in faint(one)), token


def test_the_ratio_is_that_of_the_standard() -> None:
    assert round(contrast((0, 0, 0), (255, 255, 255)), 2) == 21
    assert round(contrast((118, 118, 118), (255, 255, 255)), 2) == 4.54
    assert contrast((9, 9, 9), (9, 9, 9)) == 1
