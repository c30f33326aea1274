"""A rerun of a run whose checkpoints were tampered with: refused before anything is loaded or made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.models import AuditEvent, Run
from recovery.models import Operation
from tests.cast import Api, Hand, Person
from tests.tampering import Tampering, every_tampering, make_scene, no_signature


@every_tampering
def test_a_tampered_checkpoint_forks_nothing(
    tampering: Tampering,
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
) -> None:
    """O25, O34, O36, F148, F149, R44: no run, no operation, and one denied audit event."""
    scene = make_scene(start_run, hand)
    tampering.act(scene)
    runs = Run.objects.count()
    body = {} if "environment" not in tampering.name else {"environment": "staging"}
    answer = as_person(people["operator"]).post(f"/v1/executions/{scene.run.id}/rerun", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint_integrity_invalid"), answer.content
    assert Run.objects.count() == runs
    assert not Operation.objects.exists()
    (event,) = AuditEvent.objects.filter(run=scene.run.id)
    assert (event.action, event.outcome, event.code) == ("run.rerun", "denied", "checkpoint_integrity_invalid")
    assert hand.pull() == []


@pytest.mark.parametrize("step", ["first", "second"])
def test_naming_the_step_does_not_lead_past_a_forged_checkpoint(
    step: str,
    start_run: Callable[..., Run],
    hand: Hand,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
) -> None:
    """Falling back to an older good one would let the forged one go unnoticed."""
    scene = make_scene(start_run, hand)
    no_signature(scene)
    answer = as_person(people["operator"]).post(f"/v1/executions/{scene.run.id}/rerun", {"from_step_id": step})
    assert answer.json()["code"] == "checkpoint_integrity_invalid"
    assert not Operation.objects.exists()
