"""The outside system of the kill proofs: it books a charge once for its key, and remembers every time it was asked."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LEDGER = "RECOURSE_TEST_LEDGER"
MARKS = "RECOURSE_TEST_MARKS"


class Ledger:
    """`asked` counts requests by key, `booked` has what was done."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.booked: dict[str, str] = {}
        self._lock = threading.Lock()
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.dumps({"ref": ledger.charge(self.headers["Idempotency-Key"])}).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True  # who asked was killed

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.address = f"127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def charge(self, key: str) -> str:
        with self._lock:
            self.asked[key] += 1
            return self.booked.setdefault(key, f"charge-{len(self.booked) + 1}")

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
