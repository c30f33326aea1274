from django.apps import AppConfig


class RecoveryConfig(AppConfig):
    """What operators do when something broke."""

    name = "recovery"

    def ready(self) -> None:
        from pipelines import blockers, retention
        from pipelines.console import run_page
        from recovery import waiting
        from recovery.screens import run_sections

        blockers.also(waiting.blockers)
        run_page.with_sections(run_sections.sections)
        retention.stays_while(
            "EXISTS (SELECT FROM recovery_operation o WHERE o.run_id = r.id"
            " AND o.state IN ('awaiting_approval', 'review_required', 'reserved'))"
        )
        retention.goes_with_run("recovery_effectevidence", "effect_id", "pipelines_effect")
        retention.goes_with_run("recovery_reconciliation")
        retention.goes_with_run("recovery_operation")
        retention.goes_with_run("recovery_operationdecision", "operation_id", "recovery_operation")
