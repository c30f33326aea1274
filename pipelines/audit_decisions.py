"""Whether decisions still are what the audit tells of them: an older row put back in their place is found (R44, R12).

Rows of decisions refuse to be changed; who may switch that off, with the database's password, may put an older one
back. The audit's chain holds each decision too, so what is not as told there shows. Runs that retention removed are
left out: their events stay, their rows do not. Each check is one statement, which sees one moment.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from pipelines.sql import planned


class Differing(NamedTuple):
    """The first event whose decision is not as it tells, or a decision that no event tells of; and what."""

    event: uuid.UUID | None
    what: str


# each answers (event or none, what) for one workspace, %(workspace)s; apps above add theirs with `also`
CHECKS = [
    # what people and applications said at gates
    """
    SELECT e.id, CASE WHEN g.id IS NULL THEN 'the gate of which it tells is gone'
        WHEN d.id IS NULL THEN 'the decision of which it tells is gone, or another'
        ELSE format('the gate of which it tells is %%s', g.state) END
    FROM pipelines_auditevent e JOIN pipelines_run r ON r.id = e.run
    LEFT JOIN pipelines_gate g ON g.id = (e.data ->> 'gate')::uuid
    LEFT JOIN pipelines_gatedecision d ON d.gate_id = g.id AND d.user_id IS NOT DISTINCT FROM e.user_id
        AND d.approved = (e.action = 'gate.approve') AND d.reason = e.reason
    WHERE e.workspace_id = %(workspace)s AND e.action IN ('gate.approve', 'gate.reject') AND e.outcome = 'allowed'
        AND (d.id IS NULL OR (e.action = 'gate.reject' AND g.state <> 'rejected')
            OR (e.action = 'gate.approve' AND (e.data ->> 'have')::int >= (e.data ->> 'need')::int
                AND g.state <> 'approved'))
    ORDER BY e.at, e.id LIMIT 1
    """,
    """
    SELECT NULL::uuid, format('no event tells of a decision about gate %%s', g.id)
    FROM pipelines_gate g LEFT JOIN pipelines_gatedecision d ON d.gate_id = g.id
    WHERE g.workspace_id = %(workspace)s AND (d.id IS NOT NULL OR g.state IN ('approved', 'rejected'))
        AND NOT EXISTS (
            SELECT FROM pipelines_auditevent e WHERE e.workspace_id = g.workspace_id AND e.run = g.run_id
                AND e.outcome = 'allowed' AND e.data ->> 'gate' = g.id::text
                AND e.action = CASE WHEN coalesce(d.approved, g.state = 'approved')
                    THEN 'gate.approve' ELSE 'gate.reject' END
                AND (d.id IS NULL OR e.user_id IS NOT DISTINCT FROM d.user_id))
    ORDER BY g.opened_at, g.id LIMIT 1
    """,
    # what was left outside, as people settled it
    """
    SELECT e.id, CASE WHEN i.id IS NULL THEN 'the item of which it tells is gone'
        ELSE 'the item of which it tells is not settled so' END
    FROM pipelines_auditevent e JOIN pipelines_run r ON r.id = e.run
    LEFT JOIN pipelines_reconciliationitem i ON i.id = (e.data ->> 'item')::uuid
    WHERE e.workspace_id = %(workspace)s AND e.action = 'reconciliation.settle' AND e.outcome = 'allowed'
        AND (i.id IS NULL OR i.resolved_at IS NULL OR i.note <> e.data ->> 'note'
            OR i.resolved_by IS DISTINCT FROM e.user_id)
    ORDER BY e.at, e.id LIMIT 1
    """,
    """
    SELECT NULL::uuid, format('no event tells how item %%s was settled', i.id)
    FROM pipelines_reconciliationitem i
    WHERE i.workspace_id = %(workspace)s AND i.resolved_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM pipelines_auditevent e WHERE e.workspace_id = i.workspace_id AND e.run = i.run_id
            AND e.action = 'reconciliation.settle' AND e.outcome = 'allowed' AND e.data ->> 'item' = i.id::text)
    ORDER BY i.opened_at, i.id LIMIT 1
    """,
    # which release people put in force last, and what another person reviewed; whoever made it has no event to name it
    """
    SELECT e.id, CASE WHEN r.id IS NULL THEN 'the release of which it tells is gone'
        ELSE format('the release of which it tells is %%s', r.status) END
    FROM (
        SELECT DISTINCT ON (data ->> 'pipeline', data ->> 'environment') id, at, data FROM pipelines_auditevent
        WHERE workspace_id = %(workspace)s AND action IN ('release.activate', 'release.register')
            AND outcome = 'allowed' AND after ->> 'status' = 'active' AND data ? 'release'
        ORDER BY data ->> 'pipeline', data ->> 'environment', at DESC, id DESC
    ) e LEFT JOIN pipelines_release r ON r.id = (e.data ->> 'release')::uuid
    WHERE r.id IS NULL OR r.status NOT IN ('active', 'retired', 'revoked')
    ORDER BY e.at, e.id LIMIT 1
    """,
    """
    SELECT e.id, 'the review of which it tells is gone, or another'
    FROM (
        SELECT DISTINCT ON (data ->> 'release') id, at, user_id, reason, data FROM pipelines_auditevent
        WHERE workspace_id = %(workspace)s AND action = 'release.review' AND outcome = 'allowed' AND data ? 'material'
        ORDER BY data ->> 'release', at DESC, id DESC
    ) e LEFT JOIN pipelines_release r ON r.id = (e.data ->> 'release')::uuid
    WHERE r.id IS NULL OR (r.material_changes = e.data -> 'material' AND (
        r.reviewed_at IS NULL OR r.review_note <> e.reason OR r.reviewed_by_id IS DISTINCT FROM e.user_id))
    ORDER BY e.at, e.id LIMIT 1
    """,
    """
    SELECT NULL::uuid, format('no event tells how release %%s was reviewed', r.id) FROM pipelines_release r
    WHERE r.workspace_id = %(workspace)s AND r.reviewed_at IS NOT NULL AND NOT EXISTS (
        SELECT FROM pipelines_auditevent e WHERE e.workspace_id = r.workspace_id AND e.action = 'release.review'
            AND e.outcome = 'allowed' AND e.data ->> 'release' = r.id::text AND e.reason = r.review_note
            AND (NOT e.data ? 'material' OR e.data -> 'material' = r.material_changes))
    ORDER BY r.created_at, r.id LIMIT 1
    """,
]


def also(check: str) -> None:
    """For an app above this one: another statement like those of `CHECKS`."""
    if check not in CHECKS:
        CHECKS.append(check)


def first_differing(workspace_id: uuid.UUID) -> Differing | None:
    """The first thing of a workspace that is not as its audit tells; None when all is."""
    for check in CHECKS:
        for row in planned(check, {"workspace": workspace_id}):
            return Differing(*row)
    return None
