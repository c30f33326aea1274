"""How screens call a gate or a request: its title, what it would do in one line, and whom it asks. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from approvals.inbox import GATE, Item
from approvals.rules import roles_from
from approvals.screens import plans
from approvals.states import RequestCause, RequestState
from pipelines.models import GateMoment
from pipelines.states import GateState

# why nobody decided what is closed, of gates and of requests
NOBODY: dict[str, str] = {
    RequestState.EXPIRED: "Nobody decided in time: silence never consents.",
    RequestState.WITHDRAWN: "Taken back by whoever asked.",
    RequestState.SUPERSEDED: "Its verdict forbids it by now.",
    GateState.CANCELLED: "It ended with its run, or with its epoch.",
}
SHORTEST_WARNING, LONGEST_WARNING = timedelta(minutes=1), timedelta(hours=1)


def title(item: Item) -> str:
    """`Gate after publish in orders`, `Retry of load in orders`, `Rerun of orders`."""
    where = f"{item.stage} in {item.run_name}" if item.stage else item.run_name
    if item.type == GATE:
        return f"Gate {item.moment} {where}"
    return f"{item.kind.replace('_', ' ').capitalize()} of {where}"


def gist(item: Item) -> str:
    """What it would do, in one line; of a review, why it is in one as well."""
    if item.type == GATE:
        what = "begins its work" if item.moment == GateMoment.BEFORE else "is completed with the result that it offers"
        return f"Once approved, {item.stage} {what}."
    told = plans.gist(wanted(item))
    why = next((str(one.get("text", "")) for one in item.reasons), "") if item.cause == RequestCause.REVIEW else ""
    return ". ".join(f"{text[:1].upper()}{text[1:]}" for text in (told, why) if text)


def outcome(item: Item) -> str:
    """What became of what is closed: who decided it and why, or why nobody did."""
    if item.decisions:
        last = item.decisions[-1]
        return f"{last.who}: {last.reason}" if last.reason else last.who
    return NOBODY.get(item.state, "")


def wanted(item: Item) -> plans.Wanted:
    """The request as far as telling its plan goes."""
    return plans.Wanted(item.kind, item.plan, item.disposition, item.reasons)


def kind(item: Item) -> tuple[str, str]:
    """A badge for what is asked: its state for the hue, and its word."""
    if item.type == GATE:
        return "waiting", "Gate"
    return ("review_required", "Review") if item.cause == RequestCause.REVIEW else ("awaiting_approval", "Approval")


def roles(item: Item) -> str:
    """Who may decide: `approver, release manager or admin`."""
    *others, last = [role.replace("_", " ") for role in roles_from(item.role)]
    return f"{', '.join(others)} or {last}" if others else last


def least_role(item: Item) -> str:
    """The same in short: `approver or higher`."""
    role = item.role.replace("_", " ")
    return role if roles_from(item.role) == (item.role,) else f"{role} or higher"


def is_short(item: Item, now: datetime) -> bool:
    """Whether little time is left: a tenth of what there was, from a minute to an hour."""
    if not item.is_open or item.expires_at is None:
        return False
    tenth = (item.expires_at - item.opened_at) / 10
    return item.expires_at - now <= min(max(tenth, SHORTEST_WARNING), LONGEST_WARNING)
