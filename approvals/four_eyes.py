"""Who may decide, and whose approval counts: one answer for gates and for requests, whichever way a decision comes.

Somebody counts who is a member with a role that is asked for, has had it since before the question was put, and is not
among those who put it. The same is asked when they decide and each time approvals are counted, so an approval is void
once its giver has left, lost the role, or got another one. Serves F130, F131, F133, F135, F140, model §5.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from approvals.rules import DECIDING_ROLES
from pipelines.errors import Refusal
from pipelines.models import Member


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be decided: since when it is asked, of how many people of which roles, and who asks.

    `requesters` is None when it should have some and nobody knows them: then nobody may decide.
    """

    asked_at: datetime
    roles: tuple[str, ...] = DECIDING_ROLES
    count: int = 1
    requesters: frozenset[int] | None = frozenset()


@dataclass(frozen=True, slots=True)
class Voter:
    """A member who can log in, as they are now. `member` is their membership: another one after they came back."""

    user_id: int
    member: int
    role: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Approval:
    """An approval that was given, in which membership."""

    user_id: int
    member: int | None


def voters(workspace_id: uuid.UUID, user_ids: Collection[int]) -> dict[int, Voter]:
    """These people as they are now; who is no member, or may not log in, is missing."""
    found = Member.objects.filter(workspace_id=workspace_id, user_id__in=list(user_ids), user__is_active=True)
    rows = found.values_list("user_id", "id", "role", "since")
    return {user_id: Voter(user_id, member, role, since) for user_id, member, role, since in rows}


def why_not(question: Question, voter: Voter | None) -> Refusal | None:
    """Why this person may not decide; None when they may."""
    if voter is None:
        return Refusal("permission_denied", "who decides must be a member of the workspace")
    if question.requesters is None:
        return Refusal(
            "permission_denied",
            "nobody knows any more who asked for this, so nobody can be a second person: cancel it and ask anew",
        )
    if voter.user_id in question.requesters:
        return Refusal("self_approval", "who asked for it does not decide it; somebody else must look at it")
    if voter.role not in question.roles:
        needed = ", ".join(sorted(question.roles))
        return Refusal("permission_denied", f"the role {voter.role} may not decide this; it needs one of: {needed}")
    if voter.since > question.asked_at:
        return Refusal(
            "permission_denied",
            f"you are {voter.role} since {voter.since:%Y-%m-%d %H:%M:%S} UTC, which is after this was asked for;"
            " somebody must decide who could have then",
        )
    return None


def counted(question: Question, approvals: Iterable[Approval], people: Mapping[int, Voter]) -> int:
    """How many of these approvals count now: one for each person."""
    good = set()
    for approval in approvals:
        voter = people.get(approval.user_id)
        if voter is not None and voter.member == approval.member and why_not(question, voter) is None:
            good.add(approval.user_id)
    return len(good)
