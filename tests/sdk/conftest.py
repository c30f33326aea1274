"""A protocol server, workers that end with their test, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recourse import Registry, Worker

from tests.sdk.protocol_server import API_KEY, ProtocolServer


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Waits until the condition holds, and returns what it returned; fails at the deadline."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.005)
    return value


@pytest.fixture
def serve() -> Iterator[Callable[..., ProtocolServer]]:
    servers = []

    def make(**options: Any) -> ProtocolServer:
        servers.append(ProtocolServer(**options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Callable[..., ProtocolServer]) -> ProtocolServer:
    return serve()


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def work() -> Iterator[Callable[..., Worker]]:
    """Starts a worker that ends quickly with the test."""
    workers: list[tuple[ProtocolServer, Worker]] = []

    def start(server: ProtocolServer, registry: Registry, **options: Any) -> Worker:
        quick = {"wait_seconds": 1, "drain_seconds": 0.2, "stop_seconds": 0.2, "deliver_seconds": 1.0}
        worker = Worker(server.url, API_KEY, registry=registry, **(quick | options))
        workers.append((server, worker))
        worker.start()
        return worker

    yield start
    for server, worker in workers:
        server.heal()
        worker.drain()
        server.ends_polls = True
        worker.stop()
