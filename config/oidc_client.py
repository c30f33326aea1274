"""Speaks with an OpenID Connect issuer, through Authlib: the way there, and what the answer proves.

Loaded only where log-in by OpenID Connect is switched on. The code flow with PKCE (S256), state and nonce. State, nonce
and verifier lie with the browser that was sent away (`oidc_begun`), so an answer is of use only there, and once. Of an
ID token everything is held: a signature by a key of the issuer, by an algorithm with two keys, `iss`, `aud`, `azp`,
`exp`, `nonce`, `sub`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from django.http import HttpRequest
from joserfc.errors import JoseError
from requests import RequestException

from config import oidc_begun
from config.oidc_settings import Oidc

NAME = "oidc"
TIMEOUT_SECONDS = 5  # for each of at most four requests to the issuer
LEEWAY_SECONDS = 60  # by which the clocks may differ
LONGEST_SUBJECT = 255  # as the standard says
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
# what an issuer that is not there, or not as it should be, comes to: in words that are for the log alone
FAULTS = (AuthlibBaseError, JoseError, RequestException, ValueError, KeyError, TypeError, AttributeError, RuntimeError)

log = structlog.get_logger(__name__)


class NotProven(Exception):
    """The answer proves nothing; `why` is for the person, and one of: unreachable, refused, expired, wrong."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Proof:
    """Whom the issuer says it is: its claims, of which `sub` is a text of the allowed length, and what was kept."""

    claims: Mapping[str, Any]
    kept: Mapping[str, Any]

    @property
    def subject(self) -> str:
        return str(self.claims["sub"])


def begin(provider: Oidc, back: str, kept: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The issuer's address at which to log in, and what the browser must bring along then; `kept` comes back with the
    proof. `NotProven` when nobody answers."""
    try:
        way = _client(provider).create_authorization_url(back)
        begun = {name: way[name] for name in ("state", "nonce", "code_verifier")}
    except FAULTS as fault:
        raise _told("unreachable", fault) from fault
    return str(way["url"]), {**begun, "redirect_uri": back, "kept": dict(kept)}


def finish(request: HttpRequest, provider: Oidc) -> Proof:
    """What the answer that came back proves. Its state serves once, whatever comes of it."""
    # from here on nobody comes twice with this answer, whichever way this ends
    begun = oidc_begun.take(request, request.GET.get("state", ""))
    if begun is None:
        raise NotProven("expired")
    if "error" in request.GET:
        raise _told("refused", request.GET["error"][:200])
    try:
        client = _client(provider)
        token = client.fetch_access_token(
            code=request.GET["code"],
            redirect_uri=begun["redirect_uri"],
            code_verifier=begun["code_verifier"],
        )
        claims = _claims(client, provider, token, begun["nonce"])
    except RequestException as fault:
        raise _told("unreachable", fault) from fault
    except FAULTS as fault:
        raise _told("wrong", fault) from fault
    return Proof(claims, begun["kept"])


def way_out(provider: Oidc, back: str) -> str | None:
    """The issuer's address at which one logs out of it; None when it has none, or does not answer."""
    try:
        client = _client(provider)
        if not client.load_server_metadata().get("end_session_endpoint"):
            return None
        return str(client.create_logout_url(back, client_id=provider.client_id)["url"])
    except FAULTS as fault:
        log.warning("oidc_log_out_failed", fault=type(fault).__name__)
        return None


def _claims(client: Any, provider: Oidc, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
    """The claims of the ID token, judged; what it lacks of name and roles, from the issuer's userinfo."""
    asked = {
        "iss": {"essential": True, "value": provider.issuer},
        "aud": {"essential": True, "value": provider.client_id},
    }
    if not token.get("id_token"):
        raise ValueError("no ID token")
    claims = dict(client.parse_id_token(token, nonce=nonce, claims_options=asked, leeway=LEEWAY_SECONDS))
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= LONGEST_SUBJECT or "\0" in subject:
        raise ValueError("no usable subject")
    wanted = {provider.name_claim, provider.role_claim} - {""}
    if wanted - claims.keys() and client.server_metadata.get("userinfo_endpoint"):
        more = dict(client.userinfo(token=token))
        if more.get("sub") != subject:
            raise ValueError("the userinfo is about somebody else")
        claims = more | claims
    return claims


@lru_cache(maxsize=2)
def _client(provider: Oidc) -> Any:
    """The client, with what the issuer says of itself: asked for once in a process, when it first answers."""
    client = OAuth().register(
        NAME,
        client_id=provider.client_id,
        client_secret=provider.client_secret or None,
        server_metadata_url=f"{provider.issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={
            "scope": provider.scopes,
            "code_challenge_method": "S256",
            "default_timeout": TIMEOUT_SECONDS,
        },
    )
    metadata = client.load_server_metadata()
    if metadata.get("issuer") != provider.issuer:
        raise ValueError(f"the issuer calls itself {metadata.get('issuer')!r}")
    offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
    # of one key for both sides, the client's secret, anybody who knows it could make tokens; and `none` is no signature
    metadata["id_token_signing_alg_values_supported"] = [name for name in offered if name in ALGORITHMS]
    return client


def _told(why: str, fault: object) -> NotProven:
    """Keeps in the log what went wrong; of a fault its kind and its words, which name no secret."""
    words = str(fault)[:300] if not isinstance(fault, RequestException) else type(fault).__name__
    log.warning("oidc_log_in_failed", why=why, fault=type(fault).__name__, detail=words)
    return NotProven(why)
