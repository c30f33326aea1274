"""`recourse dead-letter …`: the stages that the machine has given up on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from recourse.terminal.asking import add_plan_options, planned, reason_of
from recourse.terminal.executions import ID, told
from recourse.terminal.exits import DONE
from recourse.terminal.output import Answer, Column, time_of, words, words_of
from recourse.terminal.pages import LISTS, add_filters, add_list_options, chosen, read_page
from recourse.terminal.parsing import command, group

STATUSES = ("open", "acknowledged", "redriven", "discarded", "resolved")
REASONS = ("retries_exhausted", "recoveries_exhausted", "terminal_error", "undeliverable")
LETTERS = (
    Column("id", "id", whole=True),
    Column("status", words_of("status"), whole=True, is_status=True),
    Column("stage", "stage"),
    Column("error", "error_code", rank=1, whole=True),
    Column("given up because", words_of("reason"), rank=2),
    Column("run", "execution_name", rank=3),
    Column("opened", time_of("opened_at"), rank=3, whole=True),
    Column("run id", "execution_id", rank=4, whole=True),
)


def add_commands(topics: Any) -> None:
    """Adds `dead-letter`."""
    verbs = group(
        topics,
        "dead-letter",
        "stages that the machine has given up on",
        "A stage that failed for good, or whose retries or recoveries are used up, leaves a dead letter. It is closed"
        " by redriving it (the stage runs again), by discarding it (it stays failed), or by what else settles it.",
        ["recourse dead-letter list --status open", f"recourse dead-letter redrive {ID} --reason 'the bank is back'"],
    )
    listed = command(
        verbs,
        "list",
        "list dead letters, newest first",
        _list,
        description=f"Lists dead letters, newest first.\n\n{LISTS}",
        examples=[
            "recourse dead-letter list --status open",
            "recourse dead-letter list --error-code BANK_DOWN --all --json",
        ],
    )
    add_filters(
        listed,
        {
            "status": {"choices": STATUSES, "metavar": "STATUS", "help": ", ".join(STATUSES)},
            "reason": {"choices": REASONS, "metavar": "REASON", "help": ", ".join(REASONS)},
            "error_code": {"metavar": "CODE"},
            "execution_id": {"metavar": "RUN", "help": "only of this run"},
            "handler": {"metavar": "NAME"},
            "pipeline": {"metavar": "SLUG"},
            "application": {"metavar": "NAME"},
        },
    )
    add_list_options(listed)
    acknowledge = command(
        verbs,
        "acknowledge",
        "say that somebody has seen it and deals with it",
        _verb("acknowledge", None),
        examples=[f"recourse dead-letter acknowledge {ID} --reason 'asked the bank'"],
    )
    redrive = command(
        verbs,
        "redrive",
        "run the stage again in a new epoch, which closes the letter",
        _verb("redrive", None),
        examples=[
            f"recourse dead-letter redrive {ID} --dry-run",
            f"recourse dead-letter redrive {ID} --reason 'the bank is back'",
        ],
    )
    redrive.add_argument("--acknowledge-effects", action="store_true", default=None, help="the outside was looked at")
    redrive.add_argument("--override-reason", metavar="TEXT", help="start it although a blackout holds; kept with it")
    discard = command(
        verbs,
        "discard",
        "say that it will not be done; the stage stays failed",
        _verb("discard", "why is it discarded? "),
        examples=[f"recourse dead-letter discard {ID} --reason 'the customer has left'"],
    )
    for verb in (acknowledge, redrive, discard):
        verb.add_argument("letter", metavar="ID", help="of the dead letter")
        # acknowledging changes nothing of the stage: nobody is asked
        add_plan_options(verb, asks=verb is not acknowledge)
        verb.set_defaults(yes=verb is acknowledge, fields=())
    redrive.set_defaults(fields=("acknowledge_effects", "override_reason"))


def _list(client: Any, options: argparse.Namespace) -> int:
    options.out.page(read_page(options, client.dead_letters.list, **chosen(options)), LETTERS, "no dead letters")
    return DONE


def _verb(name: str, question: str | None) -> Callable[[Any, argparse.Namespace], int]:
    def act(client: Any, options: argparse.Namespace) -> int:
        reason = reason_of(options, question) if question else options.reason
        said = {"reason": reason, **{field: getattr(options, field) for field in options.fields}}
        verb = getattr(client.dead_letters, name)
        return told(options, planned(options, lambda **how: verb(options.letter, **said, **how)), _moved)

    return act


def _moved(answer: Answer) -> list[str]:
    lines = [f"dead letter: {words(answer.get('dead_letter_status') or answer.get('status'))}"]
    if answer.get("epoch"):
        lines.append(f"stage {answer.get('stage_id')}: epoch {answer['epoch']}, {words(answer.get('stage_status'))}")
    return lines
