"""Runs that a stage starts: known by the stage and a key, so that however often its work is done one run is made.

The stage's attempts find the run that an earlier one started, whatever became of it; a later epoch and a fork of the
run find it while it is unfinished or completed, and begin anew where it failed or was cancelled. A child belongs to its
parent's application and environment, has limits of its own, and stands at most so deep. Serves N9, F37, F38, F129.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import transaction

from pipelines import audit, failures
from pipelines.artifacts import actor_of_stage
from pipelines.creation import Intent, Parent, Place, create_child
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.leases import Holder, why_not_held
from pipelines.models import ChildRun, Follow, OnParentEnd, Run
from pipelines.moves import Moves, StageRow, event_row, insert_events
from pipelines.sql import execute, query
from pipelines.states import TERMINAL_RUN, RunStatus

LONGEST_KEY = 200
MOST_OUTPUTS = 8 * 1024 * 1024  # bytes of outputs told at once
TOO_LATE = "this session does not hold the lease of that attempt; nothing was started"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a stage wants to be run under its key. `environment` may only be its own."""

    key: str
    intent: Intent
    environment: str | None = None
    on_parent_end: str = OnParentEnd.CANCEL
    follow: str = Follow.FORK


@dataclass(frozen=True, slots=True)
class Child:
    """A child as its stage sees it: the run that counts, and `started`, the one that was started. `outputs` of a
    completed one are those of its last stages, on which no other depends; `left_out` are too large to be told.
    `goes_on`: it failed, and will be retried by itself."""

    run_id: uuid.UUID
    started: uuid.UUID
    key: str
    name: str
    status: str
    failure_code: str = ""
    failure_message: str = ""
    outputs: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    goes_on: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_RUN and not self.goes_on


@dataclass(frozen=True, slots=True)
class Started:
    """`created`: by this very call."""

    child: Child
    created: bool


@dataclass(frozen=True, slots=True)
class _Link:
    """A row of `ChildRun`, with how its run stands."""

    id: uuid.UUID
    run_id: uuid.UUID
    started: uuid.UUID
    epoch: int
    fingerprint: str
    ending: bool
    status: str
    goes_on: bool  # it failed, and will be retried by itself

    @property
    def may_be_found(self) -> bool:
        """In another epoch or by a fork: it lives, or will, or has completed."""
        lives = self.goes_on or self.status not in TERMINAL_RUN
        return self.status == RunStatus.COMPLETED or (lives and not self.ending)


def start(holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, wish: Wish) -> Started | None:
    """Starts a run for a running attempt, or finds the one that its stage's key stands for; durable on return. None: no
    such attempt is visible to the holder.

    Refused as creating a run is; `stale_execution` without the live lease, `idempotency_conflict` where the key stands
    for another request, `budget_exhausted` for a child too many or too deep, `recovery_environment_mismatch`, and
    `needs_reconciliation` where it would begin anew what failed or was cancelled with the outcome of an effect open.
    """
    with transaction.atomic():
        found = query("SELECT run_id FROM pipelines_attempt WHERE id = %s AND stage_id = %s", [execution_id, stage_id])
        moves = Moves.lock([found[0][0]] if found else [], actor=holder.worker, owner=holder.owner)
        if not moves.runs:
            return None
        moves.end_overdue()
        attempt = moves.attempts("id = %s", execution_id)[0]
        why_not = why_not_held(holder, moves, attempt)
        link, created = (None, False) if why_not else _link(moves, moves.stages[stage_id], wish, holder)
        moves.settle()
        moves.save()
    if link is None:
        raise Refusal("stale_execution", TOO_LATE)
    return Started(_told([link])[0], created)


def look(
    holder: Holder, stage_id: uuid.UUID, execution_id: uuid.UUID, run_ids: Sequence[uuid.UUID]
) -> list[Child] | None:
    """How children of a running attempt's stage stand now, in the order asked; None as for `start`.

    Refused: `stale_execution`; `validation_error` names a run that the stage did not start.
    """
    rows = query(
        "SELECT a.state = 'running' AND a.session_id = %s AND a.expires_at > recourse_now()"
        " FROM pipelines_attempt a JOIN pipelines_run r ON r.id = a.run_id WHERE a.id = %s AND a.stage_id = %s"
        " AND r.application_id = coalesce(%s, r.application_id) AND r.environment_id = coalesce(%s, r.environment_id)",
        [holder.session_id, execution_id, stage_id, holder.application_id, holder.environment_id],
    )
    if not rows:
        return None
    if not rows[0][0]:
        raise Refusal("stale_execution", "this session does not hold the lease of that attempt")
    known = query(
        "SELECT id, run_id, started_id FROM pipelines_childrun WHERE stage_id = %(stage)s AND is_current"
        " AND (run_id = ANY(%(runs)s) OR started_id = ANY(%(runs)s))",
        {"stage": stage_id, "runs": list(run_ids)},
    )
    by_run = {run_id: link for link, *runs in known for run_id in reversed(runs)}
    if unknown := [at for at, run_id in enumerate(run_ids) if run_id not in by_run]:
        errors = {f"runs[{at}]": ["is no run that this stage started"] for at in unknown}
        raise Refusal("validation_error", f"runs[{unknown[0]}]: is no run that this stage started", errors=errors)
    told = {link: child for (link, *_), child in zip(known, _told([row[0] for row in known]), strict=True)}
    return [told[by_run[run_id]] for run_id in run_ids]


def follow_fork(source: Run, target: uuid.UUID, actor: str) -> None:
    """A child was forked: where its links say so, the fork counts from now on, and the parent's events tell it (F38).

    In the transaction that makes the fork, which holds its source's lock. What was to be cancelled with its parent was
    the run that has ended meanwhile, not what somebody makes of it since.
    """
    if source.parent_id is None:
        return
    moved = query(
        """
        WITH RECURSIVE lineage AS (
            SELECT id, recovered_from_id FROM pipelines_run WHERE id = %(source)s
            UNION ALL SELECT r.id, r.recovered_from_id
                FROM pipelines_run r JOIN lineage ON r.id = lineage.recovered_from_id
        ), due AS MATERIALIZED (
            SELECT id, run_id FROM pipelines_childrun WHERE started_id IN (SELECT id FROM lineage)
                ORDER BY id FOR NO KEY UPDATE -- all at once: who holds some may not wait for others
        )
        UPDATE pipelines_childrun l SET run_id = %(target)s, ending = false FROM due
            WHERE l.id = due.id AND l.is_current AND l.follow = 'fork'
        RETURNING l.parent_id, l.stage_id, l.key, due.run_id
        """,
        {"source": source.id, "target": target},
    )
    insert_events(
        [
            event_row(
                parent_id,
                "child.follow",
                stage_id=stage_id,
                actor=actor,
                data={"key": key, "run": str(target), "instead_of": str(earlier)},
            )
            for parent_id, stage_id, key, earlier in moved
        ]
    )


def _link(moves: Moves, stage: StageRow, wish: Wish, holder: Holder) -> tuple[uuid.UUID, bool]:
    """The link that the key stands for from now on, and whether a run was made for it."""
    run = Run.objects.select_related("environment").get(id=stage.run_id)
    if wish.environment not in (None, run.environment.slug):
        detail = f"a run started here belongs to {run.environment.slug!r}, as this one does"
        raise Refusal("recovery_environment_mismatch", detail, errors={"environment": [detail]})
    fingerprint = wish.intent.fingerprint(run.environment.slug)
    own = _current(stage.id, wish.key)
    if own is not None and (own.epoch == stage.epoch or own.may_be_found):
        if own.fingerprint != fingerprint:
            detail = f"this stage already used the key {wish.key!r} for another request"
            raise Refusal("idempotency_conflict", detail, extra={"runId": str(own.run_id)})
        if own.epoch != stage.epoch:
            execute("UPDATE pipelines_childrun SET epoch = %s WHERE id = %s", [stage.epoch, own.id])
        return own.id, False
    earlier = own or _of_source(run, stage.name, wish.key)
    if own is None and earlier is not None and earlier.may_be_found and earlier.fingerprint == fingerprint:
        link = _add(stage, wish, fingerprint, started=earlier.started, run_id=earlier.run_id, taken_over=True)
        _tell(moves, stage, "child.take_over", wish, earlier.run_id)
        return link, False
    if earlier is not None:
        _check_settled(earlier)
    child = _make(moves, run, stage, wish, holder)
    if own is not None:
        execute("UPDATE pipelines_childrun SET is_current = false WHERE id = %s", [own.id])
    return _add(stage, wish, fingerprint, started=child, run_id=child, taken_over=False), True


def _link_columns() -> str:
    return f"l.id, l.run_id, l.started_id, l.epoch, l.fingerprint, l.ending, c.status, {failures.going_on()}"


def _current(stage_id: uuid.UUID, key: str) -> _Link | None:
    rows = query(
        f"SELECT {_link_columns()} FROM pipelines_childrun l JOIN pipelines_run c ON c.id = l.run_id"  # noqa: S608 - ours
        " WHERE l.stage_id = %s AND l.key = %s AND l.is_current",
        [stage_id, key],
    )
    return _Link(*rows[0]) if rows else None


def _of_source(run: Run, stage: str, key: str) -> _Link | None:
    """What the key stood for in the nearest of the runs that this one was forked from."""
    if run.recovered_from_id is None:
        return None
    rows = query(
        "WITH RECURSIVE source AS (SELECT id, recovered_from_id, 1 AS far FROM pipelines_run WHERE id = %s"  # noqa: S608 - ours
        " UNION ALL SELECT r.id, r.recovered_from_id, far + 1 FROM pipelines_run r JOIN source"
        " ON r.id = source.recovered_from_id)"
        f" SELECT {_link_columns()} FROM pipelines_childrun l"
        " JOIN pipelines_run c ON c.id = l.run_id JOIN source ON source.id = l.parent_id"
        " JOIN pipelines_stage s ON s.id = l.stage_id WHERE s.name = %s AND l.key = %s AND l.is_current"
        " ORDER BY source.far LIMIT 1",
        [run.recovered_from_id, stage, key],
    )
    return _Link(*rows[0]) if rows else None


def _check_settled(earlier: _Link) -> None:
    """What is begun anew must not repeat an act of which nobody knows whether it was done, its own or of any run that
    was started for it."""
    open_effects = query(
        "WITH RECURSIVE family AS (SELECT %s::uuid AS id UNION SELECT l.run_id FROM pipelines_childrun l"
        " JOIN family ON l.parent_id = family.id)"
        " SELECT e.run_id, r.status FROM pipelines_effect e JOIN family ON family.id = e.run_id"
        " JOIN pipelines_run r ON r.id = e.run_id"
        " WHERE e.state IN ('declared', 'unknown') AND e.effect_class <> 'internal_state' LIMIT 1",
        [earlier.run_id],
    )
    for run_id, status in open_effects:
        whose = "which the key stood for" if run_id == earlier.run_id else f"begun for {earlier.run_id} of this key"
        detail = f"run {run_id}, {whose}, is {status}, and what it did outside is unknown; reconcile its effects,"
        raise Refusal("needs_reconciliation", f"{detail} then retry the stage", extra={"runId": str(run_id)})


def _make(moves: Moves, run: Run, stage: StageRow, wish: Wish, holder: Holder) -> uuid.UUID:
    if run.depth >= settings.RECOURSE_CHILD_DEPTH:
        most = settings.RECOURSE_CHILD_DEPTH
        raise Refusal("budget_exhausted", f"this run stands {run.depth} deep already; at most {most} may stand above")
    ((count,),) = query("SELECT count(*) FROM pipelines_childrun WHERE parent_id = %s AND NOT taken_over", [run.id])
    if count >= settings.RECOURSE_CHILD_RUNS:
        raise Refusal("budget_exhausted", f"this run has started {count} others, as many as one may")
    child = create_child(
        Place(run.workspace_id, run.application_id, run.environment_id, run.environment.slug),
        wish.intent,
        actor=holder.worker,
        user_id=run.started_by_id,
        parent=Parent(run.id, run.depth + 1),
        through_blackout=run.through_blackout,
    )
    if run.requesters:  # who asked for the parent asked for this, and decides none of its gates
        execute("UPDATE pipelines_run SET requesters = %s WHERE id = %s", [run.requesters, child])
    told = {"parent": str(run.id), "stage": stage.name, "key": wish.key}
    audit.record(actor_of_stage(stage.id), "run.create", audit.ALLOWED, run=child, data=told)
    _tell(moves, stage, "child.start", wish, child)
    return child


def _add(
    stage: StageRow, wish: Wish, fingerprint: str, *, started: uuid.UUID, run_id: uuid.UUID, taken_over: bool
) -> uuid.UUID:
    link = new_id()
    ChildRun.objects.create(
        id=link,
        parent_id=stage.run_id,
        stage_id=stage.id,
        key=wish.key,
        started_id=started,
        run_id=run_id,
        epoch=stage.epoch,
        on_parent_end=wish.on_parent_end,
        follow=wish.follow,
        fingerprint=fingerprint,
        taken_over=taken_over,
    )
    execute("UPDATE pipelines_run SET has_children = true WHERE id = %s AND NOT has_children", [stage.run_id])
    return link


def _tell(moves: Moves, stage: StageRow, kind: str, wish: Wish, child: uuid.UUID) -> None:
    moves.event(kind, stage.run_id, stage.id, data={"key": wish.key, "run": str(child)})


def _told(links: Sequence[uuid.UUID]) -> list[Child]:
    """The children of these links, in their order, with the outputs of those that have completed."""
    rows = {
        row[0]: row[1:]
        for row in query(
            "SELECT l.id, l.run_id, l.started_id, l.key, c.name, c.status, c.failure_code, c.failure_message,"  # noqa: S608 - ours
            f" {failures.going_on()} FROM pipelines_childrun l"
            " JOIN pipelines_run c ON c.id = l.run_id WHERE l.id = ANY(%s)",
            [list(links)],
        )
    }
    outputs, left_out = _outputs([row[0] for row in rows.values() if row[4] == RunStatus.COMPLETED])
    return [_child(rows[link], outputs, left_out) for link in links]


def _child(row: Sequence[Any], outputs: dict[uuid.UUID, dict[str, Any]], left_out: dict[uuid.UUID, list[str]]) -> Child:
    run_id, started, key, name, status, code, message, goes_on = row
    told, rest = outputs.get(run_id, {}), tuple(left_out.get(run_id, ()))
    return Child(run_id, started, key, name, status, code, message, told, rest, goes_on)


def _outputs(run_ids: Sequence[uuid.UUID]) -> tuple[dict[uuid.UUID, dict[str, Any]], dict[uuid.UUID, list[str]]]:
    """What the last stages of these runs put out, and which of it is too much to be told."""
    told: dict[uuid.UUID, dict[str, Any]] = {}
    left_out: dict[uuid.UUID, list[str]] = {}
    if not run_ids:
        return told, left_out
    last = (
        " FROM pipelines_stage s JOIN pipelines_stageoutput o ON o.id = s.output_id WHERE s.run_id = ANY(%s)"
        " AND NOT EXISTS (SELECT FROM pipelines_stage n WHERE n.run_id = s.run_id AND s.position = ANY(n.depends_on))"
    )
    wanted: list[uuid.UUID] = []
    total = 0
    for output_id, run_id, name, size in query(
        f"SELECT o.id, s.run_id, s.name, o.size{last} ORDER BY s.run_id, s.position",
        [list(run_ids)],
    ):
        total += size
        if total > MOST_OUTPUTS:
            left_out.setdefault(run_id, []).append(name)
        else:
            wanted.append(output_id)
    for run_id, name, body in query(
        "SELECT s.run_id, s.name, o.body FROM pipelines_stageoutput o JOIN pipelines_stage s ON s.id = o.stage_id"
        " WHERE o.id = ANY(%s)",
        [wanted],
    ):
        told.setdefault(run_id, {})[name] = json.loads(body)
    return told, left_out
