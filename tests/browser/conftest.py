"""Chromium in front of a served console. Without Playwright or a Chromium the tests are skipped, with the reason."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from tests.cast import Person

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
REASON = None
if importlib.util.find_spec("playwright") is None:
    REASON = "Playwright is not installed: python -m uv pip install playwright"
elif CHROMIUM is None:
    REASON = "no Chromium on this machine: apt-get install chromium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.browser)
            if REASON:
                item.add_marker(pytest.mark.skip(reason=REASON))


class Window:
    """A logged-in browser window. `complaints` are the console's errors: a strict policy that is broken shows there."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self.base = page, base
        self.complaints: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, path: str) -> None:
        self.page.goto(self.base + path)

    def log_in(self, person: Person) -> None:
        self.go("/console/login/")
        self.page.fill("#id_username", person.user.get_username())
        self.page.fill("#id_password", "secret")
        self.page.click("main button.primary")
        self.page.wait_for_url("**/console/")

    def _note(self, message: Any) -> None:
        # a refused form is answered 4xx, which the browser notes although all is well
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


@pytest.fixture
def window(live_server: Any) -> Iterator[Callable[..., Window]]:
    """window(people["operator"], javaScriptEnabled=False): a window, logged in."""
    from playwright.sync_api import sync_playwright

    # Playwright keeps an event loop in this thread; Django then takes plain queries for asynchronous ones.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    opened: list[Window] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_window(person: Person, **options: Any) -> Window:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            context.set_default_timeout(10_000)
            opened.append(Window(context.new_page(), live_server.url))
            opened[-1].log_in(person)
            return opened[-1]

        yield open_window
        browser.close()
        # while that loop runs, Django keeps connections of their own for it, which nobody else would close
        connections.close_all()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    assert [complaint for one in opened for complaint in one.complaints] == []
