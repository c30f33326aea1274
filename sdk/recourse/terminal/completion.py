"""`recourse completion …`: what a shell needs to complete commands and options, made from the parser by shtab."""

from __future__ import annotations

import argparse
import sys
from typing import Any, cast

from recourse.terminal.exits import DONE, Refused
from recourse.terminal.parsing import Parser, command

SHELLS = ("bash", "zsh", "tcsh")
FILES = frozenset({"FILE"})

INSTALLING = """\
Prints a script that completes commands, options and the values that options know.

  bash  recourse completion bash > ~/.local/share/bash-completion/completions/recourse
  zsh   recourse completion zsh > ~/.zfunc/_recourse      # with ~/.zfunc in fpath, before compinit
  tcsh  recourse completion tcsh > ~/.recourse.csh        # and in ~/.tcshrc: source ~/.recourse.csh
"""


def add_commands(topics: Any) -> None:
    """Adds `completion`."""
    made = command(
        topics,
        "completion",
        "print what a shell needs to complete commands and options",
        _completion,
        description=INSTALLING,
        examples=["recourse completion bash", "recourse completion zsh"],
        alone=True,
    )
    made.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def _completion(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise Refused("shell completion needs the package shtab: pip install 'recourse[cli]'") from None
    from recourse.cli import make_parser

    parser = make_parser()
    for one in parser.tree():
        for action in one.arguments():
            if action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script = shtab.complete(_with_options_of_worker(_without_long_texts(parser)), options.shell)
    if options.out.is_json:
        options.out.document({"shell": options.shell, "script": script})
    else:
        sys.stdout.write(script if script.endswith("\n") else f"{script}\n")
    return DONE


def _with_options_of_worker(parser: Parser) -> Parser:
    """`worker run` is read by the worker, and so are its options known to it alone."""
    from recourse.worker.__main__ import add_options

    verbs = cast("dict[str, Parser]", parser.verbs()["worker"].verbs())
    verbs["run"] = Parser(prog=verbs["run"].prog)
    add_options(verbs["run"])
    return parser


def _without_long_texts(parser: Parser) -> Parser:
    """Scripts carry what a line of help says, and no pages of it."""
    for one in parser.tree():
        one.description = one.epilog = None
    return parser
