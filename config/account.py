"""What people do with their own account, and admins with the log-ins of their workspace's members.

An account belongs to no workspace, so a change of it leaves an event in each workspace of the person, as when the admin
site changes it. What is done from within a workspace, ending a log-in, leaves its event there.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth import update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest

from config import sessions
from config.models import Identity
from pipelines.access import ADMINISTER, Actor
from pipelines.audit import ALLOWED, audited, record
from pipelines.errors import Refusal
from pipelines.models import Member

CHANNEL = "console"


def change_password(request: HttpRequest, password: str) -> int:
    """A new password for whoever asks; their other log-ins end, of which it returns how many. It is not judged here."""
    user: Any = request.user
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        ended = sessions.end_all(user, but=request.session.session_key)
        note_change(user, "password")
    update_session_auth_hash(request, user)
    return ended


def disconnect(user: Any, issuer: str) -> None:
    """The account is no longer whom the issuer knows; its password alone lets in. Again: refused.

    Refused without a password, too: nobody could log in any more.
    """
    if not user.has_usable_password():
        raise Refusal("validation_error", "without a password nobody could log in any more; choose one first")
    with transaction.atomic():
        removed, _ = Identity.objects.filter(user=user, issuer=issuer).delete()
        if not removed:
            raise Refusal("not_found", "the account is not connected")
        note_change(user, f"disconnected from {issuer}")


def note_change(user: Any, change: str) -> None:
    """Tells the workspaces of the person what of their account they changed."""
    tell_workspaces(user, "user.save", ALLOWED, change=change)


def tell_workspaces(user: Any, action: str, outcome: str, *, actor: str = "", code: str = "", **data: Any) -> None:
    """Adds one event about the account to the audit of each workspace of the person; by them, unless `actor` says who.

    All of them or none.
    """
    name = user.get_username()
    with transaction.atomic():
        members = Member.objects.filter(user=user).order_by("workspace")
        for workspace_id in members.values_list("workspace_id", flat=True):
            who = Actor(actor or name, workspace_id, CHANNEL, user_id=None if actor else user.pk)
            record(who, action, outcome, code=code, data={"user": name, **data})


def end_session(session_id: uuid.UUID, user: Any, *, actor: Actor) -> None:
    """Ends one log-in of the actor. Another's, and one that has ended, is not found."""
    with audited(actor, "session.end", user=user.get_username(), count=1):
        if not sessions.end(session_id, user):
            raise Refusal("not_found", "there is no such log-in; it may have ended")


def end_other_sessions(user: Any, key: str | None, *, actor: Actor) -> int:
    """Ends all log-ins of the actor save the one with this key; returns how many."""
    with audited(actor, "session.end", user=user.get_username()) as entry:
        entry.data["count"] = sessions.end_all(user, but=key)
    return int(entry.data["count"])


def log_out_member(member: Member, *, actor: Actor, reason: str) -> int:
    """Ends all log-ins of a member of the actor's workspace, wherever they are used; returns how many there were."""
    with audited(actor, "session.end", user=member.user.get_username(), reason=reason) as entry:
        actor.require(ADMINISTER)
        if member.workspace_id != actor.workspace_id:
            raise Refusal("not_found", "there is no such member")
        entry.data["count"] = sessions.end_all(member.user)
    return int(entry.data["count"])
