"""Event → sentence: what happened to a run, as an operator would tell it. Pure; one table of kinds.

Every kind that the engine writes has a sentence: the moves of `states.py`, run states, gates, dead letters, and the few
facts beside them. A kind without one is told by its name, so that nothing is ever hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


class EventFacts(Protocol):
    """What a sentence needs to know of an event."""

    kind: str
    to_state: str
    actor: str
    reason: str
    data: Any


@dataclass(frozen=True, slots=True)
class Told:
    """An event in words. `status` is the state it led to (for the glyph), `reason` what was said or decided."""

    at: datetime
    text: str
    reason: str
    status: str
    kind: str


SENTENCES: dict[str, str] = {
    "run.create": "{who} created the run",
    "run.fork": "{who} made the run out of an earlier one",
    "run.pause": "{who} paused the run",
    "run.resume": "{who} resumed the run",
    "run.stand_in_lane": "The run stands in its lane again and is held until it is its turn",
    "run.let_in": "It is the run's turn: it is held back no longer",
    "run.cancel": "{who} cancelled the run",
    "run.reconciliation_list": "What may still go on outside was listed: {count}",
    "run.reconciliation_settled": "{who} settled what was left outside by {stage}",
    "run.queued": "The run is queued",
    "run.running": "The run is running",
    "run.waiting": "The run waits: only decisions, other runs or timers are left",
    "run.pausing": "The run is pausing: running attempts may finish",
    "run.paused": "The run is paused: nothing is handed out",
    "run.blocked": "The run is blocked: a person must act",
    "run.definition_changed": "The run no longer stands on what it pinned: nothing more of it begins",
    "run.completed": "The run completed",
    "run.failed": "The run failed",
    "run.cancelled": "{who} cancelled the run",
    "run.retry_due": "The run is to be retried by itself",
    "run.retry_declined": "The run is not retried by itself",
    "run.retry_done": "The run was retried by itself, as {who}",
    "run.retry_refused": "The run is not retried by itself after all",
    "run.retry_called_off": "That the run retries itself was called off",
    "stage.restore": "{stage} was kept as it was in the source",
    "stage.make_ready": "{stage} is ready: it waits for no other stage",
    "stage.open_gate_before": "{stage} waits for a decision before it starts",
    "stage.dispatch": "{stage} was handed out{attempt}",
    "stage.acquire": "{worker} started {stage}{attempt}",
    "stage.hand_on": "{worker} went on with {stage}{attempt}",
    "stage.checkpoint": "{stage} left a checkpoint",
    "stage.checkpoint_refused": "{stage} begins without its checkpoint, which is not to be believed",
    "stage.take_back": "{stage} was given back by {worker} and is ready again{attempt}",
    "stage.undeliver": "{stage} is ready again: {worker} did not take what was handed out{attempt}",
    "stage.give_up_delivery": "{stage} failed: nobody took what was handed out, too often",
    "stage.succeed": "{worker} completed {stage}{attempt}",
    "stage.wait": "{stage} asks for a decision{attempt}",
    "stage.schedule_retry": "{stage} failed{code}{attempt}, and will be tried again",
    "stage.fail": "{stage} failed{code}{attempt}",
    "stage.terminated": "{worker} told how the processes of {stage} ended{attempt}",
    "stage.recover": "{stage} is ready again: {worker} was lost{attempt}",
    "stage.give_up_recovery": "{stage} failed: its workers were lost too often",
    "stage.doubt": "{stage} needs reconciliation{attempt}",
    "stage.fall_back": "{stage} waits again for what it depends on",
    "stage.approve_after": "{stage} completed by approval",
    "stage.approve_before": "{stage} may start",
    "stage.deny": "{stage} failed: it was not approved",
    "stage.retry": "{who} began {stage} anew{epoch}",
    "stage.rewind": "{stage} was reset and waits its turn{epoch}",
    "stage.skip": "{who} skipped {stage}",
    "stage.reconcile_committed": "{who} found that what {stage} did outside had happened: it is completed",
    "stage.reconcile_offered": "{who} found that what {stage} did outside had happened: its result asks for a decision",
    "stage.reconcile_absent": "{who} found that {stage} did nothing outside: it is ready again",
    "stage.contradict": "{who} found that what is known of {stage} contradicts itself: it failed",
    "stage.cancel": "{stage} was cancelled",
    "stage.exhaust": "{stage} failed: the limits of the run admit no further attempt",
    "stage.await_runs": "{stage} waits for runs that it started{attempt}",
    "stage.runs_ended": "{stage} is ready again: the runs that it waited for have ended",
    "child.start": "{stage} started {child}",
    "child.take_over": "{stage} goes on with {child}, which the source of this run had started",
    "child.follow": "{who} forked what {stage} had started: {child} counts now",
    "stage.begin_import": "{stage} awaits an answer made elsewhere{attempt}",
    "stage.take_import": "{who} imported the answer for {stage}: it is completed{attempt}",
    "stage.offer_import": "{who} imported the answer for {stage}: it asks for a decision{attempt}",
    "stage.retry_import": "{stage} failed{code}{attempt}, and awaits another answer",
    "stage.fail_import": "{stage} failed{code}{attempt}",
    "stage.import_refused": "An answer of {who} for {stage} was refused, and is kept as evidence",
    "stage.input_changed": "{who} gave {stage} a new input; the earlier one is kept",
    "artifact.store": "{stage} stored {artifact}{attempt}",
    "effect.declare": "{stage} is about to act outside{attempt}: {effect}",
    "effect.commit": "{stage} acted outside{attempt}: {effect}",
    "effect.deny": "{stage} did not act outside{attempt}: {effect}",
    "effect.doubt": "Nobody knows whether {stage} acted outside{attempt}: {effect}",
    "effect.reconcile_committed": "{who} found that {stage} had acted outside{attempt}: {effect}",
    "effect.reconcile_absent": "{who} found that {stage} had not acted outside{attempt}: {effect}",
    "effect.contradict": "{who} found evidence against what {stage} told{attempt}: {effect}",
    "gate.open": "A gate opened at {stage}: somebody must decide",
    "gate.vote": "{who} agreed to {stage}: {votes} so far",
    "gate.approve": "{who} approved {stage}",
    "gate.reject": "{who} rejected {stage}",
    "gate.expire": "The gate of {stage} expired: silence never consents",
    "gate.cancel": "The gate of {stage} was cancelled",
    "dead_letter.open": "{stage} became a dead letter: the machine has given up on it",
    "dead_letter.acknowledged": "{who} acknowledged the dead letter of {stage}",
    "dead_letter.redriven": "{who} redrove the dead letter of {stage}",
    "dead_letter.discarded": "{who} discarded the dead letter of {stage}",
    "dead_letter.resolved": "The dead letter of {stage} is resolved",
}

# What another event of the same moment says better; the full list shows them.
MINOR = frozenset({"stage.dispatch", "stage.cancel", "stage.make_ready", "run.queued", "run.running", "run.waiting"})


def tell(event: EventFacts, at: datetime, stage: str = "") -> Told:
    """The event as a sentence; `stage` is the name of its stage."""
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    words = {
        "who": event.actor or "The engine",
        "stage": stage or "A stage",
        "worker": data.get("worker") or event.actor or "A worker",
        "attempt": f", attempt {data['number']}" if data.get("number") else "",
        "epoch": f", epoch {data['epoch']}" if data.get("epoch") else "",
        "code": f" with {data['error_code']}" if data.get("error_code") else "",
        "effect": " ".join(str(data[name]).replace("_", " ") for name in ("class", "step") if data.get(name)),
        "artifact": str(data.get("name") or "an artifact"),
        "child": f"run {data['run']}" + (f" as {data['key']}" if data.get("key") else "")
        if data.get("run")
        else "a run",
        "votes": f"{data.get('have')} of {data.get('need')}",
        "count": _count(event.data) if isinstance(event.data, list) else "nothing",
    }
    pattern = SENTENCES.get(event.kind)
    text = pattern.format(**words) if pattern else f"{event.kind} of {words['stage']} by {words['who']}"
    # a dead letter's reason is a word of the model, all others are sentences of people or of the engine
    reason = event.reason.replace("_", " ") if event.kind == "dead_letter.open" else event.reason
    return Told(at, text, reason, event.to_state, event.kind)


def _count(items: list[Any]) -> str:
    return f"{len(items)} {'thing' if len(items) == 1 else 'things'}" if items else "nothing"
