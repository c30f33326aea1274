"""A job in the words of the wire (contract §2), for whoever carries it: the worker API and the console's executor."""

from __future__ import annotations

import json
from typing import Any

from pipelines.leases import Job, Lease


def job_body(job: Job) -> dict[str, Any]:
    """The job as workers get it."""
    stage = job.stage
    body: dict[str, Any] = {
        "deliveryId": str(job.attempt_id),
        "stageId": str(stage.id),
        "stageName": stage.name,
        "stageHandlerName": stage.handler,
        "pipelineId": str(job.run_id),
        "pipelineName": job.run_name,
        "executionId": str(job.attempt_id),
        "attempt": job.number,
        "epoch": stage.epoch,
        "requestDigest": job.request_digest,
        "input": job.input,
        "dependencies": {name: None if text is None else json.loads(text) for name, text in job.dependencies.items()},
        "contextItems": job.context_items,
        "timeoutSeconds": job.timeout_seconds,
        "effectMode": stage.effect_mode,
        "effectProtocol": "none",
        "idempotencyKey": job.idempotency_key,
        "deadlineAt": job.deadline_at.isoformat() if job.deadline_at else None,
        "traceparent": job.traceparent or None,
    }
    if job.lease:
        body["lease"] = lease_body(job.lease)
    return body


def lease_body(lease: Lease) -> dict[str, Any]:
    """The answer about one lease."""
    return {
        "acquired": lease.acquired,
        "attempt": lease.attempt,
        "leaseExpiresAt": lease.expires_at.isoformat() if lease.expires_at else None,
        "reason": lease.reason,
        "commands": lease.commands,
    }
