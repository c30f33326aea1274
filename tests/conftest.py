"""Fixtures that every test may need: the clock and the services. The cast and the factories have files of their own."""

from __future__ import annotations

from collections import Counter

import hypothesis
import pytest

pytest_plugins = [
    "tests.clock",
    "tests.services",
    "tests.cast",
    "tests.scheduled",
    "tests.quick",
    "tests.stored",
    "tests.decided",
]

# how long an example takes says something of who else is at work on the machine, and nothing of the property
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A parallel run knows tests by their ids: of several with one id it would run only one."""
    twice = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests are called {', '.join(twice)}")
