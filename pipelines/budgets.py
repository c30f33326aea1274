"""What a run may still spend: attempts and bytes of output, admitted before anything is dispatched.

The ledger is what was done itself: every attempt row carries the allowance that it is charged, frozen, and every
artifact its size. Charged is an attempt that has begun; reserved is what may begin without asking again: every stage
that is claimable or dispatched. Stages that become claimable together are admitted together or not at all, under the
lock of their run, so charged and reserved never exceed the total (I14) and what is left never rises (I13). What is not
admitted fails, with a dead letter. Serves R25–R29, R45.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import Refusal
from pipelines.limits import Limits
from pipelines.sql import query
from pipelines.states import CLAIMABLE_STAGE, StageState

if TYPE_CHECKING:
    from pipelines.moves import Moves, RunRow, StageRow

ATTEMPTS, BYTES = "attempts_exhausted", "budget_exhausted"
RESERVING = CLAIMABLE_STAGE | {StageState.DISPATCHED}


@dataclass(slots=True)
class Charged:
    """What a run has spent."""

    attempts: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why nothing more is dispatched: the code, the sentence with the figures, and the limit with what is used of it,
    charged or reserved."""

    code: str
    message: str
    limit: str
    used: int
    most: int

    def refusal(self, instead: str = "") -> Refusal:
        """What people are answered; `instead` says what remains to them."""
        detail = f"{self.message}; {instead}" if instead else self.message
        return Refusal(self.code, detail, extra={"limit": self.limit, "used": self.used, "most": self.most})


def of_stage(limits: Limits, name: str, begun: int) -> Shortage | None:
    """Why a stage of which so many attempts have begun may have no other. Pure."""
    most = limits.attempts_per_stage
    if begun < most:
        return None
    return Shortage(ATTEMPTS, f"{name}: all {most} attempts of the stage are used", "attempts_per_stage", begun, most)


def of_run(limits: Limits, spent: Charged, held: Collection[int], batch: Sequence[tuple[str, int]]) -> Shortage | None:
    """Why stages (name, allowance in bytes) may not be dispatched together beside what is charged, and what is
    reserved: `held`, an allowance for each stage that may begin without asking. Pure."""
    names = ", ".join(name for name, _ in batch)
    used = spent.attempts + len(held)
    if used + len(batch) > limits.total_attempts:
        message = f"{names}: {used} of the run's {limits.total_attempts} attempts are used or reserved"
        return Shortage(ATTEMPTS, message, "total_attempts", used, limits.total_attempts)
    total, taken = limits.total_output_bytes, spent.bytes + sum(held)
    needed = sum(allowance for _, allowance in batch)
    if taken + needed > total:
        message = f"{names}: {needed} bytes of output would be reserved; {total - taken} of the run's {total} are left"
        return Shortage(BYTES, message, "total_output_bytes", taken, total)
    return None


class Ledger:
    """The budgets of locked runs, within one transaction."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._admitted = {stage.id for stage in moves.stages.values() if stage.state in RESERVING}
        self._charged: dict[uuid.UUID, Charged] = {}

    def refused(self, run: RunRow) -> list[tuple[StageRow, Shortage]]:
        """Of the stages that have become claimable since the lock: those that may not be dispatched. The others are
        admitted."""
        self._forget_what_left()
        batch = [stage for stage in run.stages if stage.state in CLAIMABLE_STAGE and stage.id not in self._admitted]
        if not batch:
            return []
        refused = [(stage, shortage) for stage in batch if (shortage := self._of_stage(run, stage))]
        if not refused and (shortage := self._of_run(run, batch)):
            refused = [(stage, shortage) for stage in batch]
        if not refused:
            self._admitted |= {stage.id for stage in batch}
        return refused

    def shortage(self, stage: StageRow) -> Shortage | None:
        """Why no further attempt of the stage fits in; None admits one, and the stage must become claimable next."""
        self._forget_what_left()
        run = self._moves.runs[stage.run_id]
        found = self._of_stage(run, stage) or self._of_run(run, [stage])
        if found is None:
            self._admitted.add(stage.id)
        return found

    def begun(self, stage: StageRow, reserved: int) -> None:
        """An attempt that begins in this transaction, of a stage that was admitted; its row is not written yet."""
        self._admitted.discard(stage.id)
        run = self._moves.runs[stage.run_id]
        if run.limits.bound_work:
            spent = self._spent(run)
            spent.attempts += 1
            spent.bytes += reserved

    def charge_artifact(self, run: RunRow, size: int) -> None:
        """Refuses an artifact for which the run's output allowance has no room left: `budget_exhausted`."""
        self._forget_what_left()
        total = run.limits.total_output_bytes
        taken = self._spent(run).bytes + sum(self._held(run, ()))
        if taken + size > total:
            message = f"the artifact needs {size} bytes; {max(0, total - taken)} of {total} are left"
            raise Shortage(BYTES, message, "total_output_bytes", taken, total).refusal()
        self._charged[run.id].bytes += size

    def _forget_what_left(self) -> None:
        """What was admitted and is neither claimable nor dispatched any more has begun, or asks anew."""
        self._admitted = {one for one in self._admitted if self._moves.stages[one].state in RESERVING}

    def _of_stage(self, run: RunRow, stage: StageRow) -> Shortage | None:
        if stage.attempt_number < run.limits.attempts_per_stage:  # numbers count also what never began
            return None
        ((begun,),) = query(
            "SELECT count(*) FROM pipelines_attempt WHERE stage_id = %s AND started_at IS NOT NULL", [stage.id]
        )
        return of_stage(run.limits, stage.name, begun)

    def _of_run(self, run: RunRow, batch: Sequence[StageRow]) -> Shortage | None:
        limits = run.limits
        if not limits.bound_work:
            return None
        told = [(stage.name, limits.allowance(stage.options)) for stage in batch]
        return of_run(limits, self._spent(run), self._held(run, batch), told)

    def _held(self, run: RunRow, but: Sequence[StageRow]) -> list[int]:
        held = [stage for stage in run.stages if stage.id in self._admitted and stage not in but]
        return [run.limits.allowance(stage.options) for stage in held]

    def _spent(self, run: RunRow) -> Charged:
        if run.id not in self._charged:
            ids = list(self._moves.runs)
            self._charged = {run_id: Charged() for run_id in ids}
            for run_id, attempts, charged in query(
                "SELECT s.run_id, count(*), coalesce(sum(a.reserved), 0)::bigint FROM pipelines_stage s"
                " JOIN pipelines_attempt a ON a.stage_id = s.id AND a.started_at IS NOT NULL"
                " WHERE s.run_id = ANY(%s) GROUP BY s.run_id",
                [ids],
            ):
                self._charged[run_id] = Charged(attempts, charged)
            for run_id, size in query(
                "SELECT run_id, sum(size)::bigint FROM pipelines_artifact WHERE run_id = ANY(%s) GROUP BY run_id", [ids]
            ):
                self._charged[run_id].bytes += size
        return self._charged[run.id]
