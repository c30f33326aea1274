"""What schedules cost the console: many triggers due in the same second, and a long backlog of ticks.

    python bench/triggers.py [--triggers 1000] [--ticks 10000]

Recorded and dispatched by one process, first all together as in life, then one by one, so that the ratio says what it
gains. The triggers are of forty time zones, a quarter of them due every minute; each run has three stages.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lab

ZONES = 40
STAGES = ("fetch", "check", "publish")
BACKLOG = 1_000  # ticks of one trigger: as many as it catches up on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=1_000, help="due in the same second")
    parser.add_argument("--ticks", type=int, default=10_000, help="that are due all at once, after an absence")
    options = parser.parse_args()
    with lab.engine("triggers"):
        same_second(options.triggers)
        backlog(options.ticks)


def same_second(count: int) -> None:
    """Two lots of triggers, each due once in the minute that has just begun."""
    from pipelines import dispatch, ledger
    from pipelines.models import Trigger

    make, _ = cast()
    for number in range(2 * count):
        make(number, "* * * * *")
    lots = [list(ids()[:count]), list(ids()[count:])]
    taken = []
    for lot, batch in zip(lots, (None, 1), strict=True):
        now = minute()
        due_now(lot, now)
        Trigger.objects.filter(id__in=lot[count // 4 :]).update(cron=f"{now.minute} * * * *")
        if batch:
            ledger.BATCH = dispatch.BATCH = batch
        begun = time.perf_counter()
        recorded = ledger.record(lot)
        between = time.perf_counter()
        decided = dispatch.dispatch_due()
        ended = time.perf_counter()
        assert recorded == decided == count, (recorded, decided)
        taken.append(ended - begun)
        how = "one by one" if batch else "together"
        print(f"{count} triggers, {how}: recorded {between - begun:.2f} s, dispatched {ended - between:.2f} s")
    print(f"one by one takes {taken[1] / taken[0]:.1f} times as long")
    ledger.BATCH, dispatch.BATCH = 1_000, 500


def backlog(count: int) -> None:
    """Ticks that are all due at once: recorded after an absence, each with its run."""
    from pipelines import dispatch, ledger
    from pipelines.models import Trigger

    make, workspace = cast()
    for number in range(count // BACKLOG):
        make(number, "* * * * *", catch_up="all", catch_up_limit=BACKLOG)
    mine = list(Trigger.objects.filter(workspace=workspace).values_list("id", flat=True))
    due_now(mine, minute(), minutes=BACKLOG)
    begun = time.perf_counter()
    recorded = ledger.record(mine)
    between = time.perf_counter()
    decided = dispatch.dispatch_due()
    ended = time.perf_counter()
    assert decided == recorded
    print(f"{recorded} ticks after an absence: recorded {between - begun:.2f} s, dispatched {ended - between:.2f} s")


def cast() -> tuple[Any, Any]:
    """A workspace with a pipeline, and what makes triggers of it."""
    from django.contrib.auth import get_user_model

    from pipelines import triggers
    from pipelines.access import person
    from pipelines.catalog import furnish
    from pipelines.models import Application, Member, Pipeline, Workspace
    from pipelines.releases import register_release
    from pipelines.zones import names

    number = Workspace.objects.count()
    workspace = Workspace.objects.create(slug=f"bench-{number}")
    furnish(workspace)
    user = get_user_model().objects.create(username=f"bench-{number}")
    Member.objects.create(workspace=workspace, user=user, role="admin")
    actor = person(user, workspace.id, "command")
    assert actor is not None
    Application.objects.create(workspace=workspace, name="bench")
    pipeline = Pipeline.objects.create(workspace=workspace, slug="nightly", name="nightly")
    definition = {"slug": "nightly", "name": "nightly", "stages": [{"name": one, "handler": one} for one in STAGES]}
    environment = workspace.environments.get(slug="development")
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)
    zones = [name for name in sorted(names()) if name.startswith("Europe/")][:ZONES]
    place = {"pipeline": "nightly", "environment": "development", "application": "bench"}

    def make(index: int, cron: str, **more: Any) -> None:
        wanted = {
            "cron": cron,
            "timezone": zones[index % len(zones)],
            "overlap_policy": "allow",
            "start_within": 86_400,
        }
        triggers.create(actor=actor, wanted={**place, "name": f"t{index}", **wanted, **more})

    return make, workspace


def ids() -> Any:
    from pipelines.models import Trigger

    return Trigger.objects.order_by("id").values_list("id", flat=True)


def minute() -> Any:
    """The minute that has begun, with room before the next."""
    from pipelines.sql import database_now

    while (now := database_now()).second > 30:
        time.sleep(1)
    return now.replace(second=0, microsecond=0)


def due_now(trigger_ids: list[Any], at: Any, minutes: int = 1) -> None:
    """Has them due at this minute, and at so many before."""
    from datetime import timedelta

    from pipelines.models import Trigger

    since = at - timedelta(minutes=minutes) + timedelta(seconds=1)
    Trigger.objects.filter(id__in=trigger_ids).update(recorded_until=since, next_at=since)


if __name__ == "__main__":
    main()
