from importlib import import_module

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """Settings, URL map, commands that start things."""

    name = "config"

    def ready(self) -> None:
        import_module("config.checks")
        # Whoever sends a task must know our broker: without this, Celery quietly takes one of its own choice.
        import_module("config.celery")
        from config import metrics
        from pipelines import measures

        metrics.add_source(measures.engine)
