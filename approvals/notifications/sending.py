"""One POST to a receiver that nobody here vouches for: to an address that was checked, and over in bounded time.

The line is our own, below httpcore's HTTP: it connects to the addresses it is given and looks nothing up, and every
step of it has only what is left of the time, so that neither a silent receiver nor one that answers a byte at a time
holds a sender longer. TLS is verified against the name. No proxy of the environment, no redirect, no cookie, and no
more of an answer than is needed is read. Nothing here logs or tells an address beyond its host.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

import httpcore
import httpx
from recourse import VERSION

from approvals.notifications.addresses import NotTaken, Place

SECONDS = 10.0
ANSWER_BYTES = 4096
WRITE_BYTES = 16_384
LONGEST_WAIT = 3600  # seconds that a receiver may ask for


def post(place: Place, addresses: Iterable[str], body: bytes, headers: Mapping[str, str], deadline: float) -> str:
    """Sends the body, and returns what was answered: a status 2xx. Raises `NotTaken` for everything else.

    `deadline` is a moment of `time.monotonic()`.
    """
    sent = {
        "Host": place.origin,
        "User-Agent": f"recourse/{VERSION}",
        "Accept": "*/*",
        "Connection": "close",
        "Content-Length": str(len(body)),
        **headers,
    }
    url = httpcore.URL(
        scheme=place.scheme.encode(), host=place.host.encode(), port=place.port, target=place.path.encode()
    )
    try:
        with (
            httpcore.ConnectionPool(ssl_context=_tls(), network_backend=_Line(addresses, deadline)) as pool,
            pool.stream("POST", url, headers=list(sent.items()), content=body) as answer,
        ):
            _read_a_little(answer)
            return _told(answer)
    except _FAULTS as fault:
        raise NotTaken(_sentence(place, fault)) from None


def _told(answer: httpcore.Response) -> str:
    if 200 <= answer.status < 300:
        return f"answered {answer.status}"
    if 300 <= answer.status < 400:
        raise NotTaken(f"answered {answer.status}, a redirect, which is not followed: set the address it leads to")
    headers = {name.lower(): value for name, value in answer.headers}
    raise NotTaken(f"answered {answer.status}", wait=_wait(headers.get(b"retry-after", b"").decode("latin-1")))


def _wait(text: str) -> int:
    """The seconds of a Retry-After header, given as such or as a date; at most an hour, 0 without one."""
    if text.isascii() and text.isdigit():
        seconds = int(text[:9])
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError):
            return 0
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = int((aware - datetime.now(UTC)).total_seconds())
    return max(0, min(seconds, LONGEST_WAIT))


def _read_a_little(answer: httpcore.Response) -> None:
    """As much of the answer as lets a small one end in order. Its status is what counts, and that has been read."""
    read = 0
    with suppress(*_FAULTS):
        for chunk in answer.iter_stream():
            read += len(chunk)
            if read > ANSWER_BYTES:
                return


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """httpx's: the authorities of its own list, or of SSL_CERT_FILE or SSL_CERT_DIR. Made once; it takes a while."""
    return httpx.create_ssl_context()


class _Line(httpcore.NetworkBackend):
    """Connects to the given addresses, whatever it is asked for, until the deadline."""

    def __init__(self, addresses: Iterable[str], deadline: float) -> None:
        self.addresses = list(addresses)
        self.deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: OSError = OSError("no address")
        for number, address in enumerate(self.addresses):
            left = _left(self.deadline)
            share = left / (len(self.addresses) - number)  # one dead address of several does not use up the time
            try:
                return _Stream(_connected(address, port, share), self.deadline)
            except OSError as error:
                failure = error
        raise failure


def _connected(address: str, port: int, seconds: float) -> socket.socket:
    """A connection to an IP address; unlike `socket.create_connection` this asks no resolver even about that."""
    line = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        line.settimeout(seconds)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.connect((address, port))
    except BaseException:
        line.close()
        raise
    return line


class _Stream(httpcore.NetworkStream):
    def __init__(self, line: socket.socket, deadline: float) -> None:
        self.line = line
        self.deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.line.settimeout(_left(self.deadline))
        return self.line.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        rest = memoryview(buffer)
        try:
            while rest:
                self.line.settimeout(_left(self.deadline))
                rest = rest[self.line.send(rest[:WRITE_BYTES]) :]
        except TimeoutError:
            raise
        except OSError as error:
            raise httpcore.WriteError from error  # an answer may be there all the same: it is read then

    def close(self) -> None:
        self.line.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            self.line.settimeout(_left(self.deadline))
            return _Stream(ssl_context.wrap_socket(self.line, server_hostname=server_hostname), self.deadline)
        except BaseException:
            self.close()
            raise

    def get_extra_info(self, info: str) -> Any:
        return None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


# everything that a line or an answer can do wrong
_FAULTS = (OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)


def _sentence(place: Place, fault: BaseException) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"the certificate of {place.host} cannot be verified: {fault.verify_message}"
    if isinstance(fault, ssl.SSLError):
        return f"{place.host} does not speak TLS as it should"
    if isinstance(fault, TimeoutError | httpcore.TimeoutException):
        return f"no answer within {SECONDS:g} s"
    if isinstance(fault, httpcore.ProtocolError):
        return "the answer is no HTTP"
    if isinstance(fault, ConnectionRefusedError):
        return f"{place.host} refuses the connection"
    return f"the connection to {place.host} failed"
