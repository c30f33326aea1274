"""The database chooses a stage's line as `retries.effective_policy` chooses among policies, whatever they name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from pipelines import policies, throttles
from pipelines.models import Environment, Pipeline, Policy, PolicyKind, Workspace
from pipelines.retries import Target
from pipelines.sql import query
from tests.factories import WorkspaceFactory

NAMES = {
    "stage": ("load", "Load", "pay"),
    "handler": ("H", "h"),
    "pipeline": ("nightly", "hourly"),
    "environment": ("development", "production"),
}
matches = st.fixed_dictionaries({}, optional={field: st.sampled_from(("", *names)) for field, names in NAMES.items()})
policy = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(PolicyKind.values),
        "status": st.sampled_from(("active", "active", "paused")),
        "match": matches,
        "age": st.integers(0, 5),
    }
)
targets = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(NAMES["stage"]),
        "handler": st.sampled_from(NAMES["handler"]),
        "pipeline": st.sampled_from((None, *NAMES["pipeline"])),
        "environment": st.sampled_from(NAMES["environment"]),
    }
)
RULES = {"concurrency": {"max_active": 1}, "rate": {"count": 1, "per_seconds": 1}, "timeout": {"seconds": 1}}


class Choice(TestCase):
    workspace: Workspace
    pipelines: dict[str | None, Any]
    environments: dict[str, Any]

    @classmethod
    def setUpTestData(cls) -> None:
        cls.workspace = WorkspaceFactory()
        made = {
            slug: Pipeline.objects.create(workspace=cls.workspace, slug=slug, name=slug) for slug in NAMES["pipeline"]
        }
        cls.pipelines = {None: None} | {slug: one.pk for slug, one in made.items()}
        cls.environments = dict(Environment.objects.filter(workspace=cls.workspace).values_list("slug", "pk"))

    @settings(max_examples=150)
    @given(told=st.lists(policy, max_size=8), target=targets)
    def test_both_choose_the_same(self, told: list[dict[str, Any]], target: dict[str, Any]) -> None:
        """Model §3.3: stage > handler > pipeline > environment, then the newest; of one instant the same one too."""
        with transaction.atomic():
            self.make(told)
            rules = policies.for_claims([self.workspace.pk])
            mine = rules.throttles(self.workspace.pk, Target(**target | {"pipeline": target["pipeline"] or ""}))
            ((line,),) = query(
                "SELECT recourse_throttle(%s, %s, %s, %s, %s)",
                [
                    self.workspace.pk,
                    self.environments[target["environment"]],
                    self.pipelines[target["pipeline"]],
                    target["stage"],
                    target["handler"],
                ],
            )
            assert line == throttles.line(mine)
            transaction.set_rollback(True)

    def make(self, told: list[dict[str, Any]]) -> None:
        start = datetime(2026, 5, 1, tzinfo=UTC)
        Policy.objects.bulk_create(
            Policy(
                workspace=self.workspace,
                name=f"policy {number}",
                kind=one["kind"],
                status=one["status"],
                match=one["match"],
                rule=RULES.get(one["kind"], {}),
                created_at=start + timedelta(microseconds=one["age"]),
            )
            for number, one in enumerate(told)
        )


pytestmark = pytest.mark.django_db
