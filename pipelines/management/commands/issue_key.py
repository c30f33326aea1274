"""`manage.py issue_key`: a new API key for an application."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from pipelines import catalog, credentials
from pipelines.access import Actor
from pipelines.management.console_command import ConsoleCommand, name, slug
from pipelines.models import Environment, KeyScope, Workspace


class Command(ConsoleCommand):
    help = (
        "Prints a new API key, alone on standard output and only this once. Creates what is missing: the workspace "
        "(with development, staging and a protected production), the application, the environment (on top, "
        "unprotected)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")
        parser.add_argument("--application", required=True, type=name, metavar="A", help="the application's name")
        parser.add_argument(
            "--environment", type=slug, metavar="E", help="the environment's slug; without it the lowest rung"
        )
        parser.add_argument(
            "--scope",
            choices=KeyScope.values,
            default=KeyScope.APPLICATION,
            help="`application` creates runs and works on them; `runtime` only writes checkpoints",
        )

    @transaction.atomic
    def handle(self, *_: Any, **options: Any) -> None:
        workspace, actor, created = credentials.shell(options["workspace"])
        if created:
            self.note(f"created the workspace {workspace.slug}")
        environment = self._environment(workspace, options["environment"], actor)
        application, created = catalog.save_application(actor=actor, name=options["application"])
        if created:
            self.note(f"created the application {application.name}")
        issued = credentials.issue_key(
            actor=actor, application=application, environment=environment, scope=options["scope"]
        )
        self.stdout.write(issued[1])

    def _environment(self, workspace: Workspace, wanted: str | None, actor: Actor) -> Environment:
        if wanted is None:
            lowest = Environment.objects.filter(workspace=workspace).order_by("rank", "slug").first()
            if lowest is not None:
                return lowest
        environment, created = catalog.ensure_environment(workspace, wanted or "development", actor=actor)
        if created:
            self.note(f"created the environment {environment.slug} on top of the ladder, unprotected")
        return environment
