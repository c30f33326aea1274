"""The operations API's routes for artifacts: those of runs, and the baselines that runs build on (contract §3, R14)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from pipelines import artifact_storing, artifacts, queries
from pipelines.access import RELEASE, VIEW, Actor
from pipelines.api.artifact_shapes import ArtifactName, Base64, Digest, MediaType
from pipelines.api.bodies import MIB
from pipelines.api.downloads import download
from pipelines.api.endpoints import answer
from pipelines.api.operations import list_parameters
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb, page_answer
from pipelines.api.operations_serializers import HUGE, listed, time
from pipelines.api.serializers import NAME
from pipelines.api.shapes import Flag, Identifier, Moment, Shape, Text, Whole
from pipelines.artifacts import Given
from pipelines.errors import Refusal
from pipelines.filters import AnyId, AnyOf, ListFilter, Truth
from pipelines.models import Application, Artifact, Environment, Stage
from pipelines.paging import page_of, read_cut

ORDER = ("at", "id")
FILE = "content"  # the name of the file in a form


class OfStages(AnyId):
    """Artifacts of stages: by way of their runs, which the index knows."""

    def filter(self, qs: Any, value: Any) -> Any:
        if not value:
            return qs
        return qs.filter(stage_id__in=value, run_id__in=Stage.objects.filter(id__in=value).values("run_id"))


class IsBaseline(Truth):
    """Baselines have no run."""

    def filter(self, qs: Any, value: Any) -> Any:
        wanted = set(value or ())
        return qs.filter(run__isnull=wanted.pop()) if len(wanted) == 1 else qs


class ArtifactFilter(ListFilter):
    """Artifacts by run, stage and name, and whether they are baselines."""

    execution_id = AnyId("run_id")
    stage_id = OfStages()
    name = AnyOf()
    is_baseline = IsBaseline()


class BaselineRequest(Verb):
    """Bytes that runs build on. Without an application or an environment they are for all of the workspace."""

    spelling = {"content": "content_base64"}

    name = ArtifactName()
    content = Base64()
    sha256 = Digest(required=False, help_text="where it is given, it must be that of the bytes")
    media_type = MediaType(required=False)
    application = Text(max_length=NAME, required=False, help_text="its name: only its keys see it")
    environment = Text(max_length=100, required=False, help_text="its slug: only keys of it see it")


class BaselineForm(Shape):
    """The same as a form (multipart/form-data): the file is called `content`; its own name is the default of `name`."""

    name = ArtifactName(required=False)
    content = Base64()
    sha256 = Digest(required=False)
    media_type = MediaType(required=False)
    application = Text(required=False)
    environment = Text(required=False)
    reason = Text(blank=True, required=False)


class ArtifactView(Shape):
    """An artifact. Of a baseline all that tells of a run is null; its application and environment may be."""

    id = Identifier()
    name = Text()
    media_type = Text(allow_null=True)
    sha256 = Text()
    size = Whole(min_value=0, max_value=HUGE)
    is_baseline = Flag()
    execution_id = Identifier(allow_null=True)
    stage_id = Identifier(allow_null=True)
    stage = Text(allow_null=True)
    attempt_id = Identifier(allow_null=True)
    attempt = Whole(min_value=1, max_value=HUGE, allow_null=True)
    application = Text(allow_null=True)
    environment = Text(allow_null=True)
    added_by = Text(allow_null=True)
    created_at = Moment()


def artifact_views(rows: Sequence[Artifact]) -> list[dict[str, Any]]:
    """Artifacts of `artifacts.listed`, with the numbers of their attempts: one query for all."""
    numbers = queries.attempt_numbers(one.attempt for one in rows if one.attempt is not None)
    return [
        {
            "id": str(one.id),
            "name": one.name,
            "media_type": one.media_type or None,
            "sha256": one.digest,
            "size": one.size,
            "is_baseline": one.run_id is None,
            "execution_id": _text(one.run_id),
            "stage_id": _text(one.stage_id),
            "stage": one.stage.name if one.stage else None,
            "attempt_id": _text(one.attempt),
            "attempt": numbers.get(one.attempt) if one.attempt else None,
            "application": one.application.name if one.application else None,
            "environment": one.environment.slug if one.environment else None,
            "added_by": one.added_by or None,
            "created_at": time(one.at),
        }
        for one in rows
    ]


class Artifacts(OperationsEndpoint):
    """Artifacts, newest first; POST adds a baseline, whose name is its own in the workspace. The same again: 200."""

    access = {"GET": VIEW, "POST": RELEASE}
    bodies = {"POST": BaselineRequest}
    actions = {"POST": artifact_storing.ADD_BASELINE}
    filters = ArtifactFilter.names()
    most_bytes = 16 * MIB
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=listed(ArtifactView))
    def get(self, call: Call) -> HttpResponse:
        rows = ArtifactFilter.narrow(artifacts.listed(call.actor), call.params)
        page = page_of(rows, read_cut(call.params), ORDER)
        return page_answer(call.request, page, artifact_views(page.rows))

    @extend_schema(
        request={"application/json": BaselineRequest, "multipart/form-data": BaselineForm},
        responses={201: ArtifactView, 200: ArtifactView},
    )
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; the same again is the same artifact, so there is nothing to remember
        told = call.body
        data = told["content"]
        stored = artifact_storing.add_baseline(
            call.actor,
            Given(told["name"], data, told.get("sha256") or sha256(data).hexdigest(), told.get("media_type", "")),
            application_id=_application(call.actor, told.get("application")),
            environment_id=_environment(call.actor, told.get("environment")),
            reason=call.reason,
        )
        view = artifact_views([artifacts.find(call.actor, stored.id)])[0]
        return answer(view, 201 if stored.is_new else 200)

    def _read(self, call: Call, method: str) -> tuple[Any, Exception | None]:
        if method != "POST" or call.request.content_type != "multipart/form-data":
            return super()._read(call, method)
        try:
            return _form(call.request), None
        except MultiPartParserError as error:
            message = f"the form cannot be read: {error}"
            return None, Refusal("validation_error", message, errors={"": [message]})


class OneArtifact(OperationsEndpoint):
    """What is known of an artifact."""

    access = {"GET": VIEW}
    for_key = True

    def find(self, actor: Actor, **ids: uuid.UUID) -> Artifact:
        return artifacts.find(actor, ids["artifact_id"])

    @extend_schema(responses=ArtifactView)
    def get(self, call: Call) -> HttpResponse:
        return answer(artifact_views([call.target])[0])


class ArtifactContent(OperationsEndpoint):
    """The bytes, checked against their digest; `artifact_corrupt` where they are not what was stored (R15)."""

    access = {"GET": VIEW}
    for_key = True
    gives_bytes = True

    def find(self, actor: Actor, **ids: uuid.UUID) -> Artifact:
        return artifacts.find(actor, ids["artifact_id"])

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    def get(self, call: Call) -> HttpResponse:
        return download(call.target, artifacts.load(call.actor, call.target))


class ArtifactsOfRun(OperationsEndpoint):
    """The artifacts of a run, newest first, those of earlier epochs too."""

    access = {"GET": VIEW}
    filters = tuple(name for name in ArtifactFilter.names() if name in ("stage_id", "name"))
    for_key = True

    @extend_schema(parameters=list_parameters(*filters), responses=listed(ArtifactView))
    def get(self, call: Call) -> HttpResponse:
        rows = ArtifactFilter.narrow(artifacts.listed(call.actor, call.target), call.params)
        page = page_of(rows, read_cut(call.params), ORDER)
        return page_answer(call.request, page, artifact_views(page.rows))


urlpatterns = [
    path("artifacts", Artifacts.as_view()),
    path("artifacts/<str:artifact_id>", OneArtifact.as_view()),
    path("artifacts/<str:artifact_id>/content", ArtifactContent.as_view()),
    path("executions/<str:execution_id>/artifacts", ArtifactsOfRun.as_view()),
]


def _form(request: HttpRequest) -> dict[str, Any]:
    """A form as the JSON body that it stands for."""
    told: dict[str, Any] = dict(request.POST.items())
    files: dict[str, Any] = dict(request.FILES.items())
    for field, file in files.items():
        told["content_base64" if field == FILE else field] = file.read()
        if field == FILE:
            told.setdefault("name", file.name)
    return told


def _application(actor: Actor, name: str | None) -> uuid.UUID | None:
    if name is None:
        return None
    found = Application.objects.filter(workspace_id=actor.workspace_id, name=name).values_list("id", flat=True).first()
    if found is None:
        message = f"no application is called {name!r}"
        raise Refusal("validation_error", message, errors={"application": [message]})
    return found


def _environment(actor: Actor, slug: str | None) -> uuid.UUID | None:
    if slug is None:
        return None
    found = Environment.objects.filter(workspace_id=actor.workspace_id, slug=slug).values_list("id", flat=True).first()
    if found is None:
        raise Refusal("environment_unknown", f"no environment is called {slug!r}")
    return found


def _text(found: uuid.UUID | None) -> str | None:
    return str(found) if found is not None else None
