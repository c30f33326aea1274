from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    """People and applications deciding gates."""

    name = "approvals"

    def ready(self) -> None:
        from approvals import votes
        from pipelines import blockers

        blockers.count_votes(votes.so_far)
