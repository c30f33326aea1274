"""The command line of the worker."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from recourse import command_files
from recourse.authoring.loading import load_handlers
from recourse.errors import ApiError, ConfigurationError, StageFailure
from recourse.handlers import default_registry
from recourse.terminal.parsing import Parser
from recourse.worker import Worker

DESCRIPTION = """\
Runs the stages of one application. Import the modules that register your handlers:

  # my/handlers.py
  from recourse import handler

  @handler("ValidateInvoiceHandler")
  def validate(ctx):
      invoice = ctx.json()
      return {"valid": True}

  RECOURSE_API_KEY=... recourse worker run --handlers my.handlers --url http://localhost:8000

Or run the pipelines of a file, as `recourse deploy` released them:

  recourse worker run --handlers pipelines/invoices.py

Or let a program do a stage's work, without any Python (docs/howto/worker-commands.md):

  recourse worker run --command ThumbnailHandler='/usr/local/bin/thumbnail --size 200' --command-user thumbs

The worker reconnects by itself when the server is away. SIGTERM or SIGINT ends it in order: it pulls nothing more, lets
running handlers finish for --drain-seconds, gives back what does not, delivers results, and says goodbye.
"""

EPILOG = """\
environment: RECOURSE_API_KEY (or PIPELOGIQ_API_KEY) the application's key, never given on the command line;
RECOURSE_URL, RECOURSE_WORKER_HANDLERS, RECOURSE_WORKER_NAME, RECOURSE_CONCURRENCY stand in for options;
RECOURSE_CONNECTORS names the TOML file of the outside systems that handlers reach (docs/howto/connectors.md).
exit status: 0 ended in order, 2 wrong options or no handlers, 3 the server refused the key or the handlers.
"""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        _check_connectors()
        for where in _words(options.handlers):
            _load(where)
        command_files.register(default_registry, options.command, options.commands, options.command_user)
        worker = Worker(
            options.url,
            name=options.name,
            concurrency=options.concurrency,
            prefetch=options.prefetch,
            batch=options.batch,
            drain_seconds=options.drain_seconds,
        )
    except ConfigurationError as error:
        sys.stderr.write(f"recourse.worker: {error}\n")
        return 2
    try:
        worker.run()
    except ApiError as error:
        sys.stderr.write(f"recourse.worker: the server refused this worker: {error}\n")
        return 3
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="recourse worker run", description=DESCRIPTION, epilog=EPILOG)
    add_options(parser)
    return parser


def _load(where: str) -> None:
    try:
        load_handlers(where, default_registry)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _check_connectors() -> None:
    """A file that cannot be read would fail every attempt that asks for a connector, and for good."""
    if not os.environ.get("RECOURSE_CONNECTORS"):
        return
    from recourse.adapters import connectors

    try:
        connectors.tables()
    except StageFailure as failure:
        raise ConfigurationError(failure.message) from failure


def add_options(parser: argparse.ArgumentParser) -> None:
    """All that the worker's command line knows; shell completion asks for it too."""
    env = os.environ.get
    add = parser.add_argument
    add(
        "--handlers",
        default=env("RECOURSE_WORKER_HANDLERS", ""),
        metavar="[SLUG=]FILE_OR_MODULE",
        help="modules to import, or files that hold pipelines, separated by commas",
    )
    add(
        "--command",
        action="append",
        default=[],
        metavar="HANDLER='PROGRAM ARGUMENTS'",
        help="let a program do the work of this handler; may be given several times",
    )
    add("--command-user", metavar="USER", help="as whom those run, when the worker is root (nobody)")
    add(
        "--commands",
        action="append",
        default=[],
        metavar="FILE",
        help="a TOML file with commands and their limits; may be given several times",
    )
    add("--url", default=None, help="the console's address (RECOURSE_URL, else http://localhost:8000)")
    add("--name", default=env("RECOURSE_WORKER_NAME"), help="shown on the workers screen (host and process id)")
    add(
        "--concurrency",
        type=int,
        default=env("RECOURSE_CONCURRENCY", "16"),
        help="attempts that run at once (16)",
    )
    add("--prefetch", type=int, default=0, help="further jobs to hold ready, for very short handlers only (0)")
    add("--batch", type=int, default=200, help="most jobs to take in one pull (200)")
    add("--drain-seconds", type=float, default=30.0, help="how long running handlers may finish at the end (30)")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


if __name__ == "__main__":
    sys.exit(main())
