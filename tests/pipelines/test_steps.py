"""Which step of a run is the current one, in any order in which its stages are listed."""

from __future__ import annotations

import uuid

from pipelines.checkpoints import NewStage, steps


def stage(position: int, name: str, state: str, *needs: int) -> NewStage:
    return NewStage(uuid.uuid4(), position, name, state, needs)


def test_the_current_step_is_one_that_may_go_on_even_when_it_is_listed_behind_what_waits_for_it() -> None:
    """O13, O20: a rerun without a step starts where the graph stands, not where the list does."""
    listed = [stage(0, "load", "pending", 1), stage(1, "fetch", "failed")]
    assert steps(listed) == ("fetch", "")
    assert steps([stage(0, "load", "failed", 1), stage(1, "fetch", "completed")]) == ("load", "fetch")


def test_when_all_are_done_the_last_is_the_current_step() -> None:
    """O13."""
    assert steps([stage(0, "fetch", "completed"), stage(1, "load", "completed", 0)]) == ("load", "load")
