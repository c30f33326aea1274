"""One piece of work, as it comes over the wire or from a table: a thin, typed view of the mapping."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


class Job:
    """A job in the wire shape (camelCase). Making one copies and checks nothing, so that it costs next to nothing."""

    __slots__ = ("wire",)

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.wire = wire

    @property
    def delivery_id(self) -> str | None:
        return self.wire.get("deliveryId")

    @property
    def stage_id(self) -> str:
        return self.wire["stageId"]

    @property
    def stage_name(self) -> str:
        return self.wire.get("stageName", "")

    @property
    def handler_name(self) -> str:
        return self.wire["stageHandlerName"]

    @property
    def run_id(self) -> str:
        return self.wire.get("pipelineId", "")

    @property
    def run_name(self) -> str:
        return self.wire.get("pipelineName", "")

    @property
    def execution_id(self) -> str:
        return self.wire["executionId"]

    @property
    def attempt(self) -> int:
        return self.wire["attempt"]

    @property
    def epoch(self) -> int:
        return self.wire.get("epoch", 1)

    @property
    def request_digest(self) -> str | None:
        return self.wire.get("requestDigest")

    @property
    def source_digest(self) -> str | None:
        """SHA-256 of the code that the run's release was deployed with, where it was deployed from code."""
        return self.wire.get("sourceDigest")

    @property
    def input(self) -> str | None:
        return self.wire.get("input")

    @property
    def dependencies(self) -> Mapping[str, Any]:
        return self.wire.get("dependencies") or {}

    @property
    def context_items(self) -> list[Mapping[str, Any]]:
        return self.wire.get("contextItems") or []

    @property
    def timeout_seconds(self) -> float | None:
        return self.wire.get("timeoutSeconds")

    @property
    def baseline(self) -> list[Mapping[str, Any]]:
        """The artifacts that the run builds on: `name`, `artifactId`, `sha256`."""
        return self.wire.get("baseline") or []

    @property
    def recipient(self) -> Mapping[str, Any] | None:
        """Which of its stage's recipients the attempt goes to: `position`, `organisation`, `service`, `billing`,
        `retention`.
        """
        return self.wire.get("recipient")

    @property
    def effect_mode(self) -> str:
        return self.wire.get("effectMode") or "idempotent"

    @property
    def effect_protocol(self) -> str:
        return self.wire.get("effectProtocol") or "none"

    @property
    def idempotency_key(self) -> str:
        return self.wire.get("idempotencyKey", "")

    @property
    def checkpoint(self) -> Mapping[str, Any] | None:
        """The handler state that was stored last in this epoch: `checkpointId`, `sequence`, `state`."""
        return self.wire.get("checkpoint")

    @property
    def lease(self) -> Mapping[str, Any] | None:
        return self.wire.get("lease")

    @property
    def deadline(self) -> datetime | None:
        text = self.wire.get("deadlineAt")
        return datetime.fromisoformat(text) if text else None

    @property
    def traceparent(self) -> str | None:
        return self.wire.get("traceparent")

    @property
    def recovery(self) -> Mapping[str, Any] | None:
        return self.wire.get("recovery")
