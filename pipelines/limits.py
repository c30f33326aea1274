"""The limits of a run, pinned with it from its release: pure. What is left out has a recorded default.

They count over all epochs and never grow back. The defaults are wide: they stop what runs away, and nothing else.
Serves R25, R26, R32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
DEFAULT_MAX_OUTPUT_BYTES: Final = 256 * KIB  # of one attempt, where the stage's options say nothing
LARGEST_OUTPUT: Final = 16 * MIB
MOST_ATTEMPTS: Final = 1_000_000
MOST_BYTES: Final = 2**50
TEN_YEARS: Final = 10 * 366 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and seconds. `deadline_seconds` None: no deadline."""

    concurrency: int = 100  # active stages at a time
    attempts_per_stage: int = 10_000
    total_attempts: int = MOST_ATTEMPTS
    output_bytes_per_stage: int = LARGEST_OUTPUT  # what one attempt may return
    total_output_bytes: int = MOST_BYTES  # what all attempts are charged, and all artifacts
    deadline_seconds: int | None = None
    revisions: int = 1_000  # reruns, retries with downstream, edits of input

    @classmethod
    def of(cls, told: Mapping[str, Any] | None) -> Limits:
        """What was told, with defaults for the rest; of a run older than limits, the defaults."""
        return cls(**{name: value for name, value in (told or {}).items() if value is not None})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def allowance(self, options: Mapping[str, Any]) -> int:
        """The bytes that an attempt of a stage with these options is charged, whatever it returns."""
        return min(options.get("max_output_bytes") or DEFAULT_MAX_OUTPUT_BYTES, self.output_bytes_per_stage)

    @property
    def bound_work(self) -> bool:
        """Whether attempts or bytes may run out before single stages' own limits do; else nothing need be counted."""
        return self.total_attempts < MOST_ATTEMPTS or self.total_output_bytes < MOST_BYTES


def problems(told: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is wrong with limits beside these stages {options}: (path, message). Types and ranges are checked before."""
    limits = Limits.of(told)
    found = []
    for position, stage in enumerate(stages):
        wanted = (stage.get("options") or {}).get("max_output_bytes")
        if wanted is not None and wanted > limits.output_bytes_per_stage and "output_bytes_per_stage" in told:
            message = f"is {wanted}, above the {limits.output_bytes_per_stage} of limits.output_bytes_per_stage"
            found.append((f"stages[{position}].options.max_output_bytes", message))
    largest = max((limits.allowance(stage.get("options") or {}) for stage in stages), default=0)
    if largest > limits.total_output_bytes:
        message = f"is {limits.total_output_bytes}, less than the {largest} that one attempt of a stage is charged"
        found.append(("limits.total_output_bytes", message))
    if limits.attempts_per_stage > limits.total_attempts and "attempts_per_stage" in told:
        message = f"is {limits.attempts_per_stage}, above the {limits.total_attempts} of limits.total_attempts"
        found.append(("limits.attempts_per_stage", message))
    return found


def narrowed(release: Limits, told: Mapping[str, Any]) -> tuple[Limits, list[tuple[str, str]]]:
    """A release's limits with what a run wants less of; and what is wrong where it wants more."""
    wide = release.as_json()
    found = [
        (f"limits.{name}", f"must be at most {wide[name]}, the limit of the release")
        for name, value in told.items()
        if wide[name] is not None and value > wide[name]
    ]
    return Limits.of({**wide, **told}), found
