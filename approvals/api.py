"""The application API's route for gates (contract §2): the owning application's own decision."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from approvals.transitions import decide_gate
from pipelines.api.authentication import actor_of
from pipelines.api.endpoints import Endpoint, answer
from pipelines.api.serializers import GateAnswer, GateOutcome
from pipelines.keys import KeyHolder


class ResumeStage(Endpoint):
    """Decides the gate for which a stage waits. The same decision again is accepted, another refused (P78–P82)."""

    body = GateAnswer
    action = "gate.decide"

    @extend_schema(request=GateAnswer, responses=GateOutcome)
    def post(self, key: KeyHolder, body: dict[str, Any], stage_id: uuid.UUID) -> HttpResponse:
        reason = body.get("rejection_reason", "")
        decision = decide_gate(stage_id, actor=actor_of(key), approved=body["approved"], reason=reason)
        return answer(
            {
                "stageId": str(decision.stage_id),
                "status": decision.stage_state,
                "approved": decision.approved,
                "rejectionReason": decision.reason or None,
            }
        )


urlpatterns = [path("stages/<str:stage_id>/resume", ResumeStage.as_view())]
