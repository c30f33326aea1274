"""Something between a client and the console that loses answers: the console has acted, the client hears nothing."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


class Relay:
    """Passes requests on to `upstream`. The answer to the first of each different request is read, kept, and never
    given: its connection is closed instead. `passed` holds (method, path, body, status, answer), in order.
    """

    def __init__(self, upstream: str) -> None:
        self.passed: list[tuple[str, str, bytes, int, Any]] = []
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                kept = {name: value for name, value in self.headers.items() if name.lower() not in DROPPED}
                answer = relay._client.request(self.command, upstream + self.path, content=body, headers=kept)
                asked = (self.command, self.path, body)
                is_first = asked not in [one[:3] for one in relay.passed]
                relay.passed.append((*asked, answer.status_code, answer.json() if answer.content else None))
                if is_first:
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers.get("content-type", ""))
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = do_PATCH = pass_on  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self._client = httpx.Client(timeout=30)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._client.close()


DROPPED = {"host", "connection", "content-length", "accept-encoding"}
