"""A Vault of the tests' own: what a console uses of its HTTP API, answered as HashiCorp Vault answers it.

One KV version 2 engine (data, metadata, delete, undelete, destroy) and one of version 1, tokens with policies,
namespaces, sealing; and faults of the line: silence, a connection cut before or after the work was done, redirects,
other servers in its place.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT_TOKEN = "hvs.CAESIroottokenofthetests"
Answer = tuple[int, dict[str, Any] | None]


@dataclass
class Version:
    data: Any
    created: str
    deleted: str = ""
    destroyed: bool = False

    def metadata(self, number: int) -> dict[str, Any]:
        return {
            "created_time": self.created,
            "custom_metadata": None,
            "deletion_time": self.deleted,
            "destroyed": self.destroyed,
            "version": number,
        }


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class Vault:
    """The server's state, and the levers that tests pull."""

    def __init__(self) -> None:
        self.url = ""
        self.mount, self.old_mount, self.namespace = "secret", "kv1", ""
        # token → the capabilities that it has everywhere
        self.tokens: dict[str, set[str]] = {ROOT_TOKEN: {"read", "create", "update", "delete"}}
        self.sealed = False
        self.initialised = True
        self.secrets: dict[str, list[Version]] = {}
        self.old_secrets: dict[str, Any] = {}
        self.requests: list[Request] = []
        self.instead: tuple[int, bytes, dict[str, str]] | None = None  # another server's answer
        self.cut: str = ""  # "before" or "after" a write is done
        self.silent = threading.Event()
        self.go_on = threading.Event()
        self.lock = threading.Lock()

    def writes(self) -> list[Request]:
        return [request for request in self.requests if request.method in ("POST", "PUT")]

    def newest(self, path: str) -> Any:
        return self.secrets[path][-1].data

    def answer(self, request: Request, query: Mapping[str, list[str]]) -> Answer:
        if not self.initialised:
            return 501, {"errors": ["Vault is not initialized"]}
        if self.sealed:
            return 503, {"errors": ["Vault is sealed"]}
        if request.headers.get("X-Vault-Namespace", "").strip("/") != self.namespace:
            return 403, {"errors": ["permission denied"]}
        capabilities = self.tokens.get(request.headers.get("X-Vault-Token", ""))
        if capabilities is None:
            return 403, {"errors": ["2 errors occurred:\n\t* permission denied\n\t* invalid token\n\n"]}
        mount, _, rest = request.path.removeprefix("/v1/").partition("/")
        if mount == self.old_mount:
            return self._answer_old(request, rest)
        kind, _, path = rest.partition("/")
        if mount != self.mount or kind not in ("data", "metadata", "undelete", "destroy"):
            route = f"{mount}/{rest}"
            return 404, {"errors": [f'no handler for route "{route}". route entry not found.']}
        if self._needed(request, kind, path) not in capabilities:
            return 403, {"errors": ["1 error occurred:\n\t* permission denied\n\n"]}
        return getattr(self, f"_{request.method.lower().replace('put', 'post')}_{kind}")(path, request.body, query)

    def _needed(self, request: Request, kind: str, path: str) -> str:
        if request.method == "GET":
            return "read"
        if request.method == "DELETE":
            return "delete"
        return "update" if kind != "data" or path in self.secrets else "create"

    def _get_data(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        versions = self.secrets.get(path)
        if not versions:
            return 404, {"errors": []}
        number = int(query.get("version", ["0"])[0]) or len(versions)
        if number > len(versions):
            return 404, {"errors": []}
        version = versions[number - 1]
        gone = version.destroyed or bool(version.deleted)
        told = {"data": None if gone else version.data, "metadata": version.metadata(number)}
        return (404 if gone else 200), _enveloped(told)

    def _post_data(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        if not isinstance(body, dict) or "data" not in body:
            return 400, {"errors": ["no data provided"]}
        versions = self.secrets.get(path, [])
        cas = (body.get("options") or {}).get("cas")
        if cas is not None and cas != len(versions):
            return 400, {"errors": ["check-and-set parameter did not match the current version"]}
        versions.append(Version(body["data"], _now()))
        self.secrets[path] = versions
        return 200, _enveloped(versions[-1].metadata(len(versions)))

    def _delete_data(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        for version in self.secrets.get(path, [])[-1:]:
            version.deleted = version.deleted or _now()
        return 204, None

    def _post_undelete(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        for number in body["versions"]:
            self.secrets[path][number - 1].deleted = ""
        return 204, None

    def _post_destroy(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        for number in body["versions"]:
            self.secrets[path][number - 1].destroyed = True
            self.secrets[path][number - 1].data = None
        return 204, None

    def _get_metadata(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        versions = self.secrets.get(path)
        if not versions:
            return 404, {"errors": []}
        told = {str(number): version.metadata(number) for number, version in enumerate(versions, 1)}
        return 200, _enveloped({"current_version": len(versions), "oldest_version": 1, "versions": told})

    def _delete_metadata(self, path: str, body: Any, query: Mapping[str, list[str]]) -> Answer:
        self.secrets.pop(path, None)
        return 204, None

    def _answer_old(self, request: Request, path: str) -> Answer:
        if request.method == "GET":
            found = self.old_secrets.get(path)
            return (404, {"errors": []}) if found is None else (200, _enveloped(found))
        self.old_secrets[path] = request.body
        return 204, None


@dataclass
class Certificate:
    """A self-signed certificate for 127.0.0.1; `file` is also the authority that verifies it."""

    file: Path
    key_file: Path


def web_server(
    handler: type[BaseHTTPRequestHandler], certificate: Certificate | None = None
) -> tuple[ThreadingHTTPServer, str]:
    """A server bound to a port of its own, which does not serve yet, and its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.file, certificate.key_file)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    return server, f"{scheme}://127.0.0.1:{server.server_address[1]}"


@contextmanager
def vault_server(certificate: Certificate | None = None) -> Iterator[Vault]:
    """A Vault that listens on a port of its own until the block ends."""
    vault = Vault()
    server, vault.url = web_server(_handler_of(vault), certificate)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield vault
    finally:
        vault.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def make_certificate(folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "vault of the tests")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(folder / "vault.pem", folder / "vault.key")
    made.file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    made.key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


def _handler_of(vault: Vault) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet for an answer

        def _serve(self) -> None:
            address = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            request = Request(self.command, unquote(address.path), dict(self.headers.items()), body)
            is_write = self.command in ("POST", "PUT")
            with vault.lock:
                vault.requests.append(request)
                cut = vault.cut if is_write else ""
                instead = vault.instead
                told = None if instead or cut == "before" else vault.answer(request, parse_qs(address.query))
            if vault.silent.is_set():
                vault.go_on.wait(30)
            if cut or vault.silent.is_set():
                self.close_connection = True
                return
            if instead is not None:
                status, content, headers = instead
                self._send(status, content, headers)
            else:
                assert told is not None
                content = b"" if told[1] is None else json.dumps(told[1]).encode()
                self._send(told[0], content, {"Content-Type": "application/json"})

        def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names that it is called by

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _enveloped(data: Any) -> dict[str, Any]:
    return {
        "request_id": "00000000-0000-4000-8000-000000000000",
        "lease_id": "",
        "renewable": False,
        "lease_duration": 0,
        "data": data,
        "wrap_info": None,
        "warnings": None,
        "auth": None,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
