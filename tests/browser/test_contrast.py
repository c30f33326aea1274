"""Whatever is on a page can be told from what lies behind it: each text, glyph, field and drawing, in both themes.

test_colours.py computes the pairs of tokens; here the pairs that pages really make of them are measured, on pictures.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.contrast import contrast, faint, left_open
from tests.browser.looking import Window
from tests.browser.test_every_page import NOT_FOUND, QUERIES, Open, admin_addresses, areas, let_into_admin
from tests.cast import Person
from tests.pipelines.test_everything_has_a_rule import address_of, parts  # noqa: F401  one of each thing

pytestmark = pytest.mark.django_db(transaction=True)

THEMES = ("light", "dark")
UNFOLD = "(where) => document.querySelectorAll(where).forEach((part) => part.open = true)"


@pytest.mark.parametrize("area", sorted(areas()))
def test_everything_on_a_page_can_be_told_from_what_lies_behind_it(
    area: str,
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """O59: 4.5 for text, 3 for large text and whatever is no text; what axe-core leaves open is measured too."""
    one = window(people["admin"])
    wrong = []
    for name in areas()[area]:
        for query in QUERIES.get(name, ("",)):
            answer = one.go(address_of(name, parts) + query)
            assert answer.status in (200, 409) or name in NOT_FOUND
            wrong += [f"{name}{query} {fault}" for fault in faint_in_both(one)]
    assert wrong == []


def test_so_it_is_in_menus_and_in_the_keys(window: Open, people: dict[str, Person], parts: dict[str, Any]) -> None:  # noqa: F811
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


def test_so_it_is_on_the_admin_site(
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """Its first page, every list, and the form of one thing of each."""
    let_into_admin(people["admin"])
    one = window(people["admin"])
    addresses = admin_addresses()
    wrong = []
    for theme in THEMES:
        one.page.context.add_cookies([{"name": "theme", "value": theme, "url": one.base}])
        for address in addresses:
            one.go(address)
            wrong += [f"{theme} {address} {fault}" for fault in faint(one)]
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


def faint_in_both(one: Window) -> list[str]:
    one.page.evaluate(UNFOLD, "main details")
    wrong = []
    for theme in THEMES:
        one.look(theme=theme)
        wrong += [f"{theme}: {fault}" for fault in faint(one)]
    one.look(theme="light")
    return wrong + [f"neither told nor measured: {part}" for part in left_open(one)]
