"""Lists: one page, or all of them, as the console gives them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from recourse.terminal.parsing import whole

Answer = dict[str, Any]
LARGEST_PAGE = 200

LISTS = """\
With --json a list is one document, as the API gives it: {next, previous, results}. With --all the pages are joined, and
`next` is null. Options for filters may be given several times, which means any of them.
"""


def add_list_options(command: Any) -> None:
    reach = command.add_mutually_exclusive_group()
    reach.add_argument("--limit", type=whole(1, LARGEST_PAGE), metavar="N", help="at most so many, 1 to 200")
    reach.add_argument("--all", action="store_true", help="every page, however many there are")
    command.add_argument("--next", metavar="URL", help="read on where a page ended")


def add_filters(command: Any, filters: Mapping[str, Mapping[str, Any]]) -> None:
    """An option for each filter of the list, by its name on the wire."""
    for name, said in filters.items():
        several = {} if "type" in said else {"action": "append"}  # a time is one
        told = {"help": f"only of this {name.replace('_', ' ').removesuffix(' id')}", **several, **said}
        command.add_argument(f"--{name.replace('_', '-')}", dest=f"by_{name}", **told)
    command.set_defaults(filters=tuple(filters))


def chosen(options: argparse.Namespace) -> dict[str, Any]:
    """The filters that were given, and the size of a page."""
    found = {name: getattr(options, f"by_{name}") for name in options.filters}
    size = {"page_size": options.limit or LARGEST_PAGE} if options.limit or options.all else {}
    return {name: value for name, value in found.items() if value is not None} | size


def read_page(options: argparse.Namespace, ask: Callable[..., Answer], **filters: Any) -> Answer:
    """The page that is wanted; with `--all` everything from there on, as one page."""
    answer = ask(next=options.next, **filters)
    results: list[Any] = list(answer["results"])
    while options.all and answer.get("next"):
        answer = ask(next=answer["next"])
        results += answer["results"]
    return {**answer, "results": results}
