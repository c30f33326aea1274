"""`manage.py copy_keyrings`: for a console that moves its signing keys into Vault, or out of it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from pipelines import credentials, signing_keys
from pipelines.errors import Refusal
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of
from pipelines.models import Workspace

STORES = ("local", "vault")


class Command(ConsoleCommand):
    help = (
        "Copies the signing keys of every workspace from the store that RECOURSE_KEYRING names into the other, so that "
        "what was signed before can be verified after a move. Stop the console, copy, set RECOURSE_KEYRING, start it "
        "again. A keyring that is there already is never written over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--to", required=True, choices=STORES, metavar="STORE", help="`local` or `vault`")
        parser.add_argument("--workspace", type=slug, metavar="W", help="only this one")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["to"] == settings.RECOURSE_KEYRING:
            raise Refusal("validation_error", f"the keys are kept in {options['to']} already")
        named = options["workspace"]
        workspaces = [workspace_of(named)] if named else Workspace.objects.order_by("slug")
        for workspace in workspaces:
            is_copied = signing_keys.copy(options["to"], actor=credentials.console_operator(workspace))
            self.stdout.write(f"{workspace.slug}  {'copied' if is_copied else 'has no keys yet'}")
