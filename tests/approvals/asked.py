"""What the tests of requests begin with: rules, more people, and what is asked for under them."""

from __future__ import annotations

import uuid
from typing import Any

from approvals.models import ApprovalRequest, ApprovalRule
from approvals.requests import Answer, decide_request
from pipelines.access import Actor, person
from pipelines.models import Workspace
from recovery.models import Operation
from tests.factories import MemberFactory


def rule(workspace: Workspace, *kinds: str, **more: Any) -> ApprovalRule:
    """A rule of the workspace: two approvers, unless it is told otherwise."""
    told = {"name": f"rule {uuid.uuid4()}", "count": 2, **more}
    made: ApprovalRule = ApprovalRule.objects.create(workspace=workspace, kinds=list(kinds), **told)
    return made


def join(workspace: Workspace, role: str, name: str) -> Actor:
    """Another person of the workspace."""
    user = MemberFactory(workspace=workspace, role=role, user__username=name).user
    actor = person(user, workspace.id, "api")
    assert actor is not None
    return actor


def agree(subject: uuid.UUID, actor: Actor, **more: Any) -> Answer:
    return decide_request(subject, actor=actor, approved=True, **more)


def reject(subject: uuid.UUID, actor: Actor, reason: str = "no", **more: Any) -> Answer:
    return decide_request(subject, actor=actor, approved=False, reason=reason, **more)


def rounds(subject: uuid.UUID) -> list[ApprovalRequest]:
    return list(ApprovalRequest.objects.filter(subject=subject).order_by("round"))


def states(subject: uuid.UUID) -> tuple[str, str]:
    """Of the newest round, and of its operation."""
    return rounds(subject)[-1].state, Operation.objects.get(id=subject).state
