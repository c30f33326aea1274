"""Who may: roles, capabilities, and the actor on whose behalf something is done (model §5, the one place).

Who acts comes from authentication, never from a body. A Django superuser acts only in workspaces of which they are a
member, in the role they have there. Faces that know an `Actor` ask it; Django's own ask
`user.has_perm(capability, workspace)`, which `MemberBackend` answers from the same table.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth import get_backends
from django.contrib.auth.backends import BaseBackend

from pipelines.errors import Refusal
from pipelines.models import KeyScope, Member, Role, Workspace

VIEW, STEER, CANCEL, RECOVER, IMPORT = "view", "steer", "cancel", "recover", "import"
FORK, FORK_PROTECTED, RESOLVE, DECIDE = "fork", "fork_protected", "resolve", "decide"
RELEASE, ADMINISTER, CHECKPOINT = "release", "administer", "checkpoint"

_OPERATORS = frozenset({Role.OPERATOR, Role.RELEASE_MANAGER, Role.ADMIN})
_DECIDERS = frozenset({Role.APPROVER, Role.RELEASE_MANAGER, Role.ADMIN})
_RELEASERS = frozenset({Role.RELEASE_MANAGER, Role.ADMIN})

# capability → the roles that have it
CAPABILITIES: dict[str, frozenset[str]] = {
    VIEW: frozenset(Role.values),  # also the preview of a plan or a backfill
    STEER: _OPERATORS,  # pause, resume
    CANCEL: _OPERATORS,
    RECOVER: _OPERATORS,  # retry, skip, dead letters
    IMPORT: _OPERATORS,  # the answer to an import stage, made elsewhere
    FORK: _OPERATORS,  # rerun, replay, backfill
    FORK_PROTECTED: _RELEASERS,  # the same where the environment is protected; an operator's waits for approval
    RESOLVE: _DECIDERS,  # operations in review, reconciliation
    DECIDE: _DECIDERS,  # gates and approval requests, never one's own
    RELEASE: _RELEASERS,  # pipelines, releases, triggers, calendars
    ADMINISTER: frozenset({Role.ADMIN}),  # environments, applications, keys, policies, rules, members, signing keys
    CHECKPOINT: frozenset(),  # the runtime checkpoint routes are for keys alone
}
# scope of an API key → what it may do, with its own application's runs of its own environment
KEY_CAPABILITIES: dict[str, frozenset[str]] = {
    KeyScope.APPLICATION: frozenset({VIEW, CANCEL, DECIDE, IMPORT}),
    KeyScope.RUNTIME: frozenset({CHECKPOINT}),
}


@dataclass(frozen=True, slots=True)
class Actor:
    """A person in one workspace, or an application. `name` is how records call them; `channel` how they came."""

    name: str
    workspace_id: uuid.UUID
    channel: str  # api | mcp | console | admin | command | application | policy
    user_id: int | None = None
    role: str | None = None
    application_id: uuid.UUID | None = None
    environment_id: uuid.UUID | None = None
    scope: str = KeyScope.APPLICATION

    @property
    def is_person(self) -> bool:
        return self.user_id is not None

    def may(self, capability: str) -> bool:
        if self.application_id is not None:
            return capability in KEY_CAPABILITIES[self.scope]
        return self.role in CAPABILITIES[capability]

    def require(self, capability: str) -> None:
        """Refuses with 403 `permission_denied`, saying which right is missing."""
        if not self.may(capability):
            who = f"the role {self.role}" if self.role else f"a key of scope {self.scope}"
            needed = ", ".join(sorted(CAPABILITIES[capability])) or "a key of scope runtime"
            words = capability.replace("_", " ")
            raise Refusal("permission_denied", f"{who} may not {words}; this needs one of: {needed}")


class MemberBackend(BaseBackend):
    """Answers `user.has_perm(capability, workspace)`: by the user's role as a member there, and by nothing else."""

    def has_perm(self, user_obj: Any, perm: str, obj: Any = None) -> bool:
        if not isinstance(obj, Workspace) or not user_obj.is_active:
            return False
        return role_in(user_obj, obj.pk) in CAPABILITIES.get(perm, ())


def hold_to_membership(user_model: Any) -> None:
    """Has a user's own `has_perm` leave what concerns a workspace to the backends: Django lets superusers past them."""
    own = user_model.has_perm

    @wraps(own)
    def has_perm(user: Any, perm: str, obj: Any = None) -> bool:
        if isinstance(obj, Workspace):
            return any(backend.has_perm(user, perm, obj) for backend in get_backends())
        return bool(own(user, perm, obj))

    user_model.has_perm = has_perm


def role_in(user: Any, workspace_id: uuid.UUID) -> str | None:
    """The user's one role in a workspace; None when they are no member of it, or may not log in any more."""
    found = Member.objects.filter(user_id=user.pk, workspace_id=workspace_id, user__is_active=True)
    return found.values_list("role", flat=True).first()


def person(user: Any, workspace_id: uuid.UUID, channel: str) -> Actor | None:
    """The user as an actor in a workspace; None when they are no member of it."""
    role = role_in(user, workspace_id)
    if role is None:
        return None
    return Actor(name=user.get_username(), workspace_id=workspace_id, channel=channel, user_id=user.pk, role=role)
