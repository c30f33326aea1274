"""Services that some tests need, and the database's address for processes of their own.

A service that does not answer skips the test, or fails it where CI demands it.
"""

from __future__ import annotations

import os
import socket
from urllib.parse import quote, urlsplit

import pytest
from django.db import connection

from config.environment import BY_NAME, is_on


def service_url(variable: str) -> str:
    """The address of a service, if something listens there; else the test is skipped (or fails, see the module)."""
    url = os.environ.get(variable) or BY_NAME[variable].default
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 0), timeout=2).close()
    except OSError as error:
        reason = f"nothing answers at {parts.hostname}:{parts.port} ({variable}): {error}"
        if is_on(os.environ.get("RECOURSE_REQUIRE_SERVICES", "")):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return url


@pytest.fixture
def redis_url() -> str:
    return service_url("RECOURSE_TEST_REDIS_URL")


@pytest.fixture
def rabbitmq_url() -> str:
    return service_url("RECOURSE_TEST_RABBITMQ_URL")


@pytest.fixture
def server_url() -> str:
    """A PostgreSQL server that is not the embedded one."""
    return service_url("RECOURSE_TEST_SERVER_URL")


def database_url() -> str:
    """The address of the database that a test speaks to, for a process of its own; over TCP or a socket."""
    found = connection.get_connection_params()
    password = f":{quote(str(found['password']), safe='')}" if found.get("password") else ""
    user = f"{quote(str(found.get('user', '')), safe='')}{password}"
    host, port = str(found.get("host") or "127.0.0.1"), found.get("port") or 5432
    if host.startswith("/"):
        return f"postgres://{user}@:{port}/{found['dbname']}?host={quote(host)}"
    return f"postgres://{user}@{host}:{port}/{found['dbname']}"
