from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    """People and applications deciding gates."""

    name = "approvals"
