"""`recourse start`: makes a run of a pipeline, once for its key, with the application's own key."""

from __future__ import annotations

import argparse
from typing import Any

from recourse.terminal.exits import DONE, Refused
from recourse.terminal.output import words
from recourse.terminal.parsing import command
from recourse.terminal.stages import json_of
from recourse.terminal.watching import WatchedRun, add_every


def add_commands(topics: Any) -> None:
    """Adds `start`."""
    start = command(
        topics,
        "start",
        "make a run of a pipeline, once for its key",
        _start,
        description="Makes a run of the pipeline's active release, and tells its id. The same --key again, today or"
        " tomorrow, finds that run and makes no other; with another input it is refused. It takes the application's"
        " API key (RECOURSE_API_KEY, or the profile's); --watch goes on as `recourse watch`.",
        examples=[
            "recourse start fx-daily --key fx-2026-06-01",
            "recourse start invoices --key invoice-4711 --input '{\"invoice\": 4711}' --environment production",
            "recourse start invoices --key invoice-4711 --input @invoice.json --watch",
        ],
    )
    start.add_argument("pipeline", metavar="PIPELINE", help="its slug")
    start.add_argument("--key", required=True, metavar="KEY", help="names the business operation: one run for each")
    start.add_argument("--input", metavar="JSON", help="an object for its stages; @FILE reads a file")
    start.add_argument("--environment", metavar="SLUG", help="that of the API key; another is refused")
    start.add_argument("--watch", action="store_true", help="watch it until it ends")
    add_every(start)
    start.set_defaults(key_option="--key")


def _start(client: Any, options: argparse.Namespace) -> int:
    out, told = options.out, json_of("--input", options.input)
    if options.input is not None and not isinstance(told, dict):
        raise Refused('--input is no JSON object, such as {"invoice": 4711}')
    answer = client.runs.create(
        idempotency_key=options.key, pipeline=options.pipeline, input=told, environment=options.environment
    )
    run = answer["pipeline"]
    line = f"{run['id']}: {'found again' if answer['wasExisting'] else 'created'}, {words(run['status'])}"
    if options.watch:
        if out.is_json:
            out.json_line(answer)
        else:
            out.lines([line])
        return WatchedRun(client, options, run["id"]).until_it_ends()
    out.say(answer, [line])
    return DONE
