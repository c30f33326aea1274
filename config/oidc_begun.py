"""Log-ins that a browser has begun with the issuer, kept by the browser itself: nothing is stored for who only begins.

Each is a cookie of its own, encrypted and signed, for ten minutes, sent to our addresses of the log-in alone. Its name
says when it was begun and ends with a digest of the state. A state serves once: taking it up leaves its digest in the
database until it would have expired anyway, so a copy of the cookie is of no use either.
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
    theirs = sorted(one for one in request.COOKIES if one.startswith(PREFIX))
    for name in theirs[: max(0, len(theirs) - MOST + 1)]:
        response.delete_cookie(name, path=path, samesite="Lax")
    now = database_now().timestamp()
    sealed = fernet().encrypt_at_time(json.dumps(dict(begun), ensure_ascii=False).encode(), int(now)).decode()
    response.set_cookie(
        f"{PREFIX}{int(now * 1_000_000):020d}{_end(state)}",
        sealed,
        max_age=LASTS_SECONDS,
        path=path,
        secure=request.is_secure(),
        httponly=True,
        samesite="Lax",  # it must come along when the issuer sends the browser back
    )


def take(request: HttpRequest, state: str) -> dict[str, Any] | None:
    """What this browser began under the state, for the first who asks; None when it did not, or too long ago."""
    sealed = request.COOKIES.get(_found(request, state), "")
    now = int(database_now().timestamp())
    try:
        begun: dict[str, Any] = json.loads(fernet().decrypt_at_time(sealed.encode(), LASTS_SECONDS, now))
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


def forget(request: HttpRequest, response: HttpResponse, path: str) -> None:
    """Takes what the browser brought along for a log-in that has ended, well or not, from it."""
    if name := _found(request, request.GET.get("state", "")):
        response.delete_cookie(name, path=path, samesite="Lax")


def _found(request: HttpRequest, state: str) -> str:
    """The name of the cookie of this state; blank when the browser has none."""
    return next((one for one in request.COOKIES if one.startswith(PREFIX) and one.endswith(_end(state))), "")


def _digest(state: str) -> bytes:
    return sha256(state.encode("utf-8", "surrogatepass")).digest()


def _end(state: str) -> str:
    return f"_{_digest(state).hex()[:32]}"
