"""What a run's page shows of recovery: its effects, what it came out of and what came out of it, what was asked for."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries, trigger_queries
from pipelines.access import Actor
from pipelines.console.overview import keys_of
from pipelines.console.run_page import Section
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.models import Lane, Run, Tick, Trigger
from pipelines.states import TERMINAL_RUN
from recovery.evidence_drawing import draw
from recovery.evidence_graph import Edge, Node, evidence_graph
from recovery.models import Backfill, Operation
from recovery.screens import effect_pages, limits, operation_pages, run_retry_pages

EFFECTS, FORKS, OPERATIONS = 8, 6, 6
MOST_AHEAD = 1000
MOST_DRAWN = 120  # nodes of an evidence graph; one that is larger is listed


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the run came out of, and the newest of what came out of it, each with the key that its application knows it
    by."""

    run: Run
    source: Run | None
    source_key: str
    recovery: dict[str, Any] | None
    forks: Sequence[tuple[Run, str]]
    more: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """The newest operations on the run."""

    rows: Sequence[Operation]
    more: bool


@dataclass(frozen=True, slots=True)
class Led:
    """An edge of the evidence graph with both its nodes."""

    edge: Edge
    one: Node
    other: Node

    @property
    def word(self) -> str:
        return _WORDS[self.edge.kind]


@dataclass(frozen=True, slots=True)
class Origin:
    """The trigger and the tick that the run was made for, and the backfill that made it. Of one that is held: how many
    come before it, counted no further than `MOST_AHEAD`, and how many its lane lets in."""

    run: Run
    trigger: Trigger
    tick: Tick | None
    backfill: Backfill | None
    ahead: int
    capacity: int | None
    is_open: bool


_WORDS = {
    "asked_on": "got the request",
    "recorded": "wrote",
    "starts_from": "is the start of",
    "judged": "was judged",
    "decided_by": "and then",
    "made": "made",
    "was_due": "was due at",
    "filled_by": "was filled by",
}


def sections(actor: Actor, run: Run) -> list[Section]:
    """In a fixed number of statements, whatever the run holds."""
    effects = effect_pages.of_run(run, EFFECTS)
    asked = operation_pages.recent(run, OPERATIONS)
    found = [Section("main", "recovery/_run_effects.html", effects)] if effects.rows else []
    if retries := run_retry_pages.of_run(actor, run):
        found.append(Section("aside", "recovery/_run_retry.html", retries))
    if run.trigger_id is not None:
        found.append(Section("aside", "backfills/_run_origin.html", _origin(actor, run, run.trigger_id)))
    found.append(Section("aside", "recovery/_run_limits.html", limits.of_run(run)))
    found.append(Section("aside", "recovery/_run_lineage.html", _lineage(actor, run)))
    if asked:
        told = Asked(asked[:OPERATIONS], len(asked) > OPERATIONS)
        found.append(Section("aside", "recovery/_run_operations.html", told))
    return found


def _origin(actor: Actor, run: Run, trigger_id: uuid.UUID) -> Origin:
    trigger = trigger_queries.find_trigger(actor, trigger_id)
    lane_id = run.lane_id
    backfill = Backfill.objects.filter(id=lane_id).first() if lane_id is not None and lane_id != trigger_id else None
    lane = Lane.objects.filter(id=lane_id).first() if lane_id is not None and run.held else None
    ahead = 0
    if run.held and run.lane_rank is not None:
        waiting = Run.objects.filter(lane=run.lane_id, held=True).exclude(status__in=TERMINAL_RUN)
        ahead = len(waiting.filter(lane_rank__lt=run.lane_rank).values_list("id")[: MOST_AHEAD + 1])
    tick = Tick.objects.filter(trigger=trigger, at=run.tick_at).first() if run.tick_at else None
    return Origin(run, trigger, tick, backfill, ahead, lane.capacity if lane else None, lane is None or lane.is_open)


def _lineage(actor: Actor, run: Run) -> Lineage:
    visible = queries.visible_runs(actor)
    source = visible.filter(id=run.recovered_from_id).first() if run.recovered_from_id else None
    forks = list(visible.filter(recovered_from=run).order_by("-created_at", "-id")[: FORKS + 1])
    keys = keys_of([one.id for one in (*forks[:FORKS], *([source] if source else []))])
    told = [(fork, keys.get(fork.id, "")) for fork in forks[:FORKS]]
    return Lineage(run, source, keys.get(source.id, "") if source else "", run.recovery, told, len(forks) > FORKS)


@require_safe
@screen
def evidence(request: ScreenRequest, run_id: Any) -> HttpResponse:
    """The evidence graph of a run: drawn, and as a list of what led to what (O59)."""
    run = queries.run_detail(request.visit.actor, run_id)
    graph = evidence_graph(request.visit.actor, run)
    by_id = {node.id: node for node in graph.nodes}
    led = [Led(edge, by_id[edge.from_id], by_id[edge.to_id]) for edge in graph.edges]
    drawing = draw(graph) if len(graph.nodes) <= MOST_DRAWN else None
    words = [(line, _WORDS[line.edge.kind]) for line in drawing.lines] if drawing else []
    context = {"run": run, "graph": graph, "led": led, "drawing": drawing, "words": words}
    return show(request, "recovery/evidence.html", context)
