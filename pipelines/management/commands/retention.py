"""`manage.py retention`: removes old runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import transaction

from pipelines import retention
from pipelines.management.console_command import ConsoleCommand, positive
from pipelines.sql import database_now


class Command(ConsoleCommand):
    help = (
        "Removes runs that ended more than so many days ago, with their stages, attempts, outputs, logs and the "
        "identity under which they were created: the same idempotency key then makes a new run. Do not let this "
        "console be the only record of what your business has done. Kept are unfinished runs, runs with something to "
        "reconcile or a request to decide, runs that a kept fork came from, and every audit event. Without a number "
        "of days, here or in RECOURSE_RETENTION_DAYS, nothing is removed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--days", type=positive, metavar="N", help="instead of RECOURSE_RETENTION_DAYS")
        parser.add_argument(
            "--batch", type=positive, default=retention.BATCH, metavar="N", help="runs in one transaction"
        )
        parser.add_argument("--dry-run", action="store_true", help="say whether there is something to remove")

    def handle(self, *_: Any, **options: Any) -> None:
        days = settings.RECOURSE_RETENTION_DAYS if options["days"] is None else options["days"]
        if days <= 0:
            self.note("retention is off; nothing is removed")
            return
        if options["dry_run"]:
            with transaction.atomic():
                found = retention.removable(database_now() - timedelta(days=days), options["batch"])
            more = "or more " if len(found) == options["batch"] else ""
            self.stdout.write(f"{len(found)} {more}runs would be removed")
            return
        self.stdout.write(f"{retention.remove_older_than(days, options['batch'])} runs removed")
