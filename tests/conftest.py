"""Fixtures that every test may need: the clock and the services. The cast and the factories have files of their own."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

FIXTURES = ["tests.clock", "tests.services", "tests.cast"]

# The files of others appear as they are written; a missing one must not keep the rest from running.
pytest_plugins = [name for name in FIXTURES if importlib.util.find_spec(name)]


@pytest.fixture(autouse=True, scope="session")
def quick_passwords() -> None:
    """Hashing passwords slowly is a virtue that tests can do without."""
    from django.conf import settings

    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A parallel run knows tests by their ids: of several with one id it would run only one."""
    twice = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests are called {', '.join(twice)}")
