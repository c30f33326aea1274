"""`manage.py verify_audit`: whether the audit still is what was written."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pipelines import audit_chain
from pipelines.audit_chain import Head
from pipelines.management.console_command import ConsoleCommand, slug, workspace_of
from pipelines.models import Workspace

LONGEST_HEAD = 10_000
MOST_CONNECTIONS = 4


class Command(ConsoleCommand):
    help = (
        "Seals what waits, then checks the audit events of one workspace, or of all: every event against its canonical "
        "text, the chain of hashes, the signed heads, with --head that nothing was cut off since that head was "
        "exported, and that decisions are what events tell of them. Exit code 1 and the first thing that differs when "
        "it does not hold."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--workspace", type=slug, metavar="W", help="the workspace's slug; without it all")
        parser.add_argument("--head", type=_head_file, metavar="FILE", help="what export_audit_head wrote")

    def handle(self, *_: Any, **options: Any) -> None:
        audit_chain.seal()
        head: Head | None = options["head"]
        workspaces = self._workspaces(options["workspace"], head)
        broken = [workspace.slug for workspace in workspaces if not self._holds(workspace, head)]
        if broken:
            raise CommandError(f"the audit does not hold: {', '.join(broken)}")

    def _workspaces(self, wanted: str | None, head: Head | None) -> list[Workspace]:
        if wanted is None and head is None:
            return list(Workspace.objects.order_by("slug"))
        if wanted is None and head is not None:
            found = Workspace.objects.filter(id=head.workspace_id).first()
            if found is None:
                raise CommandError("the audit does not hold: the workspace of the exported head is gone")
            return [found]
        workspace = workspace_of(wanted or "")
        if head is not None and head.workspace_id != workspace.id:
            raise CommandError("the exported head is another workspace's", returncode=2)
        return [workspace]

    def _holds(self, workspace: Workspace, head: Head | None) -> bool:
        report = audit_chain.verify(workspace.id, head, connections=min(MOST_CONNECTIONS, os.cpu_count() or 1))
        audit_chain.keep(workspace.id, report, head)
        if report.fault is not None:
            self.stdout.write(f"{workspace.slug}: broken at {report.fault}")
            return False
        waiting = f"; {report.waiting} wait to be sealed" if report.waiting else ""
        self.stdout.write(f"{workspace.slug}: {report.checked} sealed events hold{waiting}")
        return True


def _head_file(text: str) -> Head:
    path = Path(text)
    if not path.is_file() or path.stat().st_size > LONGEST_HEAD:
        raise argparse.ArgumentTypeError(f"{text} is no file with an exported head")
    try:
        return audit_chain.read_head(path.read_text())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
