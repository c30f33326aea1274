"""The little HTTP that the sample services speak, from both ends, with nothing but the standard library."""

from __future__ import annotations

import http.client
import itertools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from samples import places

ASK_SECONDS = 5.0
LARGEST_BODY = 1024 * 1024


@dataclass(frozen=True)
class Request:
    """What a service is asked. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """A status and a body that goes as JSON."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def problem(cls, status: int, code: str, detail: str, **headers: str) -> Answer:
        return cls(
            status, {"code": code, "detail": detail}, {name.replace("_", "-"): text for name, text in headers.items()}
        )


class Faults:
    """Says, request by request, what goes wrong: the same sequence after every start, because it comes from a seed.

    `shares` gives each kind of fault its share of all requests.
    """

    def __init__(self, seed: str, shares: Mapping[str, float]) -> None:
        self._seed = seed
        self._shares = shares
        self._numbers = itertools.count()

    def next(self) -> str | None:
        """The fault of this request; None: it goes well."""
        drawn = random.Random(f"{self._seed}:{next(self._numbers)}").random()
        for kind, share in self._shares.items():
            drawn -= share
            if drawn < 0:
                return kind
        return None


def serve(name: str, answer: Callable[[Request], Answer]) -> ThreadingHTTPServer:
    """A server for `answer`, on the port it had before if that is free; its address is in `places.address_file`."""

    class Handler(_Handler):
        respond = staticmethod(answer)

    file = places.address_file(name)
    try:
        server = _Server(("127.0.0.1", int(file.read_text().rpartition(":")[2])), Handler)
    except (OSError, ValueError):
        server = _Server(("127.0.0.1", 0), Handler)
    places.write(file, f"127.0.0.1:{server.server_port}")
    return server


def ask(
    service: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """One request to a service: (status, body). Raises OSError or HTTPException when no whole answer comes."""
    host, _, port = places.address_file(service).read_text().strip().rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ASK_SECONDS)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    respond: Callable[[Request], Answer]
    timeout = ASK_SECONDS

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > LARGEST_BODY:
            answer = Answer.problem(413, "body_too_large", f"At most {LARGEST_BODY} bytes are taken.")
        else:
            headers = {name.lower(): text for name, text in self.headers.items()}
            answer = self.respond(Request(self.command, self.path, headers, self.rfile.read(length)))
        content = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, text in {
            "content-type": "application/json",
            "content-length": len(content),
            **answer.headers,
        }.items():
            self.send_header(name, str(text))
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing: the console shows each attempt and what came of it."""
