"""The account of whoever looks: who they are, their password, log-ins and tokens; and the members of a workspace."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import authenticate
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from config import account, first_login, sessions
from config.log_in_limit import TOO_MANY, PasswordForm, is_limited
from config.models import Identity
from config.oidc_settings import Oidc
from pipelines import credentials
from pipelines.access import ADMINISTER, VIEW, Actor
from pipelines.console.acts import Act, Step, missing, perform
from pipelines.console.offers import missing_right
from pipelines.console.screens import (
    PersonRequest,
    ScreenRequest,
    go_on,
    own_screen,
    record_refused_act,
    screen,
    show,
    typed,
)
from pipelines.errors import Refusal
from pipelines.models import Member, PersonalToken
from pipelines.sql import database_now

acting = require_http_methods(["GET", "HEAD", "POST"])
LIFETIMES = ((30, "30 days"), (90, "90 days"), (182, "half a year"), (365, "a year"))
MOST_TOKENS = 200
MOST_MEMBERS = 500
CONNECTING_SECONDS = 600
CONNECTING = "connecting"  # in the session: until when an issuer may be connected with the account


@require_safe
@own_screen
def account_page(request: PersonRequest) -> HttpResponse:
    """Who looks: name, roles, password, where they are logged in, and their tokens of this workspace."""
    user: Any = request.user
    provider = settings.RECOURSE_OIDC
    context = {
        "person": user,
        "memberships": list(Member.objects.filter(user=user).select_related("workspace").order_by("workspace__slug")),
        "sightings": sessions.of(user, request.session.session_key),
        "tokens": _tokens(request.visit.actor, own=True) if request.visit else [],
        "uses_first_password": first_login.IN_USE in request.session,
        "provider": provider,
        "identity": Identity.objects.filter(user=user, issuer=provider.issuer).first() if provider else None,
    }
    return show(request, "account/account.html", context)


# the password


@acting
@own_screen
def password(request: PersonRequest) -> HttpResponse:
    """Another password; all other log-ins of the person end with the old one."""
    user: Any = request.user
    if not settings.RECOURSE_PASSWORD_LOGIN or not user.has_usable_password():
        raise Refusal("not_found", "this account has no password; it is logged in by other means")
    form = PasswordForm(user, request.POST or None, request=request)
    if request.method == "POST":
        if form.is_valid():
            ended = account.change_password(request, form.cleaned_data["new_password1"])
            request.session.pop(first_login.IN_USE, None)
            messages.success(request, f"The password is another now.{_also_ended(ended)}")
            return go_on(request, reverse("console:account"))
        record_refused_act(request, Refusal("validation_error", "the form was wrong"))
    context = {"form": form, "uses_first_password": first_login.IN_USE in request.session}
    return show(request, "account/password.html", context, status=400 if form.errors else 200)


# log-ins


@acting
@screen
def session_end(request: ScreenRequest, session_id: uuid.UUID) -> HttpResponse:
    """Ends one log-in of whoever asks, after saying which."""
    user: Any = request.user
    theirs = sessions.of(user, request.session.session_key)
    found = next((one for one in theirs if one.id == session_id), None)
    if found is None:
        raise Refusal("not_found", "there is no such log-in; it may have ended")
    steps = [Step("cancelled", "Ends", "this log-in: its next click asks for a log-in")]
    act = Act(
        title="End this very log-in" if found.is_this else "End a log-in",
        needs=VIEW,
        steps=[*steps, Step("completed", "Stays", "all others, and all tokens")],
        button="End it",
        back=reverse("console:account"),
        facts=[("From", found.address or "unknown"), ("With", found.browser or "unknown")],
    )

    def carry_out(_: str) -> str:
        account.end_session(session_id, user, actor=request.visit.actor)
        messages.success(request, "The log-in has ended.")
        if found.is_this:
            request.session.flush()
        return reverse("console:account")

    return perform(request, act, carry_out)


@acting
@screen
def sessions_end(request: ScreenRequest) -> HttpResponse:
    """Ends all log-ins of whoever asks, save this one."""
    user: Any = request.user
    others = [one for one in sessions.of(user, request.session.session_key) if not one.is_this]
    act = Act(
        title=f"End {_log_ins(len(others))}" if others else "There is no other log-in",
        needs=VIEW,
        steps=[
            Step("cancelled", "End", f"{_log_ins(len(others))}: their next click asks for a log-in"),
            Step("completed", "Stays", "this one, and all tokens"),
        ],
        button="End them" if len(others) > 1 else "End it",
        back=reverse("console:account"),
        is_possible=bool(others) or request.method == "POST",
    )

    def carry_out(_: str) -> str:
        ended = account.end_other_sessions(user, request.session.session_key, actor=request.visit.actor)
        messages.success(request, f"Ended: {_log_ins(ended)}.")
        return reverse("console:account")

    return perform(request, act, carry_out)


# tokens


@acting
@screen
def token_new(request: ScreenRequest) -> HttpResponse:
    """Asks for a name and a time, makes the token, and shows it: in this one answer and never again."""
    given = {"name": typed(request.POST, "name"), "days": request.POST.get("days", "90")}
    context: dict[str, Any] = {"given": given, "lifetimes": LIFETIMES, "refusal": None}
    if request.method != "POST":
        return show(request, "account/token_form.html", context)
    try:
        made, secret = credentials.issue_token(
            actor=request.visit.actor, user=request.user, name=_name(given["name"]), expires_at=_end(given["days"])
        )
    except Refusal as refusal:
        if refusal.status in (403, 404):
            raise
        record_refused_act(request, refusal)
        return show(request, "account/token_form.html", context | {"refusal": refusal}, status=refusal.status)
    return show(request, "account/token.html", {"token": made, "secret": secret})


@acting
@screen
def token_revoke(request: ScreenRequest, token_id: uuid.UUID) -> HttpResponse:
    """Revokes a token: one's own, or as an admin anybody's of the workspace. Another's is not found."""
    actor = request.visit.actor
    token = PersonalToken.objects.filter(id=token_id, **_reach(actor)).select_related("user").first()
    if token is None:
        raise Refusal("not_found", "there is no such token")
    is_own = token.user_id == actor.user_id
    whose = "" if is_own else f" of {token.user.get_username()}"
    act = Act(
        title=f"Revoke the token {token.name or token.prefix + '…'}{whose}",
        needs=VIEW,
        steps=[
            Step("cancelled", "Stops", f"whatever uses the token {token.prefix}…, with its next request, for good"),
            Step("completed", "Stays", "what was done with it, and all other tokens"),
        ],
        button="Revoke it",
        back=reverse("console:account" if is_own else "console:members"),
        danger=True,
        is_possible=token.revoked_at is None or request.method == "POST",
        help="" if token.revoked_at is None else "It is revoked already.",
    )

    def carry_out(_: str) -> str:
        credentials.revoke_token(token_id, actor=actor)
        messages.success(request, f"The token {token.prefix}… is revoked.")
        return act.back

    return perform(request, act, carry_out)


# members


@require_safe
@screen
def members(request: ScreenRequest) -> HttpResponse:
    """Who is a member of the workspace, as what; to admins also their tokens and how often they are logged in."""
    actor = request.visit.actor
    rows = list(
        Member.objects.filter(workspace_id=actor.workspace_id)
        .select_related("user")
        .order_by("user__username")[:MOST_MEMBERS]
    )
    counts = sessions.counts([row.user_id for row in rows]) if actor.may(ADMINISTER) else {}
    context = {
        "rows": [(row, *counts.get(row.user_id, (0, None))) for row in rows],
        "tokens": _tokens(actor, own=False) if actor.may(ADMINISTER) else [],
        "is_admin": actor.may(ADMINISTER),
        "refusal": ""
        if actor.may(ADMINISTER)
        else missing_right(actor, ADMINISTER, "see or end log-ins and tokens of others"),
        "most": MOST_MEMBERS if len(rows) == MOST_MEMBERS else None,
    }
    return show(request, "account/members.html", context)


@acting
@screen
def member_log_out(request: ScreenRequest, member_id: int) -> HttpResponse:
    """Ends all log-ins of a member; what they may do stays as it is."""
    actor = request.visit.actor
    member = Member.objects.filter(id=member_id, workspace_id=actor.workspace_id).select_related("user").first()
    if member is None:
        raise Refusal("not_found", "there is no such member")
    name = member.user.get_username()
    act = Act(
        title=f"Log {name} out everywhere",
        needs=ADMINISTER,
        steps=[
            Step("cancelled", "End", f"all log-ins of {name}, of other workspaces too: whoever used them logs in anew"),
            Step("completed", "Stays", "their role, their password and their tokens"),
        ],
        button="Log them out",
        back=reverse("console:members"),
        reason_required=True,
        danger=True,
    )

    def carry_out(reason: str) -> str:
        ended = account.log_out_member(member, actor=actor, reason=reason)
        messages.success(request, f"Ended: {_log_ins(ended)} of {name}.")
        return reverse("console:members")

    return perform(request, act, carry_out)


# an issuer that knows the person


@acting
@own_screen
def connect(request: PersonRequest) -> HttpResponse:
    """Asks for the password before an issuer is connected with the account, then names the link that leads there.

    The password, because whoever can make a browser log in with an issuer as somebody else could otherwise connect that
    somebody with the account; a link, because the policy lets no form lead to another site.
    """
    provider, user = _provider(), cast(Any, request.user)
    given, error = request.POST.get("password", ""), ""
    if request.method == "POST" and is_limited(request, user.get_username()):
        error = TOO_MANY
    elif request.method == "POST" and authenticate(request, username=user.get_username(), password=given) != user:
        error = "That is not your password."
    if error:
        record_refused_act(request, Refusal("validation_error", error))
    is_sure = request.method == "POST" and not error
    if is_sure:
        request.session[CONNECTING] = (database_now() + timedelta(seconds=CONNECTING_SECONDS)).isoformat()
    context = {"provider": provider, "error": error, "is_sure": is_sure}
    return show(request, "account/connect.html", context, status=400 if error else 200)


@acting
@own_screen
def disconnect(request: PersonRequest) -> HttpResponse:
    """The issuer no longer lets the person in; asked once more before."""
    provider = _provider()
    if request.method != "POST":
        return show(request, "account/disconnect.html", {"provider": provider})
    account.disconnect(request.user, provider.issuer)
    messages.success(request, "The account is no longer connected.")
    return go_on(request, reverse("console:account"))


def _provider() -> Oidc:
    provider: Oidc | None = settings.RECOURSE_OIDC
    if provider is None:
        raise Refusal("not_found", "log-in by OpenID Connect is not switched on")
    return provider


def _tokens(actor: Actor, *, own: bool) -> list[PersonalToken]:
    """Tokens of the workspace that are not revoked, newest first: the actor's own, or everybody's."""
    theirs: dict[str, Any] = {"user_id": actor.user_id} if own else {}
    rows = PersonalToken.objects.filter(workspace_id=actor.workspace_id, revoked_at=None, **theirs)
    return list(rows.select_related("user").order_by("-created_at")[:MOST_TOKENS])


def _reach(actor: Actor) -> dict[str, Any]:
    """Which tokens an actor sees: those of their workspace, of it their own unless they administer it."""
    own = {} if actor.may(ADMINISTER) else {"user_id": actor.user_id}
    return {"workspace_id": actor.workspace_id, **own}


def _name(name: str) -> str:
    if not name:
        raise missing("name", "say what it is for; it is how you find it again")
    return name


def _end(days: str) -> Any:
    if days not in {str(number) for number, _ in LIFETIMES}:
        raise missing("days", "choose one of these")
    return database_now() + timedelta(days=int(days))


def _log_ins(count: int) -> str:
    return "1 log-in" if count == 1 else f"{count} log-ins"


def _also_ended(count: int) -> str:
    return f" Your other {_log_ins(count)} ended." if count else ""
