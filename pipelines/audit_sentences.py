"""Audit event → sentence: who did, tried or was refused what, for whom, where, and why. Pure; one table of actions.

Every action that the code writes has one. What was asked for and what came of it are in the same words whichever way
the request came. A run or stage that is gone is told by its id. Serves O4, F145.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.errors import STATUS
from pipelines.models import AuditOutcome

LONGEST = 300  # of a reason or a name in a sentence; the event has all of it
CHANGED = 80  # of one side of a change


class AuditFacts(Protocol):
    """What a sentence needs to know of an event."""

    action: str
    outcome: str
    code: str
    actor: str
    channel: str
    on_behalf_of: str
    run: uuid.UUID | None
    stage: uuid.UUID | None
    reason: str
    before: Any
    after: Any
    data: Any


@dataclass(frozen=True, slots=True)
class Names:
    """How the runs and stages that events name are called: a run by name and environment."""

    runs: Mapping[uuid.UUID, tuple[str, str]] = field(default_factory=dict)
    stages: Mapping[uuid.UUID, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Said:
    """An action as something done and as something to do, and what it is done to."""

    did: str
    do: str
    to: str


ACTIONS: dict[str, Said] = {
    # runs and stages
    "run.create": Said("created", "create", "{run}"),
    "run.pause": Said("paused", "pause", "{run}{until}"),
    "run.resume": Said("resumed", "resume", "{run}"),
    "run.cancel": Said("cancelled", "cancel", "{run}"),
    "run.rerun": Said("reran", "rerun", "{run_name}{start}{target}"),
    "run.replay": Said("replayed", "replay", "{run_name}{target}"),
    "run_retry.stop": Said("called off", "call off", "that {run} retries itself"),
    "run.remove": Said("removed", "remove", "{removed}"),
    "stage.retry": Said("retried", "retry", "{stage}{downstream}"),
    "stage.import": Said("imported", "import", "an answer for {stage}{source}"),
    "stage.skip": Said("skipped", "skip", "{stage}"),
    "stage.reconcile": Said("reported", "report", "of {stage} {finding}"),
    "effect.reconcile": Said("reported", "report", "of an effect of {stage} {finding}"),
    "effect.evidence": Said("added", "add", "evidence to an effect of {run}"),
    "reconciliation.settle": Said("settled", "settle", "what was left outside by {stage}"),
    "checkpoint.write": Said("left", "leave", "a checkpoint of {run}"),
    "checkpoint.add_evidence": Said("added", "add", "evidence to a checkpoint of {run}"),
    "dead_letter.acknowledge": Said("acknowledged", "acknowledge", "the dead letter of {stage}"),
    "dead_letter.redrive": Said("redrove", "redrive", "the dead letter of {stage}"),
    "dead_letter.discard": Said("discarded", "discard", "the dead letter of {stage}"),
    "backfill.start": Said("backfilled", "backfill", "{backfilled}{window}{ticks}"),
    "backfill.pause": Said("paused", "pause", "the backfill of {backfilled}"),
    "backfill.resume": Said("resumed", "resume", "the backfill of {backfilled}"),
    "backfill.cancel": Said("cancelled", "cancel", "the backfill of {backfilled}"),
    "bulk.draft": Said("chose", "choose", "what a {bulked} is for"),
    "bulk.start": Said("started", "start", "the {bulked}"),
    "bulk.pause": Said("paused", "pause", "the {bulked}"),
    "bulk.resume": Said("resumed", "resume", "the {bulked}"),
    "bulk.abort": Said("aborted", "abort", "the {bulked}"),
    "bulk.remove": Said("took away", "take away", "the {bulked}"),
    # decisions
    "gate.approve": Said("approved", "approve", "{stage}"),
    "gate.reject": Said("rejected", "reject", "{stage}"),
    "gate.decide": Said("decided", "decide", "on {stage}"),
    "operation.approve": Said("approved", "approve", "{request}"),
    "operation.reject": Said("rejected", "reject", "{request}"),
    "operation.decide": Said("decided", "decide", "on {request}"),
    "operation.withdraw": Said("withdrew", "withdraw", "{request}"),
    # what a workspace is made of
    "workspace.save": Said("made", "make", "{workspace}"),
    "environment.save": Said("saved", "save", "{environment}{changes}"),
    "application.save": Said("saved", "save", "{application}"),
    "application.rename": Said("renamed", "rename", "{application}{changes}"),
    "pipeline.save": Said("saved", "save", "{pipeline}{changes}"),
    "policy.add": Said("added", "add", "{policy}"),
    "policy.change": Said("changed", "change", "{policy}{changes}"),
    "release.register": Said("registered", "register", "a release of {pipeline}{for_environment}"),
    "release.review": Said("reviewed", "review", "to whom {release}{of_pipeline}{for_environment} sends"),
    "release.activate": Said("put", "put", "{release}{of_pipeline}{for_environment} in force"),
    "trigger.create": Said("made", "make", "{trigger}{of_pipeline}{for_environment}{schedule}"),
    "trigger.change": Said("changed", "change", "{trigger}{changes}"),
    "trigger.enable": Said("switched", "switch", "{trigger} on"),
    "trigger.disable": Said("switched", "switch", "{trigger} off"),
    "member.save": Said("saved", "save", "{member}{changes}"),
    "member.remove": Said("removed", "remove", "{member}"),
    "user.save": Said("changed", "change", "{account}{change}"),
    "session.log_in": Said("logged", "log", "in{as_whom}{by}{failures}"),
    "session.log_out": Said("logged", "log", "out"),
    "session.end": Said("ended", "end", "{log_ins}"),
    # who is told
    "channel.test": Said("sent", "send", "a test message to the channel{row}"),
    "delivery.send_again": Said("sent", "send", "a delivery to the channel{row} again"),
    # when nothing starts
    "blackout.save": Said("saved", "save", "the blackout{row}{for_environment}{changes}"),
    "freeze.declare": Said("froze", "freeze", "all starts{target}{until}"),
    "freeze.lift": Said("lifted", "lift", "the freeze{target}"),
    # secrets and keys
    "api_key.issue": Said("issued", "issue", "{api_key}"),
    "api_key.revoke": Said("revoked", "revoke", "{api_key}"),
    "token.issue": Said("issued", "issue", "{token}"),
    "token.revoke": Said("revoked", "revoke", "{token}"),
    "key.rotate": Said("rotated", "rotate", "the signing keys"),
    "key.revoke": Said("revoked", "revoke", "{signing_key}"),
    "key.copy": Said("copied", "copy", "the signing keys{destination}"),
    # what runs build on, and what they left
    "artifact.add_baseline": Said("laid down", "lay down", "{baseline}"),
    "artifact.load": Said("loaded", "load", "{artifact}"),
    # what handlers keep for themselves
    "store.remove": Said("took away", "take away", "{stored}"),
    # reading that takes something away
    "store.export": Said("exported", "export", "{stored}{format}"),
    "audit.export": Said("exported", "export", "audit events{format}{narrowed}"),
    # forms on screens that belong to no verb
    "screen.effect-evidence": Said("added", "add", "evidence to an effect"),
    "screen.effect-reconcile": Said("reported", "report", "what an effect did outside"),
    "screen.approval-approve": Said("approved", "approve", "a request"),
    "screen.approval-reject": Said("rejected", "reject", "a request"),
    "screen.approval-withdraw": Said("withdrew", "withdraw", "a request"),
}

# Rows that the admin site saves and removes, or refuses to: by the name of their model.
NOUNS: dict[str, str] = {
    "apikey": "API key",
    "application": "application",
    "requestdecision": "decision on a request",
    "approvalrequest": "request for approval",
    "approvalrule": "approval rule",
    "artifact": "artifact",
    "artifactcontent": "content of an artifact",
    "attempt": "attempt",
    "attemptprogress": "progress of an attempt",
    "auditcheck": "check of the audit",
    "auditevent": "audit event",
    "audithead": "end of the audit chain",
    "auditpending": "audit event to be sealed",
    "auditseal": "seal of an audit event",
    "backfill": "backfill",
    "backfilltick": "tick of a backfill",
    "bulkitem": "target of a bulk operation",
    "bulkoperation": "bulk operation",
    "blackout": "blackout",
    "channel": "channel",
    "checkpoint": "checkpoint",
    "checkpointevidence": "evidence of a checkpoint",
    "childrun": "link from a stage to a run that it started",
    "contextitem": "context item",
    "deadletter": "dead letter",
    "delivery": "delivery",
    "deliverytry": "try of a delivery",
    "effect": "effect",
    "effectevidence": "evidence of an effect",
    "environment": "environment",
    "event": "event",
    "gate": "gate",
    "gatedecision": "decision on a gate",
    "lane": "lane",
    "lateevidence": "late result",
    "localkeyring": "keyring",
    "logline": "log line",
    "member": "member",
    "message": "message",
    "notice": "notice",
    "notificationrule": "notification rule",
    "operation": "operation",
    "personaltoken": "token",
    "pipeline": "pipeline",
    "policy": "policy",
    "queueentry": "queue entry",
    "reconciliation": "finding",
    "reconciliationitem": "row that somebody settled by a finding",
    "release": "release",
    "run": "run",
    "runidentity": "key of a run",
    "runretry": "retry of a run by itself",
    "runsearch": "search words of a run",
    "stage": "stage",
    "stageoutput": "output of a stage",
    "storetable": "table of the workspace store",
    "termination": "report of an ended command",
    "tick": "tick",
    "trigger": "trigger",
    "triggerversion": "setting of a trigger",
    "workersession": "worker session",
    "workspace": "workspace",
}
ROW_ACTIONS = {"save": ("saved", "save"), "remove": ("removed", "remove")}

VERDICT = "execution.recovery_disposition"
REVIEW = "operator_review_required"
# The refusals and verdicts of model §6, as why something was not done.
WHY: dict[str, str] = {
    "validation_error": "the request was wrong in itself",
    "client_request_id_invalid": "its client_request_id is no lowercase UUID",
    "unauthorized": "nobody known asked",
    "permission_denied": "the right is missing",
    "impersonation_rejected": "nobody acts in another's name",
    "self_approval": "who asked for it does not decide it",
    "not_found": "there is no such thing here",
    "checkpoint_not_found": "no checkpoint knows that step",
    "unsupported": "this is not offered",
    "idempotency_conflict": "its key was used for another request",
    "recovery_idempotency_conflict": "its key was used for another request",
    "execution_state_invalid": "the run's state does not take it",
    "stage_state_invalid": "the stage's state does not take it",
    "stale_execution": "another attempt has taken over",
    "gate_decision_conflict": "it was decided otherwise already",
    "approval_stale": "it expired or was withdrawn",
    "gate_denied": "a rejected gate is final in its run",
    "stale_request": "what it is about has moved on",
    "needs_reconciliation": "nobody knows yet what was done outside",
    "budget_exhausted": "the budget is used up",
    "deadline_exceeded": "the run's deadline has passed",
    "attempts_exhausted": "the attempts are used up",
    "definition_changed": "the definition is another one by now",
    "recipient_not_allowed": "its recipient is not allowed",
    "artifact_immutable": "an artifact never changes",
    "artifact_corrupt": "the artifact is damaged",
    "store_conflict": "the store has another row or key under that name",
    "store_quota_exceeded": "the store has no room for it",
    "recovery_environment_mismatch": "it belongs to another environment",
    "checkpoint_integrity_invalid": "its checkpoint is not to be believed",
    "operator_review_required": "somebody else must let it go on",
    "recovery_denied": "what is known of its effects forbids it",
    "plan_changed": "what it would do has changed since it was looked at",
    "release_not_active": "the release is not in force",
    "blackout_active": "a blackout is on",
    "payload_too_large": "the request is too large",
    "environment_unknown": "there is no such environment",
    "cron_invalid": "the schedule cannot be read",
    "timezone_invalid": "there is no such time zone",
    "backfill_window_invalid": "the window of the backfill is wrong",
    "backfill_too_many_ticks": "the backfill has too many ticks",
    "bulk_too_many_targets": "more match than one bulk takes",
    "effect_class_unknown": "there is no such class of effect",
    "effect_key_required": "an effect outside needs a key",
    "rate_limited": "too many requests",
    "result_not_confirmed": "nobody can say whether it was done",
    "store_closed": "the workspace store is closed",
    "internal_error": "of a fault in the console",
}
FINDINGS = {
    "committed": "that it happened",
    "absent": "that it did not happen",
    "contradicted": "that what is known contradicts itself",
}
VERDICTS = {
    "recovery_denied": "is denied",
    "operator_review_required": "waits for somebody else to let it go on",
    "recovery_allowed_reconciled": "may go on, as what was done outside is reconciled",
    "recovery_allowed": "may go on",
}
LOG_INS = {"password": "password", "oidc": "OpenID Connect"}
FORMS = {"csv": "CSV", "jsonl": "JSON lines"}
# operation kind → what it is, and of what
KINDS = {
    "pause": "pause of {run}",
    "resume": "resumption of {run}",
    "cancel": "cancellation of {run}",
    "retry": "retry of {stage}",
    "skip": "skip of {stage}",
    "rerun": "rerun of {run}",
    "replay": "replay of {run}",
    "reconcile": "finding about {stage}",
    "acknowledge": "acknowledgement of the dead letter of {stage}",
    "redrive": "redrive of {stage}",
    "discard": "discard of the dead letter of {stage}",
    "backfill": "backfill of {backfilled}",
    "bulk": "{bulked}",
}


def tell(event: AuditFacts, names: Names) -> str:
    """The event as one sentence without a full stop, begun with who acted."""
    words = _words(event, names)
    if event.action == VERDICT:
        return _verdict(event, words)
    said = said_of(event.action)
    who, what = words["who"], said.to.format_map(words)
    given = f": {_short(event.reason)}" if event.reason else ""
    if event.outcome in (AuditOutcome.DENIED, AuditOutcome.FAILED) and not _is_in_review(event):
        could = "was not allowed to" if STATUS.get(event.code) == 403 else "could not"
        return f"{who} {could} {said.do} {what}{given}; {_why(event)}"
    if event.outcome == AuditOutcome.NO_OP:
        return f"{who} asked to {said.do} {what}{given}; nothing changed"
    if waits := _waits(event):
        return f"{who} asked to {said.do} {what}{given}; {waits}"
    return f"{who} {said.did} {what}{given}{_in_spite(event)}{_then(event)}"


def said_of(action: str) -> Said:
    """The words of an action; one that has none is told by its name, so that nothing is ever hidden."""
    model, _, verb = action.rpartition(".")
    if action in ACTIONS:
        return ACTIONS[action]
    if model in NOUNS and verb in ROW_ACTIONS:
        return Said(*ROW_ACTIONS[verb], f"the {NOUNS[model]}{{row}}{{changes}}{{rule}}")
    return Said(f"did {action} to", f"do {action} to", "{run}")


def _words(event: AuditFacts, names: Names) -> dict[str, str]:
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    name, environment = names.runs.get(event.run, ("", "")) if event.run else ("", "")
    run_name = name or _the("run", event.run)
    where = f" in {environment}" if environment else ""
    stage = (names.stages.get(event.stage, "") if event.stage else "") or _the("stage", event.stage)
    of_run = f" of {run_name}{where}" if event.run else where
    words = {
        "run_name": run_name,
        "run": f"{run_name}{where}",
        "stage": f"{stage}{of_run}",
        "target": f" in {data['environment']}" if data.get("environment") else where,
        "start": f" from {_short(data['from_step_id'])}" if data.get("from_step_id") else "",
        "until": f" until {data['until']}" if isinstance(data.get("until"), str) else "",
        "downstream": " and what follows it" if data.get("scope") == "stage_and_downstream" else "",
        "source": f" from {_short(data['source'])}" if data.get("source") else "",
        "finding": FINDINGS.get(str(data.get("outcome")), "what it did outside"),
        "removed": _removed(data),
        "row": f" {_short(data.get('name') or data['id'])}" if data.get("name") or data.get("id") else "",
        "changes": "" if data.get("rule") and event.before is None else _changes(event),
        "rule": _rule(event, data),
        "of_pipeline": f" of {data['pipeline']}" if data.get("pipeline") else "",
        "for_environment": f" for {data['environment']}" if data.get("environment") else "",
        "schedule": _schedule(event),
        "backfilled": _backfilled(data),
        "bulked": _bulked(data),
        "window": _window(data),
        "ticks": _ticks(data),
        "destination": f" to {data['destination']}" if data.get("destination") else "",
        "format": f" as {FORMS.get(str(data['format']), data['format'])}" if data.get("format") else "",
        "narrowed": _narrowed(data.get("filters")),
        "account": f"the account of {data['user']}" if data.get("user") else "an account",
        "change": f" ({_short(data['change'])})" if isinstance(data.get("change"), str) else "",
        "log_ins": _log_ins(data),
        "as_whom": f" as {_short(data['user'])}" if data.get("user") and data["user"] != event.actor else "",
        "by": f" by {LOG_INS.get(str(data['by']), data['by'])}" if data.get("by") else "",
        "failures": f", {data['failures']} times in five minutes" if (data.get("failures") or 0) > 1 else "",
        "signing_key": _the("signing key", data.get("key_id")),
        "api_key": _secret("API key", data, data.get("application")),
        "token": _secret("token", data, data.get("user")),
        "baseline": _the("baseline", data.get("name")),
        "artifact": _the("artifact", data.get("name")),
        "stored": _stored(data),
        "member": _the("member", data.get("user") or data.get("name") or data.get("id")),
    }
    for noun in ("workspace", "environment", "application", "pipeline", "policy", "release", "trigger"):
        words[noun] = _the(noun, data.get(noun) or data.get("name") or data.get(f"{noun}_id") or data.get("id"))
    words["request"] = _request(event, data, words)
    words["who"] = _who(event)
    return words


def _stored(data: Mapping[str, Any]) -> str:
    """A table of the workspace store, or rows of it."""
    table = _the("store's table", data.get("table") or data.get("table_id"))
    if not data.get("where"):
        return table
    count = data.get("rows")
    return f"{'rows' if count is None else f'{count} rows' if count != 1 else '1 row'} of {table}"


def _who(event: AuditFacts) -> str:
    who = f"the application {event.actor}" if event.channel == "application" else event.actor or "the engine"
    return f"{who}, for {event.on_behalf_of}," if event.on_behalf_of and not _decides(event) else who


def _decides(event: AuditFacts) -> bool:
    """Whether it is about a request, which the sentence tells by who asked for it."""
    return "{request}" in said_of(event.action).to


def _request(event: AuditFacts, data: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """A request by whose it is: "ann's rerun of nightly-billing in production"."""
    kind = KINDS.get(str(data.get("kind")))
    if kind is None:
        return f"a request about {words['run']}" if event.run else "a request"
    whose = f"{event.on_behalf_of}'s" if event.on_behalf_of else "their own"
    return f"{whose} {kind.format_map(words)}"


def _verdict(event: AuditFacts, words: Mapping[str, str]) -> str:
    """What was asked for and how it was judged: "ann's rerun of nightly-billing may go on"."""
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    kind = KINDS.get(str(data.get("kind")), "request about {run}").format_map(words)
    verdict = VERDICTS.get(str(data.get("disposition")) or event.code, VERDICTS["recovery_denied"])
    reasons = data.get("reasons") or [{}]
    why = f": {_short(reasons[0]['text'])}" if reasons[0].get("text") else ""
    when = f", as {event.actor} looked at it," if event.on_behalf_of else ""
    return f"{event.on_behalf_of or event.actor}'s {kind}{when} {verdict}{why}"


def _why(event: AuditFacts) -> str:
    """Why it was not done: what the refusal said where the event has it, otherwise what its code means."""
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    return _short(data.get("detail") or WHY.get(event.code, event.code.replace("_", " ")))


def _waits(event: AuditFacts) -> str:
    """Whom an operation waits for that was asked for and not carried out; blank when it was."""
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    if _is_in_review(event):
        return "it waits for somebody else to let it go on"
    if data.get("status") != "awaiting_approval":
        return ""
    told = (data.get("approvals") or [{}])[0]
    count, role = told.get("count") or 1, str(told.get("role") or "approver").replace("_", " ")
    return f"it waits for one {role}" if count == 1 else f"it waits for {count} {role}s"


def _is_in_review(event: AuditFacts) -> bool:
    """Its verdict has it wait for somebody else; a target of a bulk is left as it is instead."""
    return event.code == REVIEW and not (isinstance(event.data, Mapping) and event.data.get("bulk"))


def _then(event: AuditFacts) -> str:
    """What came of an action besides itself: a new run, an operation, or others who are still to agree."""
    after: Mapping[str, Any] = event.after if isinstance(event.after, Mapping) else {}
    if after.get("target"):
        made = "it goes on as" if _decides(event) else "the new run is"
        return f"; {made} {after['target']}"
    have, need = _votes(event, after)
    if have < need:
        return f"; {have} of {need} have agreed"
    return "; it was carried out" if _decides(event) and after.get("operation") == "succeeded" else ""


def _in_spite(event: AuditFacts) -> str:
    """Why it was to start although a blackout might hold."""
    data: Mapping[str, Any] = event.data if isinstance(event.data, Mapping) else {}
    return f"; in spite of any blackout: {_short(data['override_reason'])}" if data.get("override_reason") else ""


def _votes(event: AuditFacts, after: Mapping[str, Any]) -> tuple[int, int]:
    """How many agreed of how many; equal where that is not what the event is about."""
    if event.action == "gate.approve" and isinstance(event.data, Mapping):
        return event.data.get("have", 0), event.data.get("need", 0)
    if event.action == "operation.approve" and after.get("request") == "open":
        return after["approvals"], after["needed"]
    return 0, 0


def _log_ins(data: Mapping[str, Any]) -> str:
    count = data.get("count")
    told = "a log-in" if count in (None, 1) else f"{count} log-ins"
    return f"{told} of {data['user']}" if data.get("user") else told


def _removed(data: Mapping[str, Any]) -> str:
    if "count" not in data:
        return _the("run", data.get("id"))
    runs = "1 run" if data["count"] == 1 else f"{data['count']} runs"
    return f"{runs} that ended before {data['ended_before']}" if data.get("ended_before") else runs


def _changes(event: AuditFacts) -> str:
    """The fields that are other than before: " (rank 3 → 9)"."""
    if not isinstance(event.after, Mapping):
        return ""
    before = event.before if isinstance(event.before, Mapping) else {}
    told = [
        f"{name.replace('_', ' ')} {_value(before[name])} → {_value(value)}"
        if name in before
        else f"{name.replace('_', ' ')} {_value(value)}"
        for name, value in event.after.items()
        if (before[name] != value if name in before else value not in (None, ""))  # nothing is not news
    ]
    return f" ({', '.join(told)})" if told else ""


def _schedule(event: AuditFacts) -> str:
    """What a new trigger is due by: ", due 0 8 * * * in Europe/Berlin"."""
    after: Mapping[str, Any] = event.after if isinstance(event.after, Mapping) else {}
    return f", due {_short(after['cron'])} in {_short(after['timezone'])}" if after.get("cron") else ""


def _backfilled(data: Mapping[str, Any]) -> str:
    """The trigger whose ticks a backfill fills, and where."""
    where = f" in {data['environment']}" if data.get("environment") else ""
    return _the("trigger", data.get("trigger") or data.get("trigger_binding_id")) + where


def _bulked(data: Mapping[str, Any]) -> str:
    """A bulk by its verb and the number of its targets; where it was put before others, as they were asked."""
    if data.get("trigger"):
        return _short(data["trigger"]) + (f" in {data['environment']}" if data.get("environment") else "")
    count = data.get("total")
    of = f" of {count:,} {'target' if count == 1 else 'targets'}" if isinstance(count, int) else ""
    return f"bulk {_short(data['kind'])}{of}" if data.get("kind") else f"bulk{of}"


def _window(data: Mapping[str, Any]) -> str:
    """The window that a backfill is for, both ends in it."""
    ends = (data.get("from_time"), data.get("to_time"))
    return f" from {_short(ends[0])} to {_short(ends[1])}" if all(ends) else ""


def _ticks(data: Mapping[str, Any]) -> str:
    """How many ticks it fills, and how many it leaves alone."""
    count = data.get("ticks")
    if not isinstance(count, int):
        return ""
    left = f", {data['skipped']} left as they are" if data.get("skipped") else ""
    return f" ({count} {'tick' if count == 1 else 'ticks'}{left})"


def _narrowed(filters: Any) -> str:
    """What an export was narrowed to: " (outcome denied, actor ann or ben)"."""
    if not isinstance(filters, Mapping) or not filters:
        return ""
    told = (f"{name.replace('_', ' ')} {' or '.join(map(_short, values))}" for name, values in filters.items())
    return f" ({', '.join(told)})"


def _rule(event: AuditFacts, data: Mapping[str, Any]) -> str:
    """What an approval rule says since it was saved, or said until it was removed."""
    says = "said" if event.action.endswith(".remove") else "says"
    return f", which {says} {_short(data['rule'])}" if data.get("rule") else ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
    return _short(text, CHANGED) or "nothing"


def _secret(noun: str, data: Mapping[str, Any], owner: Any) -> str:
    prefix = f" {data['prefix']}…" if data.get("prefix") else ""
    article = "the" if prefix else "an" if noun[0] in "AEIOU" else "a"
    return f"{article} {noun}{prefix}{f' of {owner}' if owner else ''}"


def _the(noun: str, name: Any) -> str:
    return f"the {noun} {_short(name)}" if name else f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _short(value: Any, most: int = LONGEST) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
