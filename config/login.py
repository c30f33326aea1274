"""Log-in, log-out, and choosing a workspace, with Django's sessions."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse, reverse_lazy
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from config import first_login
from config.log_in_limit import RATE_LIMITED, WINDOW_SECONDS, LogInForm
from config.sessions import LOG_IN
from pipelines.models import Member

CHOICES = {"theme": ("light", "dark", ""), "density": ("dense", "comfortable")}
YEAR = 365 * 24 * 3600


class LogIn(LoginView):
    """Asks for name and password, or leads to an issuer; 429 while too many log-ins have failed."""

    template_name = "console/login.html"
    form_class = LogInForm
    redirect_authenticated_user = True
    next_page = "console:runs"

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(
            provider=settings.RECOURSE_OIDC, by_password=settings.RECOURSE_PASSWORD_LOGIN, **more
        )

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_valid(form)
        given = form.cleaned_data
        if first_login.is_first(settings.DATA_DIR, given["username"], given["password"]):
            self.request.session[first_login.IN_USE] = True
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        if form.has_error("__all__", RATE_LIMITED):
            response.status_code = 429
            response.headers["Retry-After"] = str(WINDOW_SECONDS)
        return response


class LogOut(LogoutView):
    """Ends this log-in; who came by way of an issuer is told that they are still logged in there."""

    def post(self, request: HttpRequest, *args: Any, **more: Any) -> HttpResponse:
        by = request.session.get(LOG_IN, {}).get("by")
        response = super().post(request, *args, **more)
        if by == "oidc" and settings.RECOURSE_OIDC is not None:
            return redirect(f"{reverse('console:login')}?out=1")
        return response


login = LogIn.as_view()
logout = LogOut.as_view(next_page=reverse_lazy("console:login"))


@require_safe
def workspaces(request: HttpRequest) -> HttpResponse:
    """The workspaces of which the person is a member, as links."""
    if not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path(), str(reverse_lazy("console:login")))
    memberships = Member.objects.filter(user=request.user).select_related("workspace").order_by("workspace__slug")
    context = {"memberships": list(memberships), "target": _inside(request, request.GET.get("next", ""))}
    return render(request, "console/workspaces.html", context)


@require_POST
def preferences(request: HttpRequest) -> HttpResponse:
    """Keeps the theme or the density in a cookie, for pages without JavaScript, and goes back."""
    response = redirect(_inside(request, request.POST.get("next", "")))
    for name, values in CHOICES.items():
        value = request.POST.get(name)
        if value in values:
            response.set_cookie(name, value, max_age=YEAR, samesite="Lax", secure=request.is_secure())
    return response


def _inside(request: HttpRequest, address: str) -> str:
    """The address if it is one of ours, else the run list; without a `workspace` that it may carry."""
    if url_has_allowed_host_and_scheme(address, allowed_hosts=None) and address.startswith("/console/"):
        return address.split("?", maxsplit=1)[0]
    return str(reverse_lazy("console:runs"))
