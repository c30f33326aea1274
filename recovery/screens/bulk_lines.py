"""A bulk's plan as lines for a person: pure, from the JSON that a dry run answers and a bulk keeps.

Numbers, not adjectives: what holds it back first, then what is done, what is skipped and why, what may repeat, how long
it takes, who must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.console.acts import Step, listed
from pipelines.templatetags.console import duration
from recovery.bulk_plans import GONE, NOT_APPLICABLE, called, counted
from recovery.bulk_targets import CHECKPOINT, FAILED_STAGE
from recovery.plans import AND_DOWNSTREAM
from recovery.screens import lines_of_many, plan_lines
from recovery.states import OperationKind

Json = Mapping[str, Any]
# a verb → the glyph of what becomes of its targets, and what is done to each
DEEDS: Mapping[str, tuple[str, str]] = {
    OperationKind.RETRY: ("ready", "retries"),
    OperationKind.SKIP: ("skipped", "skips"),
    OperationKind.CANCEL: ("cancelled", "cancels"),
    OperationKind.PAUSE: ("paused", "pauses"),
    OperationKind.RESUME: ("running", "resumes"),
    OperationKind.REDRIVE: ("redriven", "redrives"),
    OperationKind.DISCARD: ("discarded", "discards"),
    OperationKind.RERUN: ("ready", "reruns"),
    OperationKind.REPLAY: ("ready", "replays"),
}
OTHERWISE = {NOT_APPLICABLE: "have no such stage", GONE: "were removed since"}


def gist(plan: Json) -> str:
    """The same in one line."""
    places = listed([one["environment"] for one in plan["by_environment"] if one["environment"]])
    return f"{DEEDS[plan['kind']][1]} {counted(plan['kind'], plan['acts'])}{f' in {places}' if places else ''}"


def lines(plan: Json) -> list[Step]:
    """What the bulk would do, with who must agree."""
    return [*_warnings(plan), *_deeds(plan), *_where(plan), *_time(plan), *plan_lines.agreements(plan)]


def _warnings(plan: Json) -> Iterator[Step]:
    yield from lines_of_many.blackout(plan)
    if plan["protected"]:
        yield Step("review_required", "Protected", f"{plan['protected']:,} in a protected environment")


def _deeds(plan: Json) -> Iterator[Step]:
    status, does = DEEDS[plan["kind"]]
    if plan["acts"]:
        text = f"{does} {counted(plan['kind'], plan['acts'])}{_how(plan['choices'])}"
        yield Step(status, "Does", f"{text}; each is judged by itself on its turn")
    else:
        yield Step("no_op", "Does", f"nothing: none of {called(plan['kind'], plan['total'])} takes it now")
    for state, count in plan["stands_otherwise"].items():
        told = OTHERWISE.get(state, f"{'is' if count == 1 else 'are'} {state.replace('_', ' ')}")
        yield Step("skipped", "Skips", f"{count:,} that {told}")
    if plan["may_repeat"]:
        text = f"{plan['may_repeat']:,} did something outside; what is not cleared is denied here and left as it is"
        yield Step("review_required", "May repeat", text)


def _how(choices: Json) -> str:
    if choices.get("scope") == AND_DOWNSTREAM:
        return " and what follows each"
    if choices.get("until"):
        return f" until {choices['until'][:16].replace('T', ' ')} UTC"
    match choices.get("from"):
        case None:
            return " on the release of then" if choices.get("freeze_release") else ""
        case value if value == CHECKPOINT:
            return ", each from its last believed checkpoint"
        case value if value == FAILED_STAGE:
            return ", each from its first failed stage"
        case name:
            return f", each from {name}"


def _where(plan: Json) -> Iterator[Step]:
    for word, name, of in (("Pipelines", "pipeline", "of"), ("Environments", "environment", "in")):
        told = [
            f"{one['count']:,} {f'{of} {one[name]}' if one[name] else f'of no {name}'}" for one in plan[f"by_{name}"]
        ]
        if told:
            yield Step("requested", word, listed(told))


def _time(plan: Json) -> Iterator[Step]:
    if plan["acts"] and plan["rate"]:
        seconds = plan["estimate_seconds"]
        lasts = f"{duration(seconds)} at least" if seconds >= 1 else "a second or so"
        text = f"at {plan['rate']:,} a second at most, so {lasts}"
        yield Step("requested", "Takes", text)
