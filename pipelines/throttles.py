"""Policies of kind concurrency and rate, where work is handed out: so many live at once, so many begin in a time.

A slot is an attempt that is dispatched or running, whose lease lives, and that carries its policy's id; a rate is the
dispatches of the last seconds that carry it. Both are counted under the lock on the policy's row, never stored, so no
slot can leak (F33, F69, F76) and no number of claims hands out more. A stage that both kinds rule obeys both.

A stage waits in a line of its queue: its concurrency policy's, else its rate policy's, else nobody's. Claims walk the
lines that have room; the lines only say where to look, what counts is asked here, of the policies as they are.

Locks: policies in order of their ids, after the runs. Who holds a policy's row waits for no run.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pipelines.jobs import Picked
from pipelines.models.runs import NO_THROTTLE
from pipelines.moves import Moves, StageRow
from pipelines.policies import ForClaims, Throttle
from pipelines.sql import execute, query

# Whether any of these environments is in a workspace that ever had such policies: only there more is asked.
THROTTLED = """EXISTS (SELECT FROM pipelines_environment e JOIN pipelines_policy p ON p.workspace_id = e.workspace_id
    WHERE e.id = ANY(%(environments)s::uuid[]) AND p.kind IN ('concurrency', 'rate'))"""


def admit(picked: Sequence[Picked], rules: ForClaims, *, wait: bool) -> tuple[list[Picked], datetime | None]:
    """Of these locked stages, in their order, those for which their policies have room, with what they take of it.

    And when it was counted, for their dispatch to be dated by; None when no policy rules any, and then nothing is
    asked. Without `wait` a policy that another claim holds counts as full. What has no room and stood in another line
    than is right by now is put into the right one.
    """
    ruled = {item.stage.id: rules.throttles(item.workspace_id, item.target) for item in picked}
    wanted = {policy.id: policy for mine in ruled.values() for policy in mine.values()}
    if not wanted:
        return list(picked), None
    room, counted_at = _room(wanted, wait=wait)
    admitted, left = [], []
    for item in picked:
        mine = ruled[item.stage.id]
        if all(room[policy.id] > 0 for policy in mine.values()):
            for policy in mine.values():
                room[policy.id] -= 1
            ids = {kind: policy.id for kind, policy in mine.items()}
            admitted.append(replace(item, slot=ids.get("concurrency"), rate=ids.get("rate")))
        else:
            left.append(item)
    _put_right({item.stage.id: line(ruled[item.stage.id]) for item in left if item.line != line(ruled[item.stage.id])})
    return admitted, counted_at


def line(mine: Mapping[str, Throttle]) -> uuid.UUID:
    """In which line a stage waits that these policies rule, by kind; as `recourse_throttle` says."""
    ruling = mine.get("concurrency") or mine.get("rate")
    return ruling.id if ruling else NO_THROTTLE


def _room(wanted: Mapping[uuid.UUID, Throttle], *, wait: bool) -> tuple[dict[uuid.UUID, int], datetime]:
    """How many more each policy lets go, its row locked; none where it is another by now than was read of it."""
    lock = "SELECT id, match FROM pipelines_policy WHERE id = ANY(%s) AND status = 'active' ORDER BY id"
    lock += " FOR NO KEY UPDATE" if wait else " FOR NO KEY UPDATE SKIP LOCKED"
    locked = query(lock, [list(wanted)])
    held = [policy_id for policy_id, match in locked if json.loads(match) == wanted[policy_id].match]
    # a statement of its own, after the lock: its snapshot sees what the lock's last holder handed out
    rows = query(
        "SELECT p.id, recourse_room(p.id), recourse_now() FROM unnest(%s::uuid[]) p(id)"
        " UNION ALL SELECT NULL, NULL, recourse_now()",
        [held],
    )
    room = dict.fromkeys(wanted, 0) | {policy_id: free for policy_id, free, _ in rows if policy_id is not None}
    return room, rows[-1][-1]


def _put_right(lines: Mapping[uuid.UUID, uuid.UUID]) -> None:
    if lines:
        execute(
            "UPDATE pipelines_queueentry q SET throttle = r.throttle"
            " FROM unnest(%s::uuid[], %s::uuid[]) AS r(stage_id, throttle) WHERE q.stage_id = r.stage_id",
            [list(lines), list(lines.values())],
        )


def unthrottled(moves: Moves, stages: Sequence[StageRow], session_id: uuid.UUID) -> set[uuid.UUID]:
    """Those of these stages of locked runs that wait for no policy and go to anyone, if the session may be handed
    anything at all.

    Of runs only of which a glance tells that they stand on what they pinned; claims look closer at the others.

    Where no workspace has such policies, none is looked at.
    """
    if not stages:
        return set()
    rows = query(
        f"""
        SELECT s.id FROM pipelines_stage s
        WHERE s.id = ANY(%s) AND s.recipients IS NULL
            AND EXISTS (SELECT FROM pipelines_workersession WHERE id = %s AND state = 'active')
            AND EXISTS (SELECT FROM pipelines_run r JOIN pipelines_release v ON v.id = r.release_id
                WHERE r.id = s.run_id AND r.release_digest IN ('', v.text_digest) AND r.baseline = '[]')
            AND CASE WHEN EXISTS (SELECT FROM pipelines_policy p WHERE p.workspace_id = ANY(%s) AND p.status = 'active'
                AND p.kind IN ('concurrency', 'rate'))
            THEN (SELECT recourse_throttle(r.workspace_id, r.environment_id, r.pipeline_id, s.name, s.handler)
                FROM pipelines_run r WHERE r.id = s.run_id) = '{NO_THROTTLE}' ELSE true END
        """,  # noqa: S608 - our own text
        [[stage.id for stage in stages], session_id, list({run.workspace_id for run in moves.runs.values()})],
    )
    return {row[0] for row in rows}
