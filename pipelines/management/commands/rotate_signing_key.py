"""`manage.py rotate_signing_key`: a new signing key for a workspace."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pipelines import credentials, signing_keys
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of


class Command(ConsoleCommand):
    help = (
        "Makes a new signing key for a workspace and prints its id. It signs from now on; running processes follow "
        "within seconds. The key before it signs nothing more and goes on verifying what it signed, until it is "
        "revoked (`revoke_signing_key`). Of several rotations at the same moment one is done, the others are refused."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")
        parser.add_argument("--reason", default="", metavar="R", help="kept in the audit")
        parser.add_argument("--replaces", metavar="KEY", help="refuse unless this is the active key")
        parser.add_argument(
            "--begin-anew",
            action="store_true",
            help="give up a keyring that can no longer be read, for example after RECOURSE_ENCRYPTION_KEY was lost; "
            "nothing that was signed before is ever trusted again",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        done = signing_keys.rotate(
            actor=credentials.console_operator(workspace_of(options["workspace"])),
            reason=options["reason"],
            replaces=options["replaces"],
            begin_anew=options["begin_anew"],
        )
        self.stdout.write(done.active)
