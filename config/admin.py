"""The admin site's log-in, and what the console itself keeps: to be looked at by superusers, changed by nobody.

Sessions are not shown: people see their own, and admins end those of their members (`config/account_pages.py`).
"""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from config.log_in_limit import AdminLogInForm
from config.models import FailedLogIn, Identity

admin.site.login_form = AdminLogInForm


class KeptAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic for the type checker only
    """Rows that are read by superusers and changed by nobody."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_superuser)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(FailedLogIn)
class FailedLogInAdmin(KeptAdmin):
    list_display = ("at", "address")
    exclude = ("account",)
    ordering = ("-at",)


@admin.register(Identity)
class IdentityAdmin(KeptAdmin):
    list_display = ("user", "issuer", "subject", "since")
    list_select_related = ("user",)
    ordering = ("-since",)
