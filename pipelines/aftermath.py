"""Working off what may still go on outside after a run was ended: lists for people, and their word on each (R37, P75).

An item is settled once, with a note by a person, and never changed after that. It moves no stage: the run stays ended.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.db.models import Case, Q, QuerySet, When

from pipelines import audit
from pipelines.access import RESOLVE, Actor
from pipelines.audit import ALLOWED, NO_OP, audited
from pipelines.errors import Refusal
from pipelines.filters import AnyId, AnyOf, ListFilter, Truth
from pipelines.models import Effect, ReconciliationItem, ReconciliationKind
from pipelines.moves import Moves, RunRow
from pipelines.queries import visible_runs
from pipelines.sql import execute
from pipelines.states import OPEN_EFFECT
from pipelines.transitions import lock_run

ACTION = "reconciliation.settle"
ORDER = ("opened_at", "id")


class IsSettled(Truth):
    """Settled items have a time at which they were."""

    def filter(self, qs: Any, value: Any) -> Any:
        wanted = set(value or ())
        return qs.filter(resolved_at__isnull=not wanted.pop()) if len(wanted) == 1 else qs


class OfRunFilter(ListFilter):
    """The items of a run, by kind and stage, and whether they are settled."""

    kind = AnyOf(choices=ReconciliationKind.values)
    stage_id = AnyId()
    settled = IsSettled()


class OpenFilter(ListFilter):
    """The open items of a workspace, by kind and run."""

    kind = AnyOf(choices=ReconciliationKind.values)
    execution_id = AnyId("run_id")


@dataclass(frozen=True, slots=True)
class Settled:
    """An item as it is now. `replayed`: the same person had said the same before."""

    item: ReconciliationItem
    replayed: bool


@dataclass(frozen=True, slots=True)
class OfRun:
    """The items of a run for its page, open ones first; `more`: there are others."""

    open: list[ReconciliationItem]
    settled: list[ReconciliationItem]
    more: bool


def of_run(run_id: uuid.UUID) -> QuerySet[ReconciliationItem]:
    """The items of a run that the actor was shown."""
    return _told(ReconciliationItem.objects.filter(run_id=run_id))


def all_open(actor: Actor) -> QuerySet[ReconciliationItem]:
    """What is not settled yet in the workspace; for an application's key, of its own runs."""
    rows = ReconciliationItem.objects.filter(workspace_id=actor.workspace_id, resolved_at__isnull=True)
    return _told(rows if actor.is_person else rows.filter(run__in=visible_runs(actor)))


def look(run_id: uuid.UUID, most: int) -> OfRun:
    """What the page of a run shows of its items, open ones first: so many of each, in one query."""
    is_settled = Case(When(resolved_at__isnull=True, then=0), default=1)
    rows = list(of_run(run_id).order_by(is_settled, *ORDER)[: 2 * most + 1])
    still = [item for item in rows if item.resolved_at is None]
    done = [item for item in rows if item.resolved_at is not None]
    return OfRun(still[:most], done[:most], len(still) > most or len(done) > most)


def find(actor: Actor, item_id: uuid.UUID) -> ReconciliationItem:
    """One item; 404 when its run is not visible."""
    found = _told(ReconciliationItem.objects.filter(id=item_id, run__in=visible_runs(actor))).first()
    if found is None:
        raise unknown()
    return found


def settle(run_id: uuid.UUID, item_id: uuid.UUID, *, actor: Actor, note: str, reason: str = "") -> Settled:
    """Keeps what a person found out about an item, in their words; that settles it for good.

    Another's run or item is 404. The same note by the same person again changes nothing. Refused: anything else about
    a settled item (`idempotency_conflict`), and an item whose effect is still open (`needs_reconciliation`), which what
    is found out about the effect settles.
    """
    with audited(actor, ACTION, run=run_id, reason=reason or note, item=str(item_id)) as entry:
        moves, run = lock_run(run_id, actor)
        item = of_run(run_id).filter(id=item_id).first()
        if item is None:
            raise unknown()
        actor.require(RESOLVE)
        entry.stage = item.stage_id
        entry.data |= {"kind": item.kind, "note": note}
        if item.resolved_at is not None:
            if (item.resolved_by, item.note) != (actor.user_id, note):
                said = f"{item.resolved_name} settled it at {item.resolved_at:%Y-%m-%d %H:%M:%S} UTC: {item.note}"
                raise Refusal("idempotency_conflict", f"{said}; what is settled is never changed")
            entry.outcome = NO_OP
            return Settled(item, True)
        if item.kind == ReconciliationKind.OPEN_EFFECT and _is_open(item.subject):
            detail = f"{item.detail}; reconcile that effect, which settles this too"
            raise Refusal("needs_reconciliation", detail, extra={"effectId": str(item.subject)})
        _write(moves, run, [item], actor, note)
        moves.save()
    return Settled(of_run(run_id).get(id=item_id), False)


def settle_with_effect(moves: Moves, run: RunRow, effect: Effect, note: str, actor: Actor) -> None:
    """The caller has kept what a person found out about an effect: its open items are settled by that, and say so.

    So is the doubt about its attempt, once no effect of that is open any more.
    """
    about = Q(kind=ReconciliationKind.OPEN_EFFECT, subject=effect.id)
    others = Effect.objects.filter(attempt=effect.attempt, state__in=sorted(OPEN_EFFECT)).exclude(id=effect.id)
    if not others.exists():
        about |= Q(kind=ReconciliationKind.UNCERTAIN_EFFECT, subject=effect.attempt)
    items = list(of_run(run.id).filter(about, resolved_at__isnull=True).order_by(*ORDER))
    word = effect.state.replace("_", " ")
    told = f"settled with its effect, {word}: {note}" if note else f"settled with its effect, {word}"
    _write(moves, run, items, actor, told)
    for item in items:
        data = {"item": str(item.id), "kind": item.kind, "note": told, "effect": str(effect.id)}
        audit.record(actor, ACTION, ALLOWED, run=run.id, stage=item.stage_id, reason=told, data=data)


def _write(moves: Moves, run: RunRow, items: list[ReconciliationItem], actor: Actor, note: str) -> None:
    if not items:
        return
    execute(
        "UPDATE pipelines_reconciliationitem SET resolved_at = %s, resolved_by = %s, resolved_name = %s, note = %s"
        " WHERE id = ANY(%s)",
        [moves.now, actor.user_id, actor.name, note, [item.id for item in items]],
    )
    for item in items:
        told = {"item": str(item.id), "kind": item.kind, "about": item.detail}
        moves.event("run.reconciliation_settled", run.id, item.stage_id, reason=note, data=told)


def _is_open(effect_id: uuid.UUID | None) -> bool:
    return effect_id is not None and Effect.objects.filter(id=effect_id, state__in=sorted(OPEN_EFFECT)).exists()


def _told(rows: QuerySet[ReconciliationItem]) -> QuerySet[ReconciliationItem]:
    """With the names that a list tells, and no long texts."""
    return rows.select_related("run", "stage").defer("run__input", "stage__input")


def unknown() -> Refusal:
    return Refusal("not_found", "there is no such item")
