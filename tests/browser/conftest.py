"""Chromium in front of a served console: one browser for all tests, a window with cookies of its own for each.

Without a Chromium the tests are skipped, with the reason; where nothing may be skipped (RECOURSE_REQUIRE_SERVICES=1)
they fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from config.environment import is_on
from tests.browser.chromium import CHROMIUM, FLAGS, REASON
from tests.browser.looking import Window
from tests.cast import Person

# colours that are on their way to others have no contrast yet
USUAL = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """A started Chromium; while it is there, Django is told to mind no event loop in this thread."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        if is_on(os.environ.get("RECOURSE_REQUIRE_SERVICES", "")):
            pytest.fail(REASON, pytrace=False)
        pytest.skip(REASON)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()
        # while the loop ran, Django kept connections of their own for it, which nobody else would close
        connections.close_all()


@pytest.fixture
def window(chromium: Any, live_server: Any) -> Iterator[Callable[..., Window]]:
    """window(people["operator"], java_script_enabled=False): a window of theirs. No window may have complained."""
    opened: list[Window] = []
    contexts: list[Any] = []

    def open_window(person: Person | None = None, **options: Any) -> Window:
        contexts.append(chromium.new_context(**{**USUAL, **options}))
        contexts[-1].set_default_timeout(20_000)
        opened.append(Window(contexts[-1].new_page(), live_server.url))
        if person is not None:
            opened[-1].be(person)
        return opened[-1]

    yield open_window
    for context in contexts:
        context.close()
    assert [complaint for one in opened for complaint in one.complaints] == []
