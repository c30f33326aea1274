"""What a run may still spend: attempts and bytes of output, admitted before anything is dispatched.

The ledger is what was done itself: every attempt row carries the allowance that it is charged, frozen, and every
artifact its size. Charged is an attempt that has begun; reserved is what may begin without asking again: every stage
that is claimable or dispatched. Stages that become claimable together are admitted together or not at all, under the
lock of their run, so charged and reserved never exceed the total (I14) and what is left never rises (I13). What is not
admitted fails, with a dead letter. Serves R25–R29, R45.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import Refusal
from pipelines.sql import query
from pipelines.states import CLAIMABLE_STAGE, StageState

if TYPE_CHECKING:
    from pipelines.moves import Moves, RunRow, StageRow

ATTEMPTS, BYTES = "attempts_exhausted", "budget_exhausted"
_RESERVING = CLAIMABLE_STAGE | {StageState.DISPATCHED}


@dataclass(slots=True)
class Charged:
    """What a run has spent."""

    attempts: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why nothing more is dispatched: the code, and the sentence with the figures."""

    code: str
    message: str

    def refusal(self) -> Refusal:
        return Refusal(self.code, self.message)


class Ledger:
    """The budgets of locked runs, within one transaction."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._admitted = {stage.id for stage in moves.stages.values() if stage.state in _RESERVING}
        self._charged: dict[uuid.UUID, Charged] = {}

    def refused(self, run: RunRow) -> list[tuple[StageRow, Shortage]]:
        """Of the stages that have become claimable since the lock: those that may not be dispatched. The others are
        admitted."""
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
        """Why no further attempt of the stage fits in; None admits one."""
        run = self._moves.runs[stage.run_id]
        found = self._of_stage(run, stage) or self._of_run(run, [stage])
        if found is None:
            self._admitted.add(stage.id)
        return found

    def begun(self, stage: StageRow, reserved: int) -> None:
        """An attempt that begins in this transaction, of a stage that was admitted."""
        self._admitted.discard(stage.id)
        if stage.run_id in self._charged:
            self._charged[stage.run_id].attempts += 1
            self._charged[stage.run_id].bytes += reserved

    def charge_artifact(self, run: RunRow, size: int) -> None:
        """Refuses an artifact for which the run's output allowance has no room left: `budget_exhausted`."""
        total = run.limits.total_output_bytes
        needed = self._spent(run).bytes + self._reserved(run, ()) + size
        if needed > total:
            raise Refusal(
                BYTES, f"the artifact needs {size} bytes; {max(0, total - needed + size)} of {total} are left"
            )
        self._charged[run.id].bytes += size

    def _of_stage(self, run: RunRow, stage: StageRow) -> Shortage | None:
        limit = run.limits.attempts_per_stage
        if stage.attempt_number < limit:  # numbers count also what never began
            return None
        ((begun,),) = query(
            "SELECT count(*) FROM pipelines_attempt WHERE stage_id = %s AND started_at IS NOT NULL", [stage.id]
        )
        if begun < limit:
            return None
        return Shortage(ATTEMPTS, f"{stage.name}: all {limit} attempts of the stage are used")

    def _of_run(self, run: RunRow, batch: Sequence[StageRow]) -> Shortage | None:
        limits = run.limits
        if not limits.bound_work:
            return None
        spent = self._spent(run)
        waiting = [stage for stage in run.stages if stage.id in self._admitted and stage not in batch]
        names = ", ".join(stage.name for stage in batch)
        used = spent.attempts + len(waiting)
        if used + len(batch) > limits.total_attempts:
            message = f"{names}: {used} of the run's {limits.total_attempts} attempts are used or reserved"
            return Shortage(ATTEMPTS, message)
        reserved = self._reserved(run, batch)
        needed = sum(limits.allowance(stage.options) for stage in batch)
        if spent.bytes + reserved + needed > limits.total_output_bytes:
            left = limits.total_output_bytes - spent.bytes - reserved
            message = f"{names}: {needed} bytes of output would be reserved; {left} of the run's"
            return Shortage(BYTES, f"{message} {limits.total_output_bytes} are left")
        return None

    def _reserved(self, run: RunRow, but: Sequence[StageRow]) -> int:
        held = [stage for stage in run.stages if stage.id in self._admitted and stage not in but]
        return sum(run.limits.allowance(stage.options) for stage in held)

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
