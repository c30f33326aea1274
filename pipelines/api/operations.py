"""The operations API's routes for looking at runs, and for what a workspace is made of (contract §3)."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from pipelines import audit_listing, catalog, queries, release_plan, releases
from pipelines.access import ADMINISTER, RELEASE, VIEW, Actor
from pipelines.api import operations_serializers as wire
from pipelines.api.endpoints import answer, not_found
from pipelines.api.operations_endpoint import Call, OperationsEndpoint, Verb, page_answer
from pipelines.api.shapes import Wrong, refusal
from pipelines.audit_names import as_json, names_of
from pipelines.definitions import for_pipeline
from pipelines.errors import Refusal
from pipelines.filters import RUN_FILTERS, read_run_filter
from pipelines.list_filters import (
    AttemptFilter,
    AuditEventFilter,
    LogLineFilter,
    PipelineFilter,
    PolicyFilter,
    ReleaseFilter,
    WorkerFilter,
)
from pipelines.models import Application, AuditHead, Environment, Pipeline, Policy, Release
from pipelines.paging import number, page_of, read_cut
from pipelines.sql import database_now


def list_parameters(*names: str) -> list[OpenApiParameter]:
    """A list's parameters for OpenAPI; every filter may repeat."""
    filters = [OpenApiParameter(name, OpenApiTypes.STR, many=True) for name in names]
    return [*filters, OpenApiParameter("cursor", OpenApiTypes.STR), OpenApiParameter("page_size", OpenApiTypes.INT)]


# runs


class Executions(OperationsEndpoint):
    """Runs, newest first."""

    access = {"GET": VIEW}
    filters = RUN_FILTERS
    for_key = True

    @extend_schema(parameters=list_parameters(*RUN_FILTERS), responses=wire.listed(wire.ListedExecution))
    def get(self, call: Call) -> HttpResponse:
        page = queries.run_list(call.actor, read_run_filter(call.params), read_cut(call.params))
        progress = queries.run_progress([run.id for run in page.rows])
        nothing = queries.Progress()
        items = [wire.listed_execution(run, progress.get(run.id, nothing)) for run in page.rows]
        return page_answer(call.request, page, items)


class Execution(OperationsEndpoint):
    """One run."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=wire.ExecutionView)
    def get(self, call: Call) -> HttpResponse:
        return answer(wire.execution_view(call.target, queries.draining(call.target)))


class Stages(OperationsEndpoint):
    """The stages of a run in graph order, all on one page."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=wire.listed(wire.StageView))
    def get(self, call: Call) -> HttpResponse:
        stages = queries.stages(call.target)
        names = {stage.position: stage.name for stage in stages}
        results = [wire.stage_view(stage, names) for stage in stages]
        return answer({"next": None, "previous": None, "results": results})


class Attempts(OperationsEndpoint):
    """Every attempt of a run, newest first, those of earlier epochs too (P86)."""

    access = {"GET": VIEW}
    for_key = True
    filters = AttemptFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.AttemptView))
    def get(self, call: Call) -> HttpResponse:
        rows = AttemptFilter.narrow(queries.attempts(call.target), call.params)
        page = page_of(rows, read_cut(call.params), ("dispatched_at", "id"))
        return page_answer(call.request, page, [wire.attempt_view(attempt) for attempt in page.rows])


class Timeline(OperationsEndpoint):
    """What happened to a run, in the order in which it happened."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(parameters=list_parameters(), responses=wire.listed(wire.EventView))
    def get(self, call: Call) -> HttpResponse:
        page = page_of(queries.timeline(call.target), read_cut(call.params, (number,)), ("id",), descending=False)
        return page_answer(call.request, page, [wire.event_view(event) for event in page.rows])


class Logs(OperationsEndpoint):
    """What the handlers of a run logged, in the order in which it came in, of every attempt (P86)."""

    access = {"GET": VIEW}
    for_key = True
    filters = LogLineFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.LogLineView))
    def get(self, call: Call) -> HttpResponse:
        rows = LogLineFilter.narrow(queries.log_lines(call.target), call.params)
        page = page_of(rows, read_cut(call.params, (number,)), ("place",), descending=False)
        return page_answer(call.request, page, [wire.log_line_view(line) for line in page.rows])


class Blockers(OperationsEndpoint):
    """Why a run does not move: holder, cause and next look of everything it waits for."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=wire.listed(wire.BlockerView))
    def get(self, call: Call) -> HttpResponse:
        results = [wire.blocker_view(blocker) for blocker in queries.blockers(call.target)]
        return answer({"next": None, "previous": None, "results": results})


class Children(OperationsEndpoint):
    """The runs that the stages of a run started, newest first, also those that a later epoch began anew (F38, F73)."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(parameters=list_parameters(), responses=wire.listed(wire.ChildView))
    def get(self, call: Call) -> HttpResponse:
        page = page_of(queries.children(call.target), read_cut(call.params))
        return page_answer(call.request, page, [wire.child_view(link) for link in page.rows])


class StageOutputs(OperationsEndpoint):
    """Everything that a stage ever produced or was given, newest first, so that epochs can be compared (P65)."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(parameters=list_parameters(), responses=wire.listed(wire.OutputView))
    def get(self, call: Call) -> HttpResponse:
        page = page_of(queries.outputs(call.target), read_cut(call.params), ("at", "id"))
        items = [wire.output_view(one, current=one.id == call.target.output_id) for one in page.rows]
        return page_answer(call.request, page, items)


class StagePolicies(OperationsEndpoint):
    """Which policies rule a stage, which ones they outrank, and why (P47)."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=wire.EffectivePolicies)
    def get(self, call: Call) -> HttpResponse:
        views = queries.effective_policies(call.target)
        return answer({"stage_id": str(call.target.id), "policies": [wire.effective_policy(view) for view in views]})


# what a workspace is made of


class Environments(OperationsEndpoint):
    """The ladder; POST makes a rung or changes the one of that slug."""

    access = {"GET": VIEW, "POST": ADMINISTER}
    bodies = {"POST": wire.EnvironmentRequest}
    actions = {"POST": "environment.save"}

    @extend_schema(responses=wire.listed(wire.EnvironmentView))
    def get(self, call: Call) -> HttpResponse:
        rungs = Environment.objects.filter(workspace_id=call.actor.workspace_id).order_by("rank", "slug")
        return answer({"next": None, "previous": None, "results": [wire.environment_view(rung) for rung in rungs]})

    @extend_schema(request=wire.EnvironmentRequest, responses={201: wire.EnvironmentView, 200: wire.EnvironmentView})
    def post(self, call: Call) -> HttpResponse:
        rung, created = catalog.save_environment(actor=call.actor, **call.body)
        return answer(wire.environment_view(rung), 201 if created else 200)


class Applications(OperationsEndpoint):
    """The programs that create runs and run handlers."""

    access = {"GET": VIEW, "POST": ADMINISTER}
    bodies = {"POST": wire.ApplicationRequest}
    actions = {"POST": "application.save"}

    @extend_schema(parameters=list_parameters(), responses=wire.listed(wire.ApplicationView))
    def get(self, call: Call) -> HttpResponse:
        rows = Application.objects.filter(workspace_id=call.actor.workspace_id)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, [wire.application_view(one) for one in page.rows])

    @extend_schema(request=wire.ApplicationRequest, responses={201: wire.ApplicationView, 200: wire.ApplicationView})
    def post(self, call: Call) -> HttpResponse:
        application, created = catalog.save_application(actor=call.actor, name=call.body["name"])
        return answer(wire.application_view(application), 201 if created else 200)


class OneApplication(OperationsEndpoint):
    """Another name for an application."""

    access = {"PATCH": ADMINISTER}
    bodies = {"PATCH": wire.ApplicationRequest}
    actions = {"PATCH": "application.rename"}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Application:
        return _find(Application, actor, ids["application_id"])

    @extend_schema(request=wire.ApplicationRequest, responses=wire.ApplicationView)
    def patch(self, call: Call) -> HttpResponse:
        application = catalog.rename_application(call.target.id, actor=call.actor, name=call.body["name"])
        return answer(wire.application_view(application))


class Pipelines(OperationsEndpoint):
    """The definitions that are known by a slug; POST makes one or changes its name and description."""

    access = {"GET": VIEW, "POST": RELEASE}
    bodies = {"POST": wire.PipelineRequest}
    actions = {"POST": "pipeline.save"}
    filters = PipelineFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.PipelineView))
    def get(self, call: Call) -> HttpResponse:
        rows = PipelineFilter.narrow(Pipeline.objects.filter(workspace_id=call.actor.workspace_id), call.params)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, [wire.pipeline_view(one) for one in page.rows])

    @extend_schema(request=wire.PipelineRequest, responses={201: wire.PipelineView, 200: wire.PipelineView})
    def post(self, call: Call) -> HttpResponse:
        pipeline, created = catalog.save_pipeline(actor=call.actor, **call.body)
        return answer(wire.pipeline_view(pipeline), 201 if created else 200)


class Releases(OperationsEndpoint):
    """The immutable versions of pipelines; POST registers one, and with `activate` puts it in force."""

    access = {"GET": VIEW, "POST": RELEASE}
    bodies = {"POST": wire.ReleaseRequest}
    actions = {"POST": "release.register"}
    filters = ReleaseFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.ReleaseView))
    def get(self, call: Call) -> HttpResponse:
        rows = ReleaseFilter.narrow(_releases(call.actor).defer("definition"), call.params)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, [wire.release_view(one) for one in page.rows])

    @extend_schema(request=wire.ReleaseRequest, responses={201: wire.ReleaseView, 200: wire.RELEASE_OR_PLAN})
    def post(self, call: Call) -> HttpResponse:
        if call.is_dry_run:
            return self._plan(call)
        pipeline = _named(Pipeline, call, "pipeline")
        environment = self._environment(call)
        definition = for_pipeline(call.body["definition"], pipeline.slug)
        release, created = releases.register_release(
            actor=call.actor,
            pipeline=pipeline,
            environment=environment,
            definition=definition,
            activate=call.body["activate"],
        )
        return answer(wire.release_view(release), 201 if created else 200)

    def _plan(self, call: Call) -> HttpResponse:
        """What registering would change; the pipeline need not be there yet."""
        slug = call.body["pipeline"]
        pipeline = Pipeline.objects.filter(workspace_id=call.actor.workspace_id, slug=slug).first()
        environment = self._environment(call)
        definition = for_pipeline(call.body["definition"], slug)
        found = release_plan.plan(actor=call.actor, pipeline=pipeline, environment=environment, definition=definition)
        source = (definition.get("source") or {}).get("sha256", "")
        return answer(wire.release_plan(found, slug, environment.slug, is_new=pipeline is None, source=source))

    def _environment(self, call: Call) -> Environment:
        slug = call.body["environment"]
        found = Environment.objects.filter(workspace_id=call.actor.workspace_id, slug=slug).first()
        if found is None:
            raise Refusal("environment_unknown", f"no environment is called {slug!r}")
        return found


class OneRelease(OperationsEndpoint):
    """A release with its definition."""

    access = {"GET": VIEW}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Release:
        return _find_release(actor, ids["release_id"])

    @extend_schema(responses=wire.WholeRelease)
    def get(self, call: Call) -> HttpResponse:
        return answer(wire.whole_release(call.target))


class ActivateRelease(OperationsEndpoint):
    """Puts a release in force; the one before it becomes superseded."""

    access = {"POST": RELEASE}
    bodies = {"POST": Verb}
    actions = {"POST": "release.activate"}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Release:
        return _find_release(actor, ids["release_id"])

    @extend_schema(request=Verb, responses=wire.ReleaseView)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # checked like any other; activating again changes nothing, so there is nothing to remember
        releases.activate_release(call.target.id, actor=call.actor, reason=call.reason)
        return answer(wire.release_view(_find_release(call.actor, call.target.id)))


class ReviewRelease(OperationsEndpoint):
    """A person's word that a release may send to whom it names; never of who registered it (R41)."""

    access = {"POST": RELEASE}
    bodies = {"POST": Verb}
    actions = {"POST": "release.review"}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Release:
        return _find_release(actor, ids["release_id"])

    @extend_schema(request=Verb, responses=wire.ReleaseView)
    def post(self, call: Call) -> HttpResponse:
        _ = call.key  # as for activating: reviewing again changes nothing
        releases.review_release(call.target.id, actor=call.actor, reason=call.reason)
        return answer(wire.release_view(_find_release(call.actor, call.target.id)))


class Policies(OperationsEndpoint):
    """The rules that target stages and outrank their own options. POST makes one; the same again changes nothing, and
    answers 200.
    """

    access = {"GET": VIEW, "POST": ADMINISTER}
    bodies = {"POST": wire.PolicyRequest}
    actions = {"POST": "policy.add"}
    filters = PolicyFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.PolicyItem))
    def get(self, call: Call) -> HttpResponse:
        rows = PolicyFilter.narrow(Policy.objects.filter(workspace_id=call.actor.workspace_id), call.params)
        page = page_of(rows, read_cut(call.params))
        return page_answer(call.request, page, [wire.policy_item(one) for one in page.rows])

    @extend_schema(request=wire.PolicyRequest, responses={201: wire.PolicyItem, 200: wire.PolicyItem})
    def post(self, call: Call) -> HttpResponse:
        policy, is_new = catalog.add_policy_once(actor=call.actor, **call.body)
        return answer(wire.policy_item(policy), 201 if is_new else 200)


class OnePolicy(OperationsEndpoint):
    """Changes a policy, or pauses it."""

    access = {"PATCH": ADMINISTER}
    bodies = {"PATCH": wire.PolicyChange}
    actions = {"PATCH": "policy.change"}

    def find(self, actor: Actor, **ids: uuid.UUID) -> Policy:
        return _find(Policy, actor, ids["policy_id"])

    @extend_schema(request=wire.PolicyChange, responses=wire.PolicyItem)
    def patch(self, call: Call) -> HttpResponse:
        whole = {"match": call.target.match, "rule": call.target.rule} | call.body
        if problems := wire.policy_problems(call.target.kind, whole["match"], whole["rule"]):
            raise refusal(Wrong(*problems))
        return answer(wire.policy_item(catalog.change_policy(call.target.id, actor=call.actor, changes=call.body)))


# what was and is going on


class AuditEvents(OperationsEndpoint):
    """Who did, tried or was refused what, newest first; only of the own workspace (F144, F145).

    Where several filters meet a page may be short, or empty, and still have a next one: for one page no more than some
    thousand events are looked at.
    """

    access = {"GET": VIEW}
    filters = AuditEventFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.AuditEventView))
    def get(self, call: Call) -> HttpResponse:
        wanted = audit_listing.read(call.params)
        page = audit_listing.find(call.actor.workspace_id, wanted, read_cut(call.params)).page
        names = names_of(page.rows)
        return page_answer(call.request, page, [as_json(one, names) for one in page.rows])


class AuditHeads(OperationsEndpoint):
    """The signed ends of the workspace's audit chain, newest first; one kept elsewhere proves what there was (F147)."""

    access = {"GET": VIEW}

    @extend_schema(parameters=list_parameters(), responses=wire.listed(wire.AuditHeadView))
    def get(self, call: Call) -> HttpResponse:
        rows = AuditHead.objects.filter(workspace_id=call.actor.workspace_id)
        page = page_of(rows, read_cut(call.params, (number,)), ("id",))
        return page_answer(call.request, page, [wire.audit_head_view(one) for one in page.rows])


class Workers(OperationsEndpoint):
    """The sessions of the workspace's workers, newest first, and whether each was heard of lately."""

    access = {"GET": VIEW}
    filters = WorkerFilter.names()

    @extend_schema(parameters=list_parameters(*filters), responses=wire.listed(wire.WorkerView))
    def get(self, call: Call) -> HttpResponse:
        rows = WorkerFilter.narrow(queries.worker_sessions(call.actor), call.params)
        page = page_of(rows, read_cut(call.params, (uuid.UUID,)), ("id",))
        now = database_now()
        items = [wire.worker_view(one, live=queries.is_live(one, now)) for one in page.rows]
        return page_answer(call.request, page, items)


urlpatterns = [
    path("executions", Executions.as_view()),
    path("executions/<str:execution_id>", Execution.as_view()),
    path("executions/<str:execution_id>/stages", Stages.as_view()),
    path("executions/<str:execution_id>/attempts", Attempts.as_view()),
    path("executions/<str:execution_id>/timeline", Timeline.as_view()),
    path("executions/<str:execution_id>/logs", Logs.as_view()),
    path("executions/<str:execution_id>/blockers", Blockers.as_view()),
    path("executions/<str:execution_id>/children", Children.as_view()),
    path("stages/<str:stage_id>/outputs", StageOutputs.as_view()),
    path("stages/<str:stage_id>/policies", StagePolicies.as_view()),
    path("environments", Environments.as_view()),
    path("applications", Applications.as_view()),
    path("applications/<str:application_id>", OneApplication.as_view()),
    path("pipelines", Pipelines.as_view()),
    path("releases", Releases.as_view()),
    path("releases/<str:release_id>", OneRelease.as_view()),
    path("releases/<str:release_id>/activate", ActivateRelease.as_view()),
    path("releases/<str:release_id>/review", ReviewRelease.as_view()),
    path("policies", Policies.as_view()),
    path("policies/<str:policy_id>", OnePolicy.as_view()),
    path("audit-events", AuditEvents.as_view()),
    path("audit-heads", AuditHeads.as_view()),
    path("workers", Workers.as_view()),
]


def _releases(actor: Actor) -> Any:
    rows = Release.objects.filter(workspace_id=actor.workspace_id, pipeline__isnull=False)
    return rows.select_related("pipeline", "environment")


def _find_release(actor: Actor, release_id: uuid.UUID) -> Release:
    release = _releases(actor).filter(id=release_id).first()
    if release is None:
        raise not_found()
    return release


def _find(model: Any, actor: Actor, found_id: uuid.UUID) -> Any:
    found = model.objects.filter(id=found_id, workspace_id=actor.workspace_id).first()
    if found is None:
        raise not_found()
    return found


def _named(model: Any, call: Call, field: str) -> Any:
    found = model.objects.filter(workspace_id=call.actor.workspace_id, slug=call.body[field]).first()
    if found is None:
        message = f"no {field} is called {call.body[field]!r}"
        raise Refusal("validation_error", message, errors={field: [message]})
    return found
