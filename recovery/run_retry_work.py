"""Runs that failed, done again by themselves: decided as they fail, carried out by a sweep through the front door.

    failed by its stages → decided, in that transaction → due → done | refused | called_off, once

The sweep locks the run, looks again, and does what a person would ask for: it plans, is judged, keeps operations, and
leaves audit events, in the name of its policy. Where any of it is refused nothing of it stays but the refusal: nobody
is asked, nothing is tried again, and a dead letter stays open. A run that is made, and the row that says so,
commit together: whoever dies when, there is one for each number at the most (I10, I11). Serves N1, N2, N4, I15, I19.

Limits: what holds it back is a blackout, and a database that is away; anything else ends it. Runs whose retries are due
begin a few at a time; how soon after they are due depends on how many there are.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, transaction

from pipelines import audit, policies
from pipelines.access import RECOVER, Actor
from pipelines.audit import INTERNAL_ERROR, NO_OP, Entry, audited, standing
from pipelines.errors import Refusal
from pipelines.models import Policy, PolicyKind, PolicyStatus, Role, Run
from pipelines.moves import Moves, RunRow, StageRow, event_row, insert_events
from pipelines.sql import database_now, query
from pipelines.states import OPEN_DEAD_LETTER, RunStatus, StageState
from pipelines.transitions import lock_run
from recovery import forks, operations, revisions, run_retries, run_retry_rows, transitions
from recovery.dispositions import Verdict
from recovery.models import Operation, RunRetry
from recovery.plans import AND_DOWNSTREAM, STAGE_ONLY, Asked, Plan, check_blackout
from recovery.run_retries import Failed, Failure
from recovery.states import (
    PENDING_OPERATION,
    RUN_RETRY_MOVES,
    Disposition,
    OperationKind,
    RetryMode,
    RunRetryState,
)

log = structlog.get_logger(__name__)
CHANNEL = "policy"
STOP = "run_retry.stop"
ENDED_WITH_PARENT = "the run that had started it has ended, and it was to end with that"
MOST_LOOKED_AT = 10_000  # that are due, each sweep


# As runs fail.


def decide_failed(moves: Moves, runs: Sequence[RunRow]) -> None:
    """Decides on runs that have just failed, and keeps why. One statement where no policy rules any of them (N1)."""
    known = policies.of_runs({run.workspace_id for run in runs})
    ruled = [run for run in runs if run.workspace_id in known]
    if not ruled:
        return
    slugs = _slugs([run.id for run in ruled])
    used = run_retry_rows.used([run.id for run in ruled])
    kept = []
    for run in ruled:
        pipeline, environment = slugs[run.id]
        found = known[run.workspace_id]
        policy = run_retries.ruling([one for _, one in found], pipeline=pipeline, environment=environment)
        if policy is None:
            continue
        policy_id = next(one_id for one_id, one in found if one is policy)
        decision = run_retries.decide(policy, _as_it_failed(moves, run, used.get(run.id, 0)))
        due_at = moves.now + timedelta(seconds=decision.delay) if decision.delay is not None else None
        kept.append(
            RunRetry(
                workspace_id=run.workspace_id,
                run_id=run.id,
                failed_at=moves.now,
                policy=policy_id,
                policy_name=policy.name,
                mode=decision.mode,
                number=decision.number,
                decision=decision.as_json(),
                explanation=decision.explanation,
                due_at=due_at,
                state=RunRetryState.DUE if due_at else RunRetryState.DECLINED,
                ended_at=None if due_at else moves.now,
            )
        )
        kind = "run.retry_due" if due_at else "run.retry_declined"
        moves.event(kind, run.id, reason=decision.explanation, data={"due_at": due_at.isoformat() if due_at else None})
    # what was due from an earlier end, which was gone on with without anybody's operation
    run_retry_rows.call_off({one.run_id: "the run was gone on with, and failed again" for one in kept}, "")
    RunRetry.objects.bulk_create(kept)


def _as_it_failed(moves: Moves, run: RunRow, used: int) -> Failed:
    failures = tuple(
        Failure(stage.name, stage.last_error_code, stage.failure_disposition) for stage in _at_fault(run.stages)
    )
    left = (run.deadline_at - moves.now).total_seconds() if run.deadline_at else None
    return Failed(failures, used, left, seed=str(run.id))


def _at_fault(stages: Sequence[StageRow]) -> list[StageRow]:
    return [stage for stage in stages if stage.state == StageState.FAILED and not stage.run_next_if_failed]


def _slugs(run_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, tuple[str, str]]:
    rows = query(
        "SELECT r.id, coalesce(p.slug, ''), e.slug FROM pipelines_run r JOIN pipelines_environment e"
        " ON e.id = r.environment_id LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id WHERE r.id = ANY(%s)",
        [list(run_ids)],
    )
    return {run_id: (pipeline, environment) for run_id, pipeline, environment in rows}


# Called off by a person.


def stop(run_id: uuid.UUID, *, actor: Actor, reason: str = "") -> RunRetry:
    """due → called_off: the run stays failed until a person does something about it. Again: the same, nothing changed.

    Refused where nothing was due: `execution_state_invalid`.
    """
    with audited(actor, STOP, run=run_id, reason=reason) as entry:
        _, run = lock_run(run_id, actor)
        actor.require(RECOVER)
        entry.before = standing(run)
        rows = RunRetry.objects.filter(run_id=run_id).order_by("-decided_at", "-id")
        retry = rows.select_for_update(no_key=True).first()
        if retry is None or retry.state not in (RunRetryState.DUE, RunRetryState.CALLED_OFF):
            raise Refusal("execution_state_invalid", "the run is not to be retried by itself: there is nothing to stop")
        entry.data |= {"run_retry": str(retry.id), "policy": retry.policy_name, "number": retry.number}
        if retry.state == RunRetryState.CALLED_OFF:
            entry.outcome = NO_OP
        else:
            run_retry_rows.call_off({run_id: reason or f"{actor.name} called it off"}, actor.name)
            retry.refresh_from_db()
    return retry


# What time alone does.


@dataclass(frozen=True, slots=True)
class _Due:
    id: uuid.UUID
    run_id: uuid.UUID
    workspace_id: uuid.UUID
    policy_name: str


def carry_on(limit: int = 50) -> int:
    """Carries out what is due and no blackout holds, oldest first; says how many were dealt with. Each stands for
    itself; what somebody else holds is met again."""
    rows = query(
        """
        WITH due AS MATERIALIZED (
            SELECT t.id, t.run_id, t.due_at, t.policy_name, r.workspace_id, r.environment_id, r.trigger_id
            FROM recovery_runretry t JOIN pipelines_run r ON r.id = t.run_id
            WHERE t.state = 'due' AND t.due_at <= recourse_now() ORDER BY t.due_at, t.id LIMIT %s
        ), place AS MATERIALIZED (SELECT DISTINCT workspace_id, environment_id, trigger_id FROM due), open AS (
            SELECT * FROM place
            WHERE recourse_blackout(workspace_id, environment_id, trigger_id, recourse_now()) IS NULL
        )
        SELECT due.id, due.run_id, due.workspace_id, due.policy_name FROM due JOIN open
            ON open.workspace_id = due.workspace_id AND open.environment_id = due.environment_id
                AND open.trigger_id IS NOT DISTINCT FROM due.trigger_id
        ORDER BY due.due_at, due.id LIMIT %s
        """,
        [MOST_LOOKED_AT, limit],
    )
    return sum(_carry_out(_Due(*row)) for row in rows)


def _carry_out(due: _Due) -> bool:
    try:
        return _settle(due)
    except (OperationalError, InterfaceError):
        raise  # the database is away: all of it waits
    except Exception:
        log.exception("run_retries.failed", run_retry=str(due.id))
        return _give_up(due)


def _settle(due: _Due) -> bool:
    """Done, refused or called off, in one transaction; False: it waits, or somebody else has it."""
    # a policy acts as those may who make policies
    actor = Actor(run_retries.called(due.policy_name), due.workspace_id, CHANNEL, role=Role.ADMIN)
    with transaction.atomic():
        run = Moves.lock([due.run_id], actor=actor.name, skip_locked=True).runs.get(due.run_id)
        retry = _still_due(due) if run else None
        if run is None or retry is None:
            return False
        if why := _overtaken(retry, run):
            run_retry_rows.call_off({run.id: why}, "")
            return True
        trial = _Trial(retry, actor)
        try:
            with transaction.atomic():
                made = None
                if retry.mode == RetryMode.NEW_RUN:
                    made = _as_new_run(trial)
                else:
                    _in_place(trial)
                if run.parent_id is not None and _ended_meanwhile(run, made):
                    raise _ParentEnded
        except _ParentEnded:
            run_retry_rows.call_off({run.id: ENDED_WITH_PARENT}, "")
            return True
        except Refusal as refusal:
            if refusal.code == "blackout_active":
                return False
            _refuse(retry, trial, refusal)
        else:
            _keep(retry, "carry_out", made=made, operations=[str(one.id) for one in trial.kept])
            retry_told = {"number": retry.number, "made": str(made) if made else None}
            insert_events(
                [event_row(run.id, "run.retry_done", actor=actor.name, reason=retry.explanation, data=retry_told)]
            )
        audit.write_all(actor, trial.events)
    return True


def _still_due(due: _Due) -> RunRetry | None:
    return RunRetry.objects.select_for_update(no_key=True).filter(id=due.id, state=RunRetryState.DUE).first()


def _overtaken(retry: RunRetry, run: RunRow) -> str:
    """Why it is not carried out any more; blank: it is."""
    if run.status != RunStatus.FAILED:
        return f"the run is {run.status} by now"
    ended = datetime.fromisoformat(run.finished_at) if isinstance(run.finished_at, str) else run.finished_at
    if ended != retry.failed_at:
        return "the run was gone on with, and failed again"
    if run.parent_id is not None and _ended_with_parent([run.id]):
        return ENDED_WITH_PARENT
    policy = Policy.objects.filter(id=retry.policy, workspace_id=retry.workspace_id).first()
    if policy is None:
        return f"policy {retry.policy_name} is there no more"
    if policy.status != PolicyStatus.ACTIVE or policy.kind != PolicyKind.RUN_RETRY:
        return f"policy {policy.name} is {policy.status}"
    waiting = Operation.objects.filter(run_id=run.id, kind__in=operations.TAKING_OVER, state__in=PENDING_OPERATION)
    if asked := waiting.select_related("requested_by").order_by("created_at").first():
        return f"the {asked.kind} that {asked.asker} asked for waits for others"
    return ""


class _ParentEnded(Exception):
    """Raised to undo what was done for a child that was to end with its parent, which has ended."""


def _ended_meanwhile(run: RunRow, made: uuid.UUID | None) -> bool:
    """Whether the parent has ended, asked last and with the links locked: an end that comes after that finds the child
    alive, and cancels it. Whoever holds links waits for nothing more."""
    mine = [run.id, *([made] if made else [])]
    query("SELECT id FROM pipelines_childrun WHERE run_id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", [mine])
    return _ended_with_parent(mine)


def _ended_with_parent(runs: Sequence[uuid.UUID]) -> bool:
    rows = query(
        "SELECT bool_and(l.on_parent_end = 'cancel' AND p.status IN ('completed', 'failed', 'cancelled'))"
        " FROM pipelines_childrun l JOIN pipelines_run p ON p.id = l.parent_id WHERE l.run_id = ANY(%s)",
        [list(runs)],
    )
    return bool(rows[0][0])


def _refuse(retry: RunRetry, trial: _Trial, refusal: Refusal) -> None:
    disposition = refusal.extra.get("disposition") or ""
    _keep(retry, "refuse", code=refusal.code, why=refusal.detail, disposition=disposition)
    trial.refused(refusal)
    reason = f"{refusal.detail} ({refusal.code})"
    insert_events([event_row(retry.run_id, "run.retry_refused", actor=trial.actor.name, reason=reason)])


def _keep(retry: RunRetry, action: str, **told: Any) -> None:
    retry.state = RUN_RETRY_MOVES[action][RunRetryState(retry.state)]
    retry.ended_at = database_now()
    for name, value in told.items():
        setattr(retry, name, value)
    retry.save(force_update=True, update_fields=["state", "ended_at", *told])


def _give_up(due: _Due) -> bool:
    """A fault of ours that would come again with every sweep ends it; a person may do it instead."""
    with transaction.atomic():
        run = Moves.lock([due.run_id], skip_locked=True).runs.get(due.run_id)
        retry = _still_due(due) if run else None
        if retry is None:
            return False
        why = "a fault of the console kept it from being done"
        _keep(retry, "refuse", code=INTERNAL_ERROR, why=why)
        insert_events([event_row(retry.run_id, "run.retry_refused", reason=why)])
    return True


@dataclass(slots=True)
class _Trial:
    """One retry being carried out: what it keeps, and the audit events that stay even when all else is undone."""

    retry: RunRetry
    actor: Actor
    kept: list[Operation] = field(default_factory=list)
    events: list[tuple[str, Entry]] = field(default_factory=list)
    verdicts: list[tuple[str, Entry]] = field(default_factory=list)
    asked: tuple[str, Entry] | None = None  # what is being tried

    def begin(self, action: str, asked: Asked, told: dict[str, Any]) -> Entry:
        data = {**told, "run_retry": str(self.retry.id), "number": self.retry.number}
        entry = Entry(run=asked.run_id, stage=asked.stage_id, reason=asked.reason, data=data)
        self.asked = action, entry
        return entry

    def judge(self, asked: Asked, plan: Plan, entry: Entry) -> Operation:
        """The operation of this plan, with its verdict recorded; refused where it does not go on by itself."""
        number = len(self.kept) + 1
        operation = operations.opened(asked, actor=self.actor, key=f"run-retry:{self.retry.id}:{number}", plan=plan)
        entry.plan_digest = operation.plan_digest
        if (verdict := operations.verdict_of(self.actor, operation)) is not None:
            self.verdicts.append(verdict)
            self.events.append(verdict)
        _check(plan.verdict)
        if plan.agreements:
            why = plan.agreements[0].why
            raise Refusal("approval_stale", f"others must agree to this, and nobody asked them: {why}")
        return operation

    def done(self, operation: Operation) -> None:
        self.kept.append(operation)
        if self.asked is not None:
            self.events.append(self.asked)
            self.asked = None

    def refused(self, refusal: Refusal) -> None:
        """What was judged stays told, and what was refused; what was undone is not told as done."""
        self.events = list(self.verdicts)
        for _, verdict in self.events:
            verdict.data.pop("operation")  # it is undone
        if self.asked is not None:
            action, entry = self.asked
            audit.tell_refusal(entry, refusal)
            entry.data["detail"] = refusal.detail
            self.events.append((action, entry))


def _check(verdict: Verdict) -> None:
    """Refuses what a verdict holds back: a policy asks nobody."""
    if verdict.lets_go_on:
        return
    is_denied = verdict.disposition == Disposition.RECOVERY_DENIED
    why = f": {verdict.reasons[0].text}" if verdict.reasons else ""
    detail = f"this is denied{why}" if is_denied else f"a person must look at this first{why}"
    told = {"disposition": verdict.disposition.value, "reasons": verdict.reasons_json()}
    raise Refusal("recovery_denied" if is_denied else "operator_review_required", detail, extra=told)


def _in_place(trial: _Trial) -> None:
    """The stages at fault begin anew with what is behind them, one after the other, all of them or none."""
    run_id = trial.retry.run_id
    _, run = lock_run(run_id, trial.actor)
    failed = [stage.id for stage in _at_fault(run.stages)]
    letters: dict[uuid.UUID, uuid.UUID] = dict(
        query(
            "SELECT stage_id, id FROM pipelines_deadletter WHERE stage_id = ANY(%s) AND state = ANY(%s)",
            [failed, sorted(OPEN_DEAD_LETTER)],
        )
    )
    for stage_id in failed:
        moves, run = lock_run(run_id, trial.actor)  # as the one before has left it
        stage = moves.stages[stage_id]
        if stage.state != StageState.FAILED:
            continue  # it is behind one that has begun anew
        asked = _asked(trial.retry, run, stage, letters.get(stage_id))
        if revisions.revises(asked):
            revisions.one_at_a_time([run_id])
        verb = transitions.VERBS[asked.kind]
        entry = trial.begin(verb.action, asked, transitions.told(asked))
        entry.before = standing(run, stage)
        plan = transitions.plan_in_place(asked, actor=trial.actor)
        check_blackout(plan)
        operation = trial.judge(asked, plan, entry)
        transitions.carry_out(verb, moves, run, asked, plan, operation)
        operations.add(operation)
        entry.after = standing(run, stage)
        trial.done(operation)


def _asked(retry: RunRetry, run: RunRow, stage: StageRow, letter: uuid.UUID | None) -> Asked:
    """A redrive of its dead letter where one is open, else a retry; with what is behind it, where that was done before,
    which counts as a revision of the run (R25)."""
    scope = AND_DOWNSTREAM if _is_followed(run, stage) else STAGE_ONLY
    asked = transitions.ask_retry(run.id, stage.id, scope=scope, reason=retry.explanation)
    if letter is None:
        return asked
    choices = {"dead_letter": str(letter), **asked.choices}
    return Asked(OperationKind.REDRIVE, run.id, stage.id, choices, retry.explanation)


def _is_followed(run: RunRow, stage: StageRow) -> bool:
    behind = {stage.position}
    for one in run.stages:  # in graph order
        if behind & set(one.depends_on):
            behind.add(one.position)
            if one.state in (StageState.COMPLETED, StageState.FAILED, StageState.SKIPPED):
                return True
    return False


def _as_new_run(trial: _Trial) -> uuid.UUID:
    """All of it anew, by the release that is in force now: a replay, which leaves the run as it is (I12)."""
    actor = trial.actor
    run = Run.objects.select_related("pipeline", "environment").get(id=trial.retry.run_id)
    asked = forks.ask_fork(OperationKind.REPLAY, run, forks.Wish(), actor=actor, reason=trial.retry.explanation)
    entry = trial.begin(forks.action_of(asked.kind), asked, dict(asked.choices))
    world, plan = forks.plan_now(asked, actor=actor, starts=True)
    operation = trial.judge(asked, plan, entry)
    operation.result = forks.told_of(plan.as_json())
    forks.allow(operation, plan)
    operations.add(operation)
    done = forks.make_reserved(operation, world, plan)
    entry.after = {"target": done.result["execution_id"]}
    trial.done(operation)
    return uuid.UUID(done.result["execution_id"])
