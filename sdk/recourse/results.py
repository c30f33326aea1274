"""What a handler may return besides a plain JSON value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Success:
    """The stage is done. `output` is any JSON value; `context` are items to add to the run's context."""

    output: Any = None
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempt failed. The server decides on a retry by `code`; `retryable=False` forbids one (P41, P42)."""

    code: str
    message: str = ""
    retryable: bool | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The stage parks until a decision is given (P77); a later approval completes it with `output`."""

    output: Any = None
