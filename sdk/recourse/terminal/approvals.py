"""`recourse approval …`: what waits for people, and deciding it (P84)."""

from __future__ import annotations

import argparse
from typing import Any

from recourse.telling import lines_of_approvals, lines_of_decision
from recourse.terminal.asking import add_plan_options, planned, reason_of
from recourse.terminal.executions import ID, told
from recourse.terminal.exits import DONE
from recourse.terminal.output import Answer, Column, time_of, words_of
from recourse.terminal.pages import LISTS, add_filters, add_list_options, chosen, read_page
from recourse.terminal.parsing import command, group

VIEWS = ("waiting", "mine", "asked", "decided")
TYPES = ("gate", "operation")


def _what(item: Answer) -> str:
    """`rerun of nightly`, `gate at scope of nightly`."""
    at = f" at {item['stage']}" if item.get("stage") else ""
    return f"{item.get('kind') or item.get('type')}{at} of {item.get('execution_name')}"


def _yours(item: Answer) -> str:
    """Whether it is for whoever asks to decide; why it is not."""
    if item.get("state") != "open":
        return ""
    return "yes" if item.get("may_decide") else f"no: {(item.get('why_not') or {}).get('detail') or 'not told why'}"


APPROVALS = (
    Column("id", "id", whole=True),
    Column("state", words_of("state"), whole=True, is_status=True),
    Column("what", _what, least=16),
    Column("agreed", lambda item: f"{item.get('have')} of {item.get('need')}", rank=1, whole=True),
    Column("yours", _yours, rank=2, least=16),
    Column("environment", "environment", rank=4),
    Column("asked for by", "requested_by", rank=3),
    Column("because", "reason", rank=5, least=16),
    Column("expires", time_of("expires_at"), rank=6, whole=True),
)


def add_commands(topics: Any) -> None:
    """Adds `approval`."""
    verbs = group(
        topics,
        "approval",
        "what waits for people: gates and requests for agreement",
        examples=["recourse approval list --view mine", f"recourse approval decide {ID} --approve"],
    )
    listed = command(
        verbs,
        "list",
        "list gates and requests, newest first",
        _list,
        description=f"Lists gates and requests, newest first: what it is, who asked, how many agreed.\n\n{LISTS}",
        examples=["recourse approval list --view mine", "recourse approval list --view decided --type gate --json"],
    )
    listed.add_argument(
        "--view", choices=VIEWS, default="waiting", help="waiting; mine: what you may decide now; asked; decided"
    )
    add_filters(listed, {"type": {"choices": TYPES, "metavar": "TYPE", "help": "gate, operation"}})
    add_list_options(listed)
    decide = command(
        verbs,
        "decide",
        "approve or reject; what is approved is done as planned",
        _decide,
        examples=[
            f"recourse approval decide {ID} --approve",
            f"recourse approval decide {ID} --reject --reason 'two batches, not one'",
            f"recourse approval decide {ID} --approve --dry-run",
        ],
    )
    decide.add_argument("approval_id", metavar="APPROVAL_ID", help="of the gate or the request")
    answer = decide.add_mutually_exclusive_group(required=True)
    answer.add_argument("--approve", dest="approved", action="store_true", help="go on as planned")
    answer.add_argument("--reject", dest="approved", action="store_false", help="needs a --reason")
    add_plan_options(decide)
    withdraw = command(
        verbs,
        "withdraw",
        "take back what you asked for",
        _withdraw,
        examples=[f"recourse approval withdraw {ID} --reason 'it was the wrong run'"],
    )
    withdraw.add_argument("approval_id", metavar="APPROVAL_ID", help="of the gate or the request")
    withdraw.add_argument("--reason", metavar="TEXT", help="kept with the act, for whoever looks later")


def _list(client: Any, options: argparse.Namespace) -> int:
    answer = read_page(options, client.approvals.list, view=options.view, **chosen(options))
    if options.out.is_terminal and not options.out.is_json:
        options.out.page(answer, APPROVALS, "nothing")
    else:
        options.out.say(answer, lines_of_approvals(answer))
    return DONE


def _decide(client: Any, options: argparse.Namespace) -> int:
    reason = options.reason if options.approved else reason_of(options, "why is it rejected? ") or None
    answer = planned(
        options, lambda **how: client.approvals.decide(options.approval_id, options.approved, reason, **how)
    )
    return told(options, answer, lines_of_decision)


def _withdraw(client: Any, options: argparse.Namespace) -> int:
    answer = client.approvals.withdraw(options.approval_id, options.reason)
    options.out.say(answer, lines_of_decision(answer))
    return DONE
