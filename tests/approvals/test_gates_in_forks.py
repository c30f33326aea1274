"""Gates of a run that was made out of another: asked anew, of others than who made it, and as its own release says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from approvals.transitions import decide_gate
from pipelines import catalog, releases
from pipelines.models import Environment, Gate, GateDecision, Release, Run
from tests.cast import Api, Hand, Person
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import gate, refused, stage, states

People = dict[str, Person]
StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]


@pytest.fixture
def release(people: People, environment: Environment) -> Callable[..., Release]:
    """Makes another release of the pipeline active; `ship` has a gate before its work that asks for this."""

    def activate(**asked: Any) -> Release:
        admin = people["admin"].actor
        ship = {"name": "ship", "handler": "Handler", "approval": {"when": "before", **asked}}
        definition = {"slug": "shipping", "name": "Shipping", "stages": [{"name": "load", "handler": "Handler"}, ship]}
        pipeline, _ = catalog.save_pipeline(actor=admin, slug="shipping", name="Shipping")
        return releases.register_release(
            actor=admin, pipeline=pipeline, environment=environment, definition=definition, activate=True
        )[0]

    return activate


def rerun(api: Api, run: Run, **body: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/executions/{run.id}/rerun", {"from_step_id": "ship", "flow_slug": "shipping", **body})
    assert answer.status_code in (200, 201), answer.content
    told: dict[str, Any] = answer.json()
    return told


def test_a_changed_gate_stands_in_the_plan_and_the_fork_asks_for_what_its_own_release_says(
    release: Callable[..., Release], start_run: StartRun, hand: Hand, people: People, as_person: AsPerson
) -> None:
    """F36, F139: whoever reruns sees that more people are asked; the old gate and what was decided stay readable."""
    release(count=1)
    run = start_run(pipeline="shipping", input={})
    hand.finish()
    decide_gate(stage(run, "ship").id, actor=people["approver"].actor, approved=False, reason="wrong week")
    release(approver_role="approver", count=2)
    manager = as_person(people["release_manager"])
    plan = rerun(manager, run, dry_run=True)
    asked = {"when": "before", "approver_role": "approver", "count": 2}
    assert plan["differences"] == [
        {"stage": "ship", "what": "approval", "before": {"when": "before", "count": 1}, "after": asked}
    ]
    fork = Run.objects.get(id=rerun(manager, run)["execution_id"])
    assert states(fork) == {"load": "completed", "ship": "waiting"}
    opened = gate(fork, "ship")
    assert (opened.state, opened.approver_role, opened.count, opened.require_person) == ("open", "approver", 2, True)
    old = Gate.objects.get(run=run)
    assert (old.state, GateDecision.objects.get(gate=old).reason) == ("rejected", "wrong week")
    assert_invariants()


def test_who_made_the_fork_decides_none_of_its_gates_and_who_started_its_source_may(
    release: Callable[..., Release], start_run: StartRun, hand: Hand, people: People, as_person: AsPerson
) -> None:
    """Model §2: an approval carries into no fork, and neither does who asked for its source."""
    release()
    run = start_run(pipeline="shipping", input={})
    hand.finish()
    decide_gate(stage(run, "ship").id, actor=people["approver"].actor, approved=True)
    hand.finish()
    fork = Run.objects.get(id=rerun(as_person(people["release_manager"]), run)["execution_id"])
    assert (fork.requesters, states(fork)["ship"]) == ([people["release_manager"].user.id], "waiting")
    with refused("self_approval"):
        decide_gate(stage(fork, "ship").id, actor=people["release_manager"].actor, approved=True)
    assert decide_gate(stage(fork, "ship").id, actor=people["approver"].actor, approved=True).stage_state == "ready"
    hand.finish()
    assert states(fork) == {"load": "completed", "ship": "completed"}
