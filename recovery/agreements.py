"""Whose agreement an operation needs: what the workspace's rules ask for, and what is asked for without any.

A rule binds every role. Where none matches, a protected environment asks one approver of operators only, for forks and
backfills (model §5). What was asked for once is never lessened by what the rules say later (ADR 0069).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from approvals import gates, rules
from approvals.rule_rows import in_force
from approvals.rules import DECIDING_ROLES, DEFAULT_EXPIRY, Requirement, Rule, Subject
from pipelines.access import FORK_PROTECTED, Actor
from recovery import backfill_plans
from recovery.plans import Agreement, Plan
from recovery.states import BACKFILL, OperationKind

# What a rule may name. Stopping for a while and looking never wait for somebody: pause, resume, acknowledge, reconcile.
RULED = (
    OperationKind.RERUN,
    OperationKind.REPLAY,
    OperationKind.RETRY,
    OperationKind.REDRIVE,
    OperationKind.SKIP,
    OperationKind.CANCEL,
    OperationKind.DISCARD,
)
BETWEEN = "; "  # the sentences of `why` in a plan
ASKED_WHERE_PROTECTED = frozenset({OperationKind.RERUN, OperationKind.REPLAY, BACKFILL})
AnyPlan = Plan | backfill_plans.Plan
P = TypeVar("P", Plan, backfill_plans.Plan)


def rules_for(workspace_id: uuid.UUID, kind: str) -> list[Rule]:
    """The rules that may ask for somebody's agreement to this kind; none for kinds that no rule may name."""
    return in_force(workspace_id, kind) if kind in gates.kinds() else []


def needed(
    plan: AnyPlan,
    *,
    workspace_id: uuid.UUID,
    kind: str,
    environment: str,
    is_protected: bool,
    pipeline: str,
    actor: Actor,
    frozen: Requirement | None = None,
    known: Sequence[Rule] | None = None,
) -> Requirement | None:
    """Who must agree to this plan; None when nobody must.

    `environment` and `pipeline` are slugs, of where the operation acts; an inline run has no pipeline (blank), so only
    rules for all pipelines are about it. `frozen` is what was asked for before: it comes back unchanged unless more is
    asked for now. `actor` is who asks; for a viewer's preview the answer is what an operator would need. `known` are
    the rules that `rules_for` gave, for who asks about many; without it they are read.
    """
    subject = Subject(kind, environment, is_protected, pipeline, size_of(plan))
    found = rules.required(rules_for(workspace_id, kind) if known is None else known, subject)
    if found is None and is_protected and kind in ASKED_WHERE_PROTECTED and not actor.may(FORK_PROTECTED):
        why = f"{environment} is protected: somebody else must agree to what an operator asks for there"
        found = Requirement(DECIDING_ROLES[0], 1, DEFAULT_EXPIRY, (why,))
    return rules.strictest(frozen, found)


def size_of(plan: AnyPlan) -> dict[str, int]:
    """How much a plan touches. Stages: all it names but those that it keeps; of a backfill, all that it makes."""
    if isinstance(plan, backfill_plans.Plan):
        return plan.size
    return {"runs": 1, "stages": len(plan.run_again) + len(plan.then), "ticks": 0}


def with_agreement(plan: P, requirement: Requirement | None) -> P:
    """The plan that also says who must agree to it, which its digest then covers."""
    if requirement is None:
        return replace(plan, agreements=())
    why = BETWEEN.join(requirement.why)
    return replace(plan, agreements=(Agreement(requirement.role, requirement.count, requirement.expires_in, why),))


def frozen_in(plan: Mapping[str, Any]) -> Requirement | None:
    """What a kept plan asks for, which makes the same plan again; None when it asks nobody."""
    for one in plan["approvals"]:
        return Requirement(one["role"], one["count"], one["expires_in"], tuple(one["why"].split(BETWEEN)))
    return None
