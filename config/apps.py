from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """Settings, URL map, commands that start things."""

    name = "config"

    def ready(self) -> None:
        from config import checks  # noqa: F401 - registers the system checks
