"""The drawing of an evidence graph: nothing overlaps, every line leads on, and no line runs through a box."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from recovery.evidence_drawing import HEIGHT, WIDTH, Box, Drawing, columns_of, draw
from recovery.evidence_graph import Edge, Graph, Node


def graph_of(*edges: tuple[str, str], alone: tuple[str, ...] = ()) -> Graph:
    names = list(dict.fromkeys([*alone, *(end for edge in edges for end in edge)]))
    nodes = tuple(Node(name, "operation", name, "succeeded") for name in names)
    return Graph(nodes, tuple(Edge(one, other, "made") for one, other in edges))


@st.composite
def histories(draw_from: st.DrawFn) -> Graph:
    """Graphs in which everything leads to later things only, as histories are."""
    count = draw_from(st.integers(1, 14))
    pairs = [(str(one), str(other)) for one in range(count) for other in range(one + 1, count)]
    chosen = draw_from(st.lists(st.sampled_from(pairs), max_size=25, unique=True)) if pairs else []
    return graph_of(*chosen, alone=tuple(str(number) for number in range(count)))


def box_of(drawing: Drawing, name: str) -> Box:
    return next(box for box in drawing.boxes if box.node.id == name)


def test_a_rerun_is_drawn_from_its_source_to_its_target() -> None:
    """O59: source, checkpoint, operation, disposition and target stand in the order in which they came about."""
    edges = [("run", "rerun"), ("run", "point"), ("point", "rerun"), ("rerun", "verdict"), ("rerun", "new")]
    drawing = draw(graph_of(*edges))
    places = [box_of(drawing, name).x for name in ("run", "point", "rerun", "verdict")]
    assert places == sorted(set(places))
    assert box_of(drawing, "verdict").x == box_of(drawing, "new").x
    assert len(drawing.lines) == len(edges)


def test_a_node_alone_is_drawn_and_nothing_is_drawn_as_nothing() -> None:
    assert len(draw(graph_of(alone=("run",))).boxes) == 1
    assert draw(Graph((), ())).boxes == ()


def test_what_leads_back_on_itself_is_drawn_all_the_same() -> None:
    drawing = draw(graph_of(("a", "b"), ("b", "a")))
    assert len(drawing.boxes) == 2
    assert len(drawing.lines) == 2


@given(histories())
def test_every_line_leads_to_a_later_column(graph: Graph) -> None:
    columns = columns_of(graph)
    assert all(columns[edge.from_id] < columns[edge.to_id] for edge in graph.edges)


@given(histories())
def test_no_two_boxes_overlap_and_all_stand_inside(graph: Graph) -> None:
    drawing = draw(graph)
    corners = [(box.x, box.y) for box in drawing.boxes]
    for number, (x, y) in enumerate(corners):
        assert x >= 0
        assert x + WIDTH <= drawing.width
        assert y + HEIGHT <= drawing.height
        for other_x, other_y in corners[number + 1 :]:
            assert abs(x - other_x) >= WIDTH or abs(y - other_y) >= HEIGHT


@given(histories())
def test_no_line_runs_through_a_box_that_it_passes(graph: Graph) -> None:
    """Where a line is level it passes a column; no box of that column stands at its height."""
    drawing = draw(graph)
    for line in drawing.lines:
        for x, y, to_x in re.findall(r"(\d+) (\d+)H(\d+)", line.path):
            for box in drawing.boxes:
                inside = box.x < int(to_x) and int(x) < box.x + WIDTH
                assert not (inside and box.y <= int(y) <= box.y + HEIGHT)


@given(histories())
def test_the_same_graph_is_drawn_the_same(graph: Graph) -> None:
    assert draw(graph) == draw(graph)
