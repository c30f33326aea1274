"""Receivers of the tests' own, on real sockets: a web server that takes webhooks, and a mail server that speaks SMTP.

Both keep what they were sent, and have levers for what receivers do wrong.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.vault_server import Certificate, web_server

PATIENCE_SECONDS = 30


@dataclass
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """What came, and the levers. `answers` are used up one by one, then it is 200 for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.came = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.let_go.set()  # clear it, and every answer waits
        self.drips = False  # answers a byte at a time, and never ends
        self.talks = 0  # bytes of an answer's body

    @property
    def received(self) -> Received:
        """The only request so far."""
        (only,) = self.requests
        return only

    def wait_for(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.came.acquire(timeout=PATIENCE_SECONDS), "no request came"


@contextmanager
def receiver_server(certificate: Certificate | None = None) -> Iterator[Receiver]:
    """A receiver that listens on a port of its own until the block ends."""
    receiver = Receiver()
    server, origin = web_server(_web_handler(receiver), certificate)
    receiver.url = f"{origin}/hook?token=t0p-s3cret"
    with _serving(server):
        yield receiver
        receiver.let_go.set()


def _web_handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(Received(self.path, dict(self.headers.items()), body))
            receiver.came.release()
            receiver.let_go.wait(PATIENCE_SECONDS)
            if receiver.drips:
                self._drip()
                return
            status, headers = receiver.answers.pop(0) if receiver.answers else (200, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"x" * receiver.talks)

        def _drip(self) -> None:
            never = threading.Event()
            try:
                while not never.wait(0.02):
                    self.wfile.write(b"H")
                    self.wfile.flush()
            except OSError:
                pass  # the other side has had enough

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@dataclass
class Mailed:
    sender: str
    recipients: list[str]
    mail: EmailMessage


@dataclass
class MailServer:
    """What was mailed, and the levers: replies to commands by their first word, instead of the usual ones."""

    port: int = 0
    mails: list[Mailed] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    replies: dict[str, str] = field(default_factory=dict)
    connections: int = 0
    is_silent: bool = False


@contextmanager
def mail_server() -> Iterator[MailServer]:
    server_state = MailServer()
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _mail_handler(server_state))
    server.daemon_threads = True
    server_state.port = server.server_address[1]
    with _serving(server):
        yield server_state


def _mail_handler(state: MailServer) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            state.connections += 1
            if state.is_silent:
                self.rfile.readline()
                return
            self.sender, self.recipients = "", []
            self._say("220 mail.example ready")
            while line := self.rfile.readline():
                word, _, rest = line.decode().strip().partition(" ")
                if (word := word.upper()) in state.replies:
                    self._say(state.replies[word])
                elif not self._obey(word, rest):
                    return

        def _obey(self, word: str, rest: str) -> bool:
            if word == "EHLO":
                self._say("250-mail.example\r\n250-AUTH PLAIN\r\n250 8BITMIME")
            elif word == "AUTH":
                state.logins.append(rest)
                self._say("235 welcome")
            elif word == "MAIL":
                self.sender = rest.partition("<")[2].partition(">")[0]
                self._say("250 ok")
            elif word == "RCPT":
                self.recipients.append(rest.partition("<")[2].partition(">")[0])
                self._say("250 ok")
            elif word == "DATA":
                self._say("354 go on")
                mail = message_from_bytes(self._data(), policy=default)
                assert isinstance(mail, EmailMessage)
                state.mails.append(Mailed(self.sender, self.recipients, mail))
                self.recipients = []
                self._say("250 taken")
            elif word == "QUIT":
                self._say("221 bye")
                return False
            else:
                self._say("250 ok")
            return True

        def _data(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) != b".\r\n":
                lines.append(line[1:] if line.startswith(b"..") else line)
            return b"".join(lines)

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    return Handler


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_SECONDS)
