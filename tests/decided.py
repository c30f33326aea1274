"""A workspace in which everything was decided that people decide, with its rows from before and after.

made = decided(...)          # a fixture: `before` is what `dumpdata` wrote while all of it was open
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from approvals.models import ApprovalRequest
from approvals.requests import decide_request
from approvals.transitions import decide_gate
from pipelines import aftermath, intents, releases
from pipelines.effects import Told
from pipelines.models import (
    DeadLetter,
    Effect,
    Environment,
    Gate,
    Pipeline,
    ReconciliationItem,
    Release,
    Run,
    Workspace,
)
from pipelines.sql import query
from pipelines.transitions import cancel_run
from recovery import dead_letters
from recovery.models import Operation
from recovery.reconciliation import Finding, reconcile_effect
from recovery.states import OperationKind
from recovery.transitions import perform
from tests.cast import Hand, Person
from tests.pipelines.engine import stage
from tests.recovery.stories import payroll_in_review

DECIDED = [
    "pipelines_gate",
    "pipelines_gatedecision",
    "pipelines_reconciliationitem",
    "pipelines_effect",
    "pipelines_release",
    "pipelines_deadletter",
    "approvals_approvalrequest",
    "approvals_requestdecision",
    "recovery_reconciliation",
    "recovery_effectevidence",
    "recovery_operation",
]
MODELS = [
    "pipelines.gate",
    "pipelines.reconciliationitem",
    "pipelines.effect",
    "pipelines.release",
    "pipelines.deadletter",
    "approvals.approvalrequest",
    "recovery.operation",
]
HOUSE = {"organisation": "Model House", "service": "large", "billing": "prepaid", "retention": "none"}


@dataclass
class Decided:
    """What was decided, by what names it on a route; `before` and `after` are dumps by model."""

    names: dict[str, str]
    before: dict[str, list[Any]]
    after: dict[str, list[Any]] = field(default_factory=dict)


def rows() -> dict[str, set[str]]:
    """Every row of what was decided, as it stands."""
    return {table: {row[0] for row in query(f"SELECT t::text FROM {table} t")} for table in DECIDED}


def dumped() -> dict[str, list[Any]]:
    out = StringIO()
    call_command("dumpdata", *MODELS, stdout=out)
    found: dict[str, list[Any]] = {model: [] for model in MODELS}
    for one in json.loads(out.getvalue()):
        found[one["model"]].append(one)
    return found


@pytest.fixture
def decided(
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    workspace: Workspace,
    environment: Environment,
) -> Decided:
    """A gate and a rerun that were rejected, a release reviewed and put in force, an effect found out about, an item
    settled, a dead letter discarded."""
    pipeline = Pipeline.objects.create(workspace=workspace, slug="asks", name="Asks")
    manager, approver, boss = (people[role].actor for role in ("release_manager", "approver", "admin"))
    old, new = (
        releases.register_release(
            actor=manager,
            pipeline=pipeline,
            environment=environment,
            definition={"slug": "asks", "name": "Asks", "stages": [{"name": "a", "handler": "H", "recipients": [one]}]},
            activate=True,
        )[0]
        for one in (HOUSE, HOUSE | {"organisation": "Other House"})
    )
    assert (old.status, new.status, new.needs_review) == ("active", "draft", True)
    rerun = payroll_in_review(start_run, hand)
    letter = DeadLetter.objects.get(run=rerun.run_id)
    gated = start_run({"name": "post", "approval": {"when": "before"}}, "then")
    paying = start_run({"name": "pay", "effect_mode": "external", "effect_protocol": "intent"})
    job = hand.take()
    assert job.stage.run_id == paying.id
    intents.tell_effects(hand.holder, job.stage.id, job.attempt_id, [Told("external_http", "declared", key="i-1")])
    cancel_run(paying.id, actor=people["operator"].actor)
    effect = Effect.objects.get(run=paying)
    item = ReconciliationItem.objects.get(run=paying, kind="running_attempt")
    before = dumped()

    decide_gate(stage(gated, "post").id, approved=False, actor=approver, reason="the wrong month")
    decide_request(rerun.id, actor=approver, approved=False, reason="not twice")
    releases.review_release(new.id, actor=boss, reason="contract signed")
    releases.activate_release(new.id, actor=manager, reason="from today")
    aftermath.settle(paying.id, item.id, actor=approver, note="killed by hand")
    reconcile_effect(paying.id, effect.id, Finding("absent", "the bank has no such order"), actor=approver)
    perform(dead_letters.ask_mark(OperationKind.DISCARD, letter, reason="nobody needs it"), actor=boss)

    gate = Gate.objects.get(run=gated)
    assert (gate.state, Release.objects.get(id=old.id).status) == ("rejected", "superseded")
    assert ApprovalRequest.objects.get(subject=rerun.id).state == "rejected"
    assert (Operation.objects.get(id=rerun.id).state, DeadLetter.objects.get(id=letter.id).state) == (
        "denied",
        "discarded",
    )
    names = {
        "run_id": str(gated.id),
        "execution_id": str(paying.id),
        "stage_id": str(gate.stage_id),
        "approval_id": str(rerun.id),
        "operation_id": str(rerun.id),
        "effect_id": str(effect.id),
        "item_id": str(item.id),
        "left_id": str(item.id),
        "letter_id": str(letter.id),
        "release_id": str(old.id),
        "pipeline_id": str(pipeline.id),
    }
    return Decided(names, before, dumped())
