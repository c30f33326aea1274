"""What the console's own commands share: clear sentences for refusals, exit codes, names that are checked."""

from __future__ import annotations

import argparse
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import ProgrammingError
from django.db.models import QuerySet
from structlog.contextvars import bound_contextvars

from pipelines import audit, credentials
from pipelines.access import Actor, person
from pipelines.api.shapes import Text, Wrong
from pipelines.definitions import Slug
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.models import Trigger, Workspace

REFUSED = 2


class ConsoleCommand(BaseCommand):
    """Exit code 0: done. 1: it could not be done. 2: refused, or the command line is wrong; one sentence each."""

    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        # taken out of the command line by config.command_line, for every command alike; here for the help text
        parser.add_argument("--data", metavar="DIR", help="the data directory (RECOURSE_DATA, else var/)")

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            with bound_contextvars(request_id=str(new_id())):
                return super().execute(*args, **options)
        except Refusal as refusal:
            lines = [f"{path or 'it'}: {message}" for path, found in refusal.errors.items() for message in found]
            raise CommandError("\n".join(lines) or refusal.detail, returncode=REFUSED) from refusal
        except ProgrammingError as error:
            if "does not exist" not in str(error):
                raise
            raise CommandError(
                "the database has no tables yet, or old ones: run `manage.py migrate` first; where the console was"
                " started with --data DIR, give that here too"
            ) from error

    def note(self, sentence: str) -> None:
        """For the person at the terminal; standard output is kept for what was asked for."""
        self.stderr.write(self.style.SUCCESS(sentence))


def workspace_of(workspace_slug: str) -> Workspace:
    """The workspace of that name, which must be there."""
    workspace = Workspace.objects.filter(slug=workspace_slug).first()
    if workspace is None:
        raise Refusal("not_found", f"there is no workspace {workspace_slug!r}")
    return workspace


def triggers_of(workspace_slug: str | None) -> QuerySet[Trigger]:
    """The triggers among which a command looks; without a workspace all."""
    rows = Trigger.objects.select_related("pipeline", "environment", "application", "workspace")
    return rows.filter(workspace=workspace_of(workspace_slug)) if workspace_slug else rows


def member(workspace: Workspace, user_name: str, capability: str, action: str) -> Actor:
    """The member in whose name a command acts; refused, with an audit event, to anyone who may not, or is none."""
    model = get_user_model()
    user = model.objects.filter(**{model.USERNAME_FIELD: user_name}, is_active=True).first()
    actor = person(user, workspace.id, "command") if user else None
    entry = audit.Entry()
    try:
        if actor is None:
            entry.on_behalf_of = user_name
            raise Refusal("permission_denied", f"{user_name!r} is no member of the workspace {workspace.slug!r}")
        actor.require(capability)
    except Refusal as refusal:
        audit.record_refusal(actor or credentials.console_operator(workspace), action, refusal, entry)
        raise
    return actor


def slug(text: str) -> str:
    """An argument that is a slug."""
    return _checked(Slug().checker()(text))


def name(text: str) -> str:
    """An argument that is a name of at most 100 characters."""
    return _checked(Text(max_length=100, control=False, trim=True).checker()(text))


def positive(text: str) -> int:
    """An argument that is a whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)


def _checked(value: Any) -> str:
    if type(value) is Wrong:
        raise argparse.ArgumentTypeError(value.problems[0][1])
    return value
