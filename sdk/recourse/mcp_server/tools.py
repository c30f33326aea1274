"""Which tools there are: a table. Each is a method of the clients, in its own words; what is not offered says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["read", "act", "start", "wait"]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `method` is of the clients, such as `executions.list`; `always` is said with each call of it.

    An act whose method has a dry run is planned by it. Where it has none, `looks` is read instead, and its `seen`
    fields are what the plan stands on. `bound`: the plan says less than the arguments, so that the digest holds those
    too. `destructive`: what it ends or skips does not come back. `idempotent`: the same again changes nothing more.
    """

    name: str
    about: str
    method: str
    kind: Kind = "read"
    destructive: bool = False
    idempotent: bool = False
    bound: bool = False
    looks: str = ""
    seen: tuple[str, ...] = ()
    always: Mapping[str, Any] = field(default_factory=dict)


def _read(name: str, method: str, about: str, **always: Any) -> Tool:
    return Tool(name, about, method, always=always)


def _act(name: str, method: str, about: str, **more: Any) -> Tool:
    return Tool(name, about, method, "act", **more)


READS = (
    _read("list_runs", "executions.list", "Finds runs, newest first, by status, pipeline, words, time and more."),
    _read("get_run", "executions.get", "One run: status, whether it is terminal, failure, inputs, deadline."),
    _read(
        "explain_run",
        "executions.account",
        "Tells a run in sentences: what happened, who decided what, what is uncertain, why it does not move, what"
        " helps. Ask this first when a run failed or stands still.",
    ),
    _read(
        "list_blockers",
        "executions.blockers",
        "Why a run does not move: the cause, who holds it, when it is looked at again.",
    ),
    _read("list_stages", "executions.stages", "All stages of a run with their status, epoch and error."),
    _read("list_attempts", "executions.attempts", "Attempts of a run's stages: worker, times, error, termination."),
    _read("get_timeline", "executions.timeline", "What happened in a run, event by event, in order."),
    _read("list_logs", "executions.logs", "What the handlers of a run logged, oldest first, by stage, attempt, level."),
    _read("list_child_runs", "executions.children", "Runs that the stages of a run started."),
    _read("get_snapshot", "executions.snapshot", "Where a run stands by its newest checkpoint."),
    _read("list_checkpoints", "executions.checkpoints", "Checkpoints of a run."),
    _read("get_checkpoint", "checkpoints.get", "One checkpoint with what it says."),
    _read(
        "list_effects",
        "executions.effects",
        "What a run did, or was about to do, outside; and what is uncertain of it.",
    ),
    _read("list_effect_evidence", "executions.effect_evidence", "What outside systems said of an effect."),
    _read("list_late_results", "executions.late_results", "Results that came too late and may tell of an effect."),
    _read("list_run_artifacts", "executions.artifacts", "What the attempts of a run stored, without the bytes."),
    _read("get_lineage", "executions.evidence", "Where a run came from and what came of it, as nodes and edges."),
    _read("get_budget", "executions.budget", "What a run may spend and has spent."),
    _read("list_charges", "executions.charges", "What was charged to a run's budget."),
    _read("list_remains", "executions.reconciliation", "What a cancelled run may have left going on outside."),
    _read("list_all_remains", "reconciliation.list", "What ended runs left outside, over all runs."),
    _read(
        "list_run_retries", "executions.run_retries", "Whether a failed run retries itself, when, and why or why not."
    ),
    _read("get_stage_policies", "stages.policies", "Which policies are in force for a stage, and which they shadow."),
    _read("list_outputs", "stages.outputs", "Outputs of a stage, of all its epochs."),
    _read("get_import_request", "stages.import_request", "What an import stage awaits the answer of.", as_person=True),
    _read("list_dead_letters", "dead_letters.list", "Stages that ended for good and wait for somebody to look."),
    _read("list_approvals", "approvals.list", "What waits for agreement, what you may decide, what was decided."),
    _read("list_approval_rules", "approval_rules.list", "Who must agree to which operations."),
    _read("list_operations", "operations.list", "What people asked for, the verdict on it, and what came of it."),
    _read("list_audit_events", "audit_events.list", "Who did, tried or was refused what, when and over which channel."),
    _read("list_audit_heads", "audit_events.heads", "The signed heads of the audit's chain."),
    _read("list_bulk_operations", "bulk_operations.list", "Bulk operations, newest first."),
    _read("get_bulk_operation", "bulk_operations.get", "One bulk operation with its numbers."),
    _read("list_bulk_items", "bulk_operations.items", "The items of a bulk operation, and what came of each."),
    _read("list_triggers", "triggers.list", "When pipelines start by themselves."),
    _read("get_trigger", "triggers.get", "One trigger with its next ticks."),
    _read("list_ticks", "triggers.ticks", "The ledger of a trigger: every tick, and what came of it."),
    _read("list_backfills", "backfills.list", "Backfills, newest first."),
    _read("get_backfill", "backfills.get", "One backfill, with how far it is."),
    _read("list_backfill_ticks", "backfills.ticks", "The ticks of a backfill."),
    _read("list_blackouts", "blackouts.list", "When nothing is to start."),
    _read("get_freeze", "blackouts.freeze_now", "Which freezes hold now, who declared them, and why."),
    _read("list_pipelines", "pipelines.list", "Pipelines, by slug."),
    _read(
        "get_readiness",
        "pipelines.readiness",
        "What a pipeline lacks, and which of its stages are safe to repeat and why, in each environment.",
    ),
    _read("get_guarantees", "guarantees.get", "What this console guarantees as it is set, and what it does not."),
    _read("list_releases", "releases.list", "Releases of pipelines; status active is what new runs take."),
    _read("get_release", "releases.get", "One release with its definition."),
    _read("list_policies", "policies.list", "Rules that target stages: retry, timeout, rate, concurrency, run retry."),
    _read("list_applications", "applications.list", "Applications, by name."),
    _read("list_environments", "environments.list", "Environments, from the lowest; which of them are protected."),
    _read("list_workers", "workers.list", "Workers: alive or stale, their handlers, what they are at."),
    _read("list_signing_keys", "signing_keys.list", "The keys that sign checkpoints and the audit, without secrets."),
    _read("list_artifacts", "artifacts.list", "Artifacts and baselines, without the bytes."),
    _read("get_artifact", "artifacts.get", "What is known of an artifact, without its bytes."),
    _read("list_store_tables", "store.list", "Tables of the workspace store."),
    _read("get_store_table", "store.get", "A table of the workspace store, and what it holds now."),
    _read("list_store_rows", "store.rows", "Rows of a table of the workspace store."),
)

WAIT = Tool(
    "wait_for_run",
    "Waits until a run has a terminal status, and answers how it stands. Where the time was too short, is_terminal is"
    " false: call it again.",
    "executions.get",
    "wait",
)

START = Tool(
    "start_run",
    "Starts a run of the application whose key this server has: of a managed pipeline with input, or of inline stages."
    " idempotency_key stands for the business operation: the same key finds the run that it made and makes no second.",
    "runs.create",
    "start",
    idempotent=True,
)

ACTS = (
    _act("retry_stage", "stages.retry", "Runs a stage that ended again, in the same run."),
    _act("skip_stage", "stages.skip", "Leaves a stage out on purpose; what depends on it may go on.", destructive=True),
    _act(
        "reconcile_stage",
        "stages.reconcile",
        "Says what was found out about a stage, or one effect of it, whose outcome is uncertain. Say only what somebody"
        " has made sure of outside.",
        destructive=True,
        bound=True,
    ),
    _act("pause_run", "executions.pause", "Stops further dispatch of a run; what runs may finish.", idempotent=True),
    _act("resume_run", "executions.resume", "Lets a paused run go on.", idempotent=True),
    _act("rerun_run", "executions.rerun", "Makes a new run out of an ended one: from a step on, the rest is kept."),
    _act("replay_run", "executions.replay", "Makes a new run out of an ended one, from the beginning."),
    _act("cancel_run", "executions.cancel", "Ends a run for good.", destructive=True, idempotent=True),
    _act(
        "reconcile_effect",
        "executions.reconcile_effect",
        "Says what was found out about one effect. Say only what somebody has made sure of outside.",
        destructive=True,
        bound=True,
    ),
    _act(
        "stop_run_retry",
        "executions.stop_run_retry",
        "Calls off that a failed run retries itself.",
        destructive=True,
        idempotent=True,
        looks="executions.get",
        seen=("execution_id", "status", "run_retry"),
    ),
    _act(
        "settle_remains",
        "executions.settle",
        "Notes that somebody looked after what a cancelled run left outside. Say only what somebody has made sure of.",
        idempotent=True,
        looks="executions.get",
        seen=("execution_id", "status"),
    ),
    _act("acknowledge_dead_letter", "dead_letters.acknowledge", "Says that somebody looks after it.", idempotent=True),
    _act("redrive_dead_letter", "dead_letters.redrive", "Retries the stage of a dead letter and all that follows."),
    _act(
        "discard_dead_letter",
        "dead_letters.discard",
        "Says that nothing is to be done about a dead letter; its stage stays failed.",
        destructive=True,
        idempotent=True,
    ),
    _act(
        "decide_approval",
        "approvals.decide",
        "Approves or rejects a gate or a request as the person whose token this is. A decision is final: only when that"
        " person has seen the plan and said so. Nobody decides what they asked for.",
        destructive=True,
        idempotent=True,
        bound=True,
    ),
    _act(
        "withdraw_approval",
        "approvals.withdraw",
        "Takes a request of one's own back.",
        destructive=True,
        idempotent=True,
    ),
    _act("start_backfill", "triggers.backfill", "Makes a run for every tick of a window that has none."),
    _act(
        "pause_backfill",
        "backfills.pause",
        "Starts no further run of a backfill.",
        idempotent=True,
        looks="backfills.get",
        seen=("backfill_id", "status"),
    ),
    _act(
        "resume_backfill",
        "backfills.resume",
        "Lets a paused backfill go on.",
        idempotent=True,
        looks="backfills.get",
        seen=("backfill_id", "status"),
    ),
    _act(
        "cancel_backfill",
        "backfills.cancel",
        "Cancels what a backfill holds; those ticks are missed again.",
        destructive=True,
        idempotent=True,
        looks="backfills.get",
        seen=("backfill_id", "status"),
    ),
    _act(
        "start_bulk_operation",
        "bulk_operations.start",
        "Does one verb to many runs, stages or dead letters, at a pace.",
        destructive=True,
    ),
    _act(
        "pause_bulk_operation",
        "bulk_operations.pause",
        "Begins no further item of a bulk operation.",
        idempotent=True,
        looks="bulk_operations.get",
        seen=("bulk_id", "status"),
    ),
    _act(
        "resume_bulk_operation",
        "bulk_operations.resume",
        "Goes on with what is left of a bulk operation.",
        idempotent=True,
        looks="bulk_operations.get",
        seen=("bulk_id", "status"),
    ),
    _act(
        "abort_bulk_operation",
        "bulk_operations.abort",
        "Ends a bulk operation: what was not begun is left as it is.",
        destructive=True,
        idempotent=True,
        looks="bulk_operations.get",
        seen=("bulk_id", "status"),
    ),
)

TOOLS = {tool.name: tool for tool in (*READS, WAIT, START, *ACTS)}

# what people do in the console, at the command line or in code, and no model for them
NOT_OFFERED = {
    "artifacts.content": "bytes are no context for a model",
    "artifacts.add_baseline": "bytes are no context for a model",
    "stages.import_file": "an answer file is checked and handed in by who made it: recourse import",
    "store.remove": "what is gone is gone; the console and the command line remove rows",
    "executions.add_evidence": "evidence comes from outside systems, and is sealed there",
    "blackouts.create": "calendars are kept by people",
    "blackouts.change": "calendars are kept by people",
    "blackouts.freeze": "a freeze of everything is declared by people",
    "blackouts.lift": "a freeze of everything is lifted by people",
    "triggers.create": "schedules are made by people",
    "triggers.change": "schedules are changed by people",
    "pipelines.save": "administration",
    "releases.register": "releases are deployed: recourse deploy",
    "releases.activate": "releases are deployed: recourse deploy",
    "releases.review": "who looked at a release is a person",
    "policies.add": "administration",
    "policies.change": "administration",
    "applications.save": "administration",
    "applications.rename": "administration",
    "environments.save": "administration",
    "approval_rules.add": "administration",
    "approval_rules.change": "administration",
    "signing_keys.rotate": "administration",
    "signing_keys.revoke": "administration",
}


def offered(*, read_only: bool, without: frozenset[str], starts: bool) -> dict[str, Tool]:
    """The tools of one server. `starts`: whether there is an application's key to start runs with."""
    return {
        name: tool
        for name, tool in TOOLS.items()
        if name not in without and (tool.kind in ("read", "wait") or not read_only) and (starts or tool.kind != "start")
    }
