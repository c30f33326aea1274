"""What a run came out of, what was asked for on it, and what came of that: one graph to read recoveries by (O59).

A run is the `target` of the operation that made it, else a `source`; `checkpoint` is what a rerun started from; each
`operation` has the `disposition` that was recorded for it and the `approval`s of people. What a schedule made names its
`trigger`, its `tick`, and the `backfill` that filled it. Edges point the way in which things happened.

The graph of a run holds its own operations and those of the runs it came out of, as far as they led to it: at most
`GENERATIONS` back and `MOST` operations, forks before the others, then newest first. `complete` says whether that was
all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Case, Prefetch, Q, When

from approvals.models import ApprovalRequest, RequestDecision
from approvals.states import RequestState
from pipelines import queries
from pipelines.access import Actor
from pipelines.checkpoint_reading import verify_all
from pipelines.models import Checkpoint, Run, Tick, Trigger
from recovery.models import Backfill, Operation

SOURCE, CHECKPOINT, OPERATION, DISPOSITION, APPROVAL, TARGET = KINDS = (
    "source",
    "checkpoint",
    "operation",
    "disposition",
    "approval",
    "target",
)
TRIGGER, TICK, BACKFILL = ORIGINS = ("trigger", "tick", "backfill")
GENERATIONS = 20
MOST = 100


@dataclass(frozen=True, slots=True)
class Node:
    """`id` is unique in its graph; `status` is the state or verdict in the model's words; `facts` differ by kind."""

    id: str
    kind: str
    title: str
    status: str
    at: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edge:
    """`kind` says what leads from one node to the other, as a verb."""

    from_id: str
    to_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """The rows that a graph is built from. A run that is only reserved has no row; `verdicts` by checkpoint id; of runs
    that a schedule made, `ticks` by trigger and instant."""

    runs: Mapping[uuid.UUID, Run]
    operations: Sequence[Operation]
    requests: Sequence[ApprovalRequest]  # every round, with its `decisions`
    checkpoints: Mapping[uuid.UUID, Checkpoint]
    verdicts: Mapping[uuid.UUID, str]
    complete: bool = True
    triggers: Mapping[uuid.UUID, Trigger] = field(default_factory=dict)
    ticks: Mapping[tuple[uuid.UUID, datetime], Tick] = field(default_factory=dict)
    backfills: Mapping[uuid.UUID, Backfill] = field(default_factory=dict)


def evidence_graph(actor: Actor, run: Run) -> Graph:
    """The graph of a visible run, in a fixed number of statements and one for each generation that it came out of."""
    line, more = _ancestors(actor, run)
    asked = Operation.objects.filter(Q(run=run) | Q(target__in=[one.id for one in line]))
    # what a run came out of, then what came out of it: neither is left out for a pause
    weight = Case(When(target__in=[one.id for one in line], then=0), When(target__isnull=False, then=1), default=2)
    ordered = asked.order_by(weight, "-created_at", "-id").select_related("requested_by", "resolved_by", "stage")
    rows = list(ordered[: MOST + 1])
    operations = sorted(rows[:MOST], key=lambda one: (one.created_at, one.id))
    forks = queries.visible_runs(actor).in_bulk([one.target for one in operations if one.target])
    ids = [one.checkpoint for one in operations if one.checkpoint]
    checkpoints = Checkpoint.objects.select_related("run").in_bulk(ids)
    verdicts = verify_all(list(checkpoints.values()))
    put = ApprovalRequest.objects.filter(subject__in=[one.id for one in operations]).order_by("round")
    made = RequestDecision.objects.select_related("user").order_by("at", "id")
    return build(
        run.id,
        Found(
            runs={one.id: one for one in line} | forks,
            operations=operations,
            requests=list(put.prefetch_related(Prefetch("decisions", made))),
            checkpoints=checkpoints,
            verdicts={one: str(verdict) for one, verdict in zip(checkpoints, verdicts, strict=True)},
            complete=len(rows) <= MOST and not more,
            **_origins(line),
        ),
    )


def build(run_id: uuid.UUID, found: Found) -> Graph:
    """Pure: nodes in the order in which things happened, each once; every edge has both its ends."""
    made = {one.target for one in found.operations if one.target}
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    for run in found.runs.values():
        _add_origin(nodes, edges, run, found, made)
    _add(nodes, _run_node(run_id, found, made))
    for operation in found.operations:
        source = _add(nodes, _run_node(operation.run_id, found, made))
        node = _add(nodes, _operation_node(operation))
        edges.append(Edge(source, node, "asked_on"))
        checkpoint = found.checkpoints.get(operation.checkpoint) if operation.checkpoint else None
        if checkpoint is not None:
            start = _add(nodes, _checkpoint_node(checkpoint, found.verdicts[checkpoint.id]))
            edges += [Edge(source, start, "recorded"), Edge(start, node, "starts_from")]
        verdict = _add(nodes, _disposition_node(operation))
        edges.append(Edge(node, verdict, "judged"))
        for request in found.requests:
            if request.subject == operation.id:
                approvals = [_add(nodes, approval) for approval in _approval_nodes(request)]
                edges += [Edge(verdict, approval, "decided_by") for approval in approvals]
        if operation.target:
            edges.append(Edge(node, _add(nodes, _run_node(operation.target, found, made)), "made"))
    return Graph(tuple(nodes.values()), tuple(edges), found.complete)


def _origins(line: Sequence[Run]) -> dict[str, Any]:
    """What made the runs of a schedule among these."""
    made = [one for one in line if one.trigger_id is not None and one.recovered_from_id is None]
    if not made:
        return {}
    triggers = Trigger.objects.in_bulk([one.trigger_id for one in made])
    ticks = Tick.objects.filter(trigger__in=list(triggers), at__in=[one.tick_at for one in made if one.tick_at])
    backfills = Backfill.objects.select_related("requested_by").in_bulk([one.lane_id for one in made if one.lane_id])
    return {"triggers": triggers, "ticks": {(one.trigger_id, one.at): one for one in ticks}, "backfills": backfills}


def _add_origin(nodes: dict[str, Node], edges: list[Edge], run: Run, found: Found, made: Iterable[Any]) -> None:
    """The trigger, tick and backfill of a run that a schedule made, before the run."""
    trigger = found.triggers.get(run.trigger_id) if run.trigger_id and run.recovered_from_id is None else None
    if trigger is None or run.trigger_id is None:
        return
    last = _add(nodes, _trigger_node(trigger))
    tick = found.ticks.get((run.trigger_id, run.tick_at)) if run.tick_at else None
    if tick is not None:
        node = _add(nodes, _tick_node(tick))
        edges.append(Edge(last, node, "was_due"))
        last = node
    backfill = found.backfills.get(run.lane_id) if run.lane_id else None
    if backfill is not None:
        node = _add(nodes, _backfill_node(backfill))
        edges.append(Edge(last, node, "filled_by"))
        last = node
    edges.append(Edge(last, _add(nodes, _run_node(run.id, found, made)), "made"))


def _ancestors(actor: Actor, run: Run) -> tuple[list[Run], bool]:
    """The run and what it came out of, nearest first, and whether there are more."""
    line = [run]
    while line[-1].recovered_from_id and len(line) <= GENERATIONS:
        earlier = queries.visible_runs(actor).filter(id=line[-1].recovered_from_id).first()
        if earlier is None:
            return line, False
        line.append(earlier)
    return line, bool(line[-1].recovered_from_id)


def _add(nodes: dict[str, Node], node: Node) -> str:
    nodes.setdefault(node.id, node)
    return node.id


def _run_node(run_id: uuid.UUID, found: Found, made: Iterable[uuid.UUID | None]) -> Node:
    run = found.runs.get(run_id)
    kind = TARGET if run_id in made else SOURCE
    facts: dict[str, Any] = {"execution_id": str(run_id)}
    if run is None:
        return Node(f"run:{run_id}", kind, "a run that is reserved", "reserved", None, facts)
    facts["release_id"] = str(run.release_id)
    return Node(f"run:{run_id}", kind, run.name, run.status, run.created_at, facts)


def _trigger_node(trigger: Trigger) -> Node:
    facts = {"trigger_id": str(trigger.id), "version": trigger.version}
    status = "active" if trigger.enabled else "paused"
    return Node(f"trigger:{trigger.id}", TRIGGER, trigger.name, status, trigger.created_at, facts)


def _tick_node(tick: Tick) -> Node:
    facts = {"tick_id": str(tick.id), "trigger_id": str(tick.trigger_id), "tick_time": tick.at.isoformat()}
    title = f"tick {tick.local_time[:16].replace('T', ' ')}"
    return Node(f"tick:{tick.id}", TICK, title, tick.state, tick.recorded_at, facts)


def _backfill_node(backfill: Backfill) -> Node:
    who = backfill.requested_by.get_username()
    facts = {"backfill_id": str(backfill.id), "requested_by": who, "reason": backfill.reason}
    title = f"backfill by {who}"
    return Node(f"backfill:{backfill.id}", BACKFILL, title, backfill.state, backfill.created_at, facts)


def _checkpoint_node(checkpoint: Checkpoint, verdict: str) -> Node:
    facts = {
        "checkpoint_id": str(checkpoint.id),
        "execution_id": str(checkpoint.run_id),
        "sequence": checkpoint.sequence,
        "current_step_id": checkpoint.current_step_id,
        "payload_digest": checkpoint.payload_digest,
        "key_id": checkpoint.key_id or None,
    }
    title = f"checkpoint {checkpoint.sequence}"
    return Node(f"checkpoint:{checkpoint.id}", CHECKPOINT, title, verdict, checkpoint.recorded_at, facts)


def _operation_node(operation: Operation) -> Node:
    stage = f" of {operation.stage.name}" if operation.stage else ""
    facts = {
        "operation_id": str(operation.id),
        "stage_id": str(operation.stage_id) if operation.stage_id else None,
        "requested_by": operation.asker,
        "channel": operation.channel,
        "reason": operation.reason,
        "plan_digest": operation.plan_digest or None,
    }
    title = f"{operation.kind}{stage}"
    return Node(f"operation:{operation.id}", OPERATION, title, operation.state, operation.created_at, facts)


def _disposition_node(operation: Operation) -> Node:
    facts = {
        "reasons": operation.reasons,
        "resolved_by": operation.resolved_by.get_username() if operation.resolved_by else None,
    }
    title = operation.disposition.replace("_", " ")
    node_id = f"disposition:{operation.id}"
    return Node(node_id, DISPOSITION, title, operation.disposition, operation.created_at, facts)


def _approval_nodes(request: ApprovalRequest) -> Iterable[Node]:
    """What was decided about one round, and what that came to where no decision says it."""
    for decision in request.decisions.all():
        name = decision.user.get_username()
        status = "approved" if decision.approved else "rejected"
        facts = {"decided_by": name, "role": decision.role, "reason": decision.reason, "round": request.round}
        yield Node(f"approval:{decision.id}", APPROVAL, f"{status} by {name}", status, decision.at, facts)
    told = _OTHERWISE.get(RequestState(request.state))
    if told is None:
        return
    if request.state == RequestState.EXPIRED and _ended_early(request):
        told = "expired: the run was over first"
    facts = {"decided_by": None, "role": None, "reason": "", "round": request.round}
    yield Node(f"request:{request.id}", APPROVAL, told, request.state, request.closed_at, facts)


def _ended_early(request: ApprovalRequest) -> bool:
    return request.closed_at is not None and (request.expires_at is None or request.closed_at < request.expires_at)


# how a round stands that was not closed by a decision
_OTHERWISE = {
    RequestState.OPEN: "waits for somebody else",
    RequestState.WITHDRAWN: "withdrawn by who asked for it",
    RequestState.EXPIRED: "expired: nobody decided in time",
    RequestState.SUPERSEDED: "asked anew: the world had moved",
}
