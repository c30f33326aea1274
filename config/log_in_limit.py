"""Limits how fast passwords can be guessed: on the console's log-in, the admin site's, and where one changes one's own.

Counted are failures of the last minutes, by name and address together and by address alone; never by name alone, or
anybody could lock anybody out. Above a limit no password is looked at, so guessing costs the console nothing either.
Not kept out: somebody with many addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from pipelines.sql import execute, query

WINDOW_SECONDS = 300
PER_NAME = 10
PER_ADDRESS = 100
RATE_LIMITED = "rate_limited"
SWITCHED_OFF = "Log-in by password is switched off."
TOO_MANY = f"Too many log-ins have failed. Try again in {WINDOW_SECONDS // 60} minutes."


class _Limited:
    """Looks at the limit before the password; at no password at all where log-in by it is switched off."""

    def clean(self) -> Any:
        form: Any = self
        if not settings.RECOURSE_PASSWORD_LOGIN:
            raise ValidationError(SWITCHED_OFF, code="switched_off")
        if is_limited(form.request, form.cleaned_data.get("username", "")):
            raise ValidationError(TOO_MANY, code=RATE_LIMITED)
        return super().clean()  # type: ignore[misc]


class LogInForm(_Limited, AuthenticationForm):
    pass


class AdminLogInForm(_Limited, AdminAuthenticationForm):
    pass


class PasswordForm(PasswordChangeForm):
    """Django's own, with the limit of log-ins on the old password: a session that was left open is no way to guess it.

    What somebody typed as a new password is judged by `AUTH_PASSWORD_VALIDATORS`.
    """

    def __init__(self, user: Any, data: Any = None, *, request: HttpRequest) -> None:
        super().__init__(user, data)
        self.request = request

    def clean_old_password(self) -> str:
        name = self.user.get_username()
        if is_limited(self.request, name):
            raise ValidationError(TOO_MANY, code=RATE_LIMITED)
        try:
            return super().clean_old_password()
        except ValidationError:
            note_failure(credentials={"username": name}, request=self.request)
            raise


def is_limited(request: HttpRequest, name: str) -> bool:
    """Whether too many log-ins under this name from this address, or from this address at all, failed lately."""
    of_name, of_address = query(
        "SELECT count(*) FILTER (WHERE account = %s), count(*) FROM config_failedlogin"
        " WHERE address = %s AND at > recourse_now() - make_interval(secs => %s)",
        [_digest(name), address_of(request), WINDOW_SECONDS],
    )[0]
    return of_name >= PER_NAME or of_address >= PER_ADDRESS


@dataclass(frozen=True, slots=True)
class Failures:
    """Of one name, from wherever: in the last `WINDOW_SECONDS`, and since this window of the clock began."""

    lately: int
    in_window: int


def recent_failures(name: str) -> Failures:
    """How often log-ins under this name failed."""
    window = "to_timestamp(floor(extract(epoch FROM recourse_now()) / %(seconds)s) * %(seconds)s)"
    rows = query(
        f"SELECT count(*), count(*) FILTER (WHERE at >= {window}) FROM config_failedlogin"  # noqa: S608
        " WHERE account = %(account)s AND at > recourse_now() - make_interval(secs => %(seconds)s)",
        {"account": _digest(name), "seconds": WINDOW_SECONDS},
    )
    return Failures(*rows[0])


def note_failure(*, credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    """Counts a failure, and forgets those that count no more (receives `user_login_failed`)."""
    if request is None:
        return
    name = str(credentials.get("username", ""))
    execute("DELETE FROM config_failedlogin WHERE at < recourse_now() - make_interval(secs => %s)", [WINDOW_SECONDS])
    execute(
        "INSERT INTO config_failedlogin (account, address, at) VALUES (%s, %s, recourse_now())",
        [_digest(name), address_of(request)],
    )


def forget_failures(*, request: HttpRequest | None, user: Any, **_: Any) -> None:
    """Begins anew for who got in (receives `user_logged_in`)."""
    if request is not None:
        execute(
            "DELETE FROM config_failedlogin WHERE account = %s AND address = %s",
            [_digest(user.get_username()), address_of(request)],
        )


def _digest(name: str) -> bytes:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()


def address_of(request: HttpRequest) -> str:
    """Where the request comes from; the word of a proxy that we trust, its own entry being the last."""
    forwarded: str = request.META.get("HTTP_X_FORWARDED_FOR", "") if settings.RECOURSE_TRUST_PROXY else ""
    return (forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR", ""))[:64]
