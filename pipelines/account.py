"""The account of a run: what happened to each stage, what is uncertain, who decided what, what remains, what helps.

For whoever comes by later and was not there: every sentence is told from what is stored. Five to ten queries, whatever
the run went through; of very long stories only the newest `MOST` events are told, and it says so. Serves R46, O4.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pipelines import queries
from pipelines.blockers import ANOTHER_RUN, Blocker
from pipelines.budget_queries import standing
from pipelines.console.events import SENTENCES, tell
from pipelines.limits import MOST_ATTEMPTS, MOST_BYTES
from pipelines.models import Attempt, Event, ReconciliationItem, Run, Stage
from pipelines.models.runs import StageMode
from pipelines.moves import DEADLINE_EXCEEDED
from pipelines.states import ACTIVE_ATTEMPT, OPEN_EFFECT, TERMINAL_RUN, RunStatus, StageState

MOST = 500  # events and items
# Of the events those that end, decide or refuse something; the others are steps on the way.
STEPS = frozenset(
    {
        "stage.make_ready",
        "stage.dispatch",
        "stage.acquire",
        "stage.hand_on",
        "stage.checkpoint",
        "stage.fall_back",
        "stage.approve_after",
        "stage.approve_before",
        "stage.deny",
        "stage.restore",
        "stage.runs_ended",
        "artifact.store",
        "effect.declare",
        "run.queued",
        "run.running",
        "run.waiting",
        "run.reconciliation_list",
    }
)
TELLING = sorted(set(SENTENCES) - STEPS)
EXHAUSTED = frozenset({"attempts_exhausted", "budget_exhausted"})


@dataclass(slots=True)
class StageAccount:
    """A stage: how it stands in a sentence, its story, what is uncertain, and what can be done next."""

    id: uuid.UUID
    name: str
    state: str
    standing: str
    request_digest: str = ""
    story: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Account:
    """All that is told of a run. `shortened`: the story began before what is told of it."""

    standing: str
    story: list[str]
    stages: list[StageAccount]
    remains: list[str]
    budget: list[str]
    next: list[str]
    shortened: bool


def account_of(run: Run) -> Account:
    """The account of a run that the caller may see."""
    stages = queries.stages(run)
    blockers = queries.blockers(run, stages)
    newest = list(Event.objects.filter(run=run, kind__in=TELLING).order_by("-id")[: MOST + 1])
    told = _stories(newest[MOST - 1 :: -1], {stage.id: stage.name for stage in stages})
    open_effects = _open_effects(run)
    awaiting = _awaited(stages)
    found = []
    for stage in stages:
        causes = [one.cause for one in blockers if one.stage_id == stage.id]
        awaited = awaiting.get(stage.id)
        found.append(
            StageAccount(
                id=stage.id,
                name=stage.name,
                state=stage.state,
                standing=_standing(run, stage, causes),
                request_digest=awaited.request_digest if awaited else "",
                story=told.get(stage.id, []),
                uncertain=_uncertain(stage, open_effects.get(stage.id, [])),
                next=_next_of(run, stage, awaited, [one for one in blockers if one.stage_id == stage.id]),
            )
        )
    items = list(ReconciliationItem.objects.filter(run=run).order_by("opened_at", "id")[:MOST])
    return Account(
        standing=_run_standing(run, [one for one in blockers if one.stage_id is None]),
        story=told.get(None, []),
        stages=found,
        remains=[_remaining(item) for item in items],
        budget=_budget(run),
        next=_next_of_run(run, items, found),
        shortened=len(newest) > MOST,
    )


def _stories(events: Sequence[Event], names: Mapping[uuid.UUID, str]) -> dict[uuid.UUID | None, list[str]]:
    errors = _errors({event.attempt for event in events if event.attempt})
    told: dict[uuid.UUID | None, list[str]] = {}
    for event in events:
        said = tell(event, event.at, names.get(event.stage, "") if event.stage else "")
        error = errors.get(event.attempt, "") if event.attempt and event.to_state in _TROUBLE else ""
        parts = [said.text, *(part for part in (error, said.reason) if part)]
        told.setdefault(event.stage, []).append(f"{_time(said.at)}  {': '.join(parts)}")
    return told


_TROUBLE = frozenset({StageState.FAILED, StageState.RETRY_SCHEDULED, StageState.NEEDS_RECONCILIATION, StageState.READY})


def _awaited(stages: Sequence[Stage]) -> dict[uuid.UUID, Attempt]:
    """By stage: the attempt whose answer is made elsewhere."""
    waiting = [one.id for one in stages if one.mode == StageMode.IMPORT and one.state == StageState.WAITING]
    return {one.stage_id: one for one in Attempt.objects.filter(stage__in=waiting, state__in=sorted(ACTIVE_ATTEMPT))}


def _errors(attempts: set[uuid.UUID]) -> dict[uuid.UUID, str]:
    rows = Attempt.objects.filter(id__in=attempts).exclude(error_message="")
    return dict(rows.values_list("id", "error_message"))


def _open_effects(run: Run) -> dict[uuid.UUID, list[str]]:
    found: dict[uuid.UUID, list[str]] = {}
    rows = queries.effects(run).filter(state__in=sorted(OPEN_EFFECT)).exclude(effect_class="internal_state")
    for effect in rows.order_by("declared_at", "id")[:MOST]:
        what = " ".join(filter(None, (effect.effect_class.replace("_", " "), effect.step_id)))
        key = f" with key {effect.key}" if effect.key else ""
        found.setdefault(effect.stage_id, []).append(f"nobody knows whether it did {what}{key} outside")
    return found


def _standing(run: Run, stage: Stage, causes: Sequence[str]) -> str:
    code = f" with {stage.last_error_code}" if stage.last_error_code else ""
    why = f": {stage.last_error_message}" if stage.last_error_message else ""
    match stage.state:
        case StageState.COMPLETED:
            stale = "; what it was built on was done again since" if stage.stale else ""
            return f"completed in attempt {stage.attempt_number}, at {_time(stage.finished_at)}{stale}"
        case StageState.FAILED if stage.failure_disposition == "gate_denied":
            return f"failed: it was not approved{why}; that is final in this run"
        case StageState.FAILED:
            disposition = stage.failure_disposition.replace("_", " ")
            return f"failed{code} in attempt {stage.attempt_number}{why}" + (f" ({disposition})" if disposition else "")
        case StageState.SKIPPED:
            return "skipped by a person: it was not done"
        case StageState.CANCELLED:
            begun = f"in attempt {stage.attempt_number}" if stage.attempt_number else "before it began"
            return f"cancelled {begun}: it was not completed, and never will be in this run"
    word = stage.get_state_display().lower()
    return f"{word}: {'; '.join(causes)}" if causes else word


def _uncertain(stage: Stage, effects: Sequence[str]) -> list[str]:
    if stage.state == StageState.NEEDS_RECONCILIATION and not effects:
        return [f"what attempt {stage.attempt_number} did outside is unknown"]
    return list(effects)


def _next_of(run: Run, stage: Stage, awaited: Attempt | None, blockers: Sequence[Blocker]) -> list[str]:
    if run.changed and stage.state != StageState.COMPLETED:
        return []
    if awaited is not None:
        export = f"recourse export {run.id} --stage {_word(stage.name)} -o request.json"
        return [export, f"recourse import {run.id} --stage {_word(stage.name)} answer.json"]
    if run.status == RunStatus.CANCELLED or run.failure_code == DEADLINE_EXCEEDED:
        return []
    match stage.state:
        case StageState.WAITING if any(one.holder == ANOTHER_RUN for one in blockers):
            return [f"it goes on by itself; what it waits for: recourse execution list --parent-id {run.id}"]
        case StageState.WAITING:
            return ["somebody who may decide it: recourse approval list --view mine"]
        case StageState.NEEDS_RECONCILIATION:
            return ["find out what happened outside, then reconcile it in the console; until then it is not retried"]
        case StageState.FAILED if stage.failure_disposition == "gate_denied":
            return [f"nothing in this run; a new one asks anew: recourse execution rerun {run.id}"]
        case StageState.FAILED if stage.failure_disposition in EXHAUSTED:
            return ["no retry: the limits of the run are used up; a new run needs wider ones"]
        case StageState.FAILED if stage.failure_disposition == "contradicted":
            return ["skip it in the console: what is known of its work outside contradicts itself"]
        case StageState.FAILED:
            return [f"recourse retry {run.id} --stage {_word(stage.name)}"]
    return []


def _run_standing(run: Run, blockers: Sequence[Blocker]) -> str:
    word = f"the run is {run.get_status_display().lower()}"
    if run.failure_code:
        message = f": {run.failure_message}" if run.failure_message else ""
        word = f"the run failed with {run.failure_code}{message}"
    elif run.status == RunStatus.COMPLETED:
        word = f"the run completed at {_time(run.finished_at)}"
    elif run.status == RunStatus.CANCELLED:
        word = f"the run was cancelled at {_time(run.finished_at)}; what went on elsewhere may still go on"
    return "; ".join([word, *(one.cause for one in blockers)])


def _next_of_run(run: Run, items: Sequence[ReconciliationItem], stages: Sequence[StageAccount]) -> list[str]:
    told = []
    still = sum(item.resolved_at is None for item in items)
    if still:
        word = "what remains" if still == 1 else f"the {still} things that remain"
        told.append(f"look after {word} outside, and settle it in the console")
    if run.changed:
        told.append(f"only a fork goes on: recourse execution rerun {run.id}")
    elif run.failure_code == DEADLINE_EXCEEDED:
        told.append("its deadline is past: start a new run, approved anew")
    elif run.status == RunStatus.CANCELLED:
        told.append(f"a cancelled run stays cancelled; a new one: recourse execution replay {run.id}")
    elif run.paused:
        told.append(f"recourse run {run.id}")
    elif run.status not in TERMINAL_RUN and not any(stage.next for stage in stages):
        told.append("nothing: it goes on by itself")
    return told


def _remaining(item: ReconciliationItem) -> str:
    if item.resolved_at is None:
        return f"open: {item.detail}"
    return f"settled by {item.resolved_name or 'somebody'} at {_time(item.resolved_at)}: {item.detail}: {item.note}"


def _budget(run: Run) -> list[str]:
    """What is left is what the API and the page say: what stages may begin without asking is not left any more."""
    found = standing(run)
    limits, attempts, used = found.limits, found.charged.attempts, found.charged.bytes
    if limits.total_attempts < MOST_ATTEMPTS:
        told = [f"attempts: {attempts} of {limits.total_attempts} are used{_also(found.reserved.attempts)}"]
        told[0] += f", {found.left.attempts} are left"
    else:
        told = [f"attempts: {attempts} are used; the run has no limit of them"]
    if limits.total_output_bytes < MOST_BYTES:
        told.append(
            f"output: {used} of {limits.total_output_bytes} bytes are charged{_also(found.reserved.bytes)},"
            f" {found.left.bytes} are left; a failed attempt gives nothing back"
        )
    else:
        told.append(f"output: {used} bytes are charged; the run has no limit of them")
    if run.deadline_at is not None:
        told.append(f"deadline: {_time(run.deadline_at)}, which includes waiting for people")
    return told


def _also(reserved: int) -> str:
    return f", {reserved} more reserved" if reserved else ""


def _word(name: str) -> str:
    """A stage's name as a word of a shell."""
    return name if name.replace("_", "").replace("-", "").isalnum() else "'" + name.replace("'", "'\\''") + "'"


def _time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "an unknown time"
