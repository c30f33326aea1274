"""The operations API's route for the account of a run: every outcome in sentences, in one answer."""

from __future__ import annotations

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines.access import VIEW
from pipelines.account import account_of
from pipelines.api.endpoints import answer
from pipelines.api.operations_endpoint import Call, OperationsEndpoint
from pipelines.api.shapes import Flag, Identifier, ListOf, OneOf, Shape, Text
from pipelines.models import Run
from pipelines.states import RunStatus, StageState


class StageAccountView(Shape):
    """A stage: how it stands, its story, what is uncertain of it, and what can be done next. `request_digest`: that of
    the answer that it awaits."""

    stage_id = Identifier()
    name = Text()
    status = OneOf(StageState.values)
    standing = Text()
    request_digest = Text(allow_null=True)
    story = ListOf(child=Text())
    uncertain = ListOf(child=Text())
    next = ListOf(child=Text())


class AccountView(Shape):
    """A run in sentences. `remains`: what may still go on outside after it was ended; `shortened`: only the newest part
    of its story is told; `asked_by`: who reads."""

    execution_id = Identifier()
    name = Text(blank=True)
    environment = Text()
    status = OneOf(RunStatus.values)
    is_paused = Flag()
    asked_by = Text()
    standing = Text()
    story = ListOf(child=Text())
    stages = ListOf(child=StageAccountView())
    remains = ListOf(child=Text())
    budget = ListOf(child=Text())
    next = ListOf(child=Text())
    shortened = Flag()


class ExecutionAccount(OperationsEndpoint):
    """What happened to a run and to each of its stages, who decided what and why, and what can be done next."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=AccountView)
    def get(self, call: Call) -> HttpResponse:
        run: Run = call.target
        told = account_of(run)
        return answer(
            {
                "execution_id": str(run.id),
                "name": run.name,
                "environment": run.environment.slug,
                "status": run.status,
                "is_paused": run.paused,
                "asked_by": call.actor.name,
                "standing": told.standing,
                "story": told.story,
                "stages": [
                    {
                        "stage_id": str(stage.id),
                        "name": stage.name,
                        "status": stage.state,
                        "standing": stage.standing,
                        "request_digest": stage.request_digest or None,
                        "story": stage.story,
                        "uncertain": stage.uncertain,
                        "next": stage.next,
                    }
                    for stage in told.stages
                ],
                "remains": told.remains,
                "budget": told.budget,
                "next": told.next,
                "shortened": told.shortened,
            }
        )


urlpatterns = [path("executions/<str:execution_id>/account", ExecutionAccount.as_view())]
