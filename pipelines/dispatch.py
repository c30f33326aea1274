"""Makes the runs of ticks that are due, each under the id that its row in the ledger reserves.

Tick, trigger and, where runs queue, lane are locked; runs and rows change in one transaction. So a crash leaves a tick
`due`, to be met again, or `dispatched` with its run: no tick is lost, none has two runs (I18). Triggers that another
dispatcher holds are passed over, so what an overlap policy counts is counted by one at a time. What cannot be made
fails alone, and says why. What a tick becomes is decided by its trigger and the release in force as they are then.
Serves F101, F112, F113, F117.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines import creation, input_schemas, lanes, tick_inputs
from pipelines.creation import Draft, Origin, Place
from pipelines.errors import Refusal
from pipelines.models import OverlapPolicy
from pipelines.moves import IllegalMove
from pipelines.releases import Managed
from pipelines.schedules import Due
from pipelines.sql import execute, query, recordset
from pipelines.states import TICK_MOVES, SkipReason, TickState

log = structlog.get_logger(__name__)
BATCH = 500
ACTOR = "schedule"
FAULT = ("internal_error", "its run could not be made; the console's log says why")
LOOK_AGAIN = 60.0  # seconds, at a tick that could not be decided
QUEUEING = (OverlapPolicy.QUEUE_ONE, OverlapPolicy.QUEUE_ALL)


@dataclass(slots=True)
class DueTick:
    """A locked tick with its locked trigger, and what is decided of it."""

    id: uuid.UUID
    at: datetime
    timezone: str
    rule: str
    previous_at: datetime | None
    run_id: uuid.UUID
    trigger_id: uuid.UUID
    trigger_name: str
    enabled: bool
    overlap_policy: str
    deadline_seconds: int | None
    pipeline_id: uuid.UUID
    template: Any
    place: Place
    state: TickState = TickState.DUE
    reason: str = ""
    detail: str = ""
    error_code: str = ""
    error_message: str = ""

    def dispatch(self) -> None:
        self._move("dispatch")

    def skip(self, reason: SkipReason, detail: str = "") -> None:
        self._move("skip")
        self.reason, self.detail = reason, detail[:255]

    def fail(self, code: str, message: str) -> None:
        self._move("fail")
        self.error_code, self.error_message = code, message

    def _move(self, action: str) -> None:
        try:
            self.state = TICK_MOVES[action][self.state]
        except KeyError:
            raise IllegalMove(f"tick {self.id} cannot {action} from {self.state}") from None


@dataclass(slots=True)
class _Inside:
    """Whether a trigger's lane has unfinished runs, those that this transaction adds among them."""

    running: bool = False
    held: bool = False

    def admits(self, policy: str) -> bool:
        """Whether one more may be made; a full queue and a forbidden overlap leave the tick out."""
        match policy:
            case OverlapPolicy.SKIP:
                return not (self.running or self.held)
            case OverlapPolicy.QUEUE_ONE:
                return not self.held
            case _:
                return True

    def takes(self, policy: str) -> bool:
        """Whether the one more is held, because another is before it."""
        return policy in QUEUEING and (self.running or self.held)


@dataclass(frozen=True, slots=True)
class _World:
    """What is asked once for all ticks of a batch."""

    inside: dict[uuid.UUID, _Inside]  # by trigger
    blackouts: dict[uuid.UUID, str]  # by trigger
    releases: dict[tuple[uuid.UUID, uuid.UUID], Managed]  # by pipeline and environment


def dispatch_due() -> int:
    """Decides on every tick whose start has come, earliest first; how many."""
    total = 0
    while True:
        with transaction.atomic():
            ticks = _due()
            if ticks:
                _dispatch_each_for_itself(ticks)
        total += len(ticks)
        if len(ticks) < BATCH:
            return total


def _dispatch_each_for_itself(ticks: Sequence[DueTick]) -> None:
    """Together; where even looking at them fails one by one, and what cannot be decided comes again later."""
    undecided = [replace(tick) for tick in ticks]
    try:
        with transaction.atomic():
            _dispatch(ticks)
        return
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("dispatch.batch_undecided", ticks=len(ticks))
    for tick in undecided:
        try:
            with transaction.atomic():
                _dispatch([tick])
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            log.exception("dispatch.tick_undecided", tick=str(tick.id), trigger=str(tick.trigger_id))
            execute(
                "UPDATE pipelines_tick SET start_at = recourse_now() + make_interval(secs => %s) WHERE id = %s",
                [LOOK_AGAIN, tick.id],
            )


def _dispatch(ticks: Sequence[DueTick]) -> None:
    _make(ticks, _decide(ticks, _world(ticks)))
    _keep(ticks)


def _due() -> list[DueTick]:
    rows = query(
        """
        SELECT k.id, k.at, k.timezone, k.rule, k.previous_at, k.run, g.id, g.name, g.enabled, g.overlap_policy,
            g.deadline_seconds, g.pipeline_id, g.input, g.workspace_id, g.application_id, g.environment_id, e.slug
        FROM pipelines_tick k
        JOIN pipelines_trigger g ON g.id = k.trigger_id
        JOIN pipelines_environment e ON e.id = g.environment_id
        WHERE k.state = 'due' AND k.start_at <= recourse_now()
        ORDER BY k.start_at, k.id LIMIT %s FOR NO KEY UPDATE OF k, g SKIP LOCKED
        """,
        [BATCH],
    )
    names = tuple(DueTick.__dataclass_fields__)[:12]
    return [
        DueTick(**dict(zip(names, row, strict=False)), template=json.loads(row[12]), place=Place(*row[13:]))
        for row in rows
    ]


def _world(ticks: Sequence[DueTick]) -> _World:
    """As it stands once the locks are held: each a statement of its own, after them."""
    laned = {tick.trigger_id for tick in ticks if tick.overlap_policy != OverlapPolicy.ALLOW}
    queueing = {tick.trigger_id for tick in ticks if tick.overlap_policy in QUEUEING}
    # whoever lets in holds the lane's row, and so does who counts what is in
    query("SELECT 1 FROM pipelines_lane WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE", [list(queueing)])
    # in the order of the lane: without it the planner may look for one of a lane among all that is unfinished
    first = """SELECT true FROM pipelines_run r
        WHERE r.lane_id = lane.id AND r.held = {held} AND r.status NOT IN ('completed', 'failed', 'cancelled')
        ORDER BY r.lane_rank, r.id LIMIT 1"""
    inside = query(
        f"""
        SELECT lane.id, coalesce(({first.format(held="false")}), false), coalesce(({first.format(held="true")}), false)
        FROM unnest(%s::uuid[]) AS lane(id)
        """,
        [list(laned)],
    )
    places = {
        tick.trigger_id: {
            "trigger": tick.trigger_id,
            "pipeline": tick.pipeline_id,
            "workspace": tick.place.workspace_id,
            "environment": tick.place.environment_id,
        }
        for tick in ticks
    }
    document = recordset(list(places.values()))
    asked = "json_to_recordset(%s::json) AS t(trigger uuid, pipeline uuid, workspace uuid, environment uuid)"
    blackouts = query(
        f"""
        SELECT t.trigger, held.name FROM {asked}
        CROSS JOIN LATERAL (
            SELECT recourse_blackout(t.workspace, t.environment, t.trigger, recourse_now()) AS name
        ) held
        WHERE t.workspace IN (SELECT workspace_id FROM pipelines_blackout WHERE enabled) AND held.name IS NOT NULL
        """,
        [document],
    )
    releases = query(
        f"""
        SELECT p.id, r.environment_id, r.id, p.name, p.slug, r.definition
        FROM (SELECT DISTINCT pipeline, environment FROM {asked}) t
        JOIN pipelines_pipeline p ON p.id = t.pipeline
        JOIN pipelines_release r
            ON r.pipeline_id = t.pipeline AND r.environment_id = t.environment AND r.status = 'active'
        """,
        [document],
    )
    return _World(
        {trigger_id: _Inside(running, held) for trigger_id, running, held in inside},
        dict(blackouts),
        {(row[0], row[1]): Managed(row[2], row[0], row[3], row[4], json.loads(row[5])) for row in releases},
    )


def _decide(ticks: Sequence[DueTick], world: _World) -> dict[uuid.UUID, Draft]:
    """What becomes of each, in order of their instants; by tick, the runs to be made."""
    drafts: dict[uuid.UUID, Draft] = {}
    for tick in sorted(ticks, key=lambda tick: (tick.at, tick.id)):
        inside = world.inside.get(tick.trigger_id, _Inside())
        if not tick.enabled:
            tick.skip(SkipReason.PAUSED)
        elif tick.trigger_id in world.blackouts:
            tick.skip(SkipReason.BLACKOUT, world.blackouts[tick.trigger_id])
        elif not inside.admits(tick.overlap_policy):
            tick.skip(SkipReason.OVERLAP)
        else:
            held = inside.takes(tick.overlap_policy)
            try:
                drafts[tick.id] = _draft(tick, world, held=held)
            except Refusal as refusal:
                tick.fail(refusal.code, refusal.detail)
            except Exception:
                log.exception("dispatch.tick_failed", tick=str(tick.id), trigger=str(tick.trigger_id))
                tick.fail(*FAULT)
            else:
                inside.running, inside.held = inside.running or not held, inside.held or held
    return drafts


def _draft(tick: DueTick, world: _World, *, held: bool) -> Draft:
    managed = world.releases.get((tick.pipeline_id, tick.place.environment_id))
    if managed is None:
        raise Refusal("release_not_active", f"its pipeline has no active release in {tick.place.environment_slug}")
    due = Due.kept(tick.at, tick.timezone, tick.rule)
    filled = tick_inputs.fill(tick.template, due=due, previous=tick.previous_at, trigger_name=tick.trigger_name)
    tick_inputs.text(filled)  # not too large
    input_schemas.check(managed.definition.get("input_schema"), filled)
    return creation.managed_draft(
        tick.place,
        managed,
        filled,
        run_id=tick.run_id,
        keywords=tick_inputs.keywords(due),
        deadline_seconds=tick.deadline_seconds,
        origin=Origin(tick.trigger_id, tick.at, tick.trigger_id, lanes.rank(tick.at), held),
    )


def _make(ticks: Sequence[DueTick], drafts: dict[uuid.UUID, Draft]) -> None:
    """Inserts the runs, many at once; where that fails, each on its own, so that what cannot be made fails alone."""
    made = [tick for tick in ticks if tick.id in drafts]
    try:
        _insert(list(drafts.values()))
        for tick in made:
            tick.dispatch()
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("dispatch.batch_failed", ticks=len(drafts))
        for tick in made:
            _insert_alone(tick, drafts[tick.id])


def _insert(drafts: Sequence[Draft]) -> None:
    with transaction.atomic():
        creation.insert_runs(drafts, actor=ACTOR)
        creation.begin(drafts, actor=ACTOR)
        creation.announce(drafts)


def _insert_alone(tick: DueTick, draft: Draft) -> None:
    try:
        _insert([draft])
        tick.dispatch()
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("dispatch.tick_failed", tick=str(tick.id), trigger=str(tick.trigger_id))
        tick.fail(*FAULT)


def _keep(ticks: Sequence[DueTick]) -> None:
    execute(
        """
        UPDATE pipelines_tick k SET state = t.state, reason = t.reason, detail = t.detail, error_code = t.error_code,
            error_message = t.error_message, decided_at = recourse_now(),
            run = CASE WHEN t.state = 'dispatched' THEN k.run END
        FROM json_to_recordset(%s::json)
            AS t(id uuid, state text, reason text, detail text, error_code text, error_message text)
        WHERE k.id = t.id
        """,
        [
            recordset(
                [
                    {
                        "id": tick.id,
                        "state": tick.state,
                        "reason": tick.reason,
                        "detail": tick.detail,
                        "error_code": tick.error_code,
                        "error_message": tick.error_message,
                    }
                    for tick in ticks
                ]
            )
        ],
    )
