"""Who calls: an application by its key, a worker by its session on top of it, a person by token or log-in.

One query each; a person who is logged in needs the session's own besides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from rest_framework.authentication import BaseAuthentication, CSRFCheck
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from pipelines import keys, recipients
from pipelines.access import Actor
from pipelines.creation import Place
from pipelines.errors import Refusal
from pipelines.keys import KeyHolder
from pipelines.leases import Holder
from pipelines.models import KeyScope, Member
from pipelines.sql import execute, query
from pipelines.states import SessionState

TOKEN_CHANNELS = ("api", "mcp")  # what a program with a person's token may say of itself
SEEN_SECONDS = 5  # how often a call is written down as a sign of life
NO_KEY = "this needs the X-API-Key header with a live key"
NO_PERSON = "this needs the header Authorization: Bearer with a live token of a member of the workspace"
NO_SESSION = "this needs the X-Worker-Session header with a session of this application; bootstrap anew"


@dataclass(frozen=True, slots=True)
class WorkerCaller:
    """A worker's session together with the application it works for."""

    key: KeyHolder
    holder: Holder
    handlers: list[str]


def application_caller(request: HttpRequest) -> KeyHolder:
    """The application whose key came along. 401 without a live key, 403 for a key of scope `runtime` (P9)."""
    key = key_caller(request)
    _refuse_runtime(key)
    return key


def key_caller(request: HttpRequest) -> KeyHolder:
    """The key that came along, of whatever scope. 401 without a live one."""
    secret = request.META.get("HTTP_X_API_KEY")
    key = keys.find_key(secret) if secret else None
    if key is None:
        raise Refusal("unauthorized", NO_KEY)
    return key


def worker_caller(request: HttpRequest) -> WorkerCaller:
    """The worker whose key and session came along; the call counts as its heartbeat.

    401 for a session that is unknown, revoked, or of another application or environment.
    """
    secret, token = request.META.get("HTTP_X_API_KEY"), request.META.get("HTTP_X_WORKER_SESSION")
    if not secret:
        raise Refusal("unauthorized", NO_KEY)
    rows = query(
        "SELECT k.id, k.scope, a.id, a.name, e.id, e.slug, a.workspace_id, w.id, w.worker_name, w.state, w.handlers,"
        " w.recipients::text, w.application_id = a.id AND w.environment_id = e.id,"
        " w.last_seen_at < recourse_now() - make_interval(secs => %s)"
        " FROM pipelines_apikey k JOIN pipelines_application a ON a.id = k.application_id"
        " JOIN pipelines_environment e ON e.id = k.environment_id"
        " LEFT JOIN pipelines_workersession w ON w.digest = %s"
        " WHERE k.digest = %s AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > recourse_now())",
        [SEEN_SECONDS, keys.digest(token or ""), keys.digest(secret)],
    )
    if not rows:
        raise Refusal("unauthorized", NO_KEY)
    key = KeyHolder(*rows[0][:7])
    _refuse_runtime(key)
    session_id, worker, state, handlers, sends, is_own, seen_long_ago = rows[0][7:]
    if session_id is None or not is_own or state == SessionState.REVOKED:
        raise Refusal("unauthorized", NO_SESSION)
    if seen_long_ago:
        execute("UPDATE pipelines_workersession SET last_seen_at = recourse_now() WHERE id = %s", [session_id])
    is_draining = state == SessionState.DRAINING
    sends_to = recipients.keys_of(json.loads(sends)) if sends != "[]" else ()
    holder = Holder(session_id, key.application_id, key.environment_id, worker, is_draining, key.key_id, sends_to)
    return WorkerCaller(key, holder, handlers)


def person_caller(request: HttpRequest) -> Actor | None:
    """The person whose bearer token came along, or who is logged in; None when neither is there.

    401 for a token that is unknown, expired, revoked, or of somebody who is no member any more. A logged-in person with
    several workspaces names one by `X-Workspace` or `?workspace=` (slug or id); one that is not theirs is 404. What a
    log-in changes needs its CSRF token, like a form.
    """
    scheme, _, token = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme:
        found = keys.find_person(token.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise Refusal("unauthorized", NO_PERSON)
        user_id, name, workspace_id, role = found
        return Actor(name, workspace_id, _channel(request), user_id=user_id, role=role)
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return None
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        _check_csrf(request)
    return _in_workspace(user, request.META.get("HTTP_X_WORKSPACE") or request.GET.get("workspace"))


def actor_of(key: KeyHolder) -> Actor:
    """The application as the one who acts."""
    return Actor(
        name=key.application_name,
        workspace_id=key.workspace_id,
        channel="application",
        application_id=key.application_id,
        environment_id=key.environment_id,
        scope=key.scope,
    )


def place_of(key: KeyHolder, environment: str | None = None) -> Place:
    """Where the key's runs belong. Naming another environment is refused with `recovery_environment_mismatch`."""
    if environment is not None and environment != key.environment_slug:
        raise Refusal(
            "recovery_environment_mismatch",
            f"this key works in {key.environment_slug!r}; {environment!r} needs a key of its own",
        )
    return Place(key.workspace_id, key.application_id, key.environment_id, key.environment_slug)


class ApiKeyAuthentication(BaseAuthentication):
    """For DRF's own views: `request.auth` is the application as an `Actor`. Without the header it has no opinion."""

    def authenticate(self, request: Request) -> tuple[Any, Actor] | None:
        if "HTTP_X_API_KEY" not in request.META:
            return None
        try:
            return None, actor_of(application_caller(request))
        except Refusal as refusal:
            if refusal.status == 401:
                raise AuthenticationFailed(refusal.detail) from refusal
            raise

    def authenticate_header(self, request: Request) -> str:
        return "ApiKey"


def _in_workspace(user: Any, wanted: str | None) -> Actor:
    theirs = Member.objects.filter(user=user).values_list("workspace_id", "workspace__slug", "role")[:1000]
    named = [row for row in theirs if wanted is None or wanted in (row[1], str(row[0]))]
    if not named:
        if wanted is None:
            raise Refusal("permission_denied", "you are no member of any workspace; ask an administrator of one")
        raise Refusal("not_found", "there is no such workspace, or it is not yours to see")
    if len(named) > 1:
        slugs = ", ".join(sorted(row[1] for row in named))
        message = f"you are in several workspaces; name one of them: {slugs}"
        raise Refusal("validation_error", message, errors={"workspace": [message]})
    workspace_id, _, role = named[0]
    return Actor(name=user.get_username(), workspace_id=workspace_id, channel="api", user_id=user.pk, role=role)


def _channel(request: HttpRequest) -> str:
    """How records say that a token came: `mcp` where its program says so, which gives it no right and takes none."""
    said = request.META.get("HTTP_X_RECOURSE_CHANNEL")
    if said not in (None, *TOKEN_CHANNELS):
        message = f"it is one of: {', '.join(TOKEN_CHANNELS)}"
        raise Refusal("validation_error", f"X-Recourse-Channel: {message}", errors={"X-Recourse-Channel": [message]})
    return said or TOKEN_CHANNELS[0]


def _check_csrf(request: HttpRequest) -> None:
    check = CSRFCheck(lambda _: HttpResponse())
    check.process_request(request)
    reason = check.process_view(request, lambda _: HttpResponse(), (), {})
    if reason:
        raise Refusal("permission_denied", f"the log-in's CSRF token is missing or wrong: {reason}")


def _refuse_runtime(key: KeyHolder) -> None:
    if key.scope == KeyScope.RUNTIME:
        raise Refusal("permission_denied", "a key of scope runtime serves only the runtime checkpoint routes")
