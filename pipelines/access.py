"""Who may: roles, capabilities, and the actor on whose behalf something is done.

Who acts comes from authentication, never from a body. A Django superuser acts only in workspaces of which they are a
member, in the role they have there.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from pipelines.errors import Refusal
from pipelines.models import Member, Role

VIEW, STEER, RECOVER, DECIDE, RELEASE, ADMINISTER = "view", "steer", "recover", "decide", "release", "administer"

# model.md §5: capability → the roles that have it
CAPABILITIES: dict[str, frozenset[str]] = {
    VIEW: frozenset(Role.values),
    STEER: frozenset({Role.OPERATOR, Role.RELEASE_MANAGER, Role.ADMIN}),  # pause, resume, cancel
    RECOVER: frozenset({Role.OPERATOR, Role.RELEASE_MANAGER, Role.ADMIN}),  # retry, skip, dead letters
    DECIDE: frozenset({Role.APPROVER, Role.RELEASE_MANAGER, Role.ADMIN}),  # gates, approvals
    RELEASE: frozenset({Role.RELEASE_MANAGER, Role.ADMIN}),  # pipelines, releases, triggers
    ADMINISTER: frozenset({Role.ADMIN}),  # environments, applications, keys, policies, members
}


@dataclass(frozen=True, slots=True)
class Actor:
    """A person in one workspace, or an application. `name` is how records call them; `channel` how they came."""

    name: str
    workspace_id: uuid.UUID
    channel: str  # api | console | admin | command | application
    user_id: int | None = None
    role: str | None = None
    application_id: uuid.UUID | None = None
    environment_id: uuid.UUID | None = None

    @property
    def is_person(self) -> bool:
        return self.user_id is not None

    def may(self, capability: str) -> bool:
        return self.role in CAPABILITIES[capability]

    def require(self, capability: str) -> None:
        """Refuses with 403 `permission_denied`, saying which right is missing."""
        if not self.may(capability):
            who = f"a {self.role}" if self.role else "an application"
            needed = ", ".join(sorted(CAPABILITIES[capability]))
            raise Refusal("permission_denied", f"{who} may not {capability}; this needs one of: {needed}")


def person(user: Any, workspace_id: uuid.UUID, channel: str) -> Actor | None:
    """The user as an actor in a workspace; None when they are no member of it."""
    role = Member.objects.filter(user=user, workspace_id=workspace_id).values_list("role", flat=True).first()
    if role is None:
        return None
    return Actor(name=user.get_username(), workspace_id=workspace_id, channel=channel, user_id=user.pk, role=role)
