"""What tests of backfills begin with: a pipeline of one or two stages, a trigger of it, and a wish for a window."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pipelines import triggers
from pipelines.access import Actor
from pipelines.models import Application, Environment, Pipeline, Run, Tick, Trigger
from pipelines.releases import register_release
from recovery import backfills
from recovery.models import Backfill, BackfillTick
from tests.cast import Hand
from tests.engine_model.invariants import assert_invariants


def pipeline_of(actor: Actor, environment: Environment, *stages: str | Mapping[str, Any], slug: str = "rates") -> Any:
    """A pipeline with a release in force whose stages have the handler `Handler`."""
    pipeline, _ = Pipeline.objects.get_or_create(
        workspace_id=actor.workspace_id, slug=slug, defaults={"name": slug.capitalize()}
    )
    definition = {
        "slug": slug,
        "name": slug.capitalize(),
        "stages": [
            {"handler": "Handler", **({"name": stage} if isinstance(stage, str) else stage)}
            for stage in stages or ("fetch",)
        ],
    }
    register_release(actor=actor, pipeline=pipeline, environment=environment, definition=definition, activate=True)
    return pipeline


def trigger_of(
    actor: Actor,
    environment: Environment,
    application: Application,
    *stages: str | Mapping[str, Any],
    slug: str = "rates",
    **settings: Any,
) -> Trigger:
    """A daily trigger at 08:00 UTC, unless told otherwise, of a new pipeline."""
    pipeline = pipeline_of(actor, environment, *stages, slug=slug)
    wanted = {
        "pipeline": pipeline.slug,
        "environment": environment.slug,
        "application": str(application.id),
        "cron": "0 8 * * *",
        "timezone": "UTC",
        **settings,
    }
    return triggers.create(actor=actor, wanted=wanted)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def wish(trigger: Trigger, start: str, end: str, **more: Any) -> backfills.Wish:
    return backfills.Wish(trigger.id, at(start), at(end), **more)


def runs_of(backfill_id: Any) -> list[Run]:
    """The backfill's runs, by their ticks; not what people forked from them, which stands in its lane too."""
    return list(Run.objects.filter(lane_id=backfill_id, recovered_from=None).order_by("tick_at"))


def finish(hand: Hand, backfill_id: Any, rounds: int = 10_000) -> None:
    """Runs all of a backfill to its end, and lets the sweep come by."""
    for _ in range(rounds):
        if not hand.finish():
            break
    backfills.carry_on()


def states(backfill_id: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in BackfillTick.objects.filter(backfill_id=backfill_id).values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found


def assert_accounted_for(trigger: Trigger) -> None:
    """I18: no tick has two runs, every run of a tick is the one in the ledger unless that tick was done once more, and
    whatever a backfill dispatched has a run."""
    assert_invariants()
    of_ticks = Run.objects.filter(trigger=trigger, recovered_from=None)  # beside them stand forks, which people made
    live = of_ticks.exclude(status__in=["completed", "failed", "cancelled"])
    instants = [run.tick_at for run in live]
    assert len(instants) == len(set(instants)), "two live runs of one tick"
    made = set(Run.objects.filter(trigger=trigger).values_list("id", flat=True))
    reserved = set(Tick.objects.filter(trigger=trigger, state="dispatched").values_list("run", flat=True))
    assert reserved <= made, "the ledger names runs that are not there"
    assert {run.id for run in live} <= reserved, "a live run that the ledger does not name"
    for backfill in Backfill.objects.filter(trigger=trigger):
        named = set(backfill.ticks.filter(state="dispatched").values_list("run", flat=True))
        assert named == {run.id for run in runs_of(backfill.id)} - cancelled_runs(backfill)


def cancelled_runs(backfill: Backfill) -> set[Any]:
    return set(backfill.ticks.filter(state="cancelled", run__isnull=False).values_list("run", flat=True))
