"""`@stage`, `@pipeline` and `Retries`: a pipeline's shape, said beside the code that does the work. Pure.

    @stage(effects="none")
    async def read(ctx: Context) -> list[int]: ...

    @stage(needs=[read], retries=Retries(times=5, every=10, backoff="exponential"))
    async def send(ctx: Context) -> dict[str, int]: ...

    nightly = pipeline("nightly", stages=[read, send])

Only the shape is checked here; what the console takes, it says when the pipeline is deployed. Serves N14, N16.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from inspect import getdoc, iscoroutinefunction
from typing import Any, Literal, overload

from recourse.authoring.context import Context
from recourse.errors import ConfigurationError
from recourse.handlers import Recipient

Body = Callable[[Context], Awaitable[Any]]
Effects = Literal["none", "idempotent", "external"]

_SLUG = re.compile(r"[A-Za-z0-9_-]{1,100}")
MOST_SOURCE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a stage is tried again by itself after its first attempt, and how far apart, in seconds.

    `on`: only for these error codes; none named: for all that may pass. `most`: no wait is longer.
    """

    times: int
    every: float
    backoff: Literal["fixed", "linear", "exponential"] = "fixed"
    most: float | None = None
    jitter: bool = False
    on: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.times < 1 or self.every <= 0:
            raise ConfigurationError("retries are at least 1 time, every more than 0 seconds; for none leave them out")
        if isinstance(self.on, str):
            raise ConfigurationError(f"on= takes a list of error codes: on=[{self.on!r}]")

    def as_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_retries": self.times,
            "retry_interval": self.every,
            "backoff": self.backoff,
            "jitter": self.jitter,
        }
        if self.most is not None:
            options["max_retry_interval"] = self.most
        if self.on:
            options["retry_on_error_codes"] = list(self.on)
        return options


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a pipeline is written in, as the console keeps it with the release."""

    file: str
    text: str

    @property
    def sha256(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    def as_wire(self) -> dict[str, str]:
        return {"file": self.file, "sha256": self.sha256, "text": self.text}


@dataclass(frozen=True, slots=True)
class Stage:
    """One marked function: called as it was written, known to its pipeline by `name`."""

    function: Body
    name: str
    told: Mapping[str, Any] = field(default_factory=dict)  # in the words of definitions
    needs: tuple[str, ...] = ()
    recipients: tuple[Recipient, ...] = ()

    def __call__(self, ctx: Context) -> Awaitable[Any]:
        return self.function(ctx)

    def definition(self, slug: str) -> dict[str, Any]:
        described: dict[str, Any] = {"name": self.name, "handler": f"{slug}.{self.name}"}
        if self.needs:
            described["needs"] = list(self.needs)
        if self.recipients:
            described["recipients"] = [one.as_wire() for one in self.recipients]
        return described | dict(self.told)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A slug and its stages: what `recourse deploy` makes a release of, and `recourse worker run` runs."""

    slug: str
    name: str
    stages: tuple[Stage, ...]
    description: str = ""
    input_schema: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] | None = None

    def definition(self, source: Source | None = None) -> dict[str, Any]:
        """The document that the console takes; `source` makes changed code a new release."""
        document: dict[str, Any] = {
            "slug": self.slug,
            "name": self.name,
            "description": self.description,
            "stages": [stage.definition(self.slug) for stage in self.stages],
        }
        for key, value in (("limits", self.limits), ("input_schema", self.input_schema)):
            if value is not None:
                document[key] = dict(value)
        if source is not None:
            document["source"] = source.as_wire()
        return document


@overload
def stage(function: Body, /) -> Stage: ...


@overload
def stage(
    *,
    needs: Sequence[Stage | str] = (),
    retries: Retries | None = None,
    effects: Effects | None = None,
    declares_effects: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    input: Any = None,
    approval: Mapping[str, Any] | None = None,
    recipients: Sequence[Recipient] = (),
    run_next_if_failed: bool = False,
    max_output_bytes: int | None = None,
    max_recoveries: int | None = None,
) -> Callable[[Body], Stage]: ...


def stage(
    function: Body | None = None,
    /,
    *,
    needs: Sequence[Stage | str] = (),
    retries: Retries | None = None,
    effects: Effects | None = None,
    declares_effects: bool = False,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    input: Any = None,  # noqa: A002
    approval: Mapping[str, Any] | None = None,
    recipients: Sequence[Recipient] = (),
    run_next_if_failed: bool = False,
    max_output_bytes: int | None = None,
    max_recoveries: int | None = None,
) -> Stage | Callable[[Body], Stage]:
    """Marks an async function as a stage of its name, described by its docstring.

    `needs`: the stages that must be done before; where no stage of a pipeline needs any, they run one after another.
    `effects`: what a lost worker means (`none` and `idempotent` run again, `external` waits for a person);
    `declares_effects`: every act outside goes through `ctx.effect`, so that where none is noted none was done.
    Else as in definitions: docs/howto/pipelines-as-code.md.
    """
    if isinstance(needs, str | Stage):
        raise ConfigurationError("needs= takes a list of stages: needs=[read]")

    def mark(function: Body) -> Stage:
        _require_async(function, "a stage")
        options = {} if retries is None else retries.as_options()
        said = {"timeout": timeout, "max_output_bytes": max_output_bytes, "max_recoveries": max_recoveries}
        options |= {key: value for key, value in said.items() if value is not None}
        told = {
            "input": input,
            "description": _described(function) if description is None else description,
            "effect_mode": effects,
            "effect_protocol": "intent" if declares_effects else None,
            "approval": None if approval is None else dict(approval),
            "run_next_if_failed": run_next_if_failed or None,
            "options": options,
        }
        return Stage(
            function,
            name or _name_of(function),
            {key: value for key, value in told.items() if value not in (None, "", {})},
            tuple(one if isinstance(one, str) else one.name for one in needs),
            tuple(recipients),
        )

    return mark if function is None else mark(function)


@overload
def pipeline(
    slug: str,
    *,
    stages: Sequence[Stage],
    name: str | None = None,
    description: str | None = None,
    params: Sequence[str] | Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Pipeline: ...


@overload
def pipeline(
    slug: str,
    *,
    stages: None = None,
    name: str | None = None,
    description: str | None = None,
    params: Sequence[str] | Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Callable[[Body | Stage], Pipeline]: ...


def pipeline(
    slug: str,
    *,
    stages: Sequence[Stage] | None = None,
    name: str | None = None,
    description: str | None = None,
    params: Sequence[str] | Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Pipeline | Callable[[Body | Stage], Pipeline]:
    """A pipeline of `stages`, or of the one function that it decorates, which may be a `@stage`.

    `params`: the names that every run must be given, and no others; or a JSON Schema (2020-12) of a run's input.
    `limits`: of its runs, in the words of definitions.
    """
    if not isinstance(slug, str) or not is_slug(slug):
        raise ConfigurationError(
            f"a pipeline's slug has 1 to 100 letters, digits, hyphens and underscores, not {slug!r}"
        )

    def make(stages: Sequence[Stage]) -> Pipeline:
        _check(slug, stages)
        return Pipeline(slug, name or slug, tuple(stages), description or "", _schema(params), limits)

    def decorate(function: Body | Stage) -> Pipeline:
        return make([function if isinstance(function, Stage) else stage(function)])

    return decorate if stages is None else make(stages)


def is_slug(text: str) -> bool:
    return _SLUG.fullmatch(text) is not None


def bare(function: Body, slug: str) -> Pipeline:
    """The pipeline of a file that holds nothing but `async def run(ctx)`."""
    return pipeline(slug)(function)


def _check(slug: str, stages: Sequence[Stage]) -> None:
    """What would be told of other stages than were meant."""
    for one in stages:
        if not isinstance(one, Stage):
            raise ConfigurationError(f"pipeline {slug!r}: {one!r} is no stage; mark the function with @stage")
    names = [one.name for one in stages]
    if not names:
        raise ConfigurationError(f"pipeline {slug!r} has no stage")
    for at, one in enumerate(stages):
        if one.name in names[:at]:
            raise ConfigurationError(f"pipeline {slug!r}: two stages are named {one.name!r}; give one of them a name=")
        for needed in one.needs:
            if needed not in names:
                told = f"stage {one.name!r} needs {needed!r}, which is not among its stages: {', '.join(names)}"
                raise ConfigurationError(f"pipeline {slug!r}: {told}")


def _schema(params: Sequence[str] | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if params is None or isinstance(params, Mapping):
        return params
    if isinstance(params, str):
        raise ConfigurationError(f"params= takes a list of names: params=[{params!r}]")
    names = list(dict.fromkeys(params))
    return {
        "type": "object",
        "properties": {name: {} for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _require_async(function: object, what: str) -> None:
    if not iscoroutinefunction(function):
        raise ConfigurationError(f"{what} is an async function; write: async def {_name_of(function)}(ctx)")


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", "run"))


def _described(function: object) -> str:
    return getdoc(function) or ""
