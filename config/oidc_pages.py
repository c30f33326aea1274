"""Log-in by OpenID Connect: there, back, and out. Where it is not switched on its addresses are not found.

Links lead there, no forms: the policy lets no form lead to another site. What goes wrong is a page with the way out,
and is told no further than the person can do something about it; the log has the rest.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_safe

from config import log_in_audit, log_in_limit, oidc_begun
from config.account_pages import CONNECTING
from config.identities import NotLetIn, account_of, connect
from config.oidc_settings import Oidc
from pipelines.console.screens import refused
from pipelines.errors import Refusal
from pipelines.sql import database_now

LASTS = timedelta(hours=12)  # a log-in, however busy: whom the issuer lets in, and as what, is asked anew then
BACKEND = "django.contrib.auth.backends.ModelBackend"
LONGEST_NEXT = 1_000  # bytes of where to go on, which goes along in a cookie
OFF = "log-in by OpenID Connect is not switched on"

# why nobody was logged in → what to tell them, with {host}, and the status
WHY: dict[str, tuple[str, int]] = {
    "unreachable": ("{host} does not answer as it should. Try again in a while.", 503),
    "refused": ("{host} let nobody in, or somebody called it off there.", 403),
    "expired": ("This log-in was begun in another browser, took too long, or was used already. Begin anew.", 400),
    "wrong": ("What {host} answered does not prove who you are. An administrator finds the reason in the log.", 403),
    "unknown": ("{host} knows you, but no account here is yours. An administrator can make you one.", 403),
    "inactive": ("Your account here is switched off. An administrator can switch it on.", 403),
    "unnamed": ("{host} does not say what your account is to be called. An administrator has to set its claims.", 403),
    "unverified": ("{host} has not verified your e-mail address, by which your account would be called.", 403),
    "name_taken": (
        "An account of your name is here already. If it is yours, log in with its password and connect it with {host} "
        "on your account's page; otherwise ask an administrator.",
        403,
    ),
    "name_unusable": ("Your name at {host} cannot be an account's name here. An administrator has to help.", 403),
    "taken": ("This identity of {host} belongs to another account, or yours is connected with another one.", 409),
}


@require_safe
def start(request: HttpRequest) -> HttpResponse:
    """Sends the browser to the issuer; to connect an account, when its owner has just proven to be it.

    Of who only begins nothing is stored: what must be known when they come back goes along in a cookie.
    """
    provider = settings.RECOURSE_OIDC
    if provider is None:
        return refused(request, Refusal("not_found", OFF))
    from config import oidc_client

    is_known = request.user.is_authenticated
    is_connecting = is_known and _may_connect(request)
    if is_known and not is_connecting:
        return redirect(_inside(request))
    kept = {"next": _inside(request), "user": request.user.pk if is_connecting else None}
    try:
        way, begun = oidc_client.begin(provider, _back(request, "oidc-done"), kept)
    except oidc_client.NotProven as fault:
        return _failed(request, provider, fault.why)
    response = HttpResponseRedirect(way)
    oidc_begun.keep(request, response, reverse("console:oidc-login"), begun["state"], begun)
    return response


@require_safe
def done(request: HttpRequest) -> HttpResponse:
    """Takes the issuer's answer: logs in whom it proves, or connects them with the account that asked for it."""
    provider = settings.RECOURSE_OIDC
    if provider is None:
        return refused(request, Refusal("not_found", OFF))
    response = _answered(request, provider)
    oidc_begun.forget(request, response, reverse("console:oidc-login"))
    return response


def _answered(request: HttpRequest, provider: Oidc) -> HttpResponse:
    from config import oidc_client

    try:
        proof = oidc_client.finish(request, provider)
        if proof.kept["user"] is not None:
            return _connected(request, provider, proof)
        user = account_of(provider, proof.subject, proof.claims)
    except oidc_client.NotProven as fault:
        return _failed(request, provider, fault.why)
    except NotLetIn as fault:
        if fault.user is not None:
            log_in_limit.note_failure(credentials={"username": fault.user.get_username()}, request=request)
            log_in_audit.tell_failure(fault.user, request, by="oidc", why=log_in_audit.OFF)
        return _failed(request, provider, fault.why)
    request.log_in_by = "oidc"  # type: ignore[attr-defined] # for `sessions.note_log_in`
    login(request, user, backend=BACKEND)
    request.session.set_expiry(timezone.now() + LASTS)
    return redirect(proof.kept["next"])


@require_safe
def out(request: HttpRequest) -> HttpResponse:
    """Leads on to the issuer's own log-out, from the page that follows ours."""
    provider = settings.RECOURSE_OIDC
    if provider is None:
        return refused(request, Refusal("not_found", OFF))
    from config import oidc_client

    way = oidc_client.way_out(provider, _back(request, "login"))
    return HttpResponseRedirect(way) if way else redirect("console:login")


def _connected(request: HttpRequest, provider: Oidc, proof: Any) -> HttpResponse:
    """Connects the account that asked for it, which is still logged in here."""
    if request.user.pk != proof.kept["user"] or not _may_connect(request):
        raise NotLetIn("expired")
    request.session.pop(CONNECTING)
    connect(provider, proof.subject, request.user)
    messages.success(request, f"Your account is connected: {provider.host} lets you in from now on.")
    return redirect("console:account")


def _may_connect(request: HttpRequest) -> bool:
    until = request.session.get(CONNECTING)
    return until is not None and datetime.fromisoformat(until) > database_now()


def _failed(request: HttpRequest, provider: Oidc, why: str) -> HttpResponse:
    words, status = WHY[why]
    context = {"told": words.format(host=provider.host), "why": why, "provider": provider}
    return render(request, "account/oidc_failed.html", context, status=status)


def _back(request: HttpRequest, name: str) -> str:
    """An address of ours as the issuer and the browser know it."""
    path = reverse(f"console:{name}")
    return f"{settings.RECOURSE_PUBLIC_URL}{path}" if settings.RECOURSE_PUBLIC_URL else request.build_absolute_uri(path)


def _inside(request: HttpRequest) -> str:
    """Where to go on: as the address says if that is one of ours, else the runs."""
    address = request.GET.get("next", "")
    is_ours = address.startswith("/") and url_has_allowed_host_and_scheme(address, allowed_hosts=None)
    if is_ours and len(address.encode("utf-8", "surrogatepass")) <= LONGEST_NEXT:
        return address
    return reverse("console:runs")
