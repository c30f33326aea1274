"""Jobs: what a worker gets of a stage, and the attempt that goes with it. Built for a batch in few statements."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings

from pipelines import checkpoint_reading, context, policies
from pipelines.checkpoint_reading import HandlerState
from pipelines.models.runs import NO_THROTTLE
from pipelines.moves import Moves, StageRow, event_row, insert_events, limits_of
from pipelines.policies import ForClaims
from pipelines.retries import Target
from pipelines.sql import execute, query, recordset
from pipelines.states import AttemptState


@dataclass(slots=True)
class Lease:
    """The answer about one lease, in the words of the wire."""

    stage_id: uuid.UUID
    execution_id: uuid.UUID
    acquired: bool
    attempt: int | None = None
    expires_at: datetime | None = None
    reason: str | None = None
    commands: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """A stage handed to a worker. `dependencies` maps stage names to JSON texts."""

    stage: StageRow
    attempt_id: uuid.UUID
    number: int
    run_id: uuid.UUID
    run_name: str
    input: str | None
    request_digest: str
    dependencies: dict[str, str | None]
    context_items: list[dict[str, Any]]
    timeout_seconds: float | None
    deadline_at: datetime | None
    traceparent: str
    lease: Lease | None
    reserved: int = 0  # bytes of the run's output allowance that the attempt is charged
    baseline: list[dict[str, Any]] = field(default_factory=list)  # [{name, artifact_id, sha256}]
    slot: uuid.UUID | None = None
    rate: uuid.UUID | None = None
    recipient: dict[str, Any] | None = None  # {position, organisation, …}: to whom it goes, where the stage names any
    recovery: dict[str, Any] | None = None  # of a fork: what it was made out of
    source_digest: str = ""  # of the code that its release was deployed with
    checkpoint: HandlerState | None = None  # what an earlier attempt of the epoch left, or a fork was handed

    @property
    def idempotency_key(self) -> str:
        """Stable over all attempts of the stage in one epoch: what a handler gives to an outside system."""
        return f"{self.stage.id}:{self.stage.epoch}"


@dataclass(frozen=True, slots=True)
class Picked:
    """A locked stage on its way to a worker, as attempt `number`, with what its job needs of its run."""

    stage: StageRow
    attempt_id: uuid.UUID
    number: int
    workspace_id: uuid.UUID
    run_name: str
    deadline_at: datetime | None
    input: str | None
    traceparent: str
    environment: str
    pipeline: str | None
    recovery: str | None = None
    limits: str = "{}"
    baseline: str = "[]"
    is_as_pinned: bool = True  # as far as a glance tells: its release's text is, and it has no baseline to look at
    recipients: str | None = None  # those that the stage names
    recipient: dict[str, Any] | None = None  # the one of them to whom it goes
    line: uuid.UUID = NO_THROTTLE  # in which it stood in its queue
    source_digest: str = ""
    slot: uuid.UUID | None = None  # the policies that it is let through by, and counts for
    rate: uuid.UUID | None = None

    @property
    def target(self) -> Target:
        """The stage in the words of policies."""
        return Target(self.stage.name, self.stage.handler, self.pipeline or "", self.environment)


def make_jobs(picked: Sequence[Picked], now: datetime, rules: ForClaims, *, acquire: bool) -> list[Job]:
    """The jobs, with outputs of dependencies, context and time limits; policies outrank a stage's own timeout."""
    outputs = _dependency_outputs([item.stage for item in picked])
    items = context.for_jobs({item.stage.run_id for item in picked})
    left = _left_behind(picked)
    lease_end = now + timedelta(seconds=settings.RECOURSE_LEASE_SECONDS)
    jobs = []
    for item in picked:
        stage, needed = item.stage, outputs.get(item.stage.id, {})
        policy = rules.timeout(item.workspace_id, item.target)
        seconds = policy.rule.get("seconds") if policy else stage.options.get("timeout")
        baseline = json.loads(item.baseline)
        jobs.append(
            Job(
                stage=stage,
                attempt_id=item.attempt_id,
                number=item.number,
                run_id=stage.run_id,
                run_name=item.run_name,
                input=item.input,
                request_digest=request_digest(stage, item.number, item.input, _digests(needed), baseline),
                reserved=limits_of(item.limits).allowance(stage.options),
                baseline=baseline,
                slot=item.slot,
                rate=item.rate,
                recipient=item.recipient,
                dependencies={name: body for name, (body, _) in needed.items()},
                context_items=items.get(stage.run_id, []),
                timeout_seconds=float(seconds) if seconds else None,
                deadline_at=item.deadline_at,
                traceparent=item.traceparent,
                lease=Lease(stage.id, item.attempt_id, True, item.number, lease_end) if acquire else None,
                checkpoint=left.get(stage.id),
                recovery=json.loads(item.recovery) if item.recovery else None,
                source_digest=item.source_digest,
            )
        )
    return jobs


def _left_behind(picked: Sequence[Picked]) -> dict[uuid.UUID, HandlerState]:
    """What may be handed over of what was left for these stages; what may not be is told as an event instead."""
    expecting = {item.stage.id: item for item in picked if item.stage.checkpoint is not None}
    if not expecting:
        return {}
    states, problems = checkpoint_reading.handler_states(item.stage for item in expecting.values())
    kind = "stage.checkpoint_refused"
    insert_events(
        [
            event_row(
                expecting[stage_id].stage.run_id,
                kind,
                stage_id=stage_id,
                attempt_id=expecting[stage_id].attempt_id,
                reason=why,
                data={"checkpoint": str(expecting[stage_id].stage.checkpoint)},
            )
            for stage_id, why in problems.items()
        ]
    )
    return states


def insert_attempts(jobs: Sequence[Job], session_id: uuid.UUID, worker: str, now: datetime) -> None:
    """The attempts of these jobs: running where the job carries a lease, else dispatched."""
    visible_until = now + timedelta(seconds=settings.RECOURSE_VISIBILITY_SECONDS)
    execute(
        """
        INSERT INTO pipelines_attempt (id, stage_id, run_id, number, epoch, state, session_id, worker, request_digest,
            dispatched_at, started_at, expires_at, timeout_seconds, timeout_at, error_code, error_message, traceback,
            result_digest, cause, reserved, slot, rate, recipient)
        SELECT id, stage_id, run_id, number, epoch, state, %s, %s, request_digest, %s, started_at, expires_at,
            timeout_seconds, started_at + make_interval(secs => timeout_seconds), '', '', '', '', '', reserved,
            slot, rate, recipient
        FROM json_to_recordset(%s::json) AS r(id uuid, stage_id uuid, run_id uuid, number int, epoch int, state text,
            request_digest text, started_at timestamptz, expires_at timestamptz, timeout_seconds float,
            reserved bigint, slot uuid, rate uuid, recipient jsonb)
        """,
        [
            session_id,
            worker,
            now,
            recordset(
                [
                    {
                        "id": job.attempt_id,
                        "stage_id": job.stage.id,
                        "run_id": job.run_id,
                        "number": job.number,
                        "epoch": job.stage.epoch,
                        "state": AttemptState.RUNNING if job.lease else AttemptState.DISPATCHED,
                        "request_digest": job.request_digest,
                        "started_at": now if job.lease else None,
                        "expires_at": job.lease.expires_at if job.lease else visible_until,
                        "timeout_seconds": job.timeout_seconds,
                        "reserved": job.reserved,
                        "slot": job.slot,
                        "rate": job.rate,
                        "recipient": job.recipient,
                    }
                    for job in jobs
                ]
            ),
        ],
    )


def insert_awaited(moves: Moves, awaited: Mapping[uuid.UUID, Mapping[str, Any]]) -> None:
    """The attempts of imports that begin to be awaited, by stage. No session holds them and nobody leases them. A
    policy of kind timeout outranks the stage's own option, as for work."""
    told = {
        stage_id: (text, json.loads(baseline), place)
        for stage_id, text, baseline, *place in query(
            "SELECT s.id, s.input, r.baseline::text, r.workspace_id, coalesce(p.slug, ''), e.slug"
            " FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id"
            " JOIN pipelines_environment e ON e.id = r.environment_id"
            " LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE s.id = ANY(%s)",
            [list(awaited)],
        )
    }
    timeouts = policies.active("timeout", {place[0] for _, _, place in told.values()})
    rows = []
    for stage_id, row in awaited.items():
        stage = moves.stages[stage_id]
        by_position = {other.position: other for other in moves.runs[stage.run_id].stages}
        needed = {by_position[at].name: by_position[at].output_digest or None for at in stage.depends_on}
        text, baseline, (workspace_id, pipeline, environment) = told[stage_id]
        target = Target(stage.name, stage.handler, pipeline, environment)
        if ruling := policies.winner(timeouts.get(workspace_id, ()), target):
            seconds = float(ruling.rule["seconds"])
            bounds = {"timeout_seconds": seconds, "expires_at": moves.now + timedelta(seconds=seconds)}
        else:
            bounds = {}
        rows.append({**row, **bounds, "request_digest": request_digest(stage, row["number"], text, needed, baseline)})
    execute(
        """
        INSERT INTO pipelines_attempt (id, stage_id, run_id, number, epoch, state, worker, request_digest,
            dispatched_at, started_at, expires_at, timeout_seconds, error_code, error_message, traceback, result_digest,
            cause, reserved)
        SELECT id, stage_id, run_id, number, epoch, 'dispatched', '', request_digest, %s, %s, expires_at,
            timeout_seconds, '', '', '', '', '', reserved
        FROM json_to_recordset(%s::json) AS r(id uuid, stage_id uuid, run_id uuid, number int, epoch int,
            request_digest text, expires_at timestamptz, timeout_seconds float, reserved bigint)
        """,
        [moves.now, moves.now, recordset(rows)],
    )


def request_digest(
    stage: StageRow,
    number: int,
    text: str | None,
    dependencies: Mapping[str, str | None],
    baseline: Sequence[Mapping[str, Any]] = (),
) -> str:
    """SHA-256 over what is asked of an attempt: stage, input, the digests of the outputs and of the baseline that it
    builds on, and the attempt itself (R19)."""
    asked = {
        "stage": str(stage.id),
        "epoch": stage.epoch,
        "attempt": number,
        "input": None if text is None else sha256(text.encode()).hexdigest(),
        "dependencies": dependencies,
    }
    if baseline:
        asked["baseline"] = {item["name"]: item["sha256"] for item in baseline}
    return sha256(json.dumps(asked, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _digests(needed: Mapping[str, tuple[str | None, str | None]]) -> dict[str, str | None]:
    return {name: digest for name, (_, digest) in needed.items()}


def _dependency_outputs(stages: Sequence[StageRow]) -> dict[uuid.UUID, dict[str, tuple[str | None, str | None]]]:
    wanted = [
        {"stage_id": stage.id, "run_id": stage.run_id, "position": position}
        for stage in stages
        for position in stage.depends_on
    ]
    found: dict[uuid.UUID, dict[str, tuple[str | None, str | None]]] = {}
    if wanted:
        for stage_id, name, body, digest in query(
            "SELECT w.stage_id, s.name, o.body, o.digest FROM json_to_recordset(%s::json) AS"
            " w(stage_id uuid, run_id uuid, position int) JOIN pipelines_stage s ON s.run_id = w.run_id"
            " AND s.position = w.position LEFT JOIN pipelines_stageoutput o ON o.id = s.output_id"
            " ORDER BY w.stage_id, s.position",
            [recordset(wanted)],
        ):
            found.setdefault(stage_id, {})[name] = (body, digest)
    return found
