"""Sessions in the console's own table: kept by digest, with whose they are, so that one can be seen and ended.

Django's database sessions with three differences. The cookie is not in the database, only its SHA-256. Each row says
whose it is and when it was last seen, written at most once in `SEEN_SECONDS`. A session in which somebody logged in
says by what, from where and with which browser, under `LOG_IN` in its data. Ending one is deleting its row: the next
request with its cookie is nobody's.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends import db
from django.contrib.sessions.backends.base import CreateError, UpdateError
from django.db import IntegrityError, transaction
from django.db.models import Count, Max, Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from config.log_in_limit import address_of
from pipelines.keys import digest
from pipelines.models.base import RecourseNow

LOG_IN = "log_in"
SEEN_SECONDS = 60
MOST = 100  # sessions of one person on a page
LONGEST_AGENT = 300
# what agents hold → how people call it, the first that fits: most browsers call themselves after others besides
BROWSERS = (("Edg", "Edge"), ("OPR", "Opera"), ("Firefox", "Firefox"), ("Chrome", "Chrome"), ("Safari", "Safari"))
SYSTEMS = ("Windows", "Android", "iPhone", "iPad", "Mac", "CrOS", "Linux")


class SessionStore(db.SessionStore):
    """What `SESSION_ENGINE` names."""

    @classmethod
    def get_model_class(cls) -> Any:
        from config.models import Session

        return Session

    def load(self) -> dict[str, Any]:
        """The session's data; empty, and without its key, when there is none, it was ended or has expired."""
        rows = self.model.objects.filter(digest=digest(self.session_key or ""), expires_at__gt=timezone.now())
        is_due = Q(seen_at__lt=RecourseNow() - timedelta(seconds=SEEN_SECONDS))
        found = rows.annotate(is_due=is_due).values_list("id", "data", "is_due").first()
        if found is None:
            self._session_key = None
            return {}
        session_id, data, seen_long_ago = found
        if seen_long_ago:
            self.model.objects.filter(id=session_id).update(seen_at=RecourseNow())
        return self.decode(data)

    def exists(self, session_key: str) -> bool:
        return bool(self.model.objects.filter(digest=digest(session_key)).exists())

    def save(self, must_create: bool = False) -> None:
        """Writes the session; one that was ended meanwhile stays ended (`UpdateError`)."""
        if self.session_key is None:
            self.create()
            return
        data: dict[str, Any] = self._get_session(no_load=must_create)  # type: ignore[attr-defined] # not in the stubs
        row = {
            "data": self.encode(data),
            "user_id": data.get(SESSION_KEY),
            "seen_at": RecourseNow(),
            "expires_at": self.get_expiry_date(),
        }
        mine = digest(self.session_key)
        if not must_create:
            if not self.model.objects.filter(digest=mine).update(**row):
                raise UpdateError
            return
        try:
            with transaction.atomic():
                self.model.objects.create(digest=mine, **row)
        except IntegrityError as error:
            raise CreateError from error

    def delete(self, session_key: str | None = None) -> None:
        key = session_key or self.session_key
        if key is not None:
            self.model.objects.filter(digest=digest(key)).delete()

    @classmethod
    def clear_expired(cls) -> None:
        cls.get_model_class().objects.filter(expires_at__lt=timezone.now()).delete()


@dataclass(frozen=True, slots=True)
class Sighting:
    """A live log-in as its owner sees it. `by` is `password` or `oidc`; what is not known is blank."""

    id: uuid.UUID
    at: datetime | None
    seen_at: datetime
    by: str
    address: str
    agent: str
    is_this: bool

    @property
    def browser(self) -> str:
        """The browser in few words, as it calls itself: "Firefox on Windows"; what is no browser, shortened."""
        name = next((words for part, words in BROWSERS if f"{part}/" in self.agent), "")
        system = next((one for one in SYSTEMS if one in self.agent), "")
        return f"{name} on {system}" if name and system else name or self.agent[:60]


def note_log_in(*, request: HttpRequest | None, user: Any, **_: Any) -> None:
    """Keeps by what, from where and with what somebody logged in (receives `user_logged_in`); forgets old sessions.

    By password, unless the request says otherwise with `log_in_by`.
    """
    if request is None or not hasattr(request, "session"):
        return
    SessionStore.clear_expired()
    request.session.set_expiry(None)  # what was begun before the log-in may have had less time
    request.session[LOG_IN] = {
        "at": timezone.now().isoformat(),
        "by": getattr(request, "log_in_by", "password"),
        "address": address_of(request),
        "agent": request.META.get("HTTP_USER_AGENT", "")[:LONGEST_AGENT],
    }


def end_with_account(*, instance: Any, **_: Any) -> None:
    """Ends the sessions of an account that may not be used any more (receives `post_save` of users)."""
    if not instance.is_active:
        end_all(instance)


def of(user: Any, this_key: str | None = None) -> list[Sighting]:
    """The live log-ins of a person, the last seen first, `MOST` at most."""
    this = digest(this_key or "")
    return [
        Sighting(
            id=row.id,
            at=datetime.fromisoformat(told["at"]) if told.get("at") else None,
            seen_at=row.seen_at,
            by=told.get("by", ""),
            address=told.get("address", ""),
            agent=told.get("agent", ""),
            is_this=bytes(row.digest) == this,
        )
        for row, told in _live(user)
    ]


def counts(user_ids: list[int]) -> dict[int, tuple[int, datetime]]:
    """How many log-ins these people have, and when the last of them was seen: {user id: (count, time)}."""
    rows = SessionStore.get_model_class().objects.filter(user_id__in=user_ids, expires_at__gt=timezone.now())
    told = rows.values("user_id").annotate(count=Count("id"), last=Max("seen_at")).order_by("user_id")
    return {row["user_id"]: (row["count"], row["last"]) for row in told}


def end(session_id: uuid.UUID, user: Any) -> bool:
    """Ends this log-in of the person; False when they have none such."""
    ended, _ = SessionStore.get_model_class().objects.filter(id=session_id, user=user).delete()
    return bool(ended)


def end_all(user: Any, *, but: str | None = None) -> int:
    """Ends all log-ins of the person, save the one whose cookie is `but`; returns how many there were."""
    theirs = SessionStore.get_model_class().objects.filter(user=user)
    ended, _ = theirs.exclude(digest=digest(but or "")).delete()
    return int(ended)


def _live(user: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Rows with what they tell of their log-in; without those that a new password has ended."""
    rows = SessionStore.get_model_class().objects.filter(user=user, expires_at__gt=timezone.now())
    current = user.get_session_auth_hash()
    for row in rows.order_by("-seen_at", "-id")[:MOST]:
        data = SessionStore().decode(row.data)
        if constant_time_compare(data.get(HASH_SESSION_KEY, ""), current):
            yield row, data.get(LOG_IN, {})
