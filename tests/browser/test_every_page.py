"""Every page of the URL map and of the admin site, as Chromium shows it: both themes, wide, narrow and at 400 % zoom.

A new address is looked at without anybody naming it here; one that answers with no page has to be named in NO_PAGE.
While a page is there, whatever is on it is told from what lies behind it, by its pixels too (`contrast.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.urls import resolve, reverse

from config.security import POLICY
from pipelines import imports
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.imports import Answer
from pipelines.models import Run
from tests.browser.contrast import faint, left_open
from tests.browser.looking import OF_COLOUR, WCAG, Window
from tests.cast import Person, stages_of
from tests.pipelines.test_everything_has_a_rule import address_of, parts  # noqa: F401  one of each thing
from tests.routes import every_route

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Window]

LONG = "a-very-long-name-" * 11
# 400 % of 1280 pixels are 320
WIDTHS = (1280, 390, 320)
# what shows no page: it is posted to, is the part of a page that HTMX fetches, is a plain text, or leads elsewhere
NO_PAGE = {
    *(
        "logout",
        "preferences",
        "audit-export",
        "artifact-content",
        "store-export",
        "import-request",
        "bulk-new",
        "backfill-start",
        "schedule-preview",
    ),
    *("run-live", "run-events", "waiting", "whole"),
    *("oidc-login", "oidc-done", "oidc-log-out"),
}
# pages that say that there is no such thing: where nobody logs in by an issuer, or the session is not one's own
NOT_FOUND = {"account-connect", "account-disconnect", "session-end"}
DIALOGS_ON = (
    *("run", "dead-letters", "approval", "operation", "effect", "bulk"),
    *("trigger", "backfill", "blackouts", "pipeline", "release", "account", "members"),
)
# what a page shows by its query
QUERIES = {
    "approvals": ("", "?view=waiting", "?view=asked", "?view=decided"),
    "checkpoint-changes": ("?one=1&other=2",),
    "runs": ("", "?search=nothing-is-called-so", "?status=failed"),
}


def areas() -> dict[str, list[str]]:
    """The names of the pages by the first word of their address."""
    found: dict[str, list[str]] = {}
    for route, pattern in every_route():
        if route.startswith("console/") and pattern.name not in NO_PAGE:
            found.setdefault(route.split("/")[1] or "start", []).append(pattern.name or "")
    return {area: sorted(names) for area, names in found.items()}


@pytest.fixture
def start_run(start_run: Callable[..., Run]) -> Callable[..., Run]:
    """Whatever the pages show has a name that no column is as wide as."""
    return lambda *stages, **more: start_run(*stages, **{"name": LONG, "key": f"{Run.objects.count()}-{LONG}", **more})


@pytest.mark.parametrize("area", sorted(areas()))
def test_nothing_is_wrong_with_any_page(
    area: str,
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """P89, O59: axe-core finds nothing, the policy holds, nothing is wider than its window, small or out of reach.

    4.5 for text, 3 for large text and whatever is no text; what axe-core leaves open is measured too.
    """
    one = window(people["admin"])
    wrong = [
        f"{name}{query}: {fault}"
        for name in areas()[area]
        for query in QUERIES.get(name, ("",))
        for fault in wrong_with(one, address_of(name, parts) + query, *([404] if name in NOT_FOUND else []))
    ]
    assert wrong == []


@pytest.mark.parametrize("name", DIALOGS_ON)
def test_nothing_is_wrong_with_any_dialog(
    name: str,
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """Each is opened where it is offered, and Escape leads back to the link that opened it."""
    one = window(people["admin"])
    one.go(address_of(name, parts))
    assert [f"{address}: {wrong}" for address in dialogs_on(one) for wrong in wrong_with_dialog(one, address)] == []


def test_nothing_is_wrong_with_menus_and_keys(window: Open, people: dict[str, Person], parts: dict[str, Any]) -> None:  # noqa: F811
    """What the frame of every page unfolds."""
    one = window(people["admin"])
    one.go("/console/")
    for width in WIDTHS:
        one.look(width=width)
        one.page.evaluate("document.querySelectorAll('header details').forEach((menu) => menu.open = true)")
        assert one.faults() + shades(one, "header:has([data-menu])") == []
        one.page.keyboard.press("Escape")
        one.page.keyboard.press("?")
        one.page.locator("dialog#keys[open]").wait_for()
        assert one.faults() + shades(one, "dialog#keys") == []
        one.page.keyboard.press("Escape")


def test_nothing_is_wrong_with_what_is_shown_to_who_may_not_or_is_not_there(
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """Refusals are pages of the console too: not found, not allowed, not logged in; and a viewer's, without offers."""
    stranger = window()
    assert list(wrong_with(stranger, "/console/login/")) == []
    viewer = window(people["viewer"])
    nothing = address_of("run", parts).replace(str(parts["run_id"]), "00000000-0000-7000-8000-000000000000")
    for address, status in ((nothing, 404), (address_of("retry", parts), 403), ("/console/?status=nonsense", 400)):
        assert list(wrong_with(viewer, address, status)) == [], address
    for name in ("run", "dead-letters", "approval", "trigger", "backfill", "effect"):
        assert list(wrong_with(viewer, address_of(name, parts))) == [], name


def test_nothing_is_wrong_with_a_long_branched_run_in_the_middle_of_it(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], hand: Any
) -> None:
    """Every state that a stage may be in beside the others, long texts, attempts unfolded."""
    stages = [
        {"name": f"{LONG}{number}", "depends_on": [f"{LONG}{number // 2}"] if number else []} for number in range(8)
    ]
    run = start_run(*stages)
    one = window(people["operator"])
    assert list(wrong_with(one, f"/console/runs/{run.id}/")) == []


def test_nothing_is_wrong_with_what_is_made_elsewhere(
    window: Open, people: dict[str, Person], start_run: Callable[..., Run], application_actor: Actor
) -> None:
    """A run that awaits an answer and refused one, for who may bring it in and who may not, and the form for it."""
    run = start_run({"name": LONG, "mode": "import"})
    stage_id = stages_of(run)[0].id
    with pytest.raises(Refusal):
        imports.take(stage_id, Answer("0" * 64, output=1), actor=application_actor)
    for role in ("operator", "viewer"):
        assert list(wrong_with(window(people[role]), f"/console/runs/{run.id}/")) == [], role
    assert list(wrong_with(window(people["operator"]), f"/console/stages/{stage_id}/import/")) == []


def dialogs_on(one: Window) -> list[str]:
    """The addresses of the dialogs that the page offers, one of each kind."""
    links: list[str] = one.page.eval_on_selector_all(
        'a[hx-target="#dialog"]',
        "(links) => links.filter((link) => link.checkVisibility()).map((link) => link.getAttribute('href'))",
    )
    return list({resolve(link.partition("?")[0]).url_name: link for link in links}.values())


def wrong_with_dialog(one: Window, address: str) -> Iterator[str]:
    link = one.page.locator(f'a[href="{address}"][hx-target="#dialog"]').first
    for width in WIDTHS:
        one.look(width=width)
        link.focus()
        link.press("Enter")
        one.page.locator("dialog[open] .act").wait_for()
        yield from (f"{width}: {fault}" for fault in [*one.faults(), *in_width(one, width, "dialog[open]")])
        one.page.keyboard.press("Escape")
        one.page.locator("dialog[open]").wait_for(state="detached")
        if not link.evaluate("(link) => link === document.activeElement"):
            yield f"{width}: Escape leads away from its link"


def wrong_with(one: Window, address: str, *statuses: int) -> Iterator[str]:
    """What is wrong with the page at that address. 409: a page that says why what it is for is not possible now."""
    answer = one.go(address)
    if answer.status not in (statuses or (200, 409)) or not one.page.locator("main").count():
        yield f"is no page: {answer.status}"
        return
    if answer.headers.get("content-security-policy") != POLICY:
        yield f"has another policy: {answer.headers.get('content-security-policy')}"
    one.page.evaluate("document.querySelectorAll('main details').forEach((part) => part.open = true)")
    for width in WIDTHS:
        one.look(width=width)
        yield from (f"{width}: {fault}" for fault in [*one.faults(), *in_width(one, width, pixels=True)])


def in_width(one: Window, width: int, within: str = "html", *, pixels: bool = False) -> list[str]:
    """What axe-core finds: of the widest everything, in a narrower one what may differ there: colours do not.

    The narrowest shows what the one before does, as long as nothing is wider than it or out of reach.
    """
    if width == WIDTHS[0]:
        return shades(one, pixels=pixels)
    return one.axe(within=within, colours=False) if width != WIDTHS[-1] else []


def shades(one: Window, within: str = "html", *, pixels: bool = False) -> list[str]:
    """What axe-core finds in either theme; with `pixels`, what they say of the page, and what neither can say."""
    one.look(theme="light")
    light = one.axe(within=within)
    if pixels:
        light += [*faint(one), *(f"neither told nor measured: {part}" for part in left_open(one))]
    one.look(theme="dark")
    dark = one.axe(within=within, rules=OF_COLOUR) + (faint(one) if pixels else [])
    one.look(theme="light")
    return light + [f"dark: {fault}" for fault in dark]


def test_nothing_is_wrong_with_the_admin_site(
    window: Open,
    people: dict[str, Person],
    parts: dict[str, Any],  # noqa: F811
) -> None:
    """O59: its first page, every list, the form of one thing of each: in the console's colours, by the same policy."""
    let_into_admin(people["admin"])
    one = window(people["admin"])
    wrong = [f"{address}: {fault}" for address in admin_addresses() for fault in wrong_in_admin(one, address)]
    assert wrong == []


def let_into_admin(person: Person) -> None:
    person.user.is_staff = person.user.is_superuser = True
    person.user.save()


def admin_addresses() -> list[str]:
    """The admin site's first page, every list, and the form of one thing of each that is there."""
    addresses = ["/admin/"]
    for model in admin.site._registry:
        there = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        addresses.append(reverse(f"{there}_changelist"))
        if (first := model._default_manager.first()) is not None:
            addresses.append(reverse(f"{there}_change", args=[first.pk]))
    return addresses


# Django's own widgets: date and time beside each other under one label, and the sign of a search in two lists
OF_DJANGO = r"label: #id_\w+_[01] |aria-prohibited-attr: .*help-tooltip"


def wrong_in_admin(one: Window, address: str) -> Iterator[str]:
    """As for the console's pages, where the page is ours to change: by WCAG, on a wide screen, in both themes."""
    # Django's links change their colour slowly, so that a theme has to be there from the beginning
    for theme, asked in (("light", {"tags": WCAG}), ("dark", {"rules": OF_COLOUR})):
        one.page.context.add_cookies([{"name": "theme", "value": theme, "url": one.base}])
        answer = one.go(address)
        if answer.status != 200:
            yield f"answers {answer.status}"
            return
        if answer.headers.get("content-security-policy") != POLICY:
            yield f"has another policy: {answer.headers.get('content-security-policy')}"
        yield from (f"{theme}: {fault}" for fault in one.axe(**asked) if not re.match(OF_DJANGO, fault))
        yield from (f"{theme}: {fault}" for fault in faint(one))
