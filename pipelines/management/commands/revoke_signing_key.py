"""`manage.py revoke_signing_key`: nothing that a key signed is trusted any more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pipelines import credentials, signing_keys
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of


class Command(ConsoleCommand):
    help = (
        "Revokes a signing key, at once and for good: nothing that it signed is trusted any more, whenever that was, "
        "so no run can be rerun from a checkpoint of it. To retire a key that nobody else has had, rotate instead. "
        "When the active key is revoked, a new one takes its place. Prints the key that is active now."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("key", metavar="KEY", help="the key's id, from `signing_keys`")
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")
        parser.add_argument("--reason", required=True, metavar="R", help="kept in the audit")

    def handle(self, *_: Any, **options: Any) -> None:
        workspace = workspace_of(options["workspace"])
        actor = credentials.console_operator(workspace)
        done = signing_keys.revoke(options["key"], actor=actor, reason=options["reason"])
        if done.replayed:
            self.note("it was revoked already")
        self.stdout.write(done.active)
