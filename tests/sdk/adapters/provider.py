"""The outside systems of these tests: a real HTTP server that answers as it is told, and an epoch that remembers."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from recourse import Job, StageContext
from recourse.control import Control
from recourse.links import Recorder

Reply = tuple[int, Mapping[str, str], bytes]


@dataclass(frozen=True)
class Asked:
    """A request as the provider got it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def reply(status: int = 200, body: Any = None, **headers: str) -> Reply:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, content


class Provider:
    """Answers `script` in its order, then with `answer`. A callable of the script answers by itself; None hangs up."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.script: list[Reply | Callable[[Asked], Reply | None] | None] = []
        self.answer: Callable[[Asked], Reply | None] = lambda _: reply(200, [])
        self.let_go = threading.Event()  # what a reply may wait for; set at the end
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers["Content-Length"] or 0)
                asked = Asked(self.command, self.path, dict(self.headers), self.rfile.read(size))
                provider.asked.append(asked)
                said = provider.script.pop(0) if provider.script else provider.answer
                said = said(asked) if callable(said) else said
                if said is None:
                    self.close_connection = True
                    return
                status, headers, content = said
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def methods(self) -> list[str]:
        return [one.method for one in self.asked]

    def close(self) -> None:
        self.let_go.set()
        self._http.shutdown()
        self._http.server_close()


@dataclass
class Epoch:
    """A stage over several attempts: each has a context of its own, and hears how those before it left an effect."""

    recipient: Mapping[str, Any] | None = None
    effects: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0

    def attempt(self) -> StageContext:
        self.attempts += 1
        job = Job(
            {
                "stageId": "s",
                "stageName": "run",
                "stageHandlerName": "run",
                "executionId": f"e{self.attempts}",
                "attempt": self.attempts,
                "idempotencyKey": "stage-key",
                **({"recipient": self.recipient} if self.recipient else {}),
            }
        )
        return StageContext(job, Control(), Remembering(self, self.attempts))

    def lose(self) -> None:
        """The worker is gone: what it had declared is unknown."""
        for one in self.effects:
            if one["state"] == "declared":
                one["state"] = "unknown"

    @property
    def states(self) -> list[str]:
        return [one["state"] for one in self.effects]


class Remembering(Recorder):
    """The link of one attempt of an epoch. `dies_at`: the outcome from which on it is as if the process had died."""

    def __init__(self, epoch: Epoch, number: int) -> None:
        super().__init__()
        self._epoch, self._number = epoch, number
        self.dies_at: str | None = None

    def write(self, what: Any, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if what != "effects":
            return super().write(what, body)
        (item,) = body["effects"]
        if item["state"] == self.dies_at:
            raise Died
        same = {name: item.get(name) for name in ("class", "stepId", "idempotencyKey")}
        alike = [one for one in self._epoch.effects if same.items() <= one.items()]
        mine = next((one for one in alike if one["attempt"] == self._number), None)
        if mine is None:
            mine = {**same, "attempt": self._number}
            self._epoch.effects.append(mine)
        mine |= item
        told: dict[str, Any] = {"effectId": str(uuid.uuid4()), "state": item["state"]}
        before = [one for one in alike if one["attempt"] < self._number and one["state"] != "declared"]
        before.sort(key=lambda one: (one["state"] != "committed", one["state"] != "unknown", -one["attempt"]))
        if before:
            told["earlier"] = {
                "attempt": before[0]["attempt"],
                "state": before[0]["state"],
                "externalRef": before[0].get("externalRef"),
            }
        return {"effects": [told]}


class Died(BaseException):
    """The process is gone at this line."""
