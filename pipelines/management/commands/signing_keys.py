"""`manage.py signing_keys`: the signing keys of a workspace."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from pipelines import signing_keys
from pipelines.keyring import PublicKey
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of


class Command(ConsoleCommand):
    help = (
        "Lists the signing keys of a workspace, the newest first, with their public halves. The active key signs "
        "checkpoints, evidence and audit heads; retiring keys only verify what they signed; nothing that a revoked key "
        "signed is trusted. Private halves are never shown."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--workspace", required=True, type=slug, metavar="W", help="the workspace's slug")
        parser.add_argument("--json", action="store_true", help="for machines")

    def handle(self, *_: Any, **options: Any) -> None:
        keys = signing_keys.listed(workspace_of(options["workspace"]).id)
        if options["json"]:
            self.stdout.write(json.dumps([_told(key) for key in keys]))
            return
        for key in keys:
            since = key.revoked_at or key.retiring_since or key.created_at
            self.stdout.write(f"{key.key_id}  {key.state.value:<8}  since {since:%Y-%m-%d %H:%M:%S}  {key.text}")
        if not keys:
            self.note("there is none yet; the first is made when there is something to sign")


def _told(key: PublicKey) -> dict[str, Any]:
    times = {"created_at": key.created_at, "retiring_since": key.retiring_since, "revoked_at": key.revoked_at}
    told = {name: moment.isoformat() if moment else None for name, moment in times.items()}
    return {"id": key.key_id, "status": key.state.value, "public_key": key.text, **told}
