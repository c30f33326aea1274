"""Runs that a stage starts and waits for: `ctx.runs` of a pipeline, or `Runs(ctx)` in a plain async handler.

    child = await ctx.runs.start("import-day", input={"day": "2026-11-30"}, key="2026-11-30")
    done = await ctx.runs.wait(child)
    if not done.succeeded:
        raise StageFailure("IMPORT_FAILED", str(done.failure))

A child is known by its stage and its key, so an attempt that comes after a crash finds it again and starts no other.
Waiting asks at growing intervals for a few seconds, and then parks: the attempt ends, its worker and its slot are free,
and the handler starts again from its top once the child has ended; `ctx.restored` and the keys take it back to where it
was. How a child ended is a final answer: a failed or cancelled one is not tried again by waiting (N9).

Not promised: that what stands before a `wait` is done once. It is done again after parking, so keep it in checkpoints,
behind keys, or in effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from recourse import clock, links
from recourse.context import StageContext
from recourse.errors import Parked
from recourse.repeating import Backoff

FIRST_SECONDS = 0.1  # between two looks at first; then twice as long each time
PARK_AFTER_SECONDS = 5.0
MOST_AT_ONCE = 1_000  # that are looked at, or parked for
TERMINAL = frozenset({"completed", "failed", "cancelled"})

OnParentEnd = Literal["cancel", "leave"]
Follow = Literal["fork", "original"]


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """Why a child failed: the code and message of the stage at fault, or `deadline_exceeded`."""

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A child as it stood when it was looked at.

    `run_id` is the run that counts, `started_run_id` the one that was started: another, once somebody forked the child
    and forks are followed. `outputs` of a completed one are by stage, those of its last stages; `left_out` names stages
    whose outputs were too large to be told together. `retries_itself`: it failed, and a policy
    will retry it.
    """

    run_id: str
    started_run_id: str
    key: str
    name: str
    status: str
    failure: ChildFailure | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    retries_itself: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL and not self.retries_itself

    @property
    def succeeded(self) -> bool:
        return self.status == "completed"

    @property
    def output(self) -> Any:
        """What the one last stage of the child put out; of a child with several, ask `outputs`."""
        if len(self.outputs) != 1:
            named = ", ".join(self.outputs) or "none"
            raise ValueError(f"the run has no single output; there are outputs of: {named}")
        return next(iter(self.outputs.values()))


class Runs:
    """The runs that one stage starts. For async handlers; everything waits for the console's answer."""

    def __init__(self, stage: StageContext) -> None:
        self._stage = stage

    async def start(
        self,
        pipeline: str | None = None,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002
        key: str | None = None,
        name: str | None = None,
        stages: Sequence[Mapping[str, Any]] | None = None,
        environment: str | None = None,
        on_parent_end: OnParentEnd = "cancel",
        follow: Follow = "fork",
    ) -> ChildRun:
        """Starts a run of a managed pipeline, or of inline `stages` under a `name`; or finds the one that the key, by
        default the pipeline's or the run's name, stands for in this stage. Give keys where it starts several alike.

        `on_parent_end`: whether the child is cancelled, or left to go on, when the run of this stage ends. `follow`:
        whether a fork of the child takes its place. Raises `StageFailure` (RUN_REFUSED) where the console refuses it,
        `Stopped` when the attempt is not ours any more or is to stop.
        """
        if not (pipeline or name):
            raise ValueError("name a pipeline, or give stages with a name")
        body: dict[str, Any] = {
            "executionId": self._stage.execution_id,
            "key": key or pipeline or name,
            "onParentEnd": on_parent_end,
            "follow": follow,
        }
        said = {"pipeline": pipeline, "name": name, "stages": stages, "input": input, "environment": environment}
        body |= {field_name: value for field_name, value in said.items() if value is not None}
        told = await asyncio.to_thread(links.store_first, self._stage.link, self._stage.control, "runs", body)
        return _child(told["run"])

    async def get(self, child: ChildRun | str) -> ChildRun:
        """How a child of this stage stands now; given as what `start` returned, or by its run's id."""
        (seen,) = await self._look([child])
        return seen

    async def wait(self, child: ChildRun | str) -> ChildRun:
        """The child once it has ended, however it ended. May end this attempt meanwhile, and start the handler anew
        afterwards: see above. Let what it raises pass through.
        """
        (ended,) = await self.wait_all([child])
        return ended

    async def wait_all(self, children: Iterable[ChildRun | str]) -> list[ChildRun]:
        """The same of several, in their order: once all have ended."""
        wanted = list(children)
        if not wanted:
            return []
        park_at, backoff = clock.now() + PARK_AFTER_SECONDS, Backoff(FIRST_SECONDS, PARK_AFTER_SECONDS)
        while True:
            seen = await self._look(wanted)
            open_runs = [one.run_id for one in seen if not one.is_terminal]
            if not open_runs:
                return seen
            left = park_at - clock.now()
            if left <= 0 or self._stage.pause_requested:
                raise Parked(open_runs[:MOST_AT_ONCE])
            await asyncio.sleep(min(backoff.next(), left))

    async def _look(self, wanted: Sequence[ChildRun | str]) -> list[ChildRun]:
        # by the run that was started: the one that counts may be another by now
        ids = [one if isinstance(one, str) else one.started_run_id for one in wanted]
        seen: list[ChildRun] = []
        for start in range(0, len(ids), MOST_AT_ONCE):
            body = {"executionId": self._stage.execution_id, "runs": ids[start : start + MOST_AT_ONCE]}
            told = await asyncio.to_thread(links.store_first, self._stage.link, self._stage.control, "runs/look", body)
            seen += [_child(one) for one in told["runs"]]
        return seen


def _child(told: Mapping[str, Any]) -> ChildRun:
    failure = told.get("failure")
    return ChildRun(
        run_id=told["runId"],
        started_run_id=told["startedRunId"],
        key=told["key"],
        name=told["name"],
        status=told["status"],
        failure=ChildFailure(failure["code"], failure["message"]) if failure else None,
        outputs=told.get("outputs") or {},
        left_out=tuple(told.get("leftOut") or ()),
        retries_itself=told["status"] in TERMINAL and told.get("isTerminal") is False,
    )
