"""The shape of a run: which stage waits for which. Pure; positions are indexes into the stage list, from 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


class GraphError(ValueError):
    """A stage list that cannot run. `position` is the stage at fault, `field` the field to correct."""

    def __init__(self, position: int, field: str, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.field = field


def resolve_dependencies(names: Sequence[str], depends_on: Sequence[Sequence[str] | None]) -> list[list[int]]:
    """The positions each stage waits for.

    Without any `depends_on` the stages run one after another. Refused: two stages of one name, a name that no stage
    has, a stage that waits for itself, the same dependency twice, a cycle.
    """
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        if name in positions:
            raise GraphError(position, "name", f"two stages are named {name!r}; names must differ")
        positions[name] = position
    if not any(depends_on):
        return [[position - 1] if position else [] for position in range(len(names))]
    resolved = [_positions(position, wanted or (), positions) for position, wanted in enumerate(depends_on)]
    _refuse_cycles(names, resolved)
    return resolved


def descendants(position: int, depends_on: Mapping[int, Sequence[int]]) -> list[int]:
    """Every stage that waits for this one, directly or not, in position order; the stage itself is not among them."""
    found: set[int] = {position}
    changed = True
    while changed:
        changed = False
        for candidate, needed in depends_on.items():
            if candidate not in found and not found.isdisjoint(needed):
                found.add(candidate)
                changed = True
    return sorted(found - {position})


def _positions(position: int, wanted: Sequence[str], positions: Mapping[str, int]) -> list[int]:
    found: list[int] = []
    for name in wanted:
        if name not in positions:
            raise GraphError(position, "depends_on", f"no stage is named {name!r}")
        if positions[name] == position:
            raise GraphError(position, "depends_on", f"{name!r} cannot wait for itself")
        if positions[name] in found:
            raise GraphError(position, "depends_on", f"{name!r} is named twice")
        found.append(positions[name])
    return sorted(found)


def _refuse_cycles(names: Sequence[str], resolved: Sequence[Sequence[int]]) -> None:
    try:
        TopologicalSorter(dict(enumerate(resolved))).prepare()
    except CycleError as error:
        circle = error.args[1]
        path = " → ".join(names[position] for position in circle)
        raise GraphError(max(circle), "depends_on", f"these stages wait for each other: {path}") from error
