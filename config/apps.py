from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """Settings, URL map, commands that start things."""

    name = "config"
