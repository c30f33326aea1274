"""Whether verdicts, findings and what others decided about operations still are what the audit tells of them; asked by
`pipelines/audit_decisions.py` (O27, R44).

The newest verdict that was told of an operation is its disposition. One that others refused, or its requester took
back, stays ended. Operations of runs that retention removed are left out, as are backfills and bulks that are gone.
"""

from recovery.states import OperationKind

# whose verdict is told by an audit event of its own: what may do something again, or leave it out
JUDGED = frozenset(
    {
        OperationKind.RETRY,
        OperationKind.REDRIVE,
        OperationKind.SKIP,
        OperationKind.RERUN,
        OperationKind.REPLAY,
    }
)
_JUDGED = ", ".join(f"'{kind}'" for kind in sorted(JUDGED))

# answers (event or none, what) for one workspace, as those of `audit_decisions.CHECKS`
CHECKS = (
    # each finding has an event of its own
    """
    SELECT e.id, 'the finding of which it tells is gone' FROM (
        SELECT id, run, stage, row_number() OVER (PARTITION BY run, stage ORDER BY at, id) AS number
        FROM pipelines_auditevent WHERE workspace_id = %(workspace)s AND outcome = 'allowed'
            AND action IN ('effect.reconcile', 'stage.reconcile')
    ) e JOIN pipelines_run r ON r.id = e.run
    WHERE e.number > (
        SELECT count(*) FROM recovery_reconciliation f WHERE f.run_id = e.run AND f.stage_id = e.stage)
    ORDER BY e.id LIMIT 1
    """,
    """
    SELECT e.id, CASE WHEN o.id IS NULL THEN 'the operation of which it tells is gone'
        ELSE format('the verdict of which it tells is %%s', o.disposition) END
    FROM (
        SELECT DISTINCT ON (data ->> 'operation') id, at, run, data FROM pipelines_auditevent
        WHERE workspace_id = %(workspace)s AND action = 'execution.recovery_disposition' AND data ? 'operation'
        ORDER BY data ->> 'operation', at DESC, id DESC
    ) e JOIN pipelines_run r ON r.id = e.run LEFT JOIN recovery_operation o ON o.id = (e.data ->> 'operation')::uuid
    WHERE o.id IS NULL OR o.disposition <> e.data ->> 'disposition' OR o.reasons <> e.data -> 'reasons'
    ORDER BY e.at, e.id LIMIT 1
    """,
    f"""
    SELECT NULL::uuid, format('no event tells of the verdict on operation %%s', o.id) FROM recovery_operation o
    WHERE o.workspace_id = %(workspace)s AND o.kind IN ({_JUDGED}) AND NOT EXISTS (
        SELECT FROM pipelines_auditevent e WHERE e.workspace_id = o.workspace_id
            AND e.action = 'execution.recovery_disposition' AND e.data ->> 'operation' = o.id::text)
    ORDER BY o.created_at, o.id LIMIT 1
    """,  # noqa: S608 - our own words
    # what others refused, or its requester took back, stays ended
    """
    SELECT e.id, CASE WHEN NOT o.is_asked THEN 'the request of which it tells is gone'
        ELSE format('the %%s of which it tells is %%s', o.what, o.state) END
    FROM pipelines_auditevent e JOIN (
        SELECT id, 'operation' AS what, state, true AS is_asked FROM recovery_operation
        WHERE workspace_id = %(workspace)s
        UNION ALL SELECT id, 'backfill', state, EXISTS (
            SELECT FROM approvals_approvalrequest q WHERE q.subject = b.id) FROM recovery_backfill b
        WHERE workspace_id = %(workspace)s
        UNION ALL SELECT id, 'bulk', state, EXISTS (
            SELECT FROM approvals_approvalrequest q WHERE q.subject = b.id) FROM recovery_bulkoperation b
        WHERE workspace_id = %(workspace)s
    ) o ON o.id = (e.data ->> 'operation')::uuid
    WHERE e.workspace_id = %(workspace)s AND e.action IN ('operation.approve', 'operation.reject', 'operation.withdraw')
        AND e.after ->> 'operation' IS NOT NULL AND (NOT o.is_asked OR (
            e.outcome = 'allowed' AND e.action <> 'operation.approve' AND o.state <> e.after ->> 'operation'))
    ORDER BY e.at, e.id LIMIT 1
    """,
    # a dead letter that people closed stays closed; what waits for approvals has closed nothing yet
    """
    SELECT e.id, CASE WHEN l.id IS NULL THEN 'the dead letter of which it tells is gone'
        ELSE format('the dead letter of which it tells is %%s', l.state) END
    FROM pipelines_auditevent e JOIN pipelines_run r ON r.id = e.run
    LEFT JOIN pipelines_deadletter l ON l.id = (e.data ->> 'dead_letter')::uuid
    WHERE e.workspace_id = %(workspace)s AND e.action IN ('dead_letter.discard', 'dead_letter.redrive')
        AND e.outcome = 'allowed' AND e.data ? 'dead_letter' AND NOT e.data ? 'approvals'
        AND (l.id IS NULL OR l.state NOT IN ('discarded', 'redriven', 'resolved'))
    ORDER BY e.at, e.id LIMIT 1
    """,
)
