"""Clients that send wrongly, slowly or nothing at all, against the real web server: each harms only itself."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from pipelines.models import Run

pytestmark = pytest.mark.django_db(transaction=True)

MORE_THAN_THREADS = 40  # the server of these tests has two processes of sixteen
SOON = 3.0


class Wire:
    """Bytes to the server and back."""

    def __init__(self, server: str) -> None:
        self._place = urlsplit(server)
        self._open = ExitStack()

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = self._open.enter_context(
            socket.create_connection((self._place.hostname or "", self._place.port or 0), timeout=20)
        )
        connection.sendall(data)
        return connection

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def wire(server: str) -> Iterator[Wire]:
    wire = Wire(server)
    yield wire
    wire.close()


def creation(api_key: str, *headers: str) -> bytes:
    lines = ["POST /pipelines/idempotent HTTP/1.1", "Host: localhost", f"X-API-Key: {api_key}"]
    return "\r\n".join([*lines, "Content-Type: application/json", *headers, "", ""]).encode()


def intent() -> bytes:
    stage = {"stageName": "a", "stageHandlerName": "Handler"}
    return json.dumps({"idempotencyKey": "k", "name": "n", "stages": [stage]}).encode()


def answer_to(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(65_536):
        received += part
    return received


def seconds_for_an_answer(http: httpx.Client) -> float:
    begun = time.monotonic()
    assert http.get("/healthz").status_code == 200
    return time.monotonic() - begun


@pytest.mark.parametrize("chunk", [b"ZZ\r\n{}\r\n", b"1\r\n{}\r\n", b"-1\r\n{}\r\n", b"2;\r\r\n{}\r\n"])
def test_malformed_chunks_are_bad_input(http: httpx.Client, wire: Wire, api_key: str, chunk: bytes) -> None:
    """Never a 500; and as nobody knows where the next request begins, the connection ends."""
    connection = wire.connect(creation(api_key, "Transfer-Encoding: chunked") + chunk + b"0\r\n\r\n")
    head, _, body = answer_to(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["code"] == "validation_error"
    assert not Run.objects.exists()


def test_a_body_that_ends_early_is_refused_even_where_it_can_be_read(
    http: httpx.Client, wire: Wire, api_key: str
) -> None:
    body = intent()
    connection = wire.connect(creation(api_key, f"Content-Length: {len(body) + 10}") + body)
    connection.shutdown(socket.SHUT_WR)
    head, _, answer = answer_to(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(answer)["code"] == "validation_error"
    assert not Run.objects.exists()


def test_connections_that_say_nothing_keep_nobody_waiting(http: httpx.Client, wire: Wire) -> None:
    for _ in range(MORE_THAN_THREADS):
        wire.connect()
    assert seconds_for_an_answer(http) < SOON


@pytest.mark.parametrize("part", ["headers", pytest.param("body", marks=pytest.mark.prove)])
def test_requests_that_never_end_lose_their_threads(http: httpx.Client, wire: Wire, api_key: str, part: str) -> None:
    """They would silence the console for as long as they like; now for a few seconds at the most."""
    request = b"GET /healthz HTTP/1.1\r\nX-Slow: " if part == "headers" else creation(api_key, "Content-Length: 99")
    for _ in range(MORE_THAN_THREADS):
        wire.connect(request)
    assert seconds_for_an_answer(http) < 20


@pytest.mark.prove
def test_a_long_body_at_a_bearable_pace_is_taken(http: httpx.Client, wire: Wire, api_key: str) -> None:
    """Nine seconds in all: more than a request may take that does not move."""
    document = json.loads(intent())
    document["stages"][0]["input"] = "x" * 250_000
    body = json.dumps(document).encode()
    connection = wire.connect(creation(api_key, f"Content-Length: {len(body)}", "Connection: close"))
    for part in range(10):
        connection.sendall(body[part * len(body) // 10 : (part + 1) * len(body) // 10])
        time.sleep(0.9)
    assert answer_to(connection).startswith(b"HTTP/1.1 201")


def test_no_client_says_where_it_stands_or_how_it_came(http: httpx.Client, wire: Wire) -> None:
    """Headers of proxies are nobody's to send: they would move a request past what a proxy forbids by path."""
    connection = wire.connect(
        b"GET /moved/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nSCRIPT_NAME: /moved\r\n\r\n"
    )
    assert answer_to(connection).startswith(b"HTTP/1.1 404")
