"""Checkpoints, for services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recourse.calls.base import Call, given, read, segment
from recourse.calls.methods import Group, Sender_co, asks
from recourse.models import operations


class Checkpoints(Group[Sender_co]):
    """What runs left of themselves. Whoever writes here is a service with a key of scope `runtime`; no person may."""

    @asks
    def get(self, execution_id: str, checkpoint_id: str) -> Call[operations.WholeCheckpoint]:
        """One checkpoint with what it says."""
        return read(f"v1/executions/{segment(execution_id)}/checkpoints/{segment(checkpoint_id)}")

    @asks
    def latest(self, execution_id: str) -> Call[operations.WholeCheckpoint]:
        """The newest one that can be trusted, for a service."""
        return Call("GET", f"v1/executions/{segment(execution_id)}/checkpoints/latest")

    @asks
    def write(
        self,
        execution_id: str,
        *,
        attempt_id: str,
        step_id: str,
        state: Any,
        recovery_posture: operations.Posture,
        previous_step_id: str | None = None,
    ) -> Call[operations.CheckpointView]:
        """Leaves a checkpoint for a running attempt."""
        body = given(
            attempt_id=attempt_id,
            step_id=step_id,
            state=state,
            recovery_posture=recovery_posture,
            previous_step_id=previous_step_id,
        )
        return Call(
            "POST",
            f"v1/executions/{segment(execution_id)}/checkpoints",
            body,
            again="a further checkpoint with the same state: whoever goes on from the newest finds the same",
        )

    @asks
    def add_evidence(
        self, execution_id: str, checkpoint_id: str, *, evidence: Mapping[str, Any] | None = None
    ) -> Call[operations.WholeCheckpoint]:
        """Adds evidence to a checkpoint, and nothing else."""
        body = given(evidence=evidence)
        return Call(
            "PATCH",
            f"v1/executions/{segment(execution_id)}/checkpoints/{segment(checkpoint_id)}",
            body,
            again="the evidence is added again; it says the same",
        )
