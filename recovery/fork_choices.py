"""Where each stage of a run leads as the start of a rerun: how much is kept and how much runs, or why it is no start.

A look ahead at all choices for the price of one: from the newest checkpoint and the release that would run, in a fixed
number of statements. The plan of the choice that is made says it again, and exactly (O57). Limit: a stage whose needs
only an older checkpoint covers is told as such, and not how much that one keeps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from pipelines import checkpoint_reading
from pipelines.checkpoint_reading import payload_of
from pipelines.errors import Refusal
from pipelines.models import Run
from recovery.fork_world import Shape, release_to_run


@dataclass(frozen=True, slots=True)
class Choice:
    """A stage to start from, with how many are kept and how many run; `problem` instead, where it leads nowhere so."""

    stage: str
    keeps: int = 0
    runs: int = 0
    problem: str = ""


def choices(run: Run) -> list[Choice]:
    """Of every stage, in graph order; `run` with its release and pipeline. None where nothing can be forked now."""
    try:
        will_be = release_to_run(run, None)
        done = [one["stage"] for one in payload_of(checkpoint_reading.newest_valid(run.id))["done"]]
        was = Shape.of(run.release_id, json.loads(run.release.definition))
    except Refusal:
        return []
    return look_ahead(was, will_be, done)


def look_ahead(was: Shape, will_be: Shape, done: Collection[str]) -> list[Choice]:
    """Pure: the same of a release that was, one that will run, and the stages that the newest checkpoint says are
    done."""
    behind = _behind(will_be)
    names = was.names
    return [_choice(name, names, behind, set(done)) for name in names]


def _choice(name: str, names: Sequence[str], behind: Mapping[str, set[str]], done: set[str]) -> Choice:
    """`names`: of the release that was; `behind` has a key for each stage of the one that will run."""
    if name not in behind:
        return Choice(name, problem="not in the release that will run")
    not_done = (one for one in names if one not in done and name in behind.get(one, ()))
    if lacking := next(not_done, None):
        return Choice(name, problem=f"only from an older checkpoint: {lacking} before it is not done now")
    kept = (done - behind[name] - {name}) & behind.keys()
    return Choice(name, len(kept), len(behind) - len(kept))


def _behind(shape: Shape) -> dict[str, set[str]]:
    """By stage: what waits for it, directly or not; all of them in one pass, from the last to the first."""
    names = shape.names
    found: dict[str, set[str]] = {name: set() for name in names}
    for position in reversed([*TopologicalSorter(dict(enumerate(shape.depends_on))).static_order()]):
        for needed in shape.depends_on[position]:
            found[names[needed]] |= found[names[position]] | {names[position]}
    return found
