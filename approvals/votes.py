"""What a gate asks, of whom, and how many have agreed so far: one answer for decisions, lists, screens and blockers."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Protocol

from approvals.four_eyes import Approval, Question, counted, voters
from approvals.rules import roles_from
from pipelines.models import Gate, GateDecision, Run


class HasRequesters(Protocol):
    """A run as far as those who asked for it go."""

    @property
    def requesters(self) -> Collection[int]: ...
    @property
    def recovered_from_id(self) -> uuid.UUID | None: ...


def requesters_of(run: HasRequesters) -> frozenset[int] | None:
    """Who started, forked or retried the run: nobody where an application did. None for a fork of nobody knows whom."""
    known = frozenset(run.requesters)
    return known if known or run.recovered_from_id is None else None


def asked_by_gate(gate: Gate, requesters: frozenset[int] | None) -> Question:
    """What the gate asks of people; it was fixed as the gate opened."""
    return Question(gate.opened_at, roles_from(gate.approver_role), gate.count, requesters)


def so_far(gates: Sequence[Gate]) -> dict[uuid.UUID, int]:
    """How many people's approvals count now, by gate. A fixed number of queries for all gates of one workspace."""
    given: dict[uuid.UUID, list[Approval]] = {gate.id: [] for gate in gates}
    approvals = GateDecision.objects.filter(gate__in=list(given), approved=True, user__isnull=False)
    for gate_id, user_id, member in approvals.values_list("gate_id", "user_id", "member"):
        given[gate_id].append(Approval(user_id, member))
    runs = Run.objects.only("requesters", "recovered_from_id").in_bulk({gate.run_id for gate in gates})
    found = {}
    for workspace_id in {gate.workspace_id for gate in gates}:
        own = [gate for gate in gates if gate.workspace_id == workspace_id]
        people = voters(workspace_id, {one.user_id for gate in own for one in given[gate.id]})
        for gate in own:
            question = asked_by_gate(gate, requesters_of(runs[gate.run_id]))
            found[gate.id] = counted(question, given[gate.id], people)
    return found
