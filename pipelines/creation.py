"""Creates runs, safe to repeat under any race: the identity is inserted first, so exactly one caller makes the run.

Identity and run commit together. The fingerprint is taken over the request after its defaults are filled in, without
trace fields, and never over the release it resolved to; keyword and context order do not count, stage order does.
Serves P7, P18–P29, F118, F124, F125, F127.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import rfc8785
from django.db import transaction

from pipelines import audit, baselines, checkpoints, context, input_schemas, wake
from pipelines.access import Actor
from pipelines.baselines import Pinned
from pipelines.errors import Refusal
from pipelines.graph import GraphError, resolve_dependencies
from pipelines.ids import new_id
from pipelines.limits import Limits, narrowed
from pipelines.limits import problems as limit_problems
from pipelines.models.runs import NO_THROTTLE
from pipelines.moves import Moves
from pipelines.releases import Managed, inline_release, release_in_force
from pipelines.sql import query, recordset
from pipelines.states import HELD_STAGE

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
MOST_AT_ONCE = 1000  # runs inserted in one statement
MOST_CHARACTERS = 16_000_000  # of inputs in one statement, about: hundreds of the largest are more than it takes


@dataclass(frozen=True, slots=True)
class Intent:
    """What a caller wants to be run. Either `stages` (inline), or `pipeline` with `input` (managed), never both.

    A stage is {name, handler, input?, description?, depends_on?, run_next_if_failed?, mode?, effect_mode?, approval?,
    recipients?, options?}. `limits` of a managed run may only narrow those of its release.
    """

    name: str | None
    stages: Sequence[Mapping[str, Any]] = ()
    pipeline: str | None = None
    input: Mapping[str, Any] | None = None
    context_items: Sequence[Mapping[str, Any]] = ()
    keywords: Sequence[Mapping[str, str]] = ()
    deadline_seconds: int | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    baseline: Sequence[Mapping[str, Any]] = ()  # [{name, artifact_id}], beside what a release names
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
        if self.limits:
            # came after the first fingerprints were kept: leaving them out must not change those
            intent["limits"] = self.limits if self.pipeline else Limits.of(self.limits).as_json()
        if self.baseline:
            intent["baseline"] = sorted([one["name"], str(one["artifact_id"])] for one in self.baseline)
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
    # these came after the first fingerprints and digests were kept: saying their defaults must not change them
    for name, default in (("effect_protocol", "none"), ("mode", "execute"), ("recipients", [])):
        if filled.get(name) == default:
            del filled[name]
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
                _write(place, intent, run_id, actor, user_id, key or "")
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
class Origin:
    """Which tick a run is made for, and in which lane it stands; a held one begins when its lane lets it in. Of a fork:
    those of its source."""

    trigger_id: uuid.UUID
    tick_at: datetime
    lane_id: uuid.UUID | None = None
    lane_rank: int | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Parent:
    """The run whose stage starts a run, and how many runs then stand above that. Of a fork: those of its source."""

    run_id: uuid.UUID
    depth: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A run that is about to be inserted, all decided.

    A stage is a row of `pipelines_stage` as far as it differs from a new one: {id, position, name, handler,
    description, input, depends_on, run_next_if_failed, effect_mode, effect_protocol, approval, options, state}; of a
    fork, for what is kept, also {output_id, output_digest, last_error_code, last_error_message, failure_disposition,
    stale}; of a held run all others are pending. `deadline_seconds` counts from now, of a held run from when it is let
    in. `words` is what every search finds it by, besides its owners; by `key`, its idempotency key, only the console's.
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
    origin: Origin | None = None
    through_blackout: bool = False
    key: str = ""
    limits: Limits = field(default_factory=Limits)
    baseline: Sequence[Mapping[str, Any]] = ()
    parent: Parent | None = None

    @property
    def is_held(self) -> bool:
        return self.origin is not None and self.origin.held


def managed_draft(
    place: Place,
    managed: Managed,
    run_input: Mapping[str, Any],
    *,
    run_id: uuid.UUID,
    keywords: Sequence[Mapping[str, str]] = (),
    deadline_seconds: float | None = None,
    user_id: int | None = None,
    origin: Origin | None = None,
    through_blackout: bool = False,
) -> Draft:
    """A new run of a pipeline by its release in force, as an application's request without context makes it."""
    text = rfc8785.dumps(dict(run_input)).decode()
    stages = [from_definition(stage) for stage in managed.definition["stages"]]
    rows = [
        stage_row(stage, position, needed, text)
        for position, (stage, needed) in enumerate(zip(stages, _dependencies(stages), strict=True))
    ]
    limits = Limits.of(managed.definition.get("limits"))
    rows = _admitted(rows, limits)
    if origin is not None and origin.held:
        rows = [{**row, "state": "pending"} for row in rows]
    return Draft(
        id=run_id,
        place=place,
        name=managed.name,
        release_id=managed.release_id,
        pipeline_id=managed.pipeline_id,
        input=text,
        stages=rows,
        keywords=keywords,
        words=_words(managed.name, keywords),
        trace={},
        deadline_seconds=limits.deadline_seconds if deadline_seconds is None else deadline_seconds,
        user_id=user_id,
        origin=origin,
        through_blackout=through_blackout,
        limits=limits,
        baseline=managed.baseline(place.workspace_id, place.environment_id),
    )


def _admitted(rows: list[dict[str, Any]], limits: Limits) -> list[dict[str, Any]]:
    """New stages as the run's limits let them begin: all that are ready, or, where the limits have no room for them
    together, none: then settling says why. Of the ready ones those stand in the queue for which there is room."""
    ready = [row for row in rows if row["state"] == "ready"]
    bytes_needed = sum(limits.allowance(row["options"]) for row in ready)
    if len(ready) > limits.total_attempts or bytes_needed > limits.total_output_bytes:
        return [{**row, "state": "pending"} for row in rows]
    waiting = {row["position"] for row in ready[limits.concurrency :]}
    return [{**row, "queued": row["position"] not in waiting} for row in rows]


def stage_row(stage: Mapping[str, Any], position: int, needed: Sequence[int], text: str | None) -> dict[str, Any]:
    """A new stage, from its definition in the words of the engine; `text` is what it gets without an input of its own.

    It is ready when it waits for no other stage, for no gate and for no import.
    """
    begins = (stage["approval"] or {}).get("when") != "before" and stage.get("mode", "execute") == "execute"
    return {
        "id": new_id(),
        "position": position,
        "name": stage["name"],
        "handler": stage["handler"],
        "description": stage["description"],
        "input": stage["input"] if stage["input"] is not None else text,
        "depends_on": needed,
        "run_next_if_failed": stage["run_next_if_failed"],
        "mode": stage.get("mode", "execute"),
        "recipients": stage.get("recipients"),
        "effect_mode": stage["effect_mode"],
        "effect_protocol": stage.get("effect_protocol", "none"),
        "approval": stage["approval"],
        "options": stage["options"],
        "state": "ready" if not needed and begins else "pending",
    }


def insert_runs(drafts: Sequence[Draft], *, actor: str, reason: str = "") -> None:
    """Inserts runs with their stages, queue entries, search words and events, and their first checkpoints.

    In the caller's transaction, in two statements for each thousand, or for fewer where inputs are large; the caller
    then lets them `begin` and announces what is ready.
    """
    for some in _lots(drafts):
        query(
            _INSERT,
            {
                "runs": recordset([_run_row(draft) for draft in some]),
                "stages": recordset([{"run_id": draft.id, **row} for draft in some for row in draft.stages]),
                "events": recordset([row for draft in some for row in _beginnings(draft, reason)]),
                "workspaces": list({draft.place.workspace_id for draft in some}),
                "no_throttle": NO_THROTTLE,
                "actor": actor,
            },
        )
        checkpoints.write_first([_as_checkpoints_tell(draft) for draft in some])


def _lots(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    """The drafts, no more together than one statement should carry: every stage may have its run's input."""
    lot: list[Draft] = []
    size = 0
    for draft in drafts:
        added = len(draft.input or "") * (1 + len(draft.stages))
        if lot and (len(lot) == MOST_AT_ONCE or size + added > MOST_CHARACTERS):
            yield lot
            lot, size = [], 0
        lot.append(draft)
        size += added
    if lot:
        yield lot


def begin(drafts: Sequence[Draft], *, actor: str) -> None:
    """Opens the gates that stand before first stages, in the transaction that inserted the runs."""
    gated = [
        draft.id
        for draft in drafts
        if not draft.is_held and any(row["state"] == "pending" and not row["depends_on"] for row in draft.stages)
    ]
    if gated:
        moves = Moves.lock(gated, actor=actor)
        moves.settle()
        moves.save()


def announce(drafts: Sequence[Draft]) -> None:
    """Wakes, once all is committed, who waits for what is ready in these new runs."""
    wake.announce(
        wake.Queue(draft.place.application_id, draft.place.environment_id, row["handler"])
        for draft in drafts
        for row in draft.stages
        if row["state"] == "ready" and row.get("queued", True)
    )


_INSERT = """
    WITH draft AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%(runs)s::json) AS r(id uuid, workspace_id uuid, application_id uuid,
            environment_id uuid, pipeline_id uuid, release_id uuid, name text, input text, keywords jsonb,
            trace_id text, traceparent text, tracestate text, user_id int, deadline float, recovered_from uuid,
            recovery jsonb, trigger_id uuid, tick_at timestamptz, lane_id uuid, lane_rank bigint, held boolean,
            through_blackout boolean, limits jsonb, baseline jsonb, parent_id uuid, depth int, words text, key text,
            owners text[])
    ), item AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%(stages)s::json) AS s(run_id uuid, id uuid, position int, name text,
            handler text, description text, input text, depends_on smallint[], run_next_if_failed boolean,
            mode text, recipients jsonb, effect_mode text, effect_protocol text, approval jsonb, options jsonb,
            state text, queued boolean, output_id uuid,
            output_digest text, last_error_code text, last_error_message text, failure_disposition text, stale boolean)
    ), policy AS MATERIALIZED (
        SELECT w AS workspace_id, recourse_policy_digest(w) AS digest FROM unnest(%(workspaces)s::uuid[]) w
    ), run AS (
        INSERT INTO pipelines_run (id, workspace_id, application_id, environment_id, pipeline_id, release_id, name,
            status, paused, pause_reason, input, keywords, trace_id, traceparent, tracestate, started_by_id,
            requesters, created_at, updated_at, deadline_at, deadline_seconds, failure_code, failure_message,
            policy_digest, recovered_from_id, recovery, trigger_id, tick_at, lane_id, lane_rank, held, through_blackout,
            limits, baseline, parent_id, depth, release_digest)
        SELECT id, workspace_id, application_id, environment_id, pipeline_id, release_id, name,
            'queued', false, '', input, keywords, trace_id, traceparent, tracestate, user_id,
            array_remove(ARRAY[user_id], NULL), recourse_now(), recourse_now(),
            CASE WHEN NOT held THEN recourse_now() + make_interval(secs => deadline) END,
            CASE WHEN held THEN deadline END, '', '', policy.digest, recovered_from, recovery,
            trigger_id, tick_at, lane_id, lane_rank, held, through_blackout, limits, baseline,
            parent_id, depth,
            (SELECT e.text_digest FROM pipelines_release e WHERE e.id = draft.release_id)
        FROM draft JOIN policy USING (workspace_id)
    ), stage AS (
        INSERT INTO pipelines_stage (id, run_id, run_created_at, application_id, environment_id, position, name,
            handler, description, input, depends_on, run_next_if_failed, mode, recipients, effect_mode, effect_protocol,
            approval, options, state, available_at, finished_at, epoch, attempt_number, retry_count, recovery_count,
            output_id, output_digest, last_error_code, last_error_message, failure_disposition, stale)
        SELECT i.id, i.run_id, recourse_now(), d.application_id, d.environment_id, i.position, i.name, i.handler,
            i.description, i.input, i.depends_on, i.run_next_if_failed, i.mode, i.recipients, i.effect_mode,
            i.effect_protocol, i.approval,
            i.options, i.state, CASE WHEN i.state = 'ready' THEN recourse_now() END,
            CASE WHEN i.state NOT IN ('ready', 'pending') THEN recourse_now() END, 1, 0, 0, 0,
            i.output_id, coalesce(i.output_digest, ''), coalesce(i.last_error_code, ''),
            coalesce(i.last_error_message, ''), coalesce(i.failure_disposition, ''), coalesce(i.stale, false)
        FROM item i JOIN draft d ON d.id = i.run_id
    ), queue AS (
        INSERT INTO pipelines_queueentry (stage_id, application_id, environment_id, handler, available_at,
            is_background, is_start, throttle, recipients)
        SELECT i.id, d.application_id, d.environment_id, i.handler, recourse_now(),
            d.lane_id IS DISTINCT FROM d.trigger_id, NOT d.through_blackout,
            CASE WHEN EXISTS (SELECT FROM pipelines_policy p WHERE p.workspace_id = ANY(%(workspaces)s::uuid[])
                AND p.status = 'active' AND p.kind IN ('concurrency', 'rate'))
            THEN recourse_throttle(d.workspace_id, d.environment_id, d.pipeline_id, i.name, i.handler)
            ELSE %(no_throttle)s::uuid END,
            CASE WHEN i.recipients IS NOT NULL THEN ARRAY[recourse_recipient_key(i.handler, i.recipients -> 0)] END
        FROM item i JOIN draft d ON d.id = i.run_id WHERE i.state = 'ready' AND i.queued IS DISTINCT FROM false
    ), words AS (
        INSERT INTO pipelines_runsearch (run_id, words)
        SELECT id, to_tsvector('simple', translate(words, '-_/:.@', '      '))
            || array_to_tsvector(owners || ARRAY(SELECT '#' || left(lexeme, 400) FROM unnest(
                to_tsvector('simple', translate(key, '-_/:.@', '      '))))) FROM draft
    )
    INSERT INTO pipelines_event (run_id, stage, kind, from_state, to_state, at, actor, reason, data)
    SELECT e.run_id, e.stage, e.kind, '', e.to_state, recourse_now(), %(actor)s, coalesce(e.reason, ''), e.data
    FROM json_to_recordset(%(events)s::json)
        AS e(run_id uuid, stage uuid, kind text, to_state text, reason text, data jsonb)
    RETURNING id
"""


def _run_row(draft: Draft) -> dict[str, Any]:
    place, origin = draft.place, draft.origin
    if draft.is_held and any(row["state"] not in HELD_STAGE for row in draft.stages):
        raise ValueError(f"run {draft.id} is held, and yet something in it may begin")
    return {
        "id": draft.id,
        "workspace_id": place.workspace_id,
        "application_id": place.application_id,
        "environment_id": place.environment_id,
        "pipeline_id": draft.pipeline_id,
        "release_id": draft.release_id,
        "name": draft.name,
        "input": draft.input,
        "keywords": list(draft.keywords),
        "trace_id": draft.trace.get("trace_id", ""),
        "traceparent": draft.trace.get("traceparent", ""),
        "tracestate": draft.trace.get("tracestate", ""),
        "user_id": draft.user_id,
        "deadline": draft.deadline_seconds,
        "recovered_from": draft.recovered_from,
        "recovery": draft.recovery,
        "trigger_id": origin and origin.trigger_id,
        "tick_at": origin and origin.tick_at,
        "lane_id": origin and origin.lane_id,
        "lane_rank": origin and origin.lane_rank,
        "held": draft.is_held,
        "through_blackout": draft.through_blackout,
        "limits": draft.limits.as_json(),
        "baseline": list(draft.baseline),
        "parent_id": draft.parent and draft.parent.run_id,
        "depth": draft.parent.depth if draft.parent else 0,
        "words": draft.words[: context.SEARCHED_CHARACTERS],
        "key": draft.key,
        "owners": context.owner_words(place.workspace_id, place.application_id, place.environment_id),
    }


def _as_checkpoints_tell(draft: Draft) -> checkpoints.NewRun:
    return checkpoints.NewRun(
        id=draft.id,
        workspace_id=draft.place.workspace_id,
        environment_id=draft.place.environment_id,
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
            for row in draft.stages
        ],
    )


def _beginnings(draft: Draft, reason: str) -> list[dict[str, Any]]:
    """The events of a new run: its creation, what is ready at once, and what a fork keeps of its source."""
    first: dict[str, Any] = {"run_id": draft.id, "kind": "run.create", "stage": None, "to_state": "queued"}
    if draft.recovery is not None:
        first |= {"kind": "run.fork", "reason": reason, "data": draft.recovery}
    events = [first]
    for row in draft.stages:
        if row["state"] == "ready":
            events.append(_first_event(draft, row, "stage.make_ready"))
        elif row["state"] != "pending":
            events.append(_first_event(draft, row, "stage.restore"))
    return events


def _first_event(draft: Draft, row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {"run_id": draft.id, "stage": row["id"], "kind": kind, "to_state": row["state"]}


def create_child(
    place: Place, intent: Intent, *, actor: str, user_id: int | None, parent: Parent, through_blackout: bool
) -> uuid.UUID:
    """Makes the run that a stage of `parent` starts, in the caller's transaction, which knows it by its own key.

    Refused as `create_run`.
    """
    run_id = new_id()
    _write(place, intent, run_id, actor, user_id, "", parent=parent, through_blackout=through_blackout)
    return run_id


def _write(
    place: Place,
    intent: Intent,
    run_id: uuid.UUID,
    actor: str,
    user_id: int | None,
    key: str,
    *,
    parent: Parent | None = None,
    through_blackout: bool = False,
) -> None:
    name, stages, release_id, pipeline_id, limits, given = _resolve(place, intent)
    own = baselines.of_request(
        intent.baseline,
        workspace_id=place.workspace_id,
        application_id=place.application_id,
        environment_id=place.environment_id,
        already=given,
    )
    run_input = None if intent.pipeline is None else rfc8785.dumps(intent.input or {}).decode()
    rows = [
        stage_row(stage, position, needed, run_input)
        for position, (stage, needed) in enumerate(zip(stages, _dependencies(stages), strict=True))
    ]
    rows = _admitted(rows, limits)
    open_items = [item for item in intent.context_items if not item.get("is_sensitive")]
    draft = Draft(
        id=run_id,
        place=place,
        name=name,
        release_id=release_id,
        pipeline_id=pipeline_id,
        input=run_input,
        stages=rows,
        keywords=intent.keywords,
        words=_words(name, [*intent.keywords, *open_items]),
        trace=intent.trace,
        deadline_seconds=_deadline(intent, limits),
        user_id=user_id,
        key=key,
        limits=limits,
        baseline=[*given, *own],
        parent=parent,
        through_blackout=through_blackout,
    )
    insert_runs([draft], actor=actor)
    context.save(context.rows(run_id, intent.context_items, None))
    begin([draft], actor=actor)
    announce([draft])


def _resolve(
    place: Place, intent: Intent
) -> tuple[str, list[dict[str, Any]], uuid.UUID, uuid.UUID | None, Limits, Pinned]:
    """Name, stages, release, pipeline, limits, and the baseline that the release names."""
    if intent.pipeline is None:
        stages = [with_defaults(stage) for stage in intent.stages]
        # inputs belong to the run: two runs that differ only in them share one release
        shape = [{name: value for name, value in stage.items() if name != "input"} for stage in stages]
        limits = Limits.of(intent.limits)
        _refuse_limits(limit_problems(intent.limits, intent.stages))
        told = {"limits": limits.as_json()} if limits != Limits() else {}
        release_id = inline_release(place.workspace_id, {"name": intent.name, "stages": shape, **told})
        return intent.name or "", stages, release_id, None, limits, []
    managed = release_in_force(place.workspace_id, intent.pipeline, place.environment_id)
    input_schemas.check(managed.definition.get("input_schema"), intent.input or {})
    stages = [from_definition(stage) for stage in managed.definition["stages"]]
    limits, problems = narrowed(Limits.of(managed.definition.get("limits")), intent.limits)
    _refuse_limits([*problems, *limit_problems(intent.limits, stages)])
    name, given = intent.name or managed.name, managed.baseline(place.workspace_id, place.environment_id)
    return name, stages, managed.release_id, managed.pipeline_id, limits, given


def _refuse_limits(problems: Sequence[tuple[str, str]]) -> None:
    if problems:
        errors = {_camel_path(path): [message] for path, message in problems}
        path, message = next(iter(errors.items()))
        raise Refusal("validation_error", f"{path} {message[0]}", errors=errors)


def _camel_path(path: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), path)


def _deadline(intent: Intent, limits: Limits) -> float | None:
    """Seconds; what a request says may only be shorter than what its limits say."""
    if intent.deadline_seconds is None:
        return limits.deadline_seconds
    if limits.deadline_seconds is not None and intent.deadline_seconds > limits.deadline_seconds:
        _refuse_limits([("deadline_seconds", f"must be at most {limits.deadline_seconds}, the limit of the release")])
    return intent.deadline_seconds


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


def _words(name: str, pairs: Sequence[Mapping[str, Any]]) -> str:
    return " ".join([name, *(f"{pair['key']} {pair['value']}" for pair in pairs)])
