"""From whom an issuer knows to an account: found by issuer and subject, and by nothing that somebody could choose.

A name is only what a new account is called. Where an account of that name is there already it is somebody else's, until
whoever has its password connects it (`account_pages.connect`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from config import account
from config.models import Identity
from config.oidc_settings import Oidc
from pipelines import credentials
from pipelines.access import Actor
from pipelines.models import Member, Role, Workspace


class NotLetIn(Exception):
    """Nobody is logged in. `why`: unknown, inactive, unnamed, unverified, name_taken, name_unusable or taken. `user`:
    whom the issuer proved it to be, where that account stays out."""

    def __init__(self, why: str, user: Any = None) -> None:
        self.why = why
        self.user = user
        super().__init__(why)


def account_of(provider: Oidc, subject: str, claims: Mapping[str, Any]) -> Any:
    """The active account of whom the issuer knows, made where the operator wants that; its roles are the issuer's."""
    user = _known(provider, subject) or _made(provider, subject, claims)
    if not user.is_active:
        raise NotLetIn("inactive", user)
    follow_roles(provider, user, claims)
    return user


def connect(provider: Oidc, subject: str, user: Any) -> None:
    """Lets the issuer's subject in as this account from now on. Again: nothing changes; another's is refused."""
    known = _known(provider, subject)
    if known is not None and known != user:
        raise NotLetIn("taken")
    if known == user:
        return
    try:
        with transaction.atomic():
            Identity.objects.create(user=user, issuer=provider.issuer, subject=subject)
            account.note_change(user, f"connected with {provider.issuer}")
    except IntegrityError as error:
        raise NotLetIn("taken") from error


def follow_roles(provider: Oidc, user: Any, claims: Mapping[str, Any]) -> None:
    """Gives the person the roles that the claim's values mean, and takes those they no longer have.

    Only in workspaces that the configuration names and that are there; each change with its audit event, by the issuer.
    """
    given = claims.get(provider.role_claim) if provider.role_claim else None
    told = given if isinstance(given, list) else [given]
    values = {one for one in told if isinstance(one, str)}
    wanted: dict[str, str] = {}
    for value, slug, role in provider.roles:
        if value in values:
            wanted.setdefault(slug, role)
    held = dict(Member.objects.filter(user=user).values_list("workspace_id", "role"))
    for workspace in Workspace.objects.filter(slug__in=provider.workspaces).order_by("slug"):
        should, has = wanted.get(workspace.slug), held.get(workspace.pk)
        actor = Actor(provider.host, workspace.pk, account.CHANNEL, role=Role.ADMIN)
        if should and should != has:
            credentials.set_role(actor=actor, user=user, role=should)
        elif has and not should:
            credentials.remove_member(actor=actor, user=user)


def _known(provider: Oidc, subject: str) -> Any:
    found = Identity.objects.filter(issuer=provider.issuer, subject=subject).select_related("user").first()
    return found.user if found else None


def _made(provider: Oidc, subject: str, claims: Mapping[str, Any]) -> Any:
    """A new account, bound to its subject, without a password and without any role."""
    if not provider.makes_users:
        raise NotLetIn("unknown")
    name = claims.get(provider.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise NotLetIn("unnamed")
    is_verified = claims.get("email_verified") is True
    if provider.name_claim == "email" and not is_verified:
        raise NotLetIn("unverified")
    model = get_user_model()
    user = model(username=name.strip(), email=_address(claims) if is_verified else "")
    user.set_unusable_password()
    try:
        user.clean_fields(exclude=["password"])
        if model.objects.filter(username__iexact=user.get_username()).exists():
            raise NotLetIn("name_taken")
        with transaction.atomic():
            user.save()
            Identity.objects.create(user=user, issuer=provider.issuer, subject=subject)
    except ValidationError as error:
        raise NotLetIn("name_unusable") from error
    except IntegrityError as error:
        # the same person in another window, or somebody else of that name, was quicker
        known = _known(provider, subject)
        if known is None:
            raise NotLetIn("name_taken") from error
        return known
    return user


def _address(claims: Mapping[str, Any]) -> str:
    """The e-mail address that the issuer tells, where it is one."""
    told = claims.get("email")
    try:
        validate_email(told)
    except ValidationError:
        return ""
    return str(told)
