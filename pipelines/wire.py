"""Runs and jobs in the words of the wire (contract §2), for the API and the console's executor."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pipelines.artifact_storing import Stored
from pipelines.checkpoints import Written
from pipelines.children import Child, Started
from pipelines.context import REDACTED
from pipelines.intents import Answer
from pipelines.jobs import Job, Lease
from pipelines.sql import query
from pipelines.states import TERMINAL_RUN, TERMINAL_STAGE, StageState

OPTION_NAMES = {
    "max_retries": "maxRetries",
    "retry_interval": "retryInterval",
    "retry_on_error_codes": "retryOnErrorCodes",
    "backoff": "backoff",
    "max_retry_interval": "maxRetryInterval",
    "jitter": "jitter",
    "timeout": "timeOut",
    "max_recoveries": "maxRecoveries",
    "max_output_bytes": "maxOutputBytes",
}


def pipeline_body(
    run_id: uuid.UUID, application_id: uuid.UUID, environment_id: uuid.UUID | None = None
) -> dict[str, Any] | None:
    """The run with its stages, in two queries; None when it is not the application's, or of another environment.

    Sensitive context values read `[REDACTED]`; inputs and outputs are as they were sent.
    """
    rows = query(
        "SELECT r.id, r.name, r.status, r.application_id, e.slug, r.release_id, i.key, r.trace_id, r.created_at,"
        " r.started_at, r.finished_at, r.deadline_at, r.failure_code, r.failure_message, r.failure_stage, r.keywords,"
        " (SELECT json_agg(json_build_array(c.key, c.value, c.is_sensitive) ORDER BY c.id)"
        " FROM pipelines_contextitem c WHERE c.run_id = r.id)"
        " FROM pipelines_run r JOIN pipelines_environment e ON e.id = r.environment_id"
        " LEFT JOIN pipelines_runidentity i ON i.run_id = r.id"
        " WHERE r.id = %s AND r.application_id = %s AND (%s::uuid IS NULL OR r.environment_id = %s)",
        [run_id, application_id, environment_id, environment_id],
    )
    if not rows:
        return None
    (
        found,
        name,
        status,
        owner,
        environment,
        release_id,
        key,
        trace_id,
        created_at,
        started_at,
        finished_at,
        deadline_at,
        failure_code,
        failure_message,
        failure_stage,
        keywords,
        context_items,
    ) = rows[0]
    body: dict[str, Any] = {
        "id": str(found),
        "name": name,
        "status": status,
        "isTerminal": status in TERMINAL_RUN,
        "applicationId": str(owner),
        "environment": environment,
        "releaseId": str(release_id),
        "idempotencyKey": key,
        "traceId": trace_id or None,
        "createdAt": _time(created_at),
        "startedAt": _time(started_at),
        "finishedAt": _time(finished_at),
        "deadlineAt": _time(deadline_at),
    }
    if failure_code or failure_message or failure_stage:
        stage_id = str(failure_stage) if failure_stage else None
        body["failure"] = {"code": failure_code, "message": failure_message, "stageId": stage_id}
    body["contextItems"] = [
        {"key": item_key, "value": REDACTED if sensitive else value, "isSensitive": sensitive}
        for item_key, value, sensitive in _json(context_items) or []
    ]
    body["keywords"] = _json(keywords)
    body["stages"] = _stages(run_id)
    return body


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
        "effectProtocol": stage.effect_protocol,
        "idempotencyKey": job.idempotency_key,
        "deadlineAt": _time(job.deadline_at),
        "traceparent": job.traceparent or None,
    }
    if job.recovery:
        body["recovery"] = job.recovery
    if job.source_digest:
        body["sourceDigest"] = job.source_digest
    if job.baseline:
        body["baseline"] = [
            {"name": one["name"], "artifactId": one["artifact_id"], "sha256": one["sha256"]} for one in job.baseline
        ]
    if job.recipient:
        body["recipient"] = job.recipient
    if job.checkpoint:
        left = job.checkpoint
        body["checkpoint"] = {
            "checkpointId": str(left.checkpoint_id),
            "sequence": left.sequence,
            "state": left.state,
        }
    if job.lease:
        body["lease"] = lease_body(job.lease)
    return body


def effects_body(noted: Sequence[Answer]) -> dict[str, Any]:
    """The answer to effects that a worker told of."""
    return {"effects": [_effect_body(one) for one in noted]}


def _effect_body(noted: Answer) -> dict[str, Any]:
    told: dict[str, Any] = {"effectId": str(noted.effect_id), "state": noted.state}
    if noted.earlier is not None:
        attempt, state, external_ref = noted.earlier.attempt, noted.earlier.state, noted.earlier.external_ref
        told["earlier"] = {"attempt": attempt, "state": state, "externalRef": external_ref}
    return told


def left_body(written: Written) -> dict[str, Any]:
    """The answer about a checkpoint that a handler left."""
    return {"checkpointId": str(written.checkpoint_id), "sequence": written.sequence}


def stored_body(stored: Stored) -> dict[str, Any]:
    """The answer about an artifact that a worker stored."""
    return {
        "artifactId": str(stored.id),
        "name": stored.name,
        "sha256": stored.sha256,
        "size": stored.size,
        "created": stored.is_new,
    }


def started_body(started: Started) -> dict[str, Any]:
    """The answer about a run that a stage started."""
    return {"created": started.created, "run": _child(started.child)}


def children_body(seen: Sequence[Child]) -> dict[str, Any]:
    """The answer about runs that a stage started before."""
    return {"runs": [_child(child) for child in seen]}


def _child(child: Child) -> dict[str, Any]:
    body: dict[str, Any] = {
        "runId": str(child.run_id),
        "startedRunId": str(child.started),
        "key": child.key,
        "name": child.name,
        "status": child.status,
        "isTerminal": child.is_terminal,
        "outputs": child.outputs,
        "leftOut": list(child.left_out),
    }
    if child.failure_code or child.failure_message:
        body["failure"] = {"code": child.failure_code, "message": child.failure_message}
    return body


def lease_body(lease: Lease) -> dict[str, Any]:
    """The answer about one lease."""
    return {
        "acquired": lease.acquired,
        "attempt": lease.attempt,
        "leaseExpiresAt": _time(lease.expires_at),
        "reason": lease.reason,
        "commands": lease.commands,
    }


def _stages(run_id: uuid.UUID) -> list[dict[str, Any]]:
    rows = query(
        "SELECT s.id, s.name, s.handler, s.state, s.epoch, s.attempt_number, s.retry_count, s.recovery_count,"
        " s.available_at, s.started_at, s.finished_at, s.input, o.body, s.last_error_code, s.last_error_message,"
        " s.failure_disposition, s.depends_on, s.options, s.effect_mode, a.request_digest"
        " FROM pipelines_stage s LEFT JOIN pipelines_stageoutput o ON o.id = s.output_id"
        " LEFT JOIN pipelines_attempt a ON a.stage_id = s.id AND a.number = s.attempt_number"
        " WHERE s.run_id = %s ORDER BY s.position",
        [run_id],
    )
    names = [row[1] for row in rows]
    return [_stage(run_id, row, names) for row in rows]


def _stage(run_id: uuid.UUID, row: tuple[Any, ...], names: Sequence[str]) -> dict[str, Any]:
    (
        stage_id,
        name,
        handler,
        state,
        epoch,
        attempt,
        retries,
        recoveries,
        available_at,
        started_at,
        finished_at,
        text,
        output,
        error_code,
        error_message,
        disposition,
        depends_on,
        options,
        effect_mode,
        digest,
    ) = row
    return {
        "id": str(stage_id),
        "pipelineId": str(run_id),
        "stageName": name,
        "stageHandlerName": handler,
        "status": state,
        "epoch": epoch,
        "attempt": attempt,
        "retryAttempt": retries,
        "recoveryCount": recoveries,
        "nextRetryAt": _time(available_at) if state == StageState.RETRY_SCHEDULED else None,
        "startedAt": _time(started_at),
        "finishedAt": _time(finished_at),
        "input": text,
        "output": None if output is None else json.loads(output),
        "lastErrorCode": error_code or None,
        "lastErrorMessage": error_message or None,
        "failureDisposition": disposition or None,
        "dependsOn": [names[position] for position in depends_on],
        "options": {OPTION_NAMES[option]: value for option, value in _json(options).items()},
        "effectMode": effect_mode,
        "requestDigest": digest,
        "isTerminal": state in TERMINAL_STAGE,
    }


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _json(value: Any) -> Any:
    # Django's connections leave json and jsonb as text
    return json.loads(value) if isinstance(value, str) else value
