"""What a rerun or a replay would do: pure, from the world of a fork.

Serves O17, O20, O26–O28, O40–O46, F36, F43, F51.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines import budgets
from pipelines.budgets import Charged
from pipelines.models import StageMode
from pipelines.states import COMMITTED_EFFECT, EffectState, StageState
from recovery import revisions
from recovery.dispositions import EffectFact, Reason, judge, undeclared
from recovery.fork_world import ForkWorld
from recovery.plans import Asked, Difference, Line, Plan, may_repeat
from recovery.world import StageFact

RESTORE = "restore"  # the action of a kept stage's line
# what a release may have otherwise, stage by stage
COMPARED = (
    "handler",
    "input",
    "depends_on",
    "effect_mode",
    "effect_protocol",
    "approval",
    "run_next_if_failed",
    "options",
)


def plan_fork(world: ForkWorld, asked: Asked) -> Plan:
    """The plan of a rerun or replay; who must agree to it is not said yet.

    A rerun keeps what the checkpoint says is done and runs X, all its descendants, and whatever else was not done; a
    replay keeps nothing. Either has a budget of its own, by the limits of the release that will run. Refused with
    `budget_exhausted` or `attempts_exhausted`: a rerun when all revisions are used, and a release whose limits have no
    room for the stages that would begin.
    """
    if world.start:
        revisions.check(world.source)
    names = world.will_be.names
    kept = [name for name in names if name in world.done]
    again = [name for name in names if name not in world.done]
    _check_limits(world, again)
    facts, reasons = judged(world, again)
    return Plan(
        kind=asked.kind,
        execution_id=str(asked.run_id),
        stage=world.start or None,
        choices={**asked.choices, **_chosen(world)},
        kept=tuple(_kept(world, name) for name in kept),
        run_again=tuple(_again(world, name) for name in again),
        differences=tuple(differences(world)),
        may_repeat=may_repeat(facts, [reason.stage for reason in reasons]),
        verdict=judge(facts, reasons),
        environment=world.source.environment,
        source_release_id=str(world.was.release_id),
        release_id=str(world.will_be.release_id),
        checkpoint_id=str(world.checkpoint_id or ""),
        blackout=world.source.blackout,
        lane=world.source.lane if world.is_held else None,
    )


def _check_limits(world: ForkWorld, again: Iterable[str]) -> None:
    """What would begin at once is admitted together, as settling does it, or the fork is refused."""
    limits = world.will_be.limits
    told = [(name, world.will_be.stage(name) or {}) for name in again if not _waits_for(world, name)]
    at_once = [
        (name, limits.allowance(stage.get("options") or {}))
        for name, stage in told
        if (stage.get("approval") or {}).get("when") != "before"
    ]
    if shortage := budgets.of_run(limits, Charged(), (), at_once):
        raise shortage.refusal("a release with larger limits is needed")


def _waits_for(world: ForkWorld, name: str) -> list[str]:
    return [one for one in world.will_be.needs(name) if one not in world.done]


def judged(world: ForkWorld, again: Iterable[str]) -> tuple[list[EffectFact], list[Reason]]:
    """What the verdict is about: the effects in question, and the stages of which nobody knows what they did.

    Of a rerun: what the checkpoint's posture declares, and all effects of stages that run again; of a replay, all. A
    stage that may have acted outside unseen counts when the release that will run acts there too (O26); of a run that
    would begin anew with a stage all count: what its pipeline will be then is not known.
    """
    repeated = set(again)
    is_replay = not world.start
    found = [fact for fact in world.source.effects if is_replay or fact.stage in repeated]
    for entry in world.posture:
        found += [fact for fact in _told_by(world, entry) if fact not in found]
    unseen = [
        undeclared(stage.name)
        for stage in world.source.stages
        if stage.name in repeated and stage.acted_unseen and _acts_outside(world, stage.name)
    ]
    found += world.source.effects_anew(repeated)
    return found, [*unseen, *(undeclared(name) for name in world.source.unseen_anew(repeated))]


def differences(world: ForkWorld) -> Iterable[Difference]:
    """What the release that will run has otherwise than the source's, in graph order; the removed stages last."""
    if world.was.release_id == world.will_be.release_id:
        return
    for after in world.will_be.stages:
        name = after["name"]
        before = world.was.stage(name)
        if before is None:
            yield Difference(name, "added")
            continue
        told_before = {**before, "depends_on": world.was.needs(name)}
        told_after = {**after, "depends_on": world.will_be.needs(name)}
        for field in COMPARED:
            default = "none" if field == "effect_protocol" else None
            one, other = told_before.get(field, default), told_after.get(field, default)
            if one != other:
                yield Difference(name, field, one, other)
    for name in world.was.names:
        if name not in world.will_be.names:
            yield Difference(name, "removed")


def _told_by(world: ForkWorld, entry: Mapping[str, Any]) -> list[EffectFact]:
    """The effects of the run that a posture's entry speaks of; the entry itself when the run has kept none.

    Both where it says committed and they do not: what the source's source did, this run's word does not take back.
    """
    identity = (entry["class"], entry.get("step_id") or "", entry.get("idempotency_key") or "")
    known = [
        fact
        for fact in world.source.effects
        if (fact.effect_class, fact.step_id, fact.key) == (identity[0], identity[1] or fact.stage, identity[2])
    ]
    if any(fact.state in COMMITTED_EFFECT or not entry.get("committed") for fact in known):
        return known
    state = EffectState.COMMITTED if entry.get("committed") else EffectState.DECLARED
    return [*known, EffectFact(identity[1], identity[0], state, step_id=identity[1], key=identity[2])]


def _chosen(world: ForkWorld) -> dict[str, Any]:
    if not world.start:
        return {}
    handed = str(world.left.checkpoint_id) if world.left else None
    return {"from_step_id": world.start, "handler_state": handed}


def _kept(world: ForkWorld, name: str) -> Line:
    done = world.done[name]
    behind_new = [one for one in world.will_be.needs(name) if one not in world.done]
    why = f"done in epoch {done.epoch} of the source; its result is taken over"
    if behind_new:
        why += f"; it was made without {', '.join(behind_new)}"
    return Line(name, done.state, done.state, 1, why, done.output_digest, RESTORE, stale=bool(behind_new))


def _again(world: ForkWorld, name: str) -> Line:
    fact = _fact(world, name)
    waiting = _waits_for(world, name)
    stage = world.will_be.stage(name) or {}
    if waiting:
        to, why = StageState.PENDING, f"once {', '.join(waiting)} {'lets' if len(waiting) == 1 else 'let'} it go on"
    elif world.is_held:
        to, why = StageState.PENDING, "once its lane lets the run in"
    elif (stage.get("approval") or {}).get("when") == "before":
        to, why = StageState.WAITING, "its gate opens anew"
    elif stage.get("mode") == StageMode.IMPORT:
        to, why = StageState.WAITING, "its answer is awaited from elsewhere"
    else:
        to, why = StageState.READY, "runs at once"
    if fact is None:
        why += "; new in the release that will run"
    elif name == world.start:
        why += "; with the state that its handler left" if world.left else "; from a clean start"
    return Line(name, fact.state.value if fact else "", to.value, 1, why)


def _fact(world: ForkWorld, name: str) -> StageFact | None:
    return next((stage for stage in world.source.stages if stage.name == name), None)


def _acts_outside(world: ForkWorld, name: str) -> bool:
    stage = world.will_be.stage(name)
    return stage is not None and stage["effect_mode"] == "external"
