"""The evidence graph laid out from left to right, as things led to one another: pure geometry, drawn by a template.

Every node stands in the first column that is behind all that led to it; a connection that passes columns by keeps a
place free in each, so that no line runs through a box. Within a column, nodes stand near what led to them (O59).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from recovery.evidence_graph import Edge, Graph, Node

WIDTH, HEIGHT = 176, 50  # of a box, in pixels
GAP, ROW = 104, 14  # between columns, which holds the words of what leads on; between boxes
THIN = 20  # the height of a place that is kept free
EDGE = 8  # around everything
SWEEPS = 3
ARROW = 5
Place = tuple[str, int]  # a node's id with 0, or that of a connection with the column it passes


@dataclass(frozen=True, slots=True)
class Box:
    """A node where it stands: its upper left corner."""

    node: Node
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Line:
    """A connection as an SVG path with its arrow's, and where the end of its words stands."""

    edge: Edge
    path: str
    arrow: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Drawing:
    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def draw(graph: Graph) -> Drawing:
    """The same drawing for the same graph, its boxes as they are read: column by column.

    One that leads back on itself, which history never does, is drawn all the same: what leads back starts no column.
    """
    columns = columns_of(graph)
    rows = _rows(graph, columns)
    places = _places(rows)
    at = {node.id: places[node.id, 0] for node in graph.nodes}
    boxes = tuple(sorted((Box(node, *at[node.id]) for node in graph.nodes), key=lambda box: (box.x, box.y)))
    lines = tuple(_lines(graph, columns, at, places))
    width = max((box.x + WIDTH for box in boxes), default=0) + EDGE
    height = max((y + (THIN if passing else HEIGHT) for (_, passing), (_, y) in places.items()), default=0) + EDGE
    return Drawing(width, height, boxes, lines)


def columns_of(graph: Graph) -> dict[str, int]:
    """By node: how many steps the longest way to it has."""
    leads: dict[str, list[str]] = {}
    for edge in graph.edges:
        leads.setdefault(edge.from_id, []).append(edge.to_id)
    found = {node.id: 0 for node in graph.nodes}
    for _ in graph.nodes:
        moved = False
        for one, others in leads.items():
            for other in others:
                if found[other] <= found[one] and found[one] + 1 < len(found):
                    found[other], moved = found[one] + 1, True
        if not moved:
            break
    return found


def _rows(graph: Graph, columns: Mapping[str, int]) -> list[list[Place]]:
    """The places of each column from top to bottom: nodes, and what is kept free for lines that pass."""
    count = max(columns.values(), default=-1) + 1
    rows: list[list[Place]] = [[] for _ in range(count)]
    before: dict[Place, list[Place]] = {}  # what leads to a place, in the column before it
    for node in graph.nodes:
        rows[columns[node.id]].append((node.id, 0))
    for index, edge in enumerate(graph.edges):
        last: Place = (edge.from_id, 0)
        for column in range(columns[edge.from_id] + 1, columns[edge.to_id]):
            passing = (_passing(index), column)
            rows[column].append(passing)
            before[passing] = [last]
            last = passing
        before.setdefault((edge.to_id, 0), []).append(last)
    for _ in range(SWEEPS):
        for column in range(1, count):
            order = {place: float(number) for number, place in enumerate(rows[column - 1])}
            old = {place: number for number, place in enumerate(rows[column])}
            rows[column].sort(key=lambda place: (_mean(before.get(place, ()), order, old[place]), old[place]))
    return rows


def _mean(led: Sequence[Place], order: Mapping[Place, float], otherwise: int) -> float:
    known = [order[one] for one in led if one in order]
    return sum(known) / len(known) if known else float(otherwise)


def _places(rows: Sequence[Sequence[Place]]) -> dict[Place, tuple[int, int]]:
    """Where each place stands; a column begins no higher than what it is nearest to needs."""
    found: dict[Place, tuple[int, int]] = {}
    for column, places in enumerate(rows):
        y = EDGE
        for place in places:
            found[place] = (EDGE + column * (WIDTH + GAP), y)
            y += (THIN if place[1] else HEIGHT) + ROW
    return found


def _lines(
    graph: Graph,
    columns: Mapping[str, int],
    at: Mapping[str, tuple[int, int]],
    places: Mapping[Place, tuple[int, int]],
) -> list[Line]:
    arriving: dict[str, list[int]] = {}
    for index, edge in enumerate(graph.edges):
        arriving.setdefault(edge.to_id, []).append(index)
    for others in arriving.values():  # from above to below, so that they do not cross at the end
        others.sort(key=lambda index: (_last_height(graph.edges[index], index, columns, at, places), index))
    found = []
    for index, edge in enumerate(graph.edges):
        (x, y), (end_x, end_y) = at[edge.from_id], at[edge.to_id]
        others = arriving[edge.to_id]
        end_y += HEIGHT * (others.index(index) + 1) // (len(others) + 1)
        points = [(x + WIDTH, y + HEIGHT // 2)]
        for column in range(columns[edge.from_id] + 1, columns[edge.to_id]):
            passed_x, passed_y = places[_passing(index), column]
            points += [(passed_x, passed_y + THIN // 2), (passed_x + WIDTH, passed_y + THIN // 2)]
        points.append((end_x, end_y))
        arrow = f"M{end_x - ARROW} {end_y - ARROW + 1}L{end_x} {end_y}L{end_x - ARROW} {end_y + ARROW - 1}"
        found.append(Line(edge, _path(points), arrow, end_x - ARROW - 3, end_y - 5))
    return found


def _last_height(
    edge: Edge,
    index: int,
    columns: Mapping[str, int],
    at: Mapping[str, tuple[int, int]],
    places: Mapping[Place, tuple[int, int]],
) -> int:
    """How high a line runs before its last bend."""
    passed = places.get((_passing(index), columns[edge.to_id] - 1))
    return passed[1] + THIN // 2 if passed else at[edge.from_id][1] + HEIGHT // 2


def _path(points: Sequence[tuple[int, int]]) -> str:
    """From point to point: level where a column is passed, bent between columns."""
    told = f"M{points[0][0]} {points[0][1]}"
    for number, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        if number % 2:
            told += f"H{to_x}"
        else:
            half = (x + to_x) // 2
            told += f"C{half} {y} {half} {to_y} {to_x} {to_y}"
    return told


def _passing(index: int) -> str:
    return f"line {index}"
