from django.apps import AppConfig


class PipelinesConfig(AppConfig):
    """Definitions, runs, stages and the engine that moves them."""

    name = "pipelines"
