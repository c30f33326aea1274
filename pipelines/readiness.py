"""What a pipeline lacks before it may be left alone at night: a checklist for one release in force. Pure.

Each line is met, not met, or not known, and says why and what to do. Nothing is guessed: what is in a handler or beside
a worker the console does not see, and says so. Serves N6, N12, N19–N21, N26, N27.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipelines.limits import Limits
from pipelines.repeating import Act, Repeat, StageFacts, Verdict, judge, told

LONG_SECONDS = 300  # what a repeat from the beginning may cost without a checkpoint
MOST_NAMES = 5  # of stages in a sentence


class State(StrEnum):
    MET = "met"
    NOT_MET = "not_met"
    NOT_KNOWN = "not_known"


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """A pipeline in one environment: the stages of the release in force there, its limits, and how many of the newest
    runs are of it. `run_retry`: the policy that rules its runs, blank for none; `retention_days` 0: for good."""

    stages: tuple[StageFacts, ...]
    limits: Limits
    has_input_schema: bool
    runs: int
    run_retry: str
    retention_days: int


@dataclass(frozen=True, slots=True)
class Line:
    """`see`: the topic of help that says how."""

    key: str
    title: str
    state: State
    why: str
    to_do: str
    see: str


def checklist(place: PlaceFacts) -> list[Line]:
    return [
        _upserts(place),
        _checkpoints(place),
        _row_limits(place),
        _retries(place),
        _effects(place),
        _limits(place),
        _input(place),
        _traceback(place),
    ]


def repeats(place: PlaceFacts) -> list[tuple[StageFacts, Repeat]]:
    """Its stages, each with whether it is safe to repeat."""
    return [(stage, judge(stage)) for stage in place.stages]


def _upserts(place: PlaceFacts) -> Line:
    def line(state: State, why: str, to_do: str = "") -> Line:
        return Line("upserts", "Writes merge on a key", state, why, to_do, "connectors")

    use = "Write with op upsert on key columns; where the target cannot, look first or use its own key."
    acts = list(_acts(place))
    adding = [one for one in acts if one.adds]
    if adding:
        return line(State.NOT_MET, f"seen: {_by_stage(place, adding)}, which adds and does not merge.", use)
    others = [one for one in acts if not one.merges]
    if others:
        return line(State.NOT_KNOWN, f"seen: {_by_stage(place, others)}, told without saying whether it merges.", use)
    if not acts:
        return line(State.NOT_KNOWN, f"{_none(place, 'told of a write outside')}; only what is told is seen.", use)
    return line(State.MET, f"seen: every write that was told merges: {told(acts)}.")


def _checkpoints(place: PlaceFacts) -> Line:
    def line(state: State, why: str, to_do: str = "") -> Line:
        return Line("checkpoints", "Long work leaves checkpoints", state, why, to_do, "pipelines")

    leave = "Have the handler leave its state after each unit of work, or mark finished units in the workspace store."
    attempted = [stage for stage in place.stages if stage.seen.runs]
    if not attempted:
        return line(State.NOT_KNOWN, f"{_none(place, 'begun a stage')}.", leave)
    lacking = [one for one in attempted if one.seen.longest >= LONG_SECONDS and not one.seen.with_state]
    if lacking:
        longest = max(one.seen.longest for one in lacking)
        why = f"seen: {_names(lacking)} took up to {longest / 60:.0f} minutes and left no state to go on from."
        return line(State.NOT_MET, f"{why} Marks in the store are not counted.", leave)
    leaving = [one for one in attempted if one.seen.with_state]
    if leaving:
        return line(State.MET, f"seen: {_names(leaving)} left states to go on from.")
    return line(State.MET, f"seen: no attempt took {LONG_SECONDS // 60} minutes, which is all that a repeat costs.")


def _row_limits(place: PlaceFacts) -> Line:
    def line(state: State, why: str, to_do: str = "") -> Line:
        return Line("row_limits", "A write has at most so many rows", state, why, to_do, "constraints")

    bound = "Write through connectors, and set max_rows and max_rows_per_attempt of each to what is usual."
    acts = list(_acts(place))
    adapters = [one for one in acts if one.connector]
    others = [one for one in acts if not one.connector]
    if others:
        return line(State.NOT_KNOWN, f"seen: {_by_stage(place, others)}, not by a connector that bounds it.", bound)
    if adapters:
        names = ", ".join(dict.fromkeys(one.connector for one in adapters))
        why = f"seen: it writes by {names}, and a connector refuses more than its max_rows before it writes."
        return line(
            State.MET, f"{why} How many that is stands in the workers' file.", "Look there whether it is narrow."
        )
    return line(State.NOT_KNOWN, f"{_none(place, 'told of a write')}; connectors are in the workers' file.", bound)


def _retries(place: PlaceFacts) -> Line:
    def line(state: State, why: str, to_do: str = "") -> Line:
        return Line("retries", "Failures are tried again", state, why, to_do, "retries")

    working = [stage for stage in place.stages if stage.mode != "import"]
    lacking = [stage for stage in working if not stage.retries]
    if place.run_retry:
        return line(State.MET, f"declared: the policy {place.run_retry} retries runs that failed.")
    if not lacking:
        sources = ", ".join(dict.fromkeys(stage.retry_source for stage in working)) or "nothing of ours runs"
        return line(State.MET, f"declared: every stage is tried again by a rule ({sources}).")
    return line(
        State.NOT_MET,
        f"declared: nothing tries {_names(lacking)} again. Whether something elsewhere starts failed runs anew is not"
        " known here.",
        "Give the stages retries, add a policy, or have a scheduler read the run's end and start it again.",
    )


def _effects(place: PlaceFacts) -> Line:
    def line(state: State, why: str, to_do: str = "") -> Line:
        return Line("effects", "Effects outside are declared", state, why, to_do, "pipelines")

    denied = [one for one in place.stages if one.effect_mode == "none" and one.seen.acts]
    if denied:
        why = (
            f"declared: {_names(denied)} acts nowhere outside; seen: {told([a for s in denied for a in s.seen.acts])}."
        )
        return line(State.NOT_MET, why, "Say effects idempotent where it converges, and external where it does not.")
    unbound = [one for one in place.stages if judge(one).verdict == Verdict.ASKS]
    if unbound:
        return line(
            State.NOT_MET,
            f"declared: {_names(unbound)} acts outside and does not tell before: each lost worker asks a person.",
            "Tell each effect before it happens, and set effect_protocol to intent.",
        )
    said = [one for one in place.stages if one.seen.acts or judge(one).verdict == Verdict.INTENT]
    if said:
        return line(State.MET, f"{_names(said)} tells of effects, and the effect modes agree with what was told.")
    return line(
        State.NOT_KNOWN,
        f"{_none(place, 'told of an effect')}. What a handler does without telling is not seen.",
        "Where a handler acts outside, tell it with ctx.effect, or act through an adapter.",
    )


def _limits(place: PlaceFacts) -> Line:
    def line(state: State, why: str, to_do: str = "") -> Line:
        return Line("limits", "Time and attempts are bounded", state, why, to_do, "constraints")

    wide = Limits().as_json()
    narrow = [
        f"{name.replace('_', ' ')} {value}" for name, value in place.limits.as_json().items() if value != wide[name]
    ]
    timeless = [one for one in place.stages if not one.has_timeout]
    has_deadline = place.limits.deadline_seconds is not None
    if has_deadline or not timeless:
        by_stage = [] if timeless else ["every stage has a time-out"]
        return line(State.MET, f"declared: {', '.join([*narrow, *by_stage])}.")
    others = f" Set is {', '.join(narrow)}." if narrow else ""
    return line(
        State.NOT_MET,
        f"declared: no deadline, and nothing bounds an attempt of {_names(timeless)}.{others}",
        "Set limits.deadline_seconds, or a time-out of each stage; a policy of kind timeout does it for many.",
    )


def _input(place: PlaceFacts) -> Line:
    title, key, see = "Inputs are checked before a run begins", "input_schema", "pipelines"
    if place.has_input_schema:
        return Line(key, title, State.MET, "declared: the release has a schema, and other inputs are refused.", "", see)
    return Line(
        key,
        title,
        State.NOT_MET,
        "declared: any input makes a run; what is wrong in it shows in a handler.",
        "Give the definition an input_schema.",
        see,
    )


def _traceback(place: PlaceFacts) -> Line:
    kept = f"for {place.retention_days} days after the run's end" if place.retention_days else "for good"
    why = f"The console keeps every attempt's whole traceback {kept}, as far as its worker tells one."
    return Line("traceback", "Failures can be looked into", State.MET, why, "", "observability")


def _acts(place: PlaceFacts) -> Iterator[Act]:
    return (act for stage in place.stages for act in stage.seen.acts)


def _by_stage(place: PlaceFacts, acts: Sequence[Act]) -> str:
    stages = [stage for stage in place.stages if any(one in acts for one in stage.seen.acts)]
    return f"{told(acts)} in {_names(stages)}"


def _none(place: PlaceFacts, what: str) -> str:
    if not place.runs:
        return "not known: of this release there is no run"
    whose = "its newest run has not" if place.runs == 1 else f"none of its newest {place.runs} runs has"
    return f"not known: {whose} {what}"


def _names(stages: Sequence[StageFacts]) -> str:
    names = [one.name for one in stages[:MOST_NAMES]]
    left = len(stages) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")
