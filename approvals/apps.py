from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    """Who must agree and who did, of gates and of operations; and who is told."""

    name = "approvals"

    def ready(self) -> None:
        from approvals import decision_checks, votes
        from pipelines import audit_decisions, blockers, retention

        blockers.count_votes(votes.so_far)
        for check in decision_checks.CHECKS:
            audit_decisions.also(check)
        retention.goes_with_run("approvals_approvalrequest")
        retention.goes_with_run("approvals_requestdecision", "request_id", "approvals_approvalrequest")
