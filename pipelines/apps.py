from django.apps import AppConfig


class PipelinesConfig(AppConfig):
    """Definitions, runs, stages and the engine that moves them."""

    name = "pipelines"

    def ready(self) -> None:
        from django.contrib.auth import get_user_model
        from django.db.models.signals import post_migrate

        from pipelines import store_role
        from pipelines.access import hold_to_membership
        from pipelines.console import artifact_pages, child_pages, import_pages, run_page

        hold_to_membership(get_user_model())
        post_migrate.connect(store_role.open_store, sender=self)
        run_page.with_sections(artifact_pages.sections)
        run_page.with_sections(import_pages.sections)
        run_page.with_sections(child_pages.sections)
