from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    """Who must agree and who did, of gates and of operations; and who is told."""

    name = "approvals"

    def ready(self) -> None:
        from approvals import votes
        from pipelines import blockers, retention

        blockers.count_votes(votes.so_far)
        retention.goes_with_run("approvals_approvalrequest")
        retention.goes_with_run("approvals_requestdecision", "request_id", "approvals_approvalrequest")
