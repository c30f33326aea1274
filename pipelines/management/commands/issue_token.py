"""`manage.py issue_token`: a new bearer token for a person."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from pipelines import credentials
from pipelines.management.console_command import ConsoleCommand, slug
from pipelines.models import Role


class Command(ConsoleCommand):
    help = (
        "Prints a new bearer token, alone on standard output and only this once, and sets the person's one role in the "
        "workspace. Creates what is missing: the workspace, and the user (who cannot log in until a password is set)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--user", required=True, metavar="U", help="the user's name")
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")
        parser.add_argument("--role", required=True, choices=Role.values, help="their one role there")

    @transaction.atomic
    def handle(self, *_: Any, **options: Any) -> None:
        user, created = credentials.ensure_user(options["user"])
        if created:
            self.note(f"created the user {user.get_username()}, who has no password yet")
        workspace, actor, created = credentials.shell(options["workspace"])
        if created:
            self.note(f"created the workspace {workspace.slug}")
        credentials.set_role(actor=actor, user=user, role=options["role"])
        self.stdout.write(credentials.issue_token(actor=actor, user=user)[1])
