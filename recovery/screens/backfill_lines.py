"""A backfill's plan as lines for a person: pure, from the JSON that a dry run answers and a backfill keeps.

Numbers, not adjectives: warnings first, then what is made, what is left alone, how long it may take, who must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from pipelines.console.acts import NAMED, Step, listed
from pipelines.templatetags.console import duration
from pipelines.zones import zone
from recovery.models import BackfillOrder
from recovery.screens import lines_of_many, plan_lines

Json = Mapping[str, Any]
# why a tick is filled, as the plan tells it → in words
WHY = {
    "not recorded": "not in the ledger",
    "paused": "fell while the trigger was off",
    "overlap": "came while an earlier run was unfinished",
    "blackout": "fell into a blackout",
    "catch-up": "found too late",
    "failed": "could not be started",
}
ORDERS = {BackfillOrder.OLDEST: "oldest first", BackfillOrder.NEWEST: "newest first"}


def gist(plan: Json) -> str:
    """The same in one line."""
    return f"makes {runs(plan['total_ticks'])} of {plan['trigger']} in {plan['environment']}, {_window(plan)}"


def lines(plan: Json) -> list[Step]:
    """What the backfill would do, with who must agree."""
    return [*warnings(plan), *deeds(plan), *_estimate(plan), *plan_lines.agreements(plan)]


def warnings(plan: Json) -> Iterator[Step]:
    """What to know before anything else: why nothing would come of it now, and where it would be done."""
    yield from lines_of_many.blackout(plan)
    if plan.get("protected"):
        yield Step("review_required", "Protected", f"{plan['environment']}: an operator's backfill waits for approval")
    if handlers := plan.get("without_worker"):
        text = f"no live worker has {listed(handlers)}: runs wait until one comes"
        yield Step("blocked", "No worker", text)


def deeds(plan: Json) -> Iterator[Step]:
    """What is made, for which ticks and why; what is left alone."""
    total, skipped = plan["total_ticks"], plan["skipped"]
    if total:
        at_once = f"at most {plan['max_concurrent']:,} at a time"
        order = ORDERS[BackfillOrder(plan["order"])]
        yield Step("ready", "Makes", f"{runs(total)}, one for each tick {_window(plan)}; {order}, {at_once}")
        yield from _because(plan["missed_because"])
        if version := plan.get("trigger_version"):
            yield Step("declared", "With input", f"as version {version} of {plan['trigger']} says")
    else:
        yield Step("no_op", "Makes", "nothing: no tick of this window is missed")
    if skipped:
        text = f"{skipped:,} {'tick that has' if skipped == 1 else 'ticks that have'} a run already"
        yield Step("skipped", "Leaves alone", text)
    yield from _withheld(plan)
    yield from _unfit(plan)
    yield Step("superseded", "Untouched", f"when {plan['trigger']} is due next")


def _withheld(plan: Json) -> Iterator[Step]:
    """What was to be done once more and is not: how many, and the first of them with the reason."""
    count, first = plan.get("withheld", 0), plan.get("withheld_ticks", ())
    if count:
        whose = "1 tick's run did" if count == 1 else f"{count:,} ticks' runs did"
        yield Step("review_required", "Not again", f"{whose} something outside: replay each from its page")
    for one in first[:NAMED]:
        yield Step("review_required", one["local_time"][:16].replace("T", " "), one["message"])


def _unfit(plan: Json) -> Iterator[Step]:
    """Which of them will fail, since the pipeline does not take their input."""
    count, looked_at = plan.get("unfit", 0), plan.get("unfit_of", 0)
    if count:
        of = "" if looked_at >= plan["total_ticks"] else f" of {looked_at:,} that were looked at"
        whose = f"1 tick{of} fails" if count == 1 else f"{count:,} ticks{of} fail"
        yield Step("review_required", "Will fail", f"{whose}: the schema of the pipeline does not take the input")
    for one in plan.get("unfit_ticks", ())[:NAMED]:
        yield Step("review_required", one["local_time"][:16].replace("T", " "), one["message"])


def _estimate(plan: Json) -> Iterator[Step]:
    """How long it may take."""
    if plan["total_ticks"] and plan.get("estimate_seconds") is not None:
        text = f"about {duration(plan['estimate_seconds'])}, by how long the newest runs took"
        yield Step("declared", "Estimate", text)
    elif plan["total_ticks"]:
        yield Step("declared", "Estimate", "unknown: no run of it has completed lately")


def runs(count: int) -> str:
    return f"{count:,} {'run' if count == 1 else 'runs'}"


def _because(counts: Mapping[str, int]) -> Iterator[Step]:
    for why, count in counts.items():
        status, word = ("missed", "missed") if why in WHY else ("redriven", "again")
        yield Step(status, f"{count:,} {word}", WHY.get(why, why))


def _window(plan: Json) -> str:
    first, last = plan.get("first_tick"), plan.get("last_tick")
    ends: Sequence[str] = (first, last) if first and last else (plan["window"]["from"], plan["window"]["to"])
    shown = [datetime.fromisoformat(end).astimezone(zone(plan["timezone"])) for end in ends]
    if shown[0] == shown[1]:
        return f"at {shown[0]:%Y-%m-%d %H:%M} {plan['timezone']}"
    return f"from {shown[0]:%Y-%m-%d %H:%M} to {shown[1]:%Y-%m-%d %H:%M} {plan['timezone']}"
