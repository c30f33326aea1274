"""What a bulk's plan is made from: how its frozen targets stand, counted in one statement, whatever their number.

Serves F41, F152, O45, model §5.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from approvals import gates, rules
from approvals.rule_rows import in_force
from approvals.rules import DECIDING_ROLES, DEFAULT_EXPIRY, Requirement, Subject, strictest
from pipelines import blackouts
from pipelines.access import FORK_PROTECTED, Actor
from pipelines.moves import DEADLINE_EXCEEDED
from pipelines.sql import planned
from pipelines.states import (
    OPEN_DEAD_LETTER,
    RUN_NO_OPS,
    RUN_VERBS,
    STAGE_MOVES,
    TERMINAL_RUN,
    EffectClass,
    EffectState,
)
from recovery import agreements, begun_anew
from recovery.bulk_plans import GONE, NAMED, NOT_APPLICABLE, SAMPLED, BulkPlan, Sample
from recovery.bulk_targets import KINDS, OF_FORKS, OF_STAGES
from recovery.models import BulkOperation
from recovery.plans import AND_DOWNSTREAM, STARTING, Agreement
from recovery.states import BULK, OperationKind

REPEATING = STARTING  # what may do something outside a second time


class _Group(NamedTuple):
    """Targets that are alike."""

    environment: str
    environment_id: uuid.UUID | None
    is_protected: bool
    pipeline: str
    stands: str
    takes: bool
    may_repeat: bool
    number: int


def plan_now(bulk: BulkOperation, *, actor: Actor, frozen: Requirement | None = None) -> BulkPlan:
    """What the bulk would do by how its targets stand now, and who must agree to it when `actor` asks for it.

    `frozen` is what was asked for before: no less is asked for now.
    """
    kind = OperationKind(bulk.kind)
    groups = _groups(bulk)
    acting = [one for one in groups if one.takes]
    requirement = _required(kind, groups, bulk.total, actor, frozen)
    places = Counter[str]()
    pipelines = Counter[str]()
    otherwise = Counter[str]()
    for one in groups:
        places[one.environment] += one.number
        pipelines[one.pipeline] += one.number
        otherwise[one.stands] += 0 if one.takes else one.number
    return BulkPlan(
        kind=kind,
        total=bulk.total,
        targets=bulk.chosen["targets"],
        choices=bulk.choices,
        acts=sum(one.number for one in acting),
        stands_otherwise={state: count for state, count in otherwise.most_common() if count},
        may_repeat=sum(one.number for one in acting if one.may_repeat),
        by_pipeline=pipelines.most_common(NAMED),
        by_environment=places.most_common(NAMED),
        protected=sum(one.number for one in groups if one.is_protected),
        agreements=_agreements(requirement),
        samples=_samples(bulk),
        rate=bulk.rate,
        blackout=_blackout(bulk, kind, groups),
        override_reason=bulk.override_reason,
    )


def _agreements(requirement: Requirement | None) -> tuple[Agreement, ...]:
    if requirement is None:
        return ()
    why = agreements.BETWEEN.join(requirement.why)
    return (Agreement(requirement.role, requirement.count, requirement.expires_in, why),)


def _required(
    kind: OperationKind, groups: Sequence[_Group], total: int, actor: Actor, frozen: Requirement | None
) -> Requirement | None:
    """The strictest of what the rules ask for bulks, and for the verb, in each place where targets are."""
    if kind not in agreements.RULED:
        return frozen  # stopping for a while never waits for somebody
    found = frozen
    in_question = [(BULK, in_force(actor.workspace_id, BULK))] if BULK in gates.kinds() else []
    in_question.append((kind.value, in_force(actor.workspace_id, kind)))
    for environment, is_protected, pipeline in {(one.environment, one.is_protected, one.pipeline) for one in groups}:
        for asked, known in in_question:
            subject = Subject(asked, environment, is_protected, pipeline, {"runs": total, "ticks": 0})
            found = strictest(found, rules.required(known, subject))
    if found is None and kind in OF_FORKS and not actor.may(FORK_PROTECTED):
        protected = sorted({one.environment for one in groups if one.is_protected})
        if protected:
            named = ", ".join(protected)
            why = f"{named} is protected: somebody else must agree to what an operator asks for there"
            found = Requirement(DECIDING_ROLES[0], 1, DEFAULT_EXPIRY, (why,))
    return found


def _blackout(bulk: BulkOperation, kind: OperationKind, groups: Sequence[_Group]) -> blackouts.Active | None:
    if kind not in STARTING:
        return None
    places = {one.environment_id for one in groups if one.environment_id is not None}
    found = (blackouts.active(bulk.workspace_id, place) for place in sorted(places))
    return next((one for one in found if one is not None), None)


# whether the verb would be done to a target that stands like this, and the state that is told of it
_OPEN_RUN = "r.status <> 'cancelled' AND r.failure_code <> %(final)s AND (r.deadline_at IS NULL OR r.deadline_at > now)"
_STAGE_TAKES = f"s.state = ANY(%(stages)s) AND {_OPEN_RUN}"
_TAKES: Mapping[OperationKind, str] = {
    **dict.fromkeys(
        (OperationKind.PAUSE, OperationKind.RESUME, OperationKind.CANCEL),
        "r.status = ANY(%(runs)s) AND (r.deadline_at IS NULL OR r.deadline_at > now)",
    ),
    **dict.fromkeys(OF_FORKS, "r.status = ANY(%(runs)s)"),
    **dict.fromkeys(OF_STAGES, _STAGE_TAKES),
    OperationKind.REDRIVE: f"d.state = ANY(%(letters)s) AND {_STAGE_TAKES}",
    OperationKind.DISCARD: "d.state = ANY(%(letters)s)",
}
_STANDS: Mapping[OperationKind, str] = {
    **dict.fromkeys(KINDS, "r.status"),
    **dict.fromkeys(OF_STAGES, f"CASE WHEN {_OPEN_RUN} THEN s.state ELSE r.status END"),
    OperationKind.REDRIVE: "CASE WHEN d.state = ANY(%(letters)s) THEN s.state ELSE d.state END",
    OperationKind.DISCARD: "d.state",
}
_AT_STAKE = (
    "EXISTS (SELECT FROM pipelines_effect f WHERE f.run_id = i.run AND {of_stage}"
    " f.effect_class <> %(internal)s AND f.state <> ALL(%(absent)s))"
    " OR EXISTS (SELECT FROM pipelines_stage u WHERE {acting} AND u.effect_mode = 'external'"
    " AND u.effect_protocol = 'none' AND u.attempt_number > 0)"
    " OR ((r.has_children OR r.recovered_from_id IS NOT NULL) AND EXISTS ({anew}"
    " SELECT FROM anew JOIN pipelines_stage u ON u.run_id = anew.run WHERE {with_it}"
    " (u.effect_mode = 'external' AND u.effect_protocol = 'none' AND u.attempt_number > 0"
    " OR EXISTS (SELECT FROM pipelines_effect f WHERE f.stage_id = u.id"
    " AND f.effect_class <> %(internal)s AND f.state <> ALL(%(absent)s)))))"
)


def _at_stake(kind: OperationKind, choices: Mapping[str, Any]) -> str:
    if kind not in REPEATING:
        return "false"
    anew = begun_anew.begun_anew("p.id = i.run")
    if kind in OF_FORKS or choices.get("scope") == AND_DOWNSTREAM:
        return _AT_STAKE.format(of_stage="", acting="u.run_id = i.run", anew=anew, with_it="")
    with_it = "anew.stage = s.name AND"
    return _AT_STAKE.format(of_stage="f.stage_id = i.stage AND", acting="u.id = i.stage", anew=anew, with_it=with_it)


def _judged(bulk: BulkOperation, kind: OperationKind) -> tuple[str, dict[str, Any]]:
    """The targets with their rows, as FROM and WHERE, with the columns `stands`, `takes` and `at_stake`."""
    runs = TERMINAL_RUN if kind in OF_FORKS else RUN_VERBS.get(kind, ())
    params = {
        "bulk": bulk.id,
        "final": DEADLINE_EXCEEDED,
        "runs": sorted(set(runs) - set(RUN_NO_OPS.get(kind, ()))),
        "stages": sorted(STAGE_MOVES["skip" if kind == OperationKind.SKIP else "retry"]),
        "letters": sorted(OPEN_DEAD_LETTER),
        "internal": EffectClass.INTERNAL_STATE.value,
        "absent": [EffectState.ABSENT.value, EffectState.RECONCILED_ABSENT.value],
        "not_applicable": NOT_APPLICABLE,
        "gone": GONE,
    }
    text = (
        f"SELECT i.position, i.run, r.name, s.name AS stage, e.id AS environment_id, coalesce(e.slug, '') AS slug,"
        " coalesce(e.protected, false) AS is_protected, coalesce(p.slug, '') AS pipeline,"
        f" CASE WHEN i.code = %(not_applicable)s THEN i.code ELSE coalesce({_STANDS[kind]}, %(gone)s) END AS stands,"
        f" coalesce(i.code <> %(not_applicable)s AND {_TAKES[kind]}, false) AS takes,"
        f" {_at_stake(kind, bulk.choices)} AS at_stake"
        " FROM recovery_bulkitem i CROSS JOIN (SELECT recourse_now()) AS clock(now)"
        " LEFT JOIN pipelines_run r ON r.id = i.run LEFT JOIN pipelines_environment e ON e.id = r.environment_id"
        " LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id LEFT JOIN pipelines_stage s ON s.id = i.stage"
        " LEFT JOIN pipelines_deadletter d ON d.id = i.dead_letter WHERE i.bulk_id = %(bulk)s"
    )
    return text, params


def _groups(bulk: BulkOperation) -> list[_Group]:
    text, params = _judged(bulk, OperationKind(bulk.kind))
    rows = planned(
        "SELECT slug, environment_id, is_protected, pipeline, stands, takes, at_stake, count(*)"
        f" FROM ({text}) t GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 4, 5",
        params,
    )
    return [_Group(*row) for row in rows]


def _samples(bulk: BulkOperation) -> list[Sample]:
    text, params = _judged(bulk, OperationKind(bulk.kind))
    rows = planned(
        "SELECT position, run, coalesce(name, ''), slug, coalesce(stage, ''), stands, takes"
        f" FROM ({text} ORDER BY i.position LIMIT {SAMPLED}) t ORDER BY position",
        params,
    )
    return [Sample(*row) for row in rows]
