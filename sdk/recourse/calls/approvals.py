"""Agreement: what waits for it, and the rules that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from recourse.calls.base import Call, Planned, Some, given, page, planned, put, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class Approvals(Group[Sender_co]):
    """What waits for people: gates, and requests for agreement to an operation. Nobody decides what they asked for."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        type: Literal["gate", "operation"] | None = None,
        view: Literal["asked", "decided", "mine", "waiting"] | None = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.ApprovalItem]]:
        """One page, newest first. `view`: `waiting`, `mine` (what you may decide now), `asked`, `decided`."""
        return page("v1/approvals", next, type=type, view=view, page_size=page_size)

    iterate = iterates(list)

    @plans
    def decide(
        self,
        approval_id: str,
        approved: bool,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.DecisionAnswer, operations.GatePreview | operations.RequestPreview]:
        """Approves or rejects, which needs a reason. The same decision again changes nothing. `state` is `open` while
        more people must agree.

        What you asked for raises `SelfApproval`; what expired, or was withdrawn, `ApprovalStale`; a plan that is not
        the one of `plan_digest`, or that the world has moved away from, `PlanChanged`: it then waits with the new plan.
        """
        body = given(approved=approved, reason=reason)
        return planned(f"v1/approvals/{segment(approval_id)}/decision", body, dry_run, plan_digest, client_request_id)

    @asks
    def withdraw(
        self, approval_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.Standing]:
        """Takes a request of one's own back. A gate is not withdrawn: cancel its run."""
        body = given(reason=reason)
        return write(f"v1/approvals/{segment(approval_id)}/withdraw", body, client_request_id)


class ApprovalRules(Group[Sender_co]):
    """Who must agree to which operations."""

    @lists
    def list(
        self, *, next: str | None = None, kind: Some = None, page_size: int | None = None
    ) -> Call[Page[operations.RuleItem]]:
        """One page, newest first."""
        return page("v1/approval-rules", next, kind=kind, page_size=page_size)

    iterate = iterates(list)

    @asks
    def add(
        self,
        *,
        name: str,
        kinds: Sequence[str],
        role: Literal["approver", "release_manager", "admin"],
        environments: Sequence[str] | None = None,
        pipelines: Sequence[str] | None = None,
        counted: Literal["", "stages", "runs", "ticks"] | None = None,
        at_least: int | None = None,
        count: int | None = None,
        expires_in: int | None = None,
        enabled: bool | None = None,
    ) -> Call[operations.RuleItem]:
        """A rule, which binds what is asked for from now on. A taken name with anything else in it is refused."""
        body = given(
            name=name,
            kinds=kinds,
            role=role,
            environments=environments,
            pipelines=pipelines,
            counted=counted,
            at_least=at_least,
            count=count,
            expires_in=expires_in,
            enabled=enabled,
        )
        return put("v1/approval-rules", body, again="the same again changes nothing, and answers what is there")

    @asks
    def change(
        self,
        rule_id: str,
        *,
        name: str | None = None,
        kinds: Sequence[str] | None = None,
        environments: Sequence[str] | None = None,
        pipelines: Sequence[str] | None = None,
        counted: Literal["", "stages", "runs", "ticks"] | None = None,
        at_least: int | None = None,
        role: Literal["approver", "release_manager", "admin"] | None = None,
        count: int | None = None,
        expires_in: int | None = None,
        enabled: bool | None = None,
    ) -> Call[operations.RuleItem]:
        """Changes what is given of a rule."""
        body = given(
            name=name,
            kinds=kinds,
            environments=environments,
            pipelines=pipelines,
            counted=counted,
            at_least=at_least,
            role=role,
            count=count,
            expires_in=expires_in,
            enabled=enabled,
        )
        return put(
            f"v1/approval-rules/{segment(rule_id)}", body, again="what is said again holds already", method="PATCH"
        )
