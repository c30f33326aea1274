"""Whether what people said to requests still is what the audit tells of it; asked by `pipelines/audit_decisions.py`.

Each decision is of one person about one round. A round that an event told as closed has to stay so. Requests about runs
that retention removed are left out; of those about no run (backfills, bulks) an absent one is the app above's to judge.
"""

# answers (event or none, what) for one workspace, as those of `audit_decisions.CHECKS`
CHECKS = (
    """
    SELECT e.id, CASE WHEN q.id IS NULL THEN 'the request of which it tells is gone'
        WHEN e.action <> 'operation.withdraw' AND e.outcome = 'allowed' AND d.id IS NULL
            THEN 'the decision of which it tells is gone, or another'
        ELSE format('the request of which it tells is %%s', q.state) END
    FROM pipelines_auditevent e LEFT JOIN pipelines_run r ON r.id = e.run
    LEFT JOIN approvals_approvalrequest q
        ON q.subject = (e.data ->> 'operation')::uuid AND q.round = (e.data ->> 'round')::int
    LEFT JOIN approvals_requestdecision d ON d.request_id = q.id AND d.user_id = e.user_id
        AND d.approved = (e.action = 'operation.approve') AND d.reason = e.reason
    WHERE e.workspace_id = %(workspace)s AND e.action IN ('operation.approve', 'operation.reject', 'operation.withdraw')
        AND e.after ->> 'request' IS NOT NULL
        AND CASE WHEN e.run IS NULL THEN q.id IS NOT NULL ELSE r.id IS NOT NULL END
        AND (q.id IS NULL OR (e.after ->> 'request' <> 'open' AND q.state <> e.after ->> 'request')
            OR (e.action <> 'operation.withdraw' AND e.outcome = 'allowed' AND d.id IS NULL))
    ORDER BY e.at, e.id LIMIT 1
    """,
    """
    SELECT NULL::uuid, format('no event tells of a decision about request %%s', q.subject)
    FROM approvals_approvalrequest q LEFT JOIN approvals_requestdecision d ON d.request_id = q.id
    WHERE q.workspace_id = %(workspace)s AND (d.id IS NOT NULL OR q.state IN ('approved', 'rejected', 'withdrawn'))
        AND NOT EXISTS (
            SELECT FROM pipelines_auditevent e WHERE e.workspace_id = q.workspace_id AND e.outcome = 'allowed'
                AND e.action IN ('operation.approve', 'operation.reject', 'operation.withdraw')
                AND e.data ->> 'operation' = q.subject::text AND e.data ->> 'round' = q.round::text
                AND CASE WHEN d.id IS NULL THEN e.after ->> 'request' = q.state
                    ELSE e.user_id = d.user_id AND (e.action = 'operation.approve') = d.approved END)
    ORDER BY q.opened_at, q.id LIMIT 1
    """,
)
