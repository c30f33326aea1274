"""How the admin site shows and changes things: only to members, history never changed, nothing counted, all audited.

A list goes through the newest rows and no further, however many there are: what is older is found by its id.

A superuser sees and changes what belongs to workspaces of which they are a member; they may make workspaces.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, NoReturn, cast

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse

from pipelines.access import ADMINISTER, Actor, person
from pipelines.audit import DENIED, audited, record
from pipelines.models import Role, Workspace

LISTED = 1_000  # rows that a list goes through page by page; what is older is found by its id
NEWEST = 10_000  # rows of a table, whoever's they are, that a list looks at for those that somebody may see


class UncountedPaginator(Paginator):  # type: ignore[type-arg] # generic for the type checker only
    """Never counts: it finds the keys of the first `LISTED` rows, so that a list of millions opens as fast as a short
    one (F159)."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows.values_list("pk", flat=True)[:LISTED])


class TenantAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # as above
    """Rows of the user's own workspaces, newest first, found by id. Not to be changed unless a subclass says so.

    `tenant` is the path from the model to its workspace; `found_by` are the columns that a searched id may be in.
    """

    tenant: ClassVar[str] = "workspace"
    found_by: ClassVar[Sequence[str]] = ("pk",)
    hidden: ClassVar[tuple[str, ...]] = ()

    show_full_result_count = False
    paginator = UncountedPaginator
    show_facets = admin.ShowFacets.NEVER  # they would count
    list_per_page = 50
    ordering: ClassVar[Any] = ("-pk",)
    search_fields: ClassVar[Any] = ("pk",)  # what is searched is in `found_by`; this only shows the box
    search_help_text = "an id"
    actions: Any = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        theirs = belonging(request).values("pk")
        return super().get_queryset(request).filter(**{f"{self.tenant}__in": theirs})

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term.strip():
            return self._recent(queryset), False
        try:
            wanted: Any = uuid.UUID(search_term.strip())
        except ValueError:
            return queryset.none(), False
        for column in self.found_by:
            found = queryset.filter(**{column: wanted})
            if found.exists():
                return found, False
        return queryset.none(), False

    def _recent(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Those that are among the newest rows of the table, so that a quiet workspace costs no walk through the rows
        of all others. Keys rise with time."""
        key = self.opts.pk.attname
        older = self.model.objects.order_by(f"-{key}").values_list(key, flat=True)[NEWEST : NEWEST + 1]
        end = next(iter(older), None)
        return queryset if end is None else queryset.filter(**{f"{key}__gt": end})

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """No list is narrowed by its address: that would ask about hidden columns, and read a whole table."""
        return False

    def get_exclude(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return self.hidden

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        with self._denial_recorded(request, object_id, "save"):
            return super().changeform_view(request, object_id, form_url, extra_context)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        with self._denial_recorded(request, object_id, "remove"):
            return super().delete_view(request, object_id, extra_context)

    def workspace_of(self, obj: Any) -> uuid.UUID:
        for step in self.tenant.split("__"):
            obj = getattr(obj, step)
        return getattr(obj, "pk", obj)

    @contextmanager
    def _denial_recorded(self, request: HttpRequest, object_id: str | None, verb: str) -> Iterator[None]:
        """Keeps in the audit what a member was denied to change; who is none is told nothing, and nothing is kept."""
        try:
            yield
        except PermissionDenied:
            actor = self._refused_actor(request, object_id) if request.method == "POST" else None
            if actor is not None:
                told = {} if object_id is None else {"id": object_id}
                action = f"{self.opts.model_name}.{verb}"
                record(actor, action, DENIED, code="permission_denied", data=told)
            raise

    def _refused_actor(self, request: HttpRequest, object_id: str | None) -> Actor | None:
        if object_id is not None:
            obj = self.get_object(request, object_id)
            return None if obj is None else person(request.user, self.workspace_of(obj), "admin")
        try:
            return person(request.user, uuid.UUID(request.POST.get("workspace", "")), "admin")
        except ValueError:
            return None


class DefinitionAdmin(TenantAdmin):
    """What admins of a workspace may make and change, each with an audit event. It stays in its workspace."""

    fixed: ClassVar[tuple[str, ...]] = ("workspace",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_module_permission(request) and administered(request).exists()

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        if obj is None:
            return self.has_module_permission(request)
        return self.has_module_permission(request) and acting(request, self.workspace_of(obj)) is not None

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return self.fixed if obj else ()

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        workspaces = administered(request)
        if db_field.related_model is Workspace:
            kwargs["queryset"] = workspaces
        elif db_field.name in ("application", "environment"):
            kwargs["queryset"] = db_field.related_model.objects.filter(workspace__in=workspaces).select_related(
                "workspace"
            )
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        actor = acting(request, self.workspace_of(obj))
        if actor is None:
            raise_denied(obj)
        before = {name: str(form.initial.get(name)) for name in form.changed_data} if change else None
        after = {name: str(form.cleaned_data[name]) for name in form.changed_data}
        action, name = f"{self.opts.model_name}.save", str(getattr(obj, "user", obj))
        with audited(actor, action, id=str(obj.pk), name=name, before=before, after=after):
            super().save_model(request, obj, form, change)


def belonging(request: HttpRequest) -> QuerySet[Workspace]:
    """The workspaces of which the user is a member."""
    return Workspace.objects.filter(members__user=cast(Any, request.user))


def administered(request: HttpRequest) -> QuerySet[Workspace]:
    """The workspaces of which the user is an admin."""
    return Workspace.objects.filter(members__user=cast(Any, request.user), members__role=Role.ADMIN)


def acting(request: HttpRequest, workspace_id: uuid.UUID) -> Actor | None:
    """The user as an admin of the workspace; None when they are not."""
    actor = person(request.user, workspace_id, "admin")
    return actor if actor is not None and actor.may(ADMINISTER) else None


def raise_denied(obj: object) -> NoReturn:
    raise PermissionDenied(f"only an admin of its workspace may do that to {obj}")
