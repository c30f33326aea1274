"""The operations API's route for reading what a run came out of and what came of it (contract §3)."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from pipelines.access import VIEW
from pipelines.api.endpoints import answer
from pipelines.api.operations_endpoint import Call, OperationsEndpoint
from pipelines.api.operations_serializers import time
from pipelines.api.shapes import AnyJson, Flag, ListOf, Moment, OneOf, Shape, Text
from recovery.evidence_graph import KINDS, ORIGINS, Edge, Node, evidence_graph


class NodeView(Shape):
    """`facts` holds the ids, names and reasons of its kind."""

    id = Text()
    kind = OneOf((*KINDS, *ORIGINS))
    title = Text()
    status = Text()
    at = Moment(allow_null=True)
    facts = AnyJson()


class EdgeView(Shape):
    """From one node's id to another's; `kind` is asked_on, recorded, starts_from, judged, decided_by, made, was_due or
    filled_by."""

    from_id = Text()
    to_id = Text()
    kind = Text()


class EvidenceGraphView(Shape):
    """`complete` is false when older operations were left out."""

    nodes = ListOf(child=NodeView())
    edges = ListOf(child=EdgeView())
    complete = Flag()


class Evidence(OperationsEndpoint):
    """The evidence graph of a run: source, checkpoint, operation, disposition, approval and target, and what a
    schedule made (O59)."""

    access = {"GET": VIEW}
    for_key = True

    @extend_schema(responses=EvidenceGraphView)
    def get(self, call: Call) -> HttpResponse:
        graph = evidence_graph(call.actor, call.target)
        return answer(
            {
                "nodes": [_node(node) for node in graph.nodes],
                "edges": [_edge(edge) for edge in graph.edges],
                "complete": graph.complete,
            }
        )


def _node(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "kind": node.kind,
        "title": node.title,
        "status": node.status,
        "at": time(node.at),
        "facts": dict(node.facts),
    }


def _edge(edge: Edge) -> dict[str, str]:
    return {"from_id": edge.from_id, "to_id": edge.to_id, "kind": edge.kind}


urlpatterns = [path("executions/<str:execution_id>/evidence", Evidence.as_view())]
