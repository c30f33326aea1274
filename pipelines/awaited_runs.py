"""Parents and children: who waits for whose end, and what an end does to the other. Runs are locked one side at a time.

A child's end would lock child, then parent; a parent's end the other way round. So neither does: each writes what is
due to the links in its own transaction and, once that has committed, locks the other side alone. A stage that begins
to wait looks again after its commit as well, so of the two the later one sees the other, and no wake-up is lost. Links
are locked in the order of their ids, after the runs, and nobody who holds one waits for a run. What a crash between
commit and look leaves, the sweep finds: it asks the tables, not a message. Serves N9, F37, F73, F129.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from pipelines import failures
from pipelines.errors import Refusal
from pipelines.moves import Moves, StageRow
from pipelines.sql import execute, query
from pipelines.states import RunStatus, StageState

log = structlog.get_logger(__name__)
AT_ONCE = 50  # runs of one transaction


def links_of(stage: StageRow, run_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """The links of runs that the stage started; `validation_error` names one that it did not."""
    rows = query(
        "SELECT id, run_id, started_id FROM pipelines_childrun WHERE stage_id = %(stage)s AND is_current"
        " AND (run_id = ANY(%(runs)s) OR started_id = ANY(%(runs)s))",
        {"stage": stage.id, "runs": list(run_ids)},
    )
    known = {run_id for row in rows for run_id in row[1:]}
    unknown = {
        f"awaitsRuns[{at}]": ["is no run that this stage started"] for at, one in enumerate(run_ids) if one not in known
    }
    if unknown:
        field, (message, *_) = next(iter(unknown.items()))
        raise Refusal("validation_error", f"{field}: {message}", errors=unknown)
    return [row[0] for row in rows]


def save(
    waiting: Collection[uuid.UUID],
    links: Sequence[uuid.UUID],
    *,
    awaited: Collection[uuid.UUID],
    parents: Collection[uuid.UUID],
    children: Collection[uuid.UUID],
    actor: str,
) -> None:
    """In the transaction of the moves: these links are waited for, the stages in `awaited` wait no longer, these
    parents and children have ended. What follows from that is done once it has committed."""
    if links or awaited or parents:
        told = {"links": list(links), "awaited": list(awaited), "parents": list(parents)}
        due = query(
            "SELECT id FROM pipelines_childrun WHERE id = ANY(%(links)s)"
            " OR (stage_id = ANY(%(awaited)s) AND is_current AND awaited) OR parent_id = ANY(%(parents)s)"
            " ORDER BY id FOR NO KEY UPDATE",
            told,
        )
        # a statement of its own, after the lock: it sees what those who held the links have done about their runs
        execute(
            "UPDATE pipelines_childrun l SET awaited = l.id = ANY(%(links)s) AND l.parent_id <> ALL(%(parents)s),"
            " ending = l.ending OR (l.parent_id = ANY(%(parents)s) AND l.on_parent_end = 'cancel'"
            " AND EXISTS (SELECT FROM pipelines_run c WHERE c.id = l.run_id"
            " AND c.status NOT IN ('completed', 'failed', 'cancelled'))) WHERE l.id = ANY(%(due)s)",
            told | {"due": [link for (link,) in due]},
        )
    ended, over, again = sorted(children), sorted(parents), sorted(waiting)
    transaction.on_commit(lambda: _follow_up(ended, over, again, actor), robust=True)


def wake(parent_ids: Sequence[uuid.UUID], *, wait: bool) -> int:
    """Stages of these runs that waited for runs all of which have ended → ready; says how many. One that failed and
    retries itself has not.

    Children are only read: one that is reopened meanwhile is waited for anew by the stage itself.
    """
    if not parent_ids:
        return 0
    with transaction.atomic():
        moves = Moves.lock(parent_ids, skip_locked=not wait)
        rows = query(
            "SELECT l.stage_id FROM pipelines_childrun l JOIN pipelines_run c ON c.id = l.run_id"  # noqa: S608 - ours
            f" WHERE l.parent_id = ANY(%s) AND l.awaited GROUP BY l.stage_id HAVING bool_and({failures.ended()})",
            [list(moves.runs)],
        )
        due = [moves.stages[stage_id] for (stage_id,) in rows]
        for stage in due:
            if stage.state == StageState.WAITING:
                moves.runs_ended(stage)
        moves.settle()
        moves.save()
    return len(due)


def cancel_children(parent_ids: Sequence[uuid.UUID], *, actor: str = "") -> int:
    """Cancels what was to end with these parents, the first `AT_ONCE`; says how many links that settled."""
    rows = query(
        "SELECT id FROM pipelines_childrun WHERE ending AND parent_id = ANY(%s) ORDER BY id LIMIT %s",
        [list(parent_ids), AT_ONCE],
    )
    return _cancel([link_id for (link_id,) in rows], actor=actor, wait=True)


def sweep() -> int:
    """What a crash, or a lock, kept from being done at once: cancels children and wakes parents; says how many. What
    cannot be moved is walked past."""
    total, after = 0, uuid.UUID(int=0)
    while rows := query(
        "SELECT id FROM pipelines_childrun WHERE ending AND id > %s ORDER BY id LIMIT %s", [after, AT_ONCE]
    ):
        total += _each(_cancel, [link_id for (link_id,) in rows])
        after = rows[-1][0]
    rows = query(
        "SELECT l.parent_id FROM pipelines_childrun l JOIN pipelines_run c ON c.id = l.run_id WHERE l.awaited"  # noqa: S608 - ours
        f" GROUP BY l.parent_id, l.stage_id HAVING bool_and({failures.ended()}) ORDER BY l.parent_id"
    )
    parents = list(dict.fromkeys(parent_id for (parent_id,) in rows))
    for start in range(0, len(parents), AT_ONCE):
        total += _each(partial(wake, wait=False), parents[start : start + AT_ONCE])
    return total


def _cancel(links: Sequence[uuid.UUID], *, actor: str = "", wait: bool = False) -> int:
    """Cancels the runs of these links that are to end; says how many links that settled."""
    with transaction.atomic():
        rows = query(
            "SELECT l.id, l.run_id, p.id, p.status FROM pipelines_childrun l JOIN pipelines_run p ON p.id = l.parent_id"
            " WHERE l.ending AND l.id = ANY(%s) ORDER BY l.id",
            [list(links)],
        )
        why = {run_id: f"run {parent_id}, which had started it, is {status}" for _, run_id, parent_id, status in rows}
        moves = Moves.lock(why, actor=actor, skip_locked=not wait)
        for run in moves.runs.values():
            if not run.is_terminal:
                moves.end_run(run, RunStatus.CANCELLED, reason=why[run.id])
        moves.save()
        settled = [link_id for link_id, run_id, *_ in rows if run_id in moves.runs]
        if settled:
            execute(
                "WITH due AS MATERIALIZED (SELECT id FROM pipelines_childrun WHERE id = ANY(%s) ORDER BY id"
                " FOR NO KEY UPDATE) UPDATE pipelines_childrun l SET ending = false FROM due WHERE l.id = due.id",
                [settled],
            )
    return len(settled)


def _follow_up(
    ended: Sequence[uuid.UUID], parents: Sequence[uuid.UUID], waiting: Sequence[uuid.UUID], actor: str
) -> None:
    """After a commit; what comes to nothing here, the sweep does."""
    try:
        to_wake = set(waiting)
        if ended:
            rows = query(
                "SELECT DISTINCT parent_id FROM pipelines_childrun WHERE run_id = ANY(%s) AND awaited", [ended]
            )
            to_wake |= {parent_id for (parent_id,) in rows}
        wake(sorted(to_wake), wait=True)
        if parents:
            cancel_children(parents, actor=actor)
    except DatabaseError as error:
        log.warning("children.left_to_the_sweep", error=str(error).strip())


def _each(step: Callable[[Sequence[uuid.UUID]], int], ids: Sequence[uuid.UUID]) -> int:
    """All together; where that fails one after the other, so that one that cannot be moved holds up no other."""
    try:
        return step(ids)
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("children.sweep_failed", rows=len(ids), id=str(ids[0]))
        return sum(_each(step, [one]) for one in ids) if len(ids) > 1 else 0
