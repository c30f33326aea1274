"""What the tests of recovery begin with: effects told, left open, and settled."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
import rfc8785

from pipelines.access import Actor, person
from pipelines.errors import Refusal
from pipelines.models import Attempt, Effect, Run
from pipelines.sweeps import expire_leases
from pipelines.wire import job_body
from recovery import forks
from recovery.models import Operation
from recovery.states import OperationKind
from tests.cast import Hand
from tests.clock import Clock
from tests.factories import MemberFactory

EXTERNAL = {"effect_mode": "external", "effect_protocol": "intent"}


def effect_of(
    run: Run, stage: str, state: str = "committed", *, key: str = "k-1", effect_class: str = "external_http"
) -> Effect:
    """An effect of the stage's newest attempt, as if it had told of it."""
    attempt = Attempt.objects.filter(run=run, stage__name=stage).order_by("-number").first()
    assert attempt is not None
    made: Effect = Effect.objects.create(
        run=run,
        stage_id=attempt.stage_id,
        attempt=attempt.id,
        epoch=attempt.epoch,
        effect_class=effect_class,
        step_id=stage,
        key=key,
        state=state,
    )
    return made


def leave_uncertain(run: Run, hand: Hand, clock: Clock, *effects: dict[str, Any]) -> list[Effect]:
    """The next job of an external stage declares these effects and is never heard of again."""
    job = hand.take()
    assert job_body(job)["effectMode"] == "external"
    made = [effect_of(run, job.stage.name, **{"state": "declared", **one}) for one in effects or ({},)]
    clock.advance(120)
    assert expire_leases() == 1
    return made


def in_review(run: Run, actor: Actor | None = None, **wish: Any) -> Operation:
    """A rerun of a failed run that somebody else must let go on, because an effect of it is not cleared.

    Asked for by an operator of nobody's test, when no actor is given.
    """
    if actor is None:
        actor = person(MemberFactory(workspace=run.workspace, role="operator").user, run.workspace_id, "api")
        assert actor is not None
    asked = forks.ask_fork(OperationKind.RERUN, run, forks.Wish(**wish), actor=actor)
    with pytest.raises(Refusal) as refused:
        forks.fork(asked, actor=actor)
    assert refused.value.code == "operator_review_required"
    return Operation.objects.get(id=refused.value.extra["operation_id"])


def sealed(summary: Any, **more: Any) -> dict[str, Any]:
    """The body of a clean sealed summary."""
    digest = sha256(rfc8785.dumps(summary)).hexdigest()
    return {"summary": summary, "source": "psp", "sealed": True, "clean": True, "digest": digest, **more}


def clear(effect: Effect, api: Any, outcome: str = "committed") -> None:
    """Gives a committed effect all that it needs to be repeated: sealed evidence and a matching reconciliation."""
    path = f"/v1/executions/{effect.run_id}/effects/{effect.id}"
    answer = api.post(f"{path}/evidence", sealed({"outcome": outcome, "charge": "ch_1"}))
    assert answer.status_code == 201, answer.content
    answer = api.post(f"{path}/reconciliation", {"outcome": outcome, "note": "seen at the provider"})
    assert answer.status_code == 201, answer.content


def payroll_in_review(start_run: Callable[..., Run], hand: Hand) -> Operation:
    """A rerun that is in review, because what its stage pay committed outside is not cleared."""
    run = start_run({"name": "pay", **EXTERNAL}, "book", name="payroll")
    job = hand.take()
    effect_of(run, "pay", key="charge-7")
    hand.report(job, "failed", error_code="DECLINED", retryable=False)
    return in_review(Run.objects.get(id=run.id), from_step_id="pay")
