"""Answers of the operations API as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Answer = Mapping[str, Any]

SNAPSHOT = (
    "execution_id",
    "status",
    "pause_reason",
    "current_step_id",
    "previous_step_id",
    "workspace_id",
    "checkpoint_id",
    "sequence",
    "epoch",
    "recorded_at",
    "integrity",
    "key_id",
)


def lines_of_snapshot(answer: Answer) -> list[str]:
    """The route's fields under their own names, one a line; what is not known is a dash."""
    return _fields({name: answer.get(name) for name in SNAPSHOT})


def lines_of_fork(answer: Answer) -> list[str]:
    """What became of a rerun or replay, and the id of the new run where there is one."""
    if answer.get("status") == "awaiting_approval":
        return [f"operation {answer['operation_id']} waits for an approval; nothing runs yet"]
    told = f"{answer['execution_id']}: new run"
    if answer.get("replayed"):
        told += ", made before by the same request"
    names = ("original_execution_id", "operation_id", "status", "from_step_id", "environment", "release_id")
    lines = _fields({name: answer[name] for name in names if answer.get(name) is not None})
    if answer.get("release_changed"):
        lines.append("the release differs from the source's")
    return [told, *(f"  {line}" for line in lines)]


def lines_of_plan(plan: Answer) -> list[str]:
    """A plan, group by group; groups with nothing in them are left out."""
    lines = [f"plan of {plan.get('kind', 'the verb')} for {plan.get('execution_id')}; nothing was changed"]
    lines += _blackout(plan.get("blackout"))
    lines += [str(lane["text"])] if (lane := plan.get("lane")) else []
    for name, title in (("kept", "kept"), ("run_again", "run again"), ("then", "then")):
        lines += _group(title, [_line(one) for one in plan.get(name) or ()])
    lines += _group("added by the release", list(plan.get("added") or ()))
    lines += _group("removed by the release", list(plan.get("removed") or ()))
    lines += _group("may be done twice", [_effect(one) for one in plan.get("may_repeat") or ()])
    lines += _group("ends too", [str(one) for one in plan.get("ends_too") or ()])
    lines += _group("goes on outside", [str(one) for one in plan.get("goes_on_outside") or ()])
    lines += _group("must agree", [_agreement(one) for one in plan.get("approvals") or ()])
    lines += [f"disposition: {plan.get('disposition')}"]
    lines += [f"  {reason.get('text') or reason.get('code')}" for reason in plan.get("reasons") or ()]
    return [*lines, f"digest: {plan.get('plan_digest')}"]


def lines_of_account(account: Answer) -> list[str]:
    """A run with its stages, what is uncertain, what remains, what is left of its budget, and what can be done next."""
    lines = [f"{account.get('name') or 'run'} in {account.get('environment')}  {account.get('execution_id')}"]
    lines.append(f"  {account.get('standing')}")
    if account.get("shortened"):
        lines.append("  (only the newest part of its story is told here)")
    lines += [f"    {one}" for one in account.get("story") or ()]
    for stage in account.get("stages") or ():
        lines.append(f"{stage.get('name')}: {stage.get('standing')}")
        lines += [f"    {one}" for one in stage.get("story") or ()]
        lines += [f"  uncertain: {one}" for one in stage.get("uncertain") or ()]
        lines += [f"  next: {one}" for one in stage.get("next") or ()]
    lines += _group("remains outside", list(account.get("remains") or ()))
    lines += _group("budget", list(account.get("budget") or ()))
    return [*lines, *_group("next", list(account.get("next") or ()))]


def lines_of_standstill(account: Answer) -> list[str]:
    """How a run stands, and of each stage that is not done why it does not move and what helps."""
    lines = [str(account.get("standing"))]
    for stage in account.get("stages") or ():
        if stage.get("status") not in ("completed", "skipped"):
            lines.append(f"{stage.get('name')}: {stage.get('standing')}")
            lines += [f"  next: {one}" for one in stage.get("next") or ()]
    return [*lines, *_group("next", list(account.get("next") or ()))]


def lines_of_remains(cancelled: Answer) -> list[str]:
    """What a cancel has not stopped, where there is such."""
    items = cancelled.get("reconciliation") or ()
    if not items:
        return []
    lines = ["may still go on outside, which nothing here has stopped:"]
    return [*lines, *(f"  {one.get('detail') or _words(one.get('kind'))}" for one in items)]


RUN = (
    ("execution_id", "run"),
    ("name", "name"),
    ("status", "status"),
    ("pause_reason", "paused because"),
    ("paused_until", "paused until"),
    ("pipeline", "pipeline"),
    ("environment", "environment"),
    ("application", "application"),
    ("recovered_from", "forked from"),
    ("parent_id", "started by run"),
    ("started_by", "started by"),
    ("created_at", "created"),
    ("finished_at", "finished"),
    ("deadline_at", "deadline"),
    ("trace_id", "trace"),
)


def lines_of_run(run: Answer) -> list[str]:
    """What is known of a run, one fact a line; what is not set is left out."""
    told = {
        word: _moment(str(run[name])) if name.endswith(("_at", "_until")) else run[name]
        for name, word in RUN
        if run.get(name) not in (None, "")
    }
    failure = run.get("failure") or {}
    if failure.get("code"):
        told["failure"] = f"{failure['code']}{': ' + failure['message'] if failure.get('message') else ''}"
    if run.get("run_retry"):
        told["by policy"] = line_of_run_retry(run["run_retry"])
    return _fields(told)


def line_of_run_retry(retry: Answer) -> str:
    """What was decided when the run failed under a policy for whole runs, and what became of it."""
    told = f"{_words(retry.get('status'))}: {retry.get('explanation') or retry.get('policy')}"
    if retry.get("status") == "due" and retry.get("due_at"):
        told += f" ({retry.get('number')} of {retry.get('max_retries')}, {_moment(str(retry['due_at']))})"
    if retry.get("made"):
        told += f"; made anew as {retry['made']}"
    return f"{told}; {retry['why']}" if retry.get("why") else told


def _blackout(holds: Answer | None) -> list[str]:
    if not holds:
        return []
    kind = "freeze" if holds.get("is_freeze") else "blackout"
    until = f"until {holds['until']}" if holds.get("until") else "with no end in sight"
    return [f"held back by the {kind} {holds.get('name')}, {until}; to start it all the same takes --override-reason"]


def lines_of_preview(answer: Answer) -> list[str]:
    """What a verb, or a decision, would do."""
    if answer.get("type") != "gate":
        return lines_of_plan(answer)
    word = "approving" if answer.get("approved") else "rejecting"
    told = f"{word} makes {answer.get('stage')} {_words(answer.get('stage_status'))}; nothing was changed"
    return [told, _votes(answer)]


def lines_of_approvals(answer: Answer) -> list[str]:
    """The things of one page, two lines each and why they were asked for, and how to read on."""
    lines = [line for item in answer.get("results") or () for line in _approval(item)]
    if answer.get("next"):
        lines.append(f"more: --next '{answer['next']}'")
    return lines or ["nothing"]


def lines_of_decision(answer: Answer) -> list[str]:
    """Where it stands after a decision, or after it was taken back."""
    lines = [f"{answer.get('id')}: {_words(answer.get('status'))}"]
    if answer.get("state") == "open":
        lines.append(_votes(answer))
    if answer.get("target_execution_id"):
        lines.append(f"{answer['target_execution_id']}: new run")
    if answer.get("stage_status"):
        lines.append(f"stage {answer.get('stage_id')}: {_words(answer['stage_status'])}")
    return lines


def _approval(item: Answer) -> list[str]:
    what = "gate" if item.get("type") == "gate" else f"{item.get('kind')}"
    at = f" at {item['stage']}" if item.get("stage") else ""
    where = f" in {item['environment']}" if item.get("environment") else ""
    told = [f"asked for by {item.get('requested_by') or 'nobody knows whom'}", _votes(item)]
    if item.get("expires_at") and item.get("state") == "open":
        told.append(f"expires {_moment(str(item['expires_at']))}")
    if item.get("state") == "open":
        why_not = item.get("why_not") or {}
        told.append("you may decide it" if item.get("may_decide") else f"not yours: {why_not.get('detail')}")
    head = f"{item.get('id')}  {_words(item.get('state'))}: {what}{at} of {item.get('execution_name')}{where}"
    why = [f"  because: {item['reason']}"] if item.get("reason") else []
    return [head, f"  {'; '.join(told)}", *why]


def _votes(answer: Answer) -> str:
    return f"{answer.get('have')} of {answer.get('need')} agreed"


def _moment(text: str) -> str:
    """`2026-06-01 08:00:00 UTC`; what is no moment stays as it came."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return text


def _words(text: Any) -> str:
    return str(text).replace("_", " ")


def _group(title: str, entries: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []


def _line(line: Answer) -> str:
    told = str(line.get("stage"))
    if line.get("was") != line.get("to"):
        told += f"  {line.get('was')} → {line.get('to')}"
    return f"{told}  {line['why']}" if line.get("why") else told


def _effect(effect: Answer) -> str:
    step = f" {effect['step_id']}" if effect.get("step_id") else ""
    key = f", key {effect['idempotency_key']}" if effect.get("idempotency_key") else ", no key"
    return f"{effect.get('stage')}: {effect.get('class') or 'unknown'}{step}, {effect.get('state')}{key}"


def _agreement(agreement: Answer) -> str:
    roles = " or ".join(str(role).replace("_", " ") for role in agreement.get("roles") or ())
    return f"{agreement.get('count')} of {roles}: {agreement.get('why')}"


def _fields(values: Answer) -> list[str]:
    width = max(map(len, values))
    return [f"{name:<{width}}  {'-' if value in (None, '') else value}" for name, value in values.items()]
