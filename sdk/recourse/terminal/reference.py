"""Every command as a page of Markdown, from the parser itself: `python -m recourse.terminal.reference`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from recourse.terminal.exits import MEANINGS
from recourse.terminal.parsing import SHARED, Parser

HEAD = """\
# Every command

Made from the commands themselves: `python -m recourse.terminal.reference > docs/reference/cli.md`. How to use them is
told in [the command line](../howto/command-line.md).
"""


def as_markdown(parser: Parser) -> str:
    lines = [HEAD, "## recourse", "", *_prose(parser.description or ""), "", "Options of every command:", ""]
    lines += _table([one for one in parser.arguments() if _name(one).partition(" ")[0] in SHARED])
    lines += ["", "Exit status:", "", "| | |", "|---|---|"]
    lines += [f"| {number} | {_cell(meaning)} |" for number, meaning in MEANINGS.items()]
    for one in list(parser.tree())[1:]:
        lines += ["", f"{'##' if one.verbs() else '###'} {one.prog}", "", *_prose(one.description or "")]
        own = [argument for argument in one.arguments() if _is_own(argument)]
        if own:
            lines += ["", *_table(own)]
        examples = (one.epilog or "").removeprefix("examples:\n")
        if examples:
            lines += ["", *_prose(examples)]
    return "\n".join(lines).rstrip() + "\n"


def _prose(text: str) -> Iterator[str]:
    """Indented lines are code, all others paragraphs."""
    is_code = False
    for line in text.strip("\n").splitlines():
        if line.startswith("  ") != is_code and (line or not is_code):
            yield "```"
            is_code = not is_code
        yield line.removeprefix("  ") if is_code else line
    if is_code:
        yield "```"


def _table(arguments: list[argparse.Action]) -> list[str]:
    rows = [f"| `{_name(one)}` | {_cell(_meaning(one))} |" for one in arguments]
    return ["| | |", "|---|---|", *rows]


def _name(argument: argparse.Action) -> str:
    """`--limit N`, `RUN`, `--gap first_existing|shift|skip`."""
    chosen = "|".join(map(str, argument.choices)) if argument.choices and not argument.metavar else ""
    value = "" if argument.nargs == 0 else chosen or str(argument.metavar or argument.dest.upper())
    return f"{', '.join(argument.option_strings)} {value}".strip()


def _meaning(argument: argparse.Action) -> str:
    needed = argument.required and argument.option_strings
    return f"{argument.help or ''}{' (needed)' if needed else ''}".strip()


def _is_own(argument: argparse.Action) -> bool:
    return not (set(argument.option_strings) & {*SHARED, "-h"})


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%")


def main() -> None:
    from recourse.cli import make_parser

    sys.stdout.write(as_markdown(make_parser()))


if __name__ == "__main__":
    main()
