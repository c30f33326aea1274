"""Asking at a terminal before something is changed, and carrying out just what was shown.

A plan's digest stands for all that the plan says. With it the console carries out that plan or refuses because the
world has moved (`plan_changed`). At a terminal the digest is taken care of here; elsewhere nobody is asked, and
`--plan-digest` says which plan was meant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recourse.telling import lines_of_preview
from recourse.terminal.exits import Refused

Answer = Mapping[str, Any]


def add_plan_options(command: Any, *, asks: bool = True) -> None:
    """`--reason`, `--dry-run`, `--plan-digest`, `--client-request-id`; where it asks, `--yes` as well."""
    command.add_argument("--reason", metavar="TEXT", help="kept with the act, for whoever looks later")
    command.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    command.add_argument("--plan-digest", metavar="DIGEST", help="carry out this plan and no other, and ask nothing")
    command.add_argument("--client-request-id", metavar="UUID", help="a lowercase UUID that makes repeating safe")
    if asks:
        add_yes(command)


def add_yes(command: Any) -> None:
    command.add_argument("--yes", action="store_true", help="do not ask, at a terminal, after showing the plan")


def is_asked(options: argparse.Namespace) -> bool:
    """Whether there is somebody to ask: never with `--yes` or `--json`, nor where the input is no terminal."""
    return not getattr(options, "yes", False) and not options.json and sys.stdin.isatty()


def planned(
    options: argparse.Namespace,
    act: Callable[..., Answer],
    tell: Callable[[Answer], Sequence[str]] = lines_of_preview,
) -> Answer:
    """What `act` answers: with `--dry-run` the plan; at a terminal what was shown and agreed to; else the act."""
    if options.dry_run:
        return act(dry_run=True, plan_digest=options.plan_digest)
    digest = options.plan_digest
    if digest is None and is_asked(options):
        plan = act(dry_run=True, plan_digest=None)
        options.out.lines(tell(plan))
        agree(options)
        digest = plan.get("plan_digest")
    return act(plan_digest=digest, client_request_id=options.client_request_id)


def agree(options: argparse.Namespace) -> None:
    """Goes on only with a yes, where there is somebody to ask."""
    if is_asked(options) and ask("do it? [y/N] ").lower() not in ("y", "yes"):
        raise Refused("not done; nothing was changed")


def reason_of(options: argparse.Namespace, question: str) -> str:
    """The reason that was given, else asked for at a terminal, else none: the console says where one is needed."""
    if options.reason is None and is_asked(options) and not getattr(options, "dry_run", False):
        return ask(question)
    return options.reason or ""


def ask(question: str) -> str:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()
