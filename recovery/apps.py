from django.apps import AppConfig


class RecoveryConfig(AppConfig):
    """What operators do when something broke."""

    name = "recovery"
