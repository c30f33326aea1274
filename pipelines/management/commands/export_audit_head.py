"""`manage.py export_audit_head`: the signed end of the audit, to be kept where the console cannot reach it."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipelines import audit_chain
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of


class Command(ConsoleCommand):
    help = (
        "Seals what waits and prints the newest signed head of a workspace's audit as JSON. Keep it elsewhere: "
        "`verify_audit --head FILE` finds against it what was cut off or rewritten since."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")

    def handle(self, *_: Any, **options: Any) -> None:
        workspace = workspace_of(options["workspace"])
        audit_chain.seal()
        head = audit_chain.newest_head(workspace.id)
        if head is None:
            raise CommandError("nothing is sealed yet: there is no audit event, or no signing key could be had")
        self.stdout.write(json.dumps(head.document(), indent=2))
