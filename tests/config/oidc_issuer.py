"""A real OpenID Connect issuer for tests: discovery, keys, authorization, token, userinfo, over HTTP in a thread.

Strict as a good one is: it knows its client and its redirect, takes each code once, and demands PKCE. A test says who
logs in there (`logs_in`) and what is to be wrong with the next ID token (`spoils`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT_ID, CLIENT_SECRET = "recourse", "the client's own secret"
Claims = dict[str, Any]


@dataclass
class Issuer:
    """What it knows, and what it was asked. `url` is its own name."""

    url: str = ""
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "first", "use": "sig"}))
    person: Claims = field(default_factory=dict)
    userinfo: Claims = field(default_factory=dict)
    metadata: Claims = field(default_factory=dict)
    spoil: Callable[[Claims], Claims] = lambda claims: claims
    sign: Callable[[Claims], str] | None = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refuses: str = ""

    def logs_in(self, sub: str = "subject-1", **claims: Any) -> None:
        """Whoever comes now is this person."""
        self.person = {"sub": sub, **claims}

    def discovery(self) -> Claims:
        told = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/logout",
            "jwks_uri": f"{self.url}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "code_challenge_methods_supported": ["S256"],
        }
        return told | self.metadata

    def authorize(self, asked: dict[str, str]) -> str:
        """Where it sends the browser back to."""
        assert asked["client_id"] == CLIENT_ID
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        assert asked["nonce"]
        if self.refuses:
            return f"{asked['redirect_uri']}?{urlencode({'error': self.refuses, 'state': asked['state']})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, asked: dict[str, str], authorization: str) -> tuple[int, Claims]:
        """Trades a code, once, for tokens; to its own client alone, who proves to have begun it."""
        expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {expected}":
            return 401, {"error": "invalid_client"}
        begun = self.codes.pop(asked.get("code", ""), None)
        if begun is None or begun["redirect_uri"] != asked.get("redirect_uri"):
            return 400, {"error": "invalid_grant"}
        proof = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(proof).rstrip(b"=").decode() != begun["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": begun["nonce"]}
        signed = (self.sign or self.signed)(self.spoil({**claims, **self.person}))
        return 200, {"access_token": "at", "token_type": "Bearer", "expires_in": 300, "id_token": signed}

    def signed(self, claims: Claims) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def signed_with_the_secret(self, claims: Claims) -> str:
        """By the client's secret, with the public key's name: what a confused client would believe."""
        return jwt.encode({"alg": "HS256", "kid": self.key.kid}, claims, OctKey.import_key(CLIENT_SECRET.ljust(32)))

    def not_signed(self, claims: Claims) -> str:
        parts = [json.dumps({"alg": "none"}).encode(), json.dumps(claims).encode()]
        return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."

    def serve(self) -> ThreadingHTTPServer:
        """Begins to answer, on a port of this host; `shutdown` and `server_close` end it."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{server.server_address[1]}/realm"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, query = urlsplit(self.path).path.removeprefix("/realm"), urlsplit(self.path).query
                issuer.asked.append(path)
                if path == "/.well-known/openid-configuration":
                    self._answer(200, issuer.discovery())
                elif path == "/keys":
                    self._answer(200, {"keys": [issuer.key.as_dict(private=False)]})
                elif path == "/userinfo" and self.headers["Authorization"] == "Bearer at":
                    self._answer(200, issuer.userinfo)
                elif path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", issuer.authorize(_flat(query)))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self._answer(404, {})

            def do_POST(self) -> None:
                issuer.asked.append(urlsplit(self.path).path.removeprefix("/realm"))
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(*issuer.token(_flat(body), self.headers["Authorization"]))

            def _answer(self, status: int, body: Claims) -> None:
                sent = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        return Handler


def _flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}
