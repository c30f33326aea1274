"""Log-ins that a browser has begun with the issuer, kept by the browser itself: nothing is stored for who only begins.

Each is a cookie of its own, encrypted and signed, for ten minutes, sent to our addresses of the log-in alone. Its name
is a digest of the state. A state serves once: taking it up leaves its digest in the database until it would have
expired anyway, so a copy of the cookie is of no use either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from cryptography.fernet import InvalidToken
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse

from config.models import UsedState
from pipelines.encryption import fernet
from pipelines.sql import database_now, execute

PREFIX = "oidc_"
LASTS_SECONDS = 600
MOST = 5  # log-ins that one browser may have begun


def keep(request: HttpRequest, response: HttpResponse, path: str, state: str, begun: Mapping[str, Any]) -> None:
    """Gives the browser what it began to take along; of many that it has, the oldest go."""
    theirs = sorted((one for one in request.COOKIES if one.startswith(PREFIX)), key=lambda one: _at(request, one))
    for name in theirs[: max(0, len(theirs) - MOST + 1)]:
        response.delete_cookie(name, path=path, samesite="Lax")
    sealed = fernet().encrypt_at_time(json.dumps(dict(begun), ensure_ascii=False).encode(), _now()).decode()
    response.set_cookie(
        _name(state),
        sealed,
        max_age=LASTS_SECONDS,
        path=path,
        secure=request.is_secure(),
        httponly=True,
        samesite="Lax",  # it must come along when the issuer sends the browser back
    )


def take(request: HttpRequest, state: str) -> dict[str, Any] | None:
    """What this browser began under the state, for the first who asks; None when it did not, or too long ago."""
    sealed = request.COOKIES.get(_name(state), "")
    try:
        begun: dict[str, Any] = json.loads(fernet().decrypt_at_time(sealed.encode(), LASTS_SECONDS, _now()))
    except InvalidToken:
        return None
    if begun["state"] != state:
        return None
    execute("DELETE FROM config_usedstate WHERE at < recourse_now() - make_interval(secs => %s)", [2 * LASTS_SECONDS])
    try:
        with transaction.atomic():
            UsedState.objects.create(digest=_digest(state))
    except IntegrityError:
        return None
    return begun


def forget(response: HttpResponse, path: str, state: str) -> None:
    """Takes the cookie of a log-in that has ended, well or not, from the browser."""
    response.delete_cookie(_name(state), path=path, samesite="Lax")


def _at(request: HttpRequest, name: str) -> int:
    """When it was begun; what is none of ours is older than anything."""
    try:
        return fernet().extract_timestamp(request.COOKIES[name].encode())
    except InvalidToken:
        return 0


def _now() -> int:
    return int(database_now().timestamp())


def _digest(state: str) -> bytes:
    return sha256(state.encode("utf-8", "surrogatepass")).digest()


def _name(state: str) -> str:
    return f"{PREFIX}{_digest(state).hex()[:32]}"
