"""What a pipeline written as code receives: `async def run(ctx)`. Everything that reaches the console is awaited.

It stands over the plain `StageContext`, which `ctx.stage` is. Adapters, store and child runs are loaded when they are
first asked for, so that a pipeline that needs none of them installs none of what they need. Serves N14, N16, N17.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recourse.context import StageContext, StoredArtifact
from recourse.effects import Effect, EffectClass
from recourse.errors import StageFailure

if TYPE_CHECKING:
    from recourse.adapters import Adapters
    from recourse.children import Runs
    from recourse.store import Store

MOST_NAMED = 20


class Params(Mapping[str, Any]):
    """The members of the stage's input object. One that is not there fails the stage, for good, with
    MISSING_REQUIRED_DATA, naming it and those that are (N16); `get` and `in` ask without failing.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise StageFailure("MISSING_REQUIRED_DATA", self._missing(name), retryable=False) from None

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Params({', '.join(self._values) or 'none'})"

    def _missing(self, name: str) -> str:
        there = list(self._values)
        told = ", ".join(there[:MOST_NAMED]) + (f" and {len(there) - MOST_NAMED} more" if there[MOST_NAMED:] else "")
        return f"the run was given no parameter {name!r}; it was given {told or 'none'}"


class Logger:
    """Lines of the attempt's log: a message for people, and fields to search by (N17)."""

    def __init__(self, stage: StageContext) -> None:
        self._stage = stage

    async def debug(self, message: str, /, **fields: Any) -> None:
        self._stage.log("debug", message, **fields)

    async def info(self, message: str, /, **fields: Any) -> None:
        self._stage.log("info", message, **fields)

    async def warning(self, message: str, /, **fields: Any) -> None:
        self._stage.log("warning", message, **fields)

    async def error(self, message: str, /, **fields: Any) -> None:
        self._stage.log("error", message, **fields)


class Context:
    """The view that a pipeline's own code has of one attempt of one of its stages."""

    def __init__(self, stage: StageContext) -> None:
        self.stage = stage
        self.logger = Logger(stage)

    @cached_property
    def params(self) -> Params:
        """The stage's input object: what the run was given. Nothing given is no parameter; an input that is no object
        fails the stage with VALIDATION_ERROR.
        """
        given = self.stage.json()
        if given is None:
            given = {}
        if not isinstance(given, dict):
            told = f"the input is a JSON {_kind(given)}; parameters come in an object"
            raise StageFailure("VALIDATION_ERROR", told, retryable=False)
        return Params(given)

    @property
    def dependencies(self) -> Mapping[str, Any]:
        """What the stages returned that this one needs, by stage name."""
        return self.stage.dependencies

    @property
    def run_id(self) -> str:
        return self.stage.run_id

    @property
    def attempt(self) -> int:
        return self.stage.attempt

    @property
    def idempotency_key(self) -> str:
        """Stable over all attempts of the stage in one epoch: for an outside system that knows such keys."""
        return self.stage.idempotency_key

    @property
    def cancelled(self) -> bool:
        """True once this attempt should stop. Look here before what takes long, and before every effect."""
        return self.stage.cancelled

    @property
    def restored(self) -> Any:
        """The state that was stored last; None when there is none. Go on from there."""
        return self.stage.restored

    async def checkpoint(self, state: Any, posture: Mapping[str, Any] | None = None) -> None:
        """Stores JSON (at most 256 KiB) durably: the next attempt has it as `restored`. See `StageContext.checkpoint`,
        also for what it raises.
        """
        await self.stage.checkpoint_async(state, posture)

    async def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Says how far it is; only the newest word is sent, within seconds."""
        self.stage.progress(percent, message)

    def effect(self, effect_class: EffectClass, step: str = "", key: str | None = None, request: Any = None) -> Effect:
        """An act outside the run, for `async with`: intent before it, outcome after it. See `StageContext.effect`."""
        return self.stage.effect(effect_class, step, key, request)

    async def artifact(
        self, name: str, data: bytes | os.PathLike[str], media_type: str | None = None
    ) -> StoredArtifact:
        """Stores bytes, or a file's, durably under a name of this attempt."""
        return await self.stage.artifact_async(name, data, media_type)

    @cached_property
    def adapters(self) -> Adapters:
        """The outside systems by their connector's name: `await ctx.adapters.postgres.write(rows, op="upsert")`."""
        from recourse.adapters import Adapters

        return Adapters(self.stage)

    @cached_property
    def workspace(self) -> Store:
        """The workspace's keyed tables, which outlive a failed run: `await ctx.workspace.read("progress")`."""
        from recourse.store import Store

        return Store(self.stage)

    @cached_property
    def runs(self) -> Runs:
        """Runs that this one starts and waits for: `await ctx.runs.wait(await ctx.runs.start("report"))`."""
        from recourse.children import Runs

        return Runs(self.stage)

    @property
    def nexus(self) -> Runs:
        """Another name of `runs`."""
        return self.runs


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "list"
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"
