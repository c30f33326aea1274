from django.conf import settings
from django.db import migrations

# plans that were kept before rules could ask for more than one approver
PLANS = """
UPDATE recovery_operation SET plan = plan || jsonb_build_object('approvals', (
    SELECT jsonb_agg(jsonb_build_object('role', 'approver', 'expires_in', NULL) || one)
    FROM jsonb_array_elements(plan->'approvals') one
)) WHERE plan->'approvals' <> '[]'::jsonb;
"""

# what waits for somebody, and what somebody decided; each was asked for once
REQUESTS = """
INSERT INTO approvals_approvalrequest (
    id, workspace_id, subject, round, kind, cause, run_id, stage_id, requested_by_id, reason, plan, plan_digest,
    approver_role, count, why, state, asked_at, opened_at, closed_at
)
SELECT gen_random_uuid(), o.workspace_id, o.id, 1, o.kind,
    CASE WHEN o.disposition = 'operator_review_required' THEN 'review' ELSE 'approval' END,
    o.run_id, o.stage_id, o.requested_by_id, o.reason, o.plan, o.plan_digest, 'approver', 1,
    CASE WHEN o.plan #>> '{approvals,0,why}' IS NULL THEN '[]'::jsonb
        ELSE jsonb_build_array(o.plan #>> '{approvals,0,why}') END,
    CASE WHEN d.approved IS NULL THEN 'open' WHEN d.approved THEN 'approved' ELSE 'rejected' END,
    o.created_at, o.created_at, d.at
FROM recovery_operation o
LEFT JOIN LATERAL (
    SELECT approved, at FROM recovery_operationdecision WHERE operation_id = o.id ORDER BY at DESC, id DESC LIMIT 1
) d ON true
WHERE d.at IS NOT NULL OR o.state IN ('awaiting_approval', 'review_required');
"""

# in the membership and role that they have by now; who left has none
DECISIONS = """
INSERT INTO approvals_requestdecision (request_id, user_id, member, role, approved, reason, at)
SELECT q.id, d.user_id, coalesce(m.id, 0), coalesce(m.role, ''), d.approved, d.reason, d.at
FROM recovery_operationdecision d
JOIN approvals_approvalrequest q ON q.subject = d.operation_id
LEFT JOIN pipelines_member m ON m.workspace_id = q.workspace_id AND m.user_id = d.user_id
ORDER BY d.id;
"""

# who retried a run decides none of its gates
REQUESTERS = """
UPDATE pipelines_run r SET requesters = (
    SELECT array_agg(DISTINCT who) FROM (
        SELECT unnest(r.requesters) UNION
        SELECT o.requested_by_id FROM recovery_operation o
        WHERE o.run_id = r.id AND o.kind IN ('retry', 'redrive') AND o.state = 'succeeded'
    ) found(who)
) WHERE EXISTS (
    SELECT FROM recovery_operation o
    WHERE o.run_id = r.id AND o.kind IN ('retry', 'redrive') AND o.state = 'succeeded'
);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("recovery", "0002_plans_and_evidence"),
        ("approvals", "0001_requests_rules_notifications"),
        ("pipelines", "0007_gates_for_people"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunSQL(PLANS, migrations.RunSQL.noop),
        migrations.RunSQL(REQUESTS, migrations.RunSQL.noop),
        migrations.RunSQL(DECISIONS, migrations.RunSQL.noop),
        migrations.RunSQL(REQUESTERS, migrations.RunSQL.noop),
        migrations.DeleteModel(name="OperationDecision"),
    ]
