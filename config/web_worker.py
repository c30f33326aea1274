"""The web server's worker: gunicorn's threads, kept from clients that are slow on purpose or by fate.

gunicorn waits in a thread for as long as a client takes over its request; a few dozen connections that say nothing, or
a byte now and then, would silence the console. Here a connection gets a thread when it begins to speak, and loses it
when its request does not come at a bearable pace.
"""

from __future__ import annotations

import errno
import selectors
import time
from functools import partial
from typing import Any

from gunicorn.http.errors import NoMoreData
from gunicorn.workers.gthread import TConn, ThreadWorker

PATIENCE_SECONDS = 5.0  # for a request whose first byte has come, and for that byte itself
BYTES_PER_SECOND = 16 * 1024  # a longer request has a second more for so many bytes
PASSING = (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK)


class Worker(ThreadWorker):
    """`gthread` with the two limits above; they end once a request is read, so a long poll may wait as it likes."""

    def accept(self, listener: Any) -> None:
        """Take a connection and wait for its first byte in the main loop, without a thread."""
        try:
            client, address = listener.accept()
        except OSError as error:
            if error.errno not in PASSING:
                raise
            return
        self.nr_conns += 1
        connection = TConn(self.cfg, client, address, listener.getsockname())
        connection.timeout = time.monotonic() + PATIENCE_SECONDS
        self.pending_conns.append(connection)
        self.poller.register(client, selectors.EVENT_READ, partial(self.on_pending_socket_readable, connection))

    def handle(self, conn: Any) -> Any:
        """Serve one request; its clock starts now."""
        conn.sock.setblocking(True)
        conn.init()
        if not conn.is_http2:
            unreader = conn.parser.unreader
            if not isinstance(unreader.sock, _Hurried):
                unreader.sock = _Hurried(unreader.sock)
            unreader.sock.begin()
        return super().handle(conn)


class _Hurried:
    """A socket whose reads end together: as if the client had hung up when it takes too long."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def begin(self) -> None:
        self._until = time.monotonic() + PATIENCE_SECONDS

    def recv(self, size: int) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0:
            raise NoMoreData
        before: float | None = self._sock.gettimeout()
        self._sock.settimeout(left if before is None else min(left, before))
        try:
            data: bytes = self._sock.recv(size)
        except TimeoutError as error:
            if before is not None and before <= left:
                raise
            raise NoMoreData from error
        finally:
            self._sock.settimeout(before)
        self._until += len(data) / BYTES_PER_SECOND
        return data
