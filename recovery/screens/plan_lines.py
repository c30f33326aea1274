"""A plan as lines for a person: pure, from the JSON that a dry run answers and an operation keeps.

Numbers, not adjectives: every group of stages is counted and named. The order is that of interface.md: kept, run again,
then, what the release has otherwise, what may repeat, what goes on outside, the verdict, who must agree.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from approvals.screens.plans import AGREEMENT, Wanted
from pipelines.blackouts import OVERRIDE, Active
from pipelines.console.acts import NAMED, Step, listed, stages_in_words
from pipelines.states import StageState
from recovery.decision_checks import JUDGED
from recovery.dispositions import ACKNOWLEDGE
from recovery.states import Disposition, OperationKind

Json = Mapping[str, Any]
GLANCED = 3  # in one line
SHOWN = 12  # of many effects, differences or reasons
ALIKE = 3  # so many reasons that say the same of different effects are counted instead
LONGEST = 160
EACH_IN_TURN = "each once what it waits for lets it go on"
FORKS = frozenset({OperationKind.RERUN, OperationKind.REPLAY})
# what becomes of the other stages, by the state that they will be in: of one, of several
BECOMES = {
    StageState.SKIPPED: ("is left out", "are left out"),
    StageState.CANCELLED: ("ends", "end"),
    StageState.READY: ("goes on", "go on"),
    StageState.WAITING: ("asks for a decision", "ask for a decision"),
    StageState.PENDING: ("waits", "wait"),
    "stale": ("goes stale", "go stale"),
}

VERDICTS = {
    Disposition.RECOVERY_ALLOWED: "nothing committed outside may be repeated",
    Disposition.RECOVERY_ALLOWED_RECONCILED: "what was committed outside has key, evidence and reconciliation",
    Disposition.OPERATOR_REVIEW_REQUIRED: "it is kept until somebody other than who asks lets it go on",
    Disposition.RECOVERY_DENIED: "it will not be done, and nobody overrides that",
}


def lines(plan: Json) -> list[Step]:
    """What the plan would do, with its verdict, line by line."""
    return [
        *_blackout(plan),
        *_lane(plan),
        *deeds(plan),
        *(verdict(plan) if plan["kind"] in JUDGED else ()),
        *_instead(plan),
        *agreements(plan),
    ]


def wanted(asked: Wanted) -> list[Step]:
    """What somebody asks others to agree to; of what has no plan, its verdict."""
    if asked.plan is not None:
        return [*_choices(asked.plan["choices"]), *lines(asked.plan)]
    return verdict({"disposition": asked.disposition, "reasons": asked.reasons}) if asked.kind in JUDGED else []


def gist(asked: Wanted) -> str:
    """The same in one line: how much is run again, kept and changed, and what may repeat."""
    if asked.plan is None:
        return ""
    plan = asked.plan
    told = [
        f"{verb} {_some(stages)}"
        for verb, stages in (("runs", plan["run_again"]), ("keeps", plan["kept"]), ("changes", plan["then"]))
        if stages
    ]
    if repeats := len(plan["may_repeat"]):
        told.append(f"may repeat {repeats} {'effect' if repeats == 1 else 'effects'} outside")
    return ", ".join(told)


def outcome(plan: Json) -> str:
    """What the plan comes to in one line and in numbers; blank where it moves no stage."""
    again = "run" if plan["kind"] in FORKS else "run again"
    told = [_count(len(plan["run_again"]), "stage", again.replace("run", "runs"), again)]
    kinds = Counter(_becomes(line) for line in plan["then"])
    told += [_count(kinds[kind], "stage", *words) for kind, words in BECOMES.items()]
    told.append(_count(len(plan["kept"]), "stage", "is kept", "are kept"))
    told.append(_count(len(plan["may_repeat"]), "effect", "may repeat outside", "may repeat outside"))
    told.append(_count(len(plan.get("ends_too", ())), "other run", "ends too", "end too"))
    told.append(_count(len(plan["goes_on_outside"]), "thing", "may go on outside", "may go on outside"))
    return ", ".join(part for part in told if part)


def _becomes(line: Json) -> str:
    if line["to"] in BECOMES:
        return str(line["to"])
    return "stale" if line["stale"] else ""


def _count(count: int, noun: str, one: str, many: str) -> str:
    if not count:
        return ""
    return f"1 {noun} {one}" if count == 1 else f"{count} {noun}s {many}"


def _choices(chosen: Json) -> Iterator[Step]:
    """What who asks chose and no stage's line tells: whoever asks knows it, whoever is to agree does not."""
    if chosen.get("input") is not None:
        text = f"its stage gets another input from now on, {_digest(chosen['input'])}"
        yield Step("declared", "New input", text)
    if chosen.get("has_output"):
        made = "null" if chosen["output"] is None else _digest(chosen["output"])
        yield Step("declared", "Given output", f"what waits for it gets an output that who asks wrote, {made}")
    if chosen.get("acknowledge_effects"):
        text = "who asks says that they have checked outside what its earlier attempts did there"
        yield Step("declared", "Acknowledged", text)
    if chosen.get(OVERRIDE):
        yield Step("declared", "Override", f"it starts although a blackout holds: {_shortened(chosen[OVERRIDE])}")


def _digest(shown: Json) -> str:
    return f"digest {shown['digest'][:12]}"


def deeds(plan: Json) -> list[Step]:
    """What the plan would do, and what may happen outside."""
    return [
        *_stages("Kept", plan["kept"], "completed"),
        *_stages("Run again", plan["run_again"]),
        *_stages("Then", plan["then"]),
        *_letters(plan["choices"].get("closes_dead_letters", ())),
        *_cut([_difference(one) for one in plan["differences"]], "Changed"),
        *_cut([Step("blocked", "May repeat", _effect(one)) for one in plan["may_repeat"]], "May repeat"),
        *_cut([Step("cancelled", "Ends too", text) for text in plan.get("ends_too", ())], "Ends too"),
        *_cut([Step("running", "May go on", text) for text in plan["goes_on_outside"]], "May go on"),
    ]


def _blackout(plan: Json) -> Iterator[Step]:
    """What holds now, and what starting all the same takes."""
    if blackout := plan.get("blackout"):
        said = Active.from_json(blackout).sentence()
        yield Step("blocked", "Blackout", f"{said}; this starts all the same, with a reason")


def _lane(plan: Json) -> Iterator[Step]:
    """Where the run is held until it is its turn, and how full that is now."""
    if lane := plan.get("lane"):
        yield Step("queued", "Its turn", lane["text"])


def agreements(plan: Json) -> list[Step]:
    """Who must agree."""
    return [_agreement(one) for one in plan["approvals"]]


def verdict(judged: Json) -> list[Step]:
    """The disposition with its reasons; of a plan, or of anything else that has both."""
    disposition = judged["disposition"]
    said = Step(disposition, "Verdict", f"{disposition.replace('_', ' ')}: {VERDICTS[Disposition(disposition)]}")
    return [said, *_cut([*_reasons(judged["reasons"], disposition)], "Because")]


def _reasons(told: Sequence[Json], disposition: str) -> Iterator[Step]:
    """One line for each reason; where many effects have the same, one line for all of them."""
    alike: dict[tuple[str, str], list[Json]] = {}
    for one in told:
        alike.setdefault((str(one.get("disposition") or disposition), str(one.get("code"))), []).append(one)
    for (status, _), group in alike.items():
        if len(group) <= ALIKE:
            yield from (Step(status, "Because", text) for text in dict.fromkeys(_worded(one) for one in group))
            continue
        stages = list(dict.fromkeys(str(one["stage"]) for one in group))
        claims = {_worded(one).rpartition("; ")[2] for one in group}
        claim = claims.pop() if len(claims) == 1 else f"{_worded(group[0])}, and alike"
        yield Step(status, "Because", f"{len(group)} times, in {listed(stages)}: {claim}")


def _worded(reason: Json) -> str:
    return str(reason["text"]).replace(ACKNOWLEDGE, ", and say what was found")


def _instead(plan: Json) -> Iterator[Step]:
    """What still helps where a retry is denied: to leave out the failed stages that evidence speaks against."""
    if plan["disposition"] != Disposition.RECOVERY_DENIED or plan["stage_id"] is None:
        return
    denied = {one["stage"] for one in plan["reasons"] if one["disposition"] == Disposition.RECOVERY_DENIED}
    failed = [one["stage"] for one in plan["run_again"] if one["stage"] in denied and one["was"] == StageState.FAILED]
    if failed:
        text = f"skip {listed(failed)}, if the run may go on without it; a fork that ran it again would be denied too"
        yield Step("skipped", "Instead", text)


def _stages(word: str, told: Sequence[Json], status: str = "") -> Iterator[Step]:
    """One line for the stages that fare alike, with the glyph of what the first of them becomes; of many, the names
    of all go with it.

    Where several wait, each for its own, one line says that of all of them.
    """
    alike: dict[str, list[Json]] = {}
    waits = {line["why"] for line in told if line["to"] == StageState.PENDING}
    for line in told:
        stale = "; marked as made from an older result" if line["stale"] and "older result" not in line["why"] else ""
        why = EACH_IN_TURN if line["why"] in waits and len(waits) > 1 else line["why"]
        alike.setdefault(f"{why}{stale}", []).append(line)
    for why, group in alike.items():
        names = [line["stage"] for line in group]
        count = stages_in_words(len(names))
        text = f"{count}: {listed(names)}{f' · {why}' if why else ''}"
        yield Step(status or group[0]["to"], word, text, names=tuple(names) if len(names) > NAMED else ())


def _some(stages: Sequence[Json]) -> str:
    names = [line["stage"] for line in stages]
    return f"{stages_in_words(len(names))} ({listed(names, GLANCED)})"


def _letters(names: Sequence[str]) -> Iterator[Step]:
    if names:
        yield Step("resolved", "Closed", f"the dead {'letter' if len(names) == 1 else 'letters'} of {listed(names)}")


def _difference(one: Json) -> Step:
    match one["what"]:
        case "added":
            return Step("declared", "Added", f"{one['stage']}: the source's release has no such stage")
        case "removed":
            return Step("declared", "Removed", f"{one['stage']}: the release that will run has no such stage")
    field = str(one["what"]).replace("_", " ")
    return Step(
        "declared", "Changed", f"{one['stage']}: {field} was {_short(one['before'])}, is {_short(one['after'])}"
    )


def _effect(one: Json) -> str:
    if not one["class"]:
        return f"{one['stage']}: it acts outside, and never declared what it did"
    step = f", step {one['step_id']}" if one["step_id"] and one["step_id"] != one["stage"] else ""
    key = f"the outside system knows it by {one['idempotency_key']}" if one["idempotency_key"] else "without any key"
    return f"{one['stage']}: {one['class'].replace('_', ' ')}{step}, {one['state'].replace('_', ' ')}; {key}"


def _agreement(one: Json) -> Step:
    roles = ", ".join(role.replace("_", " ") for role in one["roles"])
    return Step(AGREEMENT, "Needs approval", f"{one['count']} of {roles}, other than who asks; {one['why']}")


def _cut(steps: Sequence[Step], word: str) -> Iterable[Step]:
    if len(steps) <= SHOWN:
        return steps
    return [*steps[:SHOWN], Step(steps[SHOWN].status, word, f"and {len(steps) - SHOWN} more")]


def _short(value: Any) -> str:
    return _shortened(json.dumps(value, ensure_ascii=False))


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
