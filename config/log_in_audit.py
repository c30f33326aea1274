"""Who got in, who did not, and who left: an audit event in each workspace of the account.

A log-in that failed is told as somebody's attempt on an account that is here, for nobody knows whose it was; under a
name that is nobody's it has no workspace, and leaves nothing. However many fail, from however many addresses, an
account has one such event in each five minutes of the clock, at the first; it says how many failed in the five minutes
before it. From where somebody came is no other workspace's business: it stands in no event, and of failures in the log.
"""

from __future__ import annotations

from typing import Any

import structlog
from django.contrib.auth import get_user_model
from django.http import HttpRequest

from config import account
from config.log_in_limit import address_of, recent_failures
from pipelines.audit import ALLOWED, FAILED

SOMEBODY = "somebody"
WRONG = "name and password did not fit"
OFF = "the account is switched off"

log = structlog.get_logger(__name__)


def note_log_in(*, request: HttpRequest | None, user: Any, **_: Any) -> None:
    """Receives `user_logged_in`."""
    if _is_real(request):
        account.tell_workspaces(user, "session.log_in", ALLOWED, by=getattr(request, "log_in_by", "password"))


def note_log_out(*, request: HttpRequest | None, user: Any, **_: Any) -> None:
    """Receives `user_logged_out`, also of a browser in which nobody was logged in."""
    if _is_real(request) and user is not None:
        account.tell_workspaces(user, "session.log_out", ALLOWED)


def note_failure(*, credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    """Receives `user_login_failed`, once the failure was counted. Who is logged in and mistypes their own password
    tries no log-in."""
    if request is None or request.user.is_authenticated:
        return
    name = str(credentials.get("username", ""))
    found = get_user_model().objects.filter(username=name).first() if "\0" not in name else None
    if found is not None:
        tell_failure(found, request, by="password", why=WRONG)


def tell_failure(user: Any, request: HttpRequest, *, by: str, why: str) -> None:
    """Tells of a failed log-in that was counted just now, unless another of these five minutes was told already."""
    name = user.get_username()
    log.warning("log_in_failed", account=name, address=address_of(request), by=by)
    failures = recent_failures(name)
    if failures.in_window > 1:
        return
    told = {"by": by, "failures": failures.lately, "detail": why}
    account.tell_workspaces(user, "session.log_in", FAILED, actor=SOMEBODY, code="unauthorized", **told)


def _is_real(request: HttpRequest | None) -> bool:
    """Somebody came with it; what code does by itself, with a request that it made up, is nobody's log-in."""
    return request is not None and request.method is not None
