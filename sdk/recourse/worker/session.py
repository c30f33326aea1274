"""The worker's session with the server: one place that knows headers, timeouts, and what an answer means."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from recourse.errors import api_error
from recourse.repeating import Unavailable, retry_after

log = logging.getLogger("recourse.worker")

ANSWER_SECONDS = 10.0

Commands = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A definite answer. `session` is the token that it was given to."""

    status: int
    body: dict[str, Any]
    wait: float
    session: str


class Session:
    """Holds the session token and posts with it, from any number of threads over connections that are kept.

    A 401 makes a new session, once however many threads meet it, and raises `Unavailable`: whoever asked may ask again,
    now in the new session. `on_replaced` is then told, because leases of the old session are not ours any more: what is
    held under them counts as lost, and its results can only be late evidence. Only when the server hands the same token
    out again do leases live on.

    It writes through httpx's transport, not its client: half the cost for each request, and nothing here needs cookies,
    redirects or hooks.
    """

    def __init__(self, base_url: str, api_key: str, registration: Mapping[str, Any]) -> None:
        self._url = httpx.URL(base_url.rstrip("/") + "/")
        self._api_key = api_key.encode()
        self._registration = json.dumps(registration).encode()
        self._transport = httpx.HTTPTransport(limits=httpx.Limits(max_connections=None, keepalive_expiry=60.0))
        self._lock = threading.Lock()
        self._headers: list[tuple[bytes, bytes]] = []
        self.token = ""
        self.lease_seconds = 60.0
        self.renew_seconds = 20.0
        self.on_commands: Callable[[Commands], None] = lambda commands: None
        self.on_replaced: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Bootstraps (P48). Raises `Unavailable`, or `ApiError` when the key or the registration is refused."""
        status, body, wait = self._send("workers/bootstrap", self._registration, self._plain_headers(), ANSWER_SECONDS)
        if status == 429 or status >= 500:
            raise Unavailable(f"bootstrap answered {status}", wait)
        if status >= 400:
            raise api_error(status, body)
        self.lease_seconds = float(body["leaseSeconds"])
        self.renew_seconds = float(body["renewSeconds"])
        self._headers = [*self._plain_headers(), (b"x-worker-session", body["sessionToken"].encode())]
        self.token = body["sessionToken"]

    def post(self, path: str, content: bytes = b"{}", *, seconds: float = ANSWER_SECONDS) -> Answer:
        """One request. Raises `Unavailable` for broken connections, timeouts, 401, 429 and 5xx; other refusals are
        answers.
        """
        token = self.token
        status, body, wait = self._send(path, content, self._headers, seconds)
        if status == 401:
            self._reopen(token)
            raise Unavailable("the session had ended")
        if status == 429 or status >= 500:
            raise Unavailable(f"{path} answered {status}", wait)
        commands = body.get("commands")
        if commands:
            self.on_commands(commands)
        return Answer(status, body, wait, token)

    def fetch(self, path: str, *, seconds: float) -> Mapping[str, Any]:
        """The bytes at a path, as `content`, with the `sha256` that the server has of them. Raises `Unavailable` as
        `post` does, `ApiError` for a refusal.
        """
        token = self.token
        response = self._exchange("GET", path, b"", self._headers, seconds)
        status = response.status_code
        if status == 401:
            self._reopen(token)
            raise Unavailable("the session had ended")
        if status == 429 or status >= 500:
            raise Unavailable(f"{path} answered {status}", retry_after(response.headers.get("retry-after")))
        if status >= 400:
            raise api_error(status, _mapping(response.content))
        return {"content": response.content, "sha256": response.headers.get("etag", "").strip('"')}

    def close(self) -> None:
        self._transport.close()

    def _reopen(self, ended: str) -> None:
        with self._lock:
            if self.token != ended:
                return
            try:
                self.open()
            except Exception as error:
                raise Unavailable(f"no new session: {error}") from error
            replaced = self.token != ended
        log.warning("the server had ended the session; there is a new one")
        if replaced:
            self.on_replaced()

    def _plain_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"host", self._url.netloc),
            (b"content-type", b"application/json"),
            (b"accept", b"application/json"),
            (b"x-api-key", self._api_key),
        ]

    def _send(
        self, path: str, content: bytes, headers: list[tuple[bytes, bytes]], seconds: float
    ) -> tuple[int, dict[str, Any], float]:
        response = self._exchange("POST", path, content, headers, seconds)
        wait = retry_after(response.headers.get("retry-after"))
        return response.status_code, _mapping(response.content), wait

    def _exchange(
        self, method: str, path: str, content: bytes, headers: list[tuple[bytes, bytes]], seconds: float
    ) -> httpx.Response:
        """One request and its whole answer. Raises `Unavailable` where there is none."""
        timeout = {"connect": min(seconds, 5.0), "read": seconds, "write": seconds, "pool": seconds}
        request = httpx.Request(
            method,
            self._url.copy_with(raw_path=self._url.raw_path + path.encode()),
            headers=headers,
            content=content,
            extensions={"timeout": timeout},
        )
        try:
            response = self._transport.handle_request(request)
            response.read()
        except httpx.HTTPError as error:
            raise Unavailable(f"{path}: {type(error).__name__} {error}".strip()) from error
        return response


def _mapping(content: bytes) -> dict[str, Any]:
    """The JSON object of an answer; {} for an empty one or for what something between us and the server wrote."""
    if not content:
        return {}
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
