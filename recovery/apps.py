from django.apps import AppConfig


class RecoveryConfig(AppConfig):
    """What operators do when something broke."""

    name = "recovery"

    def ready(self) -> None:
        from approvals import gates
        from approvals.screens import plans
        from pipelines import audit_decisions, blockers, failures, retention
        from pipelines.api import operations_serializers
        from pipelines.console import run_page, search
        from recovery import bulk_retention, carriers, decision_checks, run_retry_work, serializers, waiting
        from recovery.backfill_carrier import BackfillCarrier
        from recovery.bulk_carrier import BulkCarrier
        from recovery.screens import backfill_lines, bulk_lines, leads, lines_of_many, plan_lines, run_sections
        from recovery.states import BACKFILL, BULK

        for kind, carrier in carriers.CARRIERS:
            gates.register([kind], carrier, end_with_run=kind in carriers.END_WITH_RUN)
        plans.told_by(gates.kinds(), plans.Teller(plan_lines.wanted, plan_lines.gist))
        gates.register([BACKFILL], BackfillCarrier())
        plans.told_by([BACKFILL], lines_of_many.teller(backfill_lines.lines, backfill_lines.gist))
        gates.register([BULK], BulkCarrier())
        plans.told_by([BULK], lines_of_many.teller(bulk_lines.lines, bulk_lines.gist))
        blockers.also(waiting.blockers)
        run_page.with_sections(run_sections.sections)
        search.also(leads.page_of)
        retention.stays_while(
            "EXISTS (SELECT FROM recovery_operation o WHERE o.run_id = r.id"
            " AND o.state IN ('awaiting_approval', 'review_required', 'reserved'))"
        )
        failures.also(run_retry_work.decide_failed)
        failures.goes_on_while("EXISTS (SELECT FROM recovery_runretry t WHERE t.run_id = c.id AND t.state = 'due')")
        operations_serializers.tells_run_retries(serializers.run_retry_view)
        blockers.also(waiting.to_retry)
        retention.stays_while("EXISTS (SELECT FROM recovery_runretry t WHERE t.run_id = r.id AND t.state = 'due')")
        retention.goes_with_run("recovery_runretry")
        retention.stays_while(  # how a backfill ends is told by its runs
            "EXISTS (SELECT FROM recovery_backfill b WHERE b.id = r.lane_id AND b.state IN ('running', 'paused'))"
        )
        retention.stays_while(  # a target that is pending, and what the stop rule looks back at
            "EXISTS (SELECT FROM recovery_bulkitem i JOIN recovery_bulkoperation b ON b.id = i.bulk_id"
            " WHERE i.run = r.id AND b.state NOT IN ('completed', 'completed_with_failures', 'aborted', 'expired'))"
        )
        for check in decision_checks.CHECKS:
            audit_decisions.also(check)
        retention.also(bulk_retention.remove)
        retention.goes_with_run("recovery_effectevidence", "effect_id", "pipelines_effect")
        retention.goes_with_run("recovery_reconciliation")
        retention.goes_with_run("recovery_operation")
