"""Fixtures that every test may need: the clock and the services. The cast and the factories have files of their own."""

from __future__ import annotations

import importlib.util

import pytest

FIXTURES = ["tests.clock", "tests.services", "tests.cast"]

# The files of others appear as they are written; a missing one must not keep the rest from running.
pytest_plugins = [name for name in FIXTURES if importlib.util.find_spec(name)]


@pytest.fixture(autouse=True, scope="session")
def quick_passwords() -> None:
    """Hashing passwords slowly is a virtue that tests can do without."""
    from django.conf import settings

    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
