"""Rows as the console would make them, with nothing in them that a test did not ask for.

Runs are not made here: they come out of `pipelines.creation.create_run`, as in life (the cast's `start_run`).
"""

from __future__ import annotations

from typing import Any

import factory
from django.contrib.auth import get_user_model
from factory.django import DjangoModelFactory

from pipelines.models import (
    Application,
    Environment,
    Member,
    Pipeline,
    Policy,
    ReconciliationItem,
    Role,
    Run,
    Workspace,
)

LADDER = (("development", 1, False), ("staging", 2, False), ("production", 3, True))


class WorkspaceFactory(DjangoModelFactory[Workspace]):
    """A workspace with the ladder that every new one has."""

    class Meta:
        model = Workspace
        skip_postgeneration_save = True

    slug = factory.Sequence(lambda number: f"workspace-{number}")

    @factory.post_generation
    def ladder(self, create: bool, extracted: Any, **_: Any) -> None:
        if create:
            steps = LADDER if extracted is None else extracted
            Environment.objects.bulk_create(
                Environment(workspace=self, slug=slug, rank=rank, protected=protected)
                for slug, rank, protected in steps
            )


class EnvironmentFactory(DjangoModelFactory[Environment]):
    class Meta:
        model = Environment

    workspace = factory.SubFactory(WorkspaceFactory)
    slug = factory.Sequence(lambda number: f"environment-{number}")
    rank = factory.Sequence(lambda number: 10 + number)


class ApplicationFactory(DjangoModelFactory[Application]):
    class Meta:
        model = Application

    workspace = factory.SubFactory(WorkspaceFactory)
    name = factory.Sequence(lambda number: f"application-{number}")


class UserFactory(DjangoModelFactory[Any]):
    """A user who can log in with the password `secret`."""

    class Meta:
        model = get_user_model()
        skip_postgeneration_save = True

    username = factory.Sequence(lambda number: f"user-{number}")
    password = factory.django.Password("secret")


class MemberFactory(DjangoModelFactory[Member]):
    class Meta:
        model = Member

    workspace = factory.SubFactory(WorkspaceFactory)
    user = factory.SubFactory(UserFactory)
    role = Role.VIEWER


class PipelineFactory(DjangoModelFactory[Pipeline]):
    """A pipeline without any release; register one with `pipelines.releases.register_release`."""

    class Meta:
        model = Pipeline

    workspace = factory.SubFactory(WorkspaceFactory)
    slug = factory.Sequence(lambda number: f"pipeline-{number}")
    name = factory.LazyAttribute(lambda pipeline: pipeline.slug)


class PolicyFactory(DjangoModelFactory[Policy]):
    class Meta:
        model = Policy

    workspace = factory.SubFactory(WorkspaceFactory)
    name = factory.Sequence(lambda number: f"policy-{number}")
    kind = "retry"


def left_by(run: Run) -> ReconciliationItem:
    """Something that the run may have left outside, not settled yet."""
    stage = run.stages.order_by("position")[0]
    told = {"kind": "running_attempt", "detail": f"{stage.name}: attempt 1 may still run at hand-1"}
    made: ReconciliationItem = ReconciliationItem.objects.create(
        run=run, workspace_id=run.workspace_id, stage=stage, attempt_number=1, **told
    )
    return made
