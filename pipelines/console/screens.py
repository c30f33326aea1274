"""What every screen shares: who looks at which workspace, one helper for page or part, and refusals as pages.

A person sees only workspaces of which they are a member; anything else is 404. A missing right is a 403 page that names
it. The chosen workspace is kept in the session; `?workspace=SLUG` changes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseClientRedirect

from pipelines import audit
from pipelines.access import VIEW, Actor
from pipelines.errors import Refusal
from pipelines.models import Member, Workspace
from pipelines.sql import database_now

SESSION_KEY = "workspace"
LONGEST_REASON = 2000
# How the audit calls what an act's address stands for; any other is called after its address.
ACTIONS = {
    "pause": "run.pause",
    "resume": "run.resume",
    "cancel": "run.cancel",
    "rerun": "run.rerun",
    "replay": "run.replay",
    "retry": "stage.retry",
    "skip": "stage.skip",
    "import-answer": "stage.import",
    "reconcile": "stage.reconcile",
    "reconciliation-settle": "reconciliation.settle",
    "run-retry-stop": "run_retry.stop",
    "acknowledge": "dead_letter.acknowledge",
    "redrive": "dead_letter.redrive",
    "discard": "dead_letter.discard",
    "trigger-new": "trigger.create",
    "trigger-change": "trigger.change",
    "trigger-enable": "trigger.enable",
    "trigger-disable": "trigger.disable",
    "pipeline-new": "pipeline.save",
    "pipeline-change": "pipeline.save",
    "release-new": "release.register",
    "release-activate": "release.activate",
    "release-review": "release.review",
    "baseline-new": "artifact.add_baseline",
    "store-remove": "store.remove",
    "store-export": "store.export",
    "blackout-new": "blackout.save",
    "blackout-change": "blackout.save",
    "freeze": "freeze.declare",
    "key-rotate": "key.rotate",
    "key-revoke": "key.revoke",
    "freeze-lift": "freeze.lift",
    "audit-export": "audit.export",
    "backfill-start": "backfill.start",
    "backfill-pause": "backfill.pause",
    "backfill-resume": "backfill.resume",
    "backfill-cancel": "backfill.cancel",
    "bulk-new": "bulk.draft",
    "bulk-start": "bulk.start",
    "bulk-pause": "bulk.pause",
    "bulk-resume": "bulk.resume",
    "bulk-abort": "bulk.abort",
    "account-password": "user.save",
    "account-connect": "user.save",
    "account-disconnect": "user.save",
    "token-new": "token.issue",
    "token-revoke": "token.revoke",
    "session-end": "session.end",
    "sessions-end": "session.end",
    "member-log-out": "session.end",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """One look at a screen: the person as an actor in the workspace they chose, and where else they could go."""

    actor: Actor
    workspace: Workspace
    others: tuple[Workspace, ...]


class ScreenRequest(HttpRequest):
    """What a view behind `screen` gets."""

    visit: Visit
    htmx: Any


class PersonRequest(HttpRequest):
    """What a view behind `own_screen` gets."""

    visit: Visit | None
    htmx: Any


View = Callable[..., HttpResponse]


def screen(view: View) -> View:
    """A view for people: asks for a log-in, finds the workspace, and turns a refusal into a page that explains it."""

    @wraps(view)
    def wrapped(request: ScreenRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return go_on(request, f"{reverse('console:login')}?{urlencode({'next': _return_path(request)})}")
        memberships = list(Member.objects.filter(user=request.user).select_related("workspace").order_by("workspace"))
        if not memberships:
            return render(request, "console/no_workspace.html", {"now": None}, status=403)
        try:
            member = _chosen(request, memberships)
            if member is None:
                return go_on(request, f"{reverse('console:workspaces')}?{urlencode({'next': _return_path(request)})}")
            request.visit = _visit(request, member, memberships)
            request.visit.actor.require(VIEW)
            return view(request, *args, **kwargs)
        except Refusal as refusal:
            return refused(request, refusal)

    return wrapped


def own_screen(view: View) -> View:
    """A view about the person who looks: asks for a log-in, but for no workspace; none chosen, `visit` is None."""

    @wraps(view)
    def wrapped(request: PersonRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return go_on(request, f"{reverse('console:login')}?{urlencode({'next': _return_path(request)})}")
        memberships = list(Member.objects.filter(user=request.user).select_related("workspace").order_by("workspace"))
        try:
            member = _chosen(request, memberships) if memberships else None
            request.visit = _visit(request, member, memberships) if member else None
            return view(request, *args, **kwargs)
        except Refusal as refusal:
            return refused(request, refusal)

    return wrapped


def show(
    request: ScreenRequest | PersonRequest,
    page: str,
    context: dict[str, Any],
    *,
    part: str | None = None,
    status: int = 200,
) -> HttpResponse:
    """Renders `page`, or only `part` of it when HTMX asks for the part."""
    wanted = part if part and request.htmx and not request.htmx.boosted else page
    response = render(request, wanted, {"now": database_now(), "visit": request.visit, **context}, status=status)
    # the same address answers with a page or a part of it
    patch_vary_headers(response, ["HX-Request"])
    return response


def typed(params: QueryDict, name: str) -> str:
    """A line that somebody typed, its blanks put in order; without NUL, which no text of the database may hold."""
    return " ".join(params.get(name, "").replace("\0", "").split())


def go_on(request: HttpRequest, address: str) -> HttpResponse:
    """Leads to `address`, from a page or out of a dialog."""
    if getattr(request, "htmx", None):
        return HttpResponseClientRedirect(address)
    response: HttpResponseRedirect = redirect(address)
    response.status_code = 303 if request.method == "POST" else 302
    return response


def refused(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """The page of a refusal: what, why, and the way out. Never an empty list."""
    record_refused_act(request, refusal)
    context = {"refusal": refusal, "visit": getattr(request, "visit", None)}
    page = "console/_refused.html" if getattr(request, "htmx", None) else "console/refused.html"
    return render(request, page, context, status=refusal.status)


def of_form(request: HttpRequest, refused: Refusal) -> Refusal:
    """What was refused of a form that shows it beside what was typed; the audit keeps it. A missing right, or a thing
    that is not there, is no matter of the form and goes on up."""
    if refused.status in (403, 404):
        raise refused
    record_refused_act(request, refused)
    return refused


def record_refused_act(request: HttpRequest, refusal: Refusal) -> None:
    """Has the audit keep what was refused to somebody who confirmed an act, unless the verb has recorded it already.

    With `look` in the form only another plan was asked for.
    """
    visit: Visit | None = getattr(request, "visit", None)
    match = request.resolver_match
    if request.method != "POST" or "look" in request.POST or visit is None or match is None:
        return
    action = ACTIONS.get(match.url_name or "", f"screen.{match.url_name}")
    named = {name: found for name, found in match.kwargs.items() if isinstance(found, uuid.UUID)}
    entry = audit.Entry(
        run=named.pop("run_id", None),
        stage=named.pop("stage_id", None),
        reason=request.POST.get("reason", "")[:LONGEST_REASON].replace("\0", ""),
        data={name: str(found) for name, found in named.items()},
    )
    audit.record_refusal(visit.actor, action, refusal, entry)


def _chosen(request: HttpRequest, memberships: list[Member]) -> Member | None:
    """The membership that the address, then the session, then the lack of a choice names."""
    slug = request.GET.get("workspace")
    if slug:
        for member in memberships:
            if member.workspace.slug == slug:
                request.session[SESSION_KEY] = str(member.workspace_id)
                return member
        raise Refusal("not_found", "there is no such workspace, or you are no member of it")
    kept = request.session.get(SESSION_KEY)
    for member in memberships:
        if str(member.workspace_id) == kept:
            return member
    return memberships[0] if len(memberships) == 1 else None


def _visit(request: HttpRequest, member: Member, memberships: list[Member]) -> Visit:
    actor = Actor(
        name=request.user.get_username(),
        workspace_id=member.workspace_id,
        channel="console",
        user_id=request.user.pk,
        role=member.role,
    )
    others = tuple(other.workspace for other in memberships if other != member)
    return Visit(actor=actor, workspace=member.workspace, others=others)


def _return_path(request: HttpRequest) -> str:
    """Where to come back to: the page itself, never a part of it or an act."""
    htmx = getattr(request, "htmx", None)
    if htmx:
        return htmx.current_url_abs_path or reverse("console:runs")
    return request.get_full_path() if request.method in ("GET", "HEAD") else reverse("console:runs")
