"""`manage.py verify_artifacts`: whether every artifact still is what was stored."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipelines import artifact_upkeep, artifacts
from pipelines.artifact_places import Damaged
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of


class Command(ConsoleCommand):
    help = (
        "Loads every artifact of one workspace, or of all, and checks its bytes against the digest that was kept. Exit "
        "code 1 and the first broken artifact when one is not what was stored; 2 when the storage does not answer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--workspace", type=slug, metavar="W", help="the workspace's slug; without it all")

    def handle(self, *_: Any, **options: Any) -> None:
        workspace = workspace_of(options["workspace"]) if options["workspace"] else None
        checked = 0
        for artifact in artifact_upkeep.each(workspace.id if workspace else None):
            try:
                artifacts.whole(artifact)
            except Damaged as damaged:
                raise CommandError(
                    f"{artifact.name} ({artifact.id}, {artifact.digest}) is broken: {damaged}"
                ) from damaged
            checked += 1
        self.stdout.write(f"{checked} artifacts hold")
