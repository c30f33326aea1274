"""Giving and taking away what identifies a caller: API keys, personal tokens, roles. Each with its audit event.

Keys and roles are given by admins. A token is a person's own: every member makes and revokes theirs, as it gives no
more than their role does when it is used; admins revoke those of others in their workspace, and make none.

A secret is shown once, to whoever asked for it; what is kept of it cannot be turned back. Taking away works at once:
every call looks the secret up.
"""

from __future__ import annotations

import getpass
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction

from pipelines import catalog, keys
from pipelines.access import ADMINISTER, VIEW, Actor
from pipelines.audit import ALLOWED, NO_OP, audited, record
from pipelines.errors import Refusal
from pipelines.models import ApiKey, Application, Environment, KeyScope, Member, PersonalToken, Role, Workspace
from pipelines.models.base import RecourseNow
from pipelines.sql import database_now

LONGEST_NAME = 100  # characters, of a token
LONGEST_LIFE = timedelta(days=366)  # of a token that somebody makes for themselves


def console_operator(workspace: Workspace) -> Actor:
    """Whoever has a shell on the console's host: an administrator, known by their log-in there."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "console"
    return Actor(name=f"{name} (shell)", workspace_id=workspace.id, channel="command", role=Role.ADMIN)


def shell(slug: str) -> tuple[Workspace, Actor, bool]:
    """The workspace that a command names, made when it is missing, whoever has the shell, and whether it is new."""
    with transaction.atomic():
        workspace, created = catalog.ensure_workspace(slug)
        actor = console_operator(workspace)
        if created:
            record(actor, "workspace.save", ALLOWED, data={"workspace": slug})
    return workspace, actor, created


def issue_key(
    *,
    actor: Actor,
    application: Application,
    environment: Environment,
    scope: str = KeyScope.APPLICATION,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A new API key and its plain text, which nobody can read again."""
    with audited(
        actor, "api_key.issue", application=application.name, environment=environment.slug, scope=scope
    ) as entry:
        actor.require(ADMINISTER)
        key, secret = keys.issue_key(application, environment, scope=scope, expires_at=expires_at)
        entry.data["prefix"] = key.prefix
    return key, secret


def revoke_key(key_id: uuid.UUID, *, actor: Actor) -> None:
    """The key stops working at once, for good. Again: nothing changes."""
    _revoke(ApiKey, key_id, actor, "api_key.revoke", {"application__workspace_id": actor.workspace_id})


def issue_token(
    *, actor: Actor, user: Any, name: str = "", expires_at: datetime | None = None
) -> tuple[PersonalToken, str]:
    """A new bearer token of a member of the actor's workspace, and its plain text.

    A person gets only their own (`impersonation_rejected`): four eyes are worth nothing to whoever can be two people.
    Theirs ends within `LONGEST_LIFE`, with it when nothing was said; whoever has the shell may make one that stays.
    """
    with audited(actor, "token.issue", user=user.get_username(), name=name) as entry:
        if not actor.is_person:
            actor.require(ADMINISTER)
        elif actor.user_id != user.pk:
            raise Refusal(
                "impersonation_rejected", "a token is made for oneself, or by whoever has the console's shell"
            )
        else:
            actor.require(VIEW)
            expires_at = checked_expiry(expires_at)
        if len(name) > LONGEST_NAME:
            raise _wrong("name", f"at most {LONGEST_NAME} characters")
        member = Member.objects.filter(workspace_id=actor.workspace_id, user=user).select_related("workspace").first()
        if member is None:
            raise Refusal("not_found", "there is no such member")
        token, secret = keys.issue_token(user, member.workspace, name=name, expires_at=expires_at)
        entry.data["prefix"] = token.prefix
    return token, secret


def checked_expiry(wanted: datetime | None) -> datetime:
    """When a person's own token ends: as wanted, which lies ahead and within `LONGEST_LIFE`; otherwise refused."""
    now = database_now()
    if wanted is None:
        return now + LONGEST_LIFE
    if wanted <= now:
        raise _wrong("expires_at", "must lie ahead")
    if wanted > now + LONGEST_LIFE:
        raise _wrong("expires_at", f"at most {LONGEST_LIFE.days} days ahead")
    return wanted


def revoke_token(token_id: uuid.UUID, *, actor: Actor) -> None:
    """The token stops working at once, for good. Again: nothing changes. Another's is found by admins alone."""
    scope: dict[str, Any] = {"workspace_id": actor.workspace_id}
    if not actor.may(ADMINISTER):
        scope["user_id"] = actor.user_id
    _revoke(PersonalToken, token_id, actor, "token.revoke", scope, needs=VIEW)


def set_role(*, actor: Actor, user: Any, role: str) -> Member:
    """Makes the user a member of the actor's workspace in this role, their only one there."""
    with audited(actor, "member.save", user=user.get_username(), role=role) as entry:
        actor.require(ADMINISTER)
        member, created = Member.objects.select_for_update(no_key=True).get_or_create(
            workspace_id=actor.workspace_id, user=user, defaults={"role": role}
        )
        entry.before, entry.after = None if created else {"role": member.role}, {"role": role}
        if not created and member.role == role:
            entry.outcome = NO_OP
        member.role = role
        member.save(update_fields=["role"])
    return member


def remove_member(*, actor: Actor, user: Any) -> None:
    """The user is no member of the actor's workspace any more; their tokens there stop working. Again: refused."""
    with audited(actor, "member.remove", user=user.get_username()) as entry:
        actor.require(ADMINISTER)
        member = Member.objects.select_for_update().filter(workspace_id=actor.workspace_id, user=user).first()
        if member is None:
            raise Refusal("not_found", "there is no such member")
        entry.data["role"] = member.role
        member.delete()


def ensure_user(name: str) -> tuple[Any, bool]:
    """The active user of that name; a new one cannot log in until a password is set."""
    model = get_user_model()
    with transaction.atomic():
        user = model.objects.filter(**{model.USERNAME_FIELD: name}).first()
        if user is not None:
            if not user.is_active:
                raise Refusal("validation_error", f"the user {name!r} is not active")
            return user, False
        user = model(**{model.USERNAME_FIELD: name})
        user.set_unusable_password()
        try:
            user.full_clean(exclude=["password"])
        except ValidationError as error:
            message = "; ".join(error.messages)
            raise Refusal("validation_error", f"{name!r} cannot be a user's name: {message}") from error
        user.save()
    return user, True


def _wrong(field: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{field}: {message}", errors={field: [message]})


def _revoke(
    model: Any, found_id: uuid.UUID, actor: Actor, action: str, scope: dict[str, Any], *, needs: str = ADMINISTER
) -> None:
    with audited(actor, action, id=str(found_id)) as entry:
        actor.require(needs)
        found = model.objects.select_for_update(no_key=True, of=("self",)).filter(id=found_id, **scope).first()
        if found is None:
            raise Refusal("not_found", "there is no such key or token")
        entry.data["prefix"] = found.prefix
        if found.revoked_at is not None:
            entry.outcome = NO_OP
            return
        model.objects.filter(id=found_id).update(revoked_at=RecourseNow())
