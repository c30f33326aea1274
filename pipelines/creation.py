"""Creates runs, safe to repeat under any race: the identity is inserted first, so exactly one caller makes the run.

Identity and run commit together. The fingerprint is taken over the request after its defaults are filled in, without
trace fields, and never over the release it resolved to; keyword and context order do not count, stage order does.
Serves P7, P18–P29, F118, F124, F125, F127.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import rfc8785
from django.db import transaction

from pipelines import audit, checkpoints, context, wake
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.graph import GraphError, resolve_dependencies
from pipelines.ids import new_id
from pipelines.moves import Moves
from pipelines.releases import inline_release, release_in_force
from pipelines.sql import query, recordset

STAGE_DEFAULTS: dict[str, Any] = {
    "input": None,
    "description": "",
    "depends_on": None,
    "run_next_if_failed": False,
    "effect_mode": "idempotent",
    "approval": None,
    "options": {},
}
OPTION_DEFAULTS: dict[str, Any] = {
    "backoff": "fixed",
    "jitter": False,
    "max_recoveries": 3,
    "max_output_bytes": 256 * 1024,
}


@dataclass(frozen=True, slots=True)
class Intent:
    """What a caller wants to be run. Either `stages` (inline), or `pipeline` with `input` (managed), never both.

    A stage is {name, handler, input?, description?, depends_on?, run_next_if_failed?, effect_mode?, approval?,
    options?}.
    """

    name: str | None
    stages: Sequence[Mapping[str, Any]] = ()
    pipeline: str | None = None
    input: Mapping[str, Any] | None = None
    context_items: Sequence[Mapping[str, Any]] = ()
    keywords: Sequence[Mapping[str, str]] = ()
    deadline_seconds: int | None = None
    trace: Mapping[str, str] = field(default_factory=dict)

    def fingerprint(self, environment: str) -> str:
        """SHA-256 of what makes two requests the same."""
        intent = {
            "environment": environment,
            "name": self.name,
            "stages": [with_defaults(stage) for stage in self.stages],
            "pipeline": self.pipeline,
            "input": self.input if self.pipeline is None else self.input or {},
            "context": sorted(
                [item["key"], item["value"], bool(item.get("is_sensitive"))] for item in self.context_items
            ),
            "keywords": sorted([word["key"], word["value"]] for word in self.keywords),
            "deadline_seconds": self.deadline_seconds,
        }
        return sha256(json.dumps(intent, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run belongs."""

    workspace_id: uuid.UUID
    application_id: uuid.UUID
    environment_id: uuid.UUID
    environment_slug: str


def with_defaults(stage: Mapping[str, Any]) -> dict[str, Any]:
    """A stage with everything left out filled in, so that leaving out and saying the default are the same request."""
    filled = {**STAGE_DEFAULTS, **stage}
    filled["depends_on"] = filled["depends_on"] or None  # an empty list waits for what no list waits for
    filled["options"] = {**OPTION_DEFAULTS, **(stage.get("options") or {})}
    if filled.get("effect_protocol") == "none":
        # came after the first fingerprints and digests were kept: saying its default must not change them
        del filled["effect_protocol"]
    return filled


def create_run(
    place: Place, intent: Intent, *, key: str | None, actor: str, user_id: int | None = None, by: Actor | None = None
) -> tuple[uuid.UUID, bool]:
    """Makes the run, or finds the one that this key already made: (run id, whether it is new).

    Refused: `idempotency_conflict` when the key stands for another intent, `validation_error` for stages that cannot
    run, `release_not_active`. A refusal keeps no key. Without a key every call makes a run. `by` is who asked for it
    over an API: the audit event commits with the run.
    """
    fingerprint = intent.fingerprint(place.environment_slug)
    while True:
        with transaction.atomic():
            run_id = new_id()
            if key is None or _reserve(place, key, fingerprint, run_id):
                _write(place, intent, run_id, actor, user_id)
                _tell(by, run_id, key, audit.ALLOWED)
                return run_id, True
            existing = _find(place.application_id, key)
            if existing is None:
                continue  # retention removed it between the two statements: the key is free again
            found_id, found_environment, found_fingerprint = existing
            if found_fingerprint != fingerprint and found_fingerprint != _under_the_other_name(place, intent, found_id):
                detail = f"this application already used the key {key!r} for another request"
                # a key sees the runs of its own environment, and learns no id of another
                told = {"pipelineId": str(found_id)} if found_environment == place.environment_id else {}
                raise Refusal("idempotency_conflict", detail, extra=told)
            _tell(by, found_id, key, audit.NO_OP)
            return found_id, False


def find_by_key(application_id: uuid.UUID, environment_id: uuid.UUID, key: str) -> uuid.UUID | None:
    """The run that a key made, for the answer after an unknown outcome (P28, P29)."""
    rows = query(
        "SELECT run_id FROM pipelines_runidentity WHERE application_id = %s AND environment_id = %s AND key = %s",
        [application_id, environment_id, key],
    )
    return rows[0][0] if rows else None


def _tell(by: Actor | None, run_id: uuid.UUID, key: str | None, outcome: str) -> None:
    if by is not None:
        audit.record(by, "run.create", outcome, run=run_id, data={} if key is None else {"key": key})


def _reserve(place: Place, key: str, fingerprint: str, run_id: uuid.UUID) -> bool:
    # the foreign key to the run is deferred: the identity goes first and waits out a rival that is about to commit
    return bool(
        query(
            "INSERT INTO pipelines_runidentity (run_id, application_id, environment_id, key, fingerprint)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (application_id, key) DO NOTHING RETURNING run_id",
            [run_id, place.application_id, place.environment_id, key, fingerprint],
        )
    )


def _find(application_id: uuid.UUID, key: str) -> tuple[Any, ...] | None:
    rows = query(
        "SELECT run_id, environment_id, fingerprint FROM pipelines_runidentity WHERE application_id = %s AND key = %s",
        [application_id, key],
    )
    return rows[0] if rows else None


def _under_the_other_name(place: Place, intent: Intent, run_id: uuid.UUID) -> str | None:
    """What a managed run's fingerprint was if its name was left out where it is told now, or told where it is left out.

    The name left out is the pipeline's. Looked at only here, because a pipeline's name may change between two requests.
    """
    if intent.pipeline is None:
        return None
    rows = query(
        "SELECT r.name, p.name FROM pipelines_run r JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE r.id = %s",
        [run_id],
    )
    if not rows:
        return None
    run_name, default = rows[0]
    if intent.name is None:
        return replace(intent, name=default).fingerprint(place.environment_slug)
    return replace(intent, name=None).fingerprint(place.environment_slug) if intent.name == run_name else None


@dataclass(frozen=True, slots=True)
class Draft:
    """A run that is about to be inserted, all decided.

    A stage is a row of `pipelines_stage` as far as it differs from a new one: {id, position, name, handler,
    description, input, depends_on, run_next_if_failed, effect_mode, effect_protocol, approval, options, state}; of a
    fork, for what is kept, also {output_id, output_digest, last_error_code, last_error_message, failure_disposition,
    stale}. `deadline_seconds` counts from now. `words` is what the search finds it by, besides its owners.
    """

    id: uuid.UUID
    place: Place
    name: str
    release_id: uuid.UUID
    pipeline_id: uuid.UUID | None
    input: str | None
    stages: Sequence[Mapping[str, Any]]
    keywords: Sequence[Mapping[str, str]]
    words: str
    trace: Mapping[str, str]
    deadline_seconds: float | None
    user_id: int | None
    recovered_from: uuid.UUID | None = None
    recovery: Mapping[str, Any] | None = None


def stage_row(stage: Mapping[str, Any], position: int, needed: Sequence[int], text: str | None) -> dict[str, Any]:
    """A new stage, from its definition in the words of the engine; `text` is what it gets without an input of its own.

    It is ready when it waits for no other stage and for no gate.
    """
    gated = (stage["approval"] or {}).get("when") == "before"
    return {
        "id": new_id(),
        "position": position,
        "name": stage["name"],
        "handler": stage["handler"],
        "description": stage["description"],
        "input": stage["input"] if stage["input"] is not None else text,
        "depends_on": needed,
        "run_next_if_failed": stage["run_next_if_failed"],
        "effect_mode": stage["effect_mode"],
        "effect_protocol": stage.get("effect_protocol", "none"),
        "approval": stage["approval"],
        "options": stage["options"],
        "state": "ready" if not needed and not gated else "pending",
    }


def insert_run(draft: Draft, *, actor: str, reason: str = "") -> None:
    """Inserts the run with its stages, queue entries, search words and events, and its first checkpoint.

    In the caller's transaction, which announces what is ready once all is there.
    """
    place, rows = draft.place, draft.stages
    query(
        """
        WITH run AS (
            INSERT INTO pipelines_run (id, workspace_id, application_id, environment_id, pipeline_id, release_id, name,
                status, paused, pause_reason, input, keywords, trace_id, traceparent, tracestate, started_by_id,
                requesters, created_at, updated_at, deadline_at, failure_code, failure_message, policy_digest,
                recovered_from_id, recovery)
            VALUES (%(run)s, %(workspace)s, %(application)s, %(environment)s, %(pipeline)s, %(release)s, %(name)s,
                'queued', false, '', %(input)s, %(keywords)s::jsonb, %(trace_id)s, %(traceparent)s, %(tracestate)s,
                %(user)s, array_remove(ARRAY[%(user)s::int], NULL), recourse_now(), recourse_now(),
                recourse_now() + make_interval(secs => %(deadline)s::float), '', '',
                recourse_policy_digest(%(workspace)s), %(recovered_from)s, %(recovery)s::jsonb)
        ), stage AS (
            INSERT INTO pipelines_stage (id, run_id, run_created_at, application_id, environment_id, position, name,
                handler, description, input, depends_on, run_next_if_failed, effect_mode, effect_protocol, approval,
                options, state, available_at, finished_at, epoch, attempt_number, retry_count, recovery_count,
                output_id, output_digest, last_error_code, last_error_message, failure_disposition, stale)
            SELECT id, %(run)s, recourse_now(), %(application)s, %(environment)s, position, name, handler, description,
                input, depends_on, run_next_if_failed, effect_mode, effect_protocol, approval, options, state,
                CASE WHEN state = 'ready' THEN recourse_now() END,
                CASE WHEN state NOT IN ('ready', 'pending') THEN recourse_now() END, 1, 0, 0, 0,
                output_id, coalesce(output_digest, ''), coalesce(last_error_code, ''),
                coalesce(last_error_message, ''), coalesce(failure_disposition, ''), coalesce(stale, false)
            FROM json_to_recordset(%(stages)s::json) AS s(id uuid, position int, name text, handler text,
                description text, input text, depends_on smallint[], run_next_if_failed boolean, effect_mode text,
                effect_protocol text, approval jsonb, options jsonb, state text, output_id uuid, output_digest text,
                last_error_code text, last_error_message text, failure_disposition text, stale boolean)
        ), queue AS (
            INSERT INTO pipelines_queueentry (stage_id, application_id, environment_id, handler, available_at)
            SELECT id, %(application)s, %(environment)s, handler, recourse_now()
            FROM json_to_recordset(%(stages)s::json) AS s(id uuid, handler text, state text) WHERE state = 'ready'
        ), words AS (
            INSERT INTO pipelines_runsearch (run_id, words)
            VALUES (%(run)s, to_tsvector('simple', translate(%(words)s, '-_/:.@', '      '))
                || array_to_tsvector(%(owners)s::text[]))
        )
        INSERT INTO pipelines_event (run_id, stage, kind, from_state, to_state, at, actor, reason, data)
        SELECT %(run)s, e.stage, e.kind, '', e.to_state, recourse_now(), %(actor)s, coalesce(e.reason, ''), e.data
        FROM json_to_recordset(%(events)s::json) AS e(stage uuid, kind text, to_state text, reason text, data jsonb)
        RETURNING id
        """,
        {
            "run": draft.id,
            "workspace": place.workspace_id,
            "application": place.application_id,
            "environment": place.environment_id,
            "pipeline": draft.pipeline_id,
            "release": draft.release_id,
            "name": draft.name,
            "input": draft.input,
            "keywords": json.dumps(list(draft.keywords)),
            "trace_id": draft.trace.get("trace_id", ""),
            "traceparent": draft.trace.get("traceparent", ""),
            "tracestate": draft.trace.get("tracestate", ""),
            "user": draft.user_id,
            "deadline": draft.deadline_seconds,
            "recovered_from": draft.recovered_from,
            "recovery": None if draft.recovery is None else json.dumps(draft.recovery),
            "stages": recordset(rows),
            "words": draft.words[: context.SEARCHED_CHARACTERS],
            "owners": list(context.owner_words(place.workspace_id, place.application_id, place.environment_id)),
            "actor": actor,
            "events": recordset(_beginnings(draft, reason)),
        },
    )
    checkpoints.write_first(
        checkpoints.NewRun(
            id=draft.id,
            workspace_id=place.workspace_id,
            environment_id=place.environment_id,
            release_id=draft.release_id,
            stages=[
                checkpoints.NewStage(
                    row["id"],
                    row["position"],
                    row["name"],
                    row["state"],
                    row["depends_on"],
                    output_digest=row.get("output_digest", ""),
                    run_next_if_failed=row["run_next_if_failed"],
                )
                for row in rows
            ],
        )
    )


def _beginnings(draft: Draft, reason: str) -> list[dict[str, Any]]:
    """The events of a new run: its creation, what is ready at once, and what a fork keeps of its source."""
    first: dict[str, Any] = {"kind": "run.create", "stage": None, "to_state": "queued"}
    if draft.recovery is not None:
        first |= {"kind": "run.fork", "reason": reason, "data": draft.recovery}
    events = [first]
    for row in draft.stages:
        if row["state"] == "ready":
            events.append({"stage": row["id"], "kind": "stage.make_ready", "to_state": "ready"})
        elif row["state"] != "pending":
            events.append({"stage": row["id"], "kind": "stage.restore", "to_state": row["state"]})
    return events


def _write(place: Place, intent: Intent, run_id: uuid.UUID, actor: str, user_id: int | None) -> None:
    name, stages, release_id, pipeline_id = _resolve(place, intent)
    run_input = None if intent.pipeline is None else rfc8785.dumps(intent.input or {}).decode()
    rows = [
        stage_row(stage, position, needed, run_input)
        for position, (stage, needed) in enumerate(zip(stages, _dependencies(stages), strict=True))
    ]
    draft = Draft(
        id=run_id,
        place=place,
        name=name,
        release_id=release_id,
        pipeline_id=pipeline_id,
        input=run_input,
        stages=rows,
        keywords=intent.keywords,
        words=_words(name, intent),
        trace=intent.trace,
        deadline_seconds=intent.deadline_seconds,
        user_id=user_id,
    )
    insert_run(draft, actor=actor)
    context.save(context.rows(run_id, intent.context_items, None))
    if any(row["state"] == "pending" and not row["depends_on"] for row in rows):
        moves = Moves.lock([run_id], actor=actor)
        moves.settle()
        moves.save()
    wake.announce(
        wake.Queue(place.application_id, place.environment_id, row["handler"])
        for row in rows
        if row["state"] == "ready"
    )


def _resolve(place: Place, intent: Intent) -> tuple[str, list[dict[str, Any]], uuid.UUID, uuid.UUID | None]:
    if intent.pipeline is None:
        stages = [with_defaults(stage) for stage in intent.stages]
        # inputs belong to the run: two runs that differ only in them share one release
        shape = [{name: value for name, value in stage.items() if name != "input"} for stage in stages]
        release_id = inline_release(place.workspace_id, {"name": intent.name, "stages": shape})
        return intent.name or "", stages, release_id, None
    release_id, pipeline_id, name, definition = release_in_force(
        place.workspace_id, intent.pipeline, place.environment_id
    )
    return intent.name or name, [from_definition(stage) for stage in definition["stages"]], release_id, pipeline_id


def from_definition(stage: Mapping[str, Any]) -> dict[str, Any]:
    """A stage of a managed definition in the words of the engine: its `needs` are our `depends_on`."""
    renamed = {("depends_on" if name == "needs" else name): value for name, value in stage.items()}
    return with_defaults(renamed)


def _dependencies(stages: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    try:
        return resolve_dependencies([stage["name"] for stage in stages], [stage["depends_on"] for stage in stages])
    except GraphError as error:
        field_name = {"name": "stageName", "depends_on": "dependsOn"}[error.field]
        raise Refusal(
            "validation_error", str(error), errors={f"stages[{error.position}].{field_name}": [str(error)]}
        ) from error


def _words(name: str, intent: Intent) -> str:
    open_items = [item for item in intent.context_items if not item.get("is_sensitive")]
    return " ".join([name, *(f"{pair['key']} {pair['value']}" for pair in [*intent.keywords, *open_items])])
