"""Keys that were kept before there were plans still answer, and still guard their requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from pipelines.errors import Refusal
from pipelines.models import DeadLetter, Run
from recovery.models import Operation
from recovery.operations import Done
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.verbs import acknowledge, cancel_as_operation, pause_run, redrive, retry_stage

StartRun = Callable[..., Run]


def as_it_was_kept(done: Done, target: object, request: dict[str, Any]) -> None:
    """Gives the operation the fingerprint that it got before there were plans."""
    operation = Operation.objects.get(id=done.operation_id)
    told = json.dumps([operation.kind, str(target), request], sort_keys=True, separators=(",", ":"))
    Operation.objects.filter(id=operation.id).update(fingerprint=sha256(told.encode()).hexdigest())


def test_pauses_cancels_and_retries_are_known_again(
    start_run: StartRun, hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    """Model §3.6: a key is kept as long as its run. One that ends by itself is another request."""
    actor = people["operator"].actor
    failed, run = start_run("first"), start_run("first", key="other")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    (stage,) = stages_of(failed)
    retried = retry_stage(stage.id, actor=actor, key="r")
    as_it_was_kept(retried, stage.id, {"scope": "stage", "input": None, "acknowledge_effects": False})
    assert retry_stage(stage.id, actor=actor, key="r").operation_id == retried.operation_id
    paused = pause_run(run.id, actor=actor, key="p")
    as_it_was_kept(paused, run.id, {})
    again = pause_run(run.id, actor=actor, key="p")
    assert (again.operation_id, again.replayed) == (paused.operation_id, True)
    with pytest.raises(Refusal, match="another request") as refused:
        pause_run(run.id, actor=actor, key="p", until=clock.now().replace(year=2999))
    assert refused.value.code == "recovery_idempotency_conflict"
    cancelled = cancel_as_operation(run.id, actor=actor, key="c")
    as_it_was_kept(cancelled, run.id, {})
    assert cancel_as_operation(run.id, actor=actor, key="c").replayed


def test_verbs_on_dead_letters_are_known_again(start_run: StartRun, hand: Hand, people: dict[str, Person]) -> None:
    """Model §3.6, F162."""
    actor = people["operator"].actor
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    letter, (stage,) = DeadLetter.objects.get(), stages_of(run)
    seen = acknowledge(letter, actor=actor, key="a")
    as_it_was_kept(seen, run.id, {"dead_letter": str(letter.id)})
    assert acknowledge(letter, actor=actor, key="a").replayed
    redriven = redrive(letter, actor=actor, key="d")
    as_it_was_kept(redriven, stage.id, {"scope": "stage", "input": None, "acknowledge_effects": False})
    again = redrive(letter, actor=actor, key="d")
    assert (again.operation_id, again.replayed) == (redriven.operation_id, True)
    assert stages_of(run)[0].epoch == 2, "begun anew once"
