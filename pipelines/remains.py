"""What may still go on outside when a run is ended from outside: listed in the same transaction, as rows (R37, P75).

Ending a run stops our work and no other's, so each row says what was under way and not that it stopped. People work the
rows off (`aftermath`); the row of an open effect is settled by what somebody finds out about that effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipelines import failures
from pipelines.ids import new_id
from pipelines.models import ReconciliationItem
from pipelines.models import ReconciliationKind as Kind
from pipelines.sql import Row, execute, query, recordset
from pipelines.states import ACTIVE_STAGE, AttemptState, StageState

if TYPE_CHECKING:
    from pipelines.moves import Moves, RunRow, StageRow


def listed(moves: Moves, run: RunRow) -> list[dict[str, Any]]:
    """The rows for a locked run that is about to be ended, while its stages still say what they were doing."""
    if not any(stage.attempt_number or stage.state == StageState.WAITING for stage in run.stages):
        return []  # nothing of it ever began
    stages = {stage.id: stage for stage in run.stages}
    rows = [*_attempts(moves, run, stages), *_gates(moves, run, stages), *_effects(moves, run, stages)]
    rows += _children(moves, run, stages)
    return [{"id": new_id(), **row} for row in rows]  # numbered as they are told


def insert(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        execute(
            "INSERT INTO pipelines_reconciliationitem (id, run_id, workspace_id, stage_id, attempt_number, kind,"
            " subject, detail, opened_at, resolved_name, note) SELECT id, run_id, workspace_id, stage_id,"
            " attempt_number, kind, subject, detail, opened_at, '', '' FROM json_to_recordset(%s::json) AS r(id uuid,"
            " run_id uuid, workspace_id uuid, stage_id uuid, attempt_number int, kind text, subject uuid, detail text,"
            " opened_at timestamptz)",
            [recordset(rows)],
        )


def told(run_id: uuid.UUID) -> list[dict[str, Any]]:
    """The list of a run as a cancel answers it, in the order in which it was made, with what is settled by now."""
    items = ReconciliationItem.objects.filter(run_id=run_id).order_by("opened_at", "id")
    return [
        _told(item.id, item.stage_id, item.attempt_number, item.kind, item.detail)
        | {
            "settledAt": item.resolved_at.isoformat() if item.resolved_at else None,
            "settledBy": item.resolved_name or None,
            "note": item.note or None,
        }
        for item in items
    ]


def as_listed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same of rows that are just being written: nothing of them is settled."""
    return [_told(row["id"], row["stage_id"], row["attempt_number"], row["kind"], row["detail"]) for row in rows]


def _told(item_id: uuid.UUID, stage_id: uuid.UUID, attempt: int, kind: str, detail: str) -> dict[str, Any]:
    told = {"itemId": str(item_id), "stageId": str(stage_id), "attempt": attempt, "kind": kind, "detail": detail}
    return {**told, "settledAt": None, "settledBy": None, "note": None}


def _attempts(moves: Moves, run: RunRow, stages: dict[uuid.UUID, StageRow]) -> list[dict[str, Any]]:
    """What runs at workers, what is awaited from elsewhere, and what was uncertain already."""
    busy = [stage.id for stage in run.stages if stage.state in ACTIVE_STAGE or stage.awaits_import]
    uncertain = [stage.id for stage in run.stages if stage.state == StageState.NEEDS_RECONCILIATION]
    if not busy and not uncertain:
        return []
    rows = [
        _row(
            moves,
            stages[stage_id],
            number,
            Kind.UNCERTAIN_EFFECT,
            attempt_id,
            f"what attempt {number} did outside is unknown",
        )
        for stage_id, number, attempt_id in _uncertain(uncertain)
    ]
    for attempt in moves.active_attempts(busy):
        stage = stages[attempt.stage_id]
        if stage.awaits_import:
            detail = f"requested elsewhere under digest {attempt.request_digest}; somebody may still be at work on it"
            rows.append(_row(moves, stage, attempt.number, Kind.AWAITED_IMPORT, attempt.id, detail))
        elif attempt.state == AttemptState.RUNNING:
            detail = f"attempt {attempt.number} may still run at {attempt.worker}; it was told to stop"
            rows.append(_row(moves, stage, attempt.number, Kind.RUNNING_ATTEMPT, attempt.id, detail))
    return sorted(rows, key=lambda row: stages[row["stage_id"]].position)


def _uncertain(stage_ids: Sequence[uuid.UUID]) -> list[Row]:
    """Of stages to be reconciled the attempt that left the doubt: (stage_id, its number, its id). It has ended."""
    if not stage_ids:
        return []
    return query(
        "SELECT s.id, a.number, a.id FROM pipelines_stage s JOIN pipelines_attempt a ON a.stage_id = s.id"
        " AND a.number = s.attempt_number WHERE s.id = ANY(%s)",
        [stage_ids],
    )


def _gates(moves: Moves, run: RunRow, stages: dict[uuid.UUID, StageRow]) -> list[dict[str, Any]]:
    waiting = [stage.id for stage in run.stages if stage.state == StageState.WAITING]
    if not waiting:
        return []
    found = query(
        "SELECT stage_id, id FROM pipelines_gate WHERE stage_id = ANY(%s) AND state = 'open' ORDER BY opened_at, id",
        [waiting],
    )
    detail = "a decision was being waited for; outside work may depend on it"
    return [
        _row(moves, stages[stage_id], stages[stage_id].attempt_number, Kind.OPEN_GATE, gate_id, detail)
        for stage_id, gate_id in found
    ]


def _effects(moves: Moves, run: RunRow, stages: dict[uuid.UUID, StageRow]) -> list[dict[str, Any]]:
    """What attempts of the run said they were about to do outside, and never said whether they had."""
    rows = []
    for effect_id, stage_id, number, effect_class, step_id, key, external_ref in moves.open_effects(run):
        names = "".join(f", {name} {value}" for name, value in (("key", key), ("reference", external_ref)) if value)
        what = " ".join(filter(None, (effect_class.replace("_", " "), step_id)))
        detail = f"nobody knows whether attempt {number} did {what}{names}"
        rows.append(_row(moves, stages[stage_id], number, Kind.OPEN_EFFECT, effect_id, detail))
    return rows


def _children(moves: Moves, run: RunRow, stages: dict[uuid.UUID, StageRow]) -> list[dict[str, Any]]:
    """Runs that its stages started, to go on when it ends (F73)."""
    found = query(_LEFT.format(ended=failures.ended()), [run.id]) if run.has_children else ()
    rows = []
    for child_id, stage_id, name, status in found:
        detail = f"it started run {child_id} ({name}), which is {status} and goes on"
        rows.append(_row(moves, stages[stage_id], stages[stage_id].attempt_number, Kind.CHILD_RUN, child_id, detail))
    return rows


_LEFT = (
    "SELECT DISTINCT ON (c.created_at, c.id) c.id, l.stage_id, c.name, c.status FROM pipelines_childrun l"
    " JOIN pipelines_run c ON c.id = l.run_id WHERE l.parent_id = %s AND l.on_parent_end = 'leave'"
    " AND NOT {ended} ORDER BY c.created_at, c.id"
)


def _row(
    moves: Moves, stage: StageRow, attempt: int, kind: Kind, subject: uuid.UUID | None, detail: str
) -> dict[str, Any]:
    return {
        "run_id": stage.run_id,
        "workspace_id": moves.runs[stage.run_id].workspace_id,
        "stage_id": stage.id,
        "attempt_number": attempt,
        "kind": kind.value,
        "subject": subject,
        "detail": f"{stage.name}: {detail}",
        "opened_at": moves.now,
    }
