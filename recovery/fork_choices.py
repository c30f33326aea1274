"""Where each stage of a run leads as the start of a rerun: how much is kept and how much runs, or why it is no start.

A look ahead at all choices for the price of one: from the newest checkpoint and the release that would run, in a fixed
number of statements. The plan of the choice that is made says it again, and exactly (O57). Limit: a stage whose needs
only an older checkpoint covers is told as such, and not how much that one keeps.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

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
    behind = {name: will_be.behind(name) for name in was.names}
    return [_choice(name, was, will_be, behind, set(done)) for name in was.names]


def _choice(name: str, was: Shape, will_be: Shape, behind: dict[str, set[str]], done: set[str]) -> Choice:
    there = set(will_be.names)
    if name not in there:
        return Choice(name, problem="not in the release that will run")
    before = {other for other in was.names if name in behind[other]}
    if open_before := [one for one in was.names if one in before and one not in done]:
        return Choice(name, problem=f"only from an older checkpoint: {open_before[0]} before it is not done now")
    kept = (done - behind[name] - {name}) & there
    return Choice(name, len(kept), len(there) - len(kept))
