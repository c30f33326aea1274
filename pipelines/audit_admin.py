"""The admin site for the audit: one workspace at a time, newest first, narrowed by what indexes have, never counted.

A list holds the newest `CAP` events that match; what is older is found by the hierarchy of dates, or by an exact id.
All of them as a file, however many, come from the console's own screen. Serves F145, F159.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from pipelines import audit_chain, audit_export, audit_listing
from pipelines.access import person
from pipelines.audit_export import CSV, JSON_LINES
from pipelines.audit_listing import CAP, Wanted
from pipelines.audit_names import names_of
from pipelines.audit_sentences import tell
from pipelines.errors import Refusal
from pipelines.models import AuditCheck, AuditEvent, AuditHead, AuditPending, AuditSeal, Workspace
from pipelines.paging import Cut
from pipelines.tenant_admin import TenantAdmin, belonging

DATE = re.compile(r"\d{4}(-\d{2}){0,2}", re.ASCII)  # of the hierarchy of dates: a year, a month, a day


class Offered(admin.SimpleListFilter):
    """One of the values that a workspace's events have; what it narrows is found by the list as a whole."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(facet.value, facet.value) for facet in model_admin.facets(request)[self.parameter_name]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEvent]) -> QuerySet[AuditEvent]:
        return queryset


class OutcomeFilter(Offered):
    title, parameter_name = "outcome", "outcome"


class ChannelFilter(Offered):
    title, parameter_name = "channel", "channel"


class ActionFilter(Offered):
    title, parameter_name = "action", "action"


class ActorFilter(Offered):
    title, parameter_name = "actor", "actor"


class WorkspaceFilter(Offered):
    """Which of the user's workspaces is shown; without a choice it is the first."""

    title, parameter_name = "workspace", "workspace"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(workspace.slug, workspace.slug) for workspace in belonging(request).order_by("slug")]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Without "all": one is always shown."""
        for number, (slug, title) in enumerate(self.lookup_choices):
            yield {
                "selected": self.value() == slug or (self.value() is None and number == 0),
                "query_string": changelist.get_query_string({self.parameter_name: slug}),
                "display": title,
            }


class DateFilter(Offered):
    """A year, a month or a day; chosen above the list."""

    title, parameter_name = "date", "on"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return False


FILTERS = (OutcomeFilter, ChannelFilter, ActionFilter, ActorFilter)


@admin.register(AuditEvent)
class AuditEventAdmin(TenantAdmin):
    """Who did, tried or was refused what: to be read and exported."""

    change_list_template = "admin/audit_events.html"
    found_by = ("pk", "run", "stage")
    ordering = ("-at", "-id")
    list_display = ("when", "told", "by", "channel", "action", "outcome", "code", "run_page")
    list_display_links = ("when",)
    list_select_related = ("workspace",)
    list_filter = (WorkspaceFilter, *FILTERS, DateFilter)
    show_facets = admin.ShowFacets.NEVER
    readonly_fields = ("told", "run_page", "seal", "on_the_console")
    search_help_text = "the id of an event, a run, a stage, a request or a bulk operation, whole"
    actions = ("export_csv", "export_json_lines")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        found: Any = super().get_changelist_instance(request)
        found.result_list = list(found.result_list)
        names = names_of(found.result_list)
        for event in found.result_list:
            event.sentence, event.run_name = tell(event, names), names.runs.get(event.run, ("",))[0]
        return found

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        workspace = self._shown(request)
        more: dict[str, Any] = {"most": CAP}
        if workspace is not None:
            more |= {"workspace": workspace, "chain": audit_chain.standing(workspace.pk)}
            more |= {"dates": _dates(request, workspace.pk)}
        return super().changelist_view(request, more | (extra_context or {}))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEvent], search_term: str
    ) -> tuple[QuerySet[AuditEvent], bool]:
        term, workspace = search_term.strip(), self._shown(request)
        if workspace is None:
            return queryset.none(), False
        if not term:
            return queryset.filter(pk__in=self._newest(workspace, _wanted(request))), False
        found, _ = super().get_search_results(request, queryset, term)
        for name in ("request_id", "bulk"):
            if not found and "\0" not in term:
                found = queryset.filter(pk__in=self._newest(workspace, Wanted([(name, (term,))])))
        return found, False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return lookup in {one.parameter_name for one in self.list_filter}

    def facets(self, request: HttpRequest) -> dict[str, list[audit_listing.Facet]]:
        """What the shown workspace's events can be narrowed to, asked for once."""
        kept: Any = request
        if not hasattr(kept, "audit_facets"):
            workspace = self._shown(request)
            kept.audit_facets = (
                audit_listing.facets(workspace.pk) if workspace else dict.fromkeys(audit_listing.FIELDS, ())
            )
        found: dict[str, list[audit_listing.Facet]] = kept.audit_facets
        return found

    @admin.display(description="at (UTC)", ordering="at")
    def when(self, event: AuditEvent) -> str:
        return f"{event.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"

    @admin.display(description="what happened")
    def told(self, event: AuditEvent) -> str:
        told: str | None = getattr(event, "sentence", None)  # of a list it is told with all others
        return told or tell(event, names_of([event]))

    @admin.display(description="actor")
    def by(self, event: AuditEvent) -> str:
        return f"{event.actor}, for {event.on_behalf_of}" if event.on_behalf_of else event.actor

    @admin.display(description="run")
    def run_page(self, event: AuditEvent) -> SafeString | str:
        if event.run is None:
            return "-"
        name: str | None = getattr(event, "run_name", None)
        if name is None:
            name = names_of([event]).runs.get(event.run, ("",))[0]
        if not name:
            return str(event.run)
        return _link("console:run", event.run, event.workspace.slug, name)

    @admin.display(description="on the console")
    def on_the_console(self, event: AuditEvent) -> SafeString:
        return _link("console:audit-event", event.pk, event.workspace.slug, "what it found and left, with its seal")

    @admin.display
    def seal(self, event: AuditEvent) -> str:
        link = audit_chain.link_of(event.pk, event.workspace_id)
        if link is None:
            return "waits to be sealed"
        return f"position {link.position}: {f'it {link.fault}' if link.fault else f'holds, {link.hash}'}"

    @admin.action(description="Export the selected events as CSV", permissions=["view"])
    def export_csv(self, request: HttpRequest, queryset: QuerySet[AuditEvent]) -> HttpResponseBase | None:
        return self._export(request, queryset, CSV)

    @admin.action(description="Export the selected events as JSON lines", permissions=["view"])
    def export_json_lines(self, request: HttpRequest, queryset: QuerySet[AuditEvent]) -> HttpResponseBase | None:
        return self._export(request, queryset, JSON_LINES)

    def _export(self, request: HttpRequest, queryset: QuerySet[AuditEvent], form: str) -> HttpResponseBase | None:
        events = list(queryset.values_list("pk", "workspace_id", "workspace__slug"))
        slugs = {workspace_id: slug for _, workspace_id, slug in events}
        told = {"selected": [str(len(events))]}

        def keep() -> None:
            """One event in each workspace whose events are taken away."""
            for workspace_id in slugs:
                if (actor := person(request.user, workspace_id, "admin")) is not None:
                    audit_export.leave_event(actor, form, told)

        rows = AuditEvent.objects.filter(pk__in=[event_id for event_id, _, _ in events])
        name, whose = audit_export.name_of("-".join(slugs.values()), told), str(min(slugs, default=""))
        try:
            return audit_export.stream(rows, form, name, whose, keep)
        except Refusal as refusal:
            self.message_user(request, refusal.detail, messages.ERROR)
            return None

    def _shown(self, request: HttpRequest) -> Workspace | None:
        """The workspace that is shown; asked for once."""
        kept: Any = request
        if not hasattr(kept, "audit_workspace"):
            theirs = belonging(request).order_by("slug")
            wanted = request.GET.get(WorkspaceFilter.parameter_name)
            kept.audit_workspace = (theirs.filter(slug=wanted) if wanted else theirs).first()
        found: Workspace | None = kept.audit_workspace
        return found

    def _newest(self, workspace: Workspace, wanted: Wanted) -> list[uuid.UUID]:
        places, _ = audit_listing.positions(workspace.pk, wanted, Cut(CAP - 1))
        return [event_id for _, event_id in places]


@admin.register(AuditPending)
class AuditPendingAdmin(TenantAdmin):
    list_display = ("event",)


@admin.register(AuditSeal)
class AuditSealAdmin(TenantAdmin):
    found_by = ("event",)
    list_display = ("workspace", "position", "event")
    list_select_related = ("workspace",)


@admin.register(AuditHead)
class AuditHeadAdmin(TenantAdmin):
    list_display = ("workspace", "position", "hash", "sealed_at", "key_id")
    list_select_related = ("workspace",)


@admin.register(AuditCheck)
class AuditCheckAdmin(TenantAdmin):
    """What checks of whole chains found."""

    found_by: ClassVar[tuple[str, ...]] = ("event",)
    list_display = ("workspace", "at", "checked", "waiting", "against", "fault")
    list_select_related = ("workspace",)


def _wanted(request: HttpRequest) -> Wanted:
    """What the filters beside the list ask for."""
    given = [
        (one.parameter_name, (value,)) for one in FILTERS if (value := request.GET.get(one.parameter_name, "")[:300])
    ]
    span = _span(request.GET.get(DateFilter.parameter_name, ""))
    times = [] if span is None else [(">=", span[0]), ("<", span[1])]
    return Wanted([(name, values) for name, values in given if "\0" not in values[0]], times)


def _span(text: str) -> tuple[datetime, datetime] | None:
    """The year, month or day that a text names, from its beginning to its end in UTC; None of any other text."""
    if not DATE.fullmatch(text):
        return None
    try:
        begin = datetime.fromisoformat(f"{text}{'-01-01'[len(text) - 4 :] if len(text) < 10 else ''}").replace(
            tzinfo=UTC
        )
        if len(text) == len("2026"):
            return begin, begin.replace(year=begin.year + 1)
        return begin, (begin + timedelta(days=31)).replace(day=1) if len(text) == len("2026-11") else begin + timedelta(
            days=1
        )
    except (ValueError, OverflowError):
        return None


def _dates(request: HttpRequest, workspace_id: uuid.UUID) -> list[tuple[str, str, bool]]:
    """The hierarchy of dates as (address, words, whether it leads up): years, or what the chosen one is made of.

    It goes from the first event to the newest by the calendar alone: nothing is counted, and a day may be empty.
    """
    own = AuditEvent.objects.filter(workspace_id=workspace_id)
    ends = [own.order_by(*order).values_list("at", flat=True).first() for order in (("at", "id"), ("-at", "-id"))]
    first, last = (end.date() if end else None for end in ends)
    if first is None or last is None:
        return []
    chosen = request.GET.get(DateFilter.parameter_name, "")
    span = _span(chosen)
    if span is None:
        return [(_address(request, f"{year:04}"), f"{year:04}", False) for year in range(first.year, last.year + 1)]
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    inside = [day for day in days if span[0].date() <= day < span[1].date()]
    below = dict.fromkeys(f"{day:%Y-%m-%d}"[: len(chosen) + 3] for day in inside if len(chosen) < len("2026-11-30"))
    above = ["", *(chosen[:length] for length in (4, 7, 10) if length <= len(chosen))]
    return [
        *((_address(request, value), value or "all dates", True) for value in above),
        *((_address(request, value), value, False) for value in below),
    ]


def _address(request: HttpRequest, value: str) -> str:
    """The list's own address with another date, from its first page."""
    params = request.GET.copy()
    for name in (DateFilter.parameter_name, "p"):
        params.pop(name, None)
    if value:
        params[DateFilter.parameter_name] = value
    return f"?{params.urlencode()}"


def _link(name: str, found: uuid.UUID, workspace: str, text: str) -> SafeString:
    return format_html('<a href="{}?workspace={}">{}</a>', reverse(name, args=[found]), workspace, text)
