"""Runs that a lane holds, for tests: made as a backfill makes them, at once and all held."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.db import transaction

from pipelines import creation, lanes, releases
from pipelines.creation import Origin, Place
from pipelines.ids import new_id
from pipelines.models import Environment, Run, Trigger


def open_lane(trigger: Trigger, capacity: int | None, *, lane_id: uuid.UUID | None = None) -> uuid.UUID:
    """A background lane, as a backfill has one."""
    lane_id = lane_id or new_id()
    lanes.open_lane(lane_id, trigger.workspace_id, capacity, is_background=True)
    return lane_id


def hold(trigger: Trigger, lane_id: uuid.UUID, count: int, *, first: int = 0, **more: Any) -> list[Run]:
    """So many held runs of the trigger's pipeline in the lane, ranked from `first` on; in order of their ranks."""
    place = Place(
        trigger.workspace_id,
        trigger.application_id,
        trigger.environment_id,
        Environment.objects.get(id=trigger.environment_id).slug,
    )
    managed = releases.managed(trigger.workspace_id, trigger.pipeline_id, trigger.environment_id)
    drafts = []
    for rank in range(first, first + count):
        at = trigger.created_at - timedelta(days=1) + timedelta(minutes=rank)
        origin = Origin(trigger.id, at, lane_id, rank, held=True)
        drafts.append(creation.managed_draft(place, managed, {"rank": rank}, run_id=new_id(), origin=origin, **more))
    with transaction.atomic():
        creation.insert_runs(drafts, actor="dana")
    return list(Run.objects.filter(id__in=[draft.id for draft in drafts]).order_by("lane_rank"))


def inside(lane_id: uuid.UUID) -> list[int]:
    """The ranks of those that are in, in order."""
    runs = Run.objects.filter(lane_id=lane_id, held=False).exclude(status__in=("completed", "failed", "cancelled"))
    return sorted(run.lane_rank or 0 for run in runs)


def waiting(lane_id: uuid.UUID) -> list[int]:
    """The ranks of those that are held, in order."""
    return sorted(run.lane_rank or 0 for run in Run.objects.filter(lane_id=lane_id, held=True))
