"""Secrets that name a caller: API keys, personal tokens, worker session tokens. Made once, kept only as SHA-256.

They carry 256 random bits, so a plain hash suffices and looking one up costs an index probe.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from pipelines.models import ApiKey, Application, Environment, KeyScope, PersonalToken, Workspace
from pipelines.sql import execute, query

PREFIX_LENGTH = 12
USED_SECONDS = 60  # how often the use of a token is written down, at most


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who an API key speaks for."""

    key_id: uuid.UUID
    scope: str
    application_id: uuid.UUID
    application_name: str
    environment_id: uuid.UUID
    environment_slug: str
    workspace_id: uuid.UUID


def digest(secret: str) -> bytes:
    """What is stored of a secret, and what it is found by."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def make_secret(kind: str) -> str:
    """A fresh secret; its first characters say what it is (`rk` key, `rt` personal token, `rs` worker session)."""
    return f"{kind}_{secrets.token_urlsafe(32)}"


def issue_key(
    application: Application,
    environment: Environment,
    *,
    scope: str = KeyScope.APPLICATION,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A new API key and its plain text, which nobody can read again."""
    secret = make_secret("rk")
    key = ApiKey.objects.create(
        application=application,
        environment=environment,
        scope=scope,
        prefix=secret[:PREFIX_LENGTH],
        digest=digest(secret),
        expires_at=expires_at,
    )
    return key, secret


def issue_token(
    user: Any, workspace: Workspace, *, name: str = "", expires_at: datetime | None = None
) -> tuple[PersonalToken, str]:
    """A new bearer token of a person for one workspace, and its plain text."""
    secret = make_secret("rt")
    token = PersonalToken.objects.create(
        user=user,
        workspace=workspace,
        name=name,
        prefix=secret[:PREFIX_LENGTH],
        digest=digest(secret),
        expires_at=expires_at,
    )
    return token, secret


def find_key(secret: str) -> KeyHolder | None:
    """The holder of a live key; None for an unknown, expired or revoked one."""
    rows = query(
        "SELECT k.id, k.scope, a.id, a.name, e.id, e.slug, a.workspace_id FROM pipelines_apikey k"
        " JOIN pipelines_application a ON a.id = k.application_id"
        " JOIN pipelines_environment e ON e.id = k.environment_id"
        " WHERE k.digest = %s AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > recourse_now())",
        [digest(secret)],
    )
    return KeyHolder(*rows[0]) if rows else None


def find_person(secret: str) -> tuple[int, str, uuid.UUID, str] | None:
    """Whose live token it is: (user id, name, workspace id, role), of an active user who still is a member there.

    Notes that it was used, once in `USED_SECONDS` at most.
    """
    rows = query(
        "SELECT u.id, u.username, t.workspace_id, m.role, t.id,"
        " t.last_used_at IS NULL OR t.last_used_at < recourse_now() - make_interval(secs => %s)"
        " FROM pipelines_personaltoken t"
        " JOIN auth_user u ON u.id = t.user_id AND u.is_active"
        " JOIN pipelines_member m ON m.user_id = t.user_id AND m.workspace_id = t.workspace_id"
        " WHERE t.digest = %s AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > recourse_now())",
        [USED_SECONDS, digest(secret)],
    )
    if not rows:
        return None
    user_id, name, workspace_id, role, token_id, is_due = rows[0]
    if is_due:
        execute("UPDATE pipelines_personaltoken SET last_used_at = recourse_now() WHERE id = %s", [token_id])
    return user_id, name, workspace_id, role
