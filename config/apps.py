from importlib import import_module

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """Settings, URL map, commands that start things."""

    name = "config"
    verbose_name = "Log-ins"  # of its models on the admin site: who is logged in, by what

    def ready(self) -> None:
        import_module("config.checks")
        # Whoever sends a task must know our broker: without this, Celery quietly takes one of its own choice.
        import_module("config.celery")
        from django.contrib.auth import get_user_model
        from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
        from django.db.models.signals import post_save

        from approvals import measures as of_people
        from config import log_in_audit, log_in_limit, metrics, sessions
        from pipelines import measures
        from recovery import measures as of_recovery

        user_login_failed.connect(log_in_limit.note_failure)
        user_login_failed.connect(log_in_audit.note_failure)  # after it, as it counts
        user_logged_in.connect(log_in_limit.forget_failures)
        user_logged_in.connect(sessions.note_log_in)
        user_logged_in.connect(log_in_audit.note_log_in)
        user_logged_out.connect(log_in_audit.note_log_out)
        post_save.connect(sessions.end_with_account, sender=get_user_model())
        metrics.add_source(measures.engine)
        metrics.add_source(of_people.people)
        metrics.add_source(of_recovery.run_retries)
