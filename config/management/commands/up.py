"""`manage.py up`: everything in the foreground."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from config.console import Console


class Command(BaseCommand):
    help = "Runs the whole console in the foreground until SIGTERM or SIGINT, with its database and the samples."
    # The console checks by itself, once the database answers.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="the port to listen on (8000)")
        parser.add_argument("--workers", type=int, default=2, metavar="N", help="Celery worker processes (2)")
        parser.add_argument("--no-samples", action="store_true", help="do not run the sample applications")
        # Taken out of the command line by config.command_line, for every command alike; here for the help text.
        parser.add_argument("--data", metavar="DIR", help="the data directory (RECOURSE_DATA, else var/)")

    def handle(self, *_: Any, **options: Any) -> None:
        console = Console(port=options["port"], workers=options["workers"], samples=not options["no_samples"])
        raise SystemExit(console.run())
