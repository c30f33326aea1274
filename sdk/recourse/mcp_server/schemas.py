"""What a tool may be given, read from the method of the clients that it stands for; and whether it was given that."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any

from recourse.calls import Groups
from recourse.calls.methods import Sync, plans
from recourse.mcp_server.tools import TOOLS, Tool

PAGE_SIZE, MOST_PAGE_SIZE = 20, 50
MOST_WAIT = 50
DIGEST = r"^(seen-)?[0-9a-f]{64}$"
LOWER_UUID = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
NEVER = frozenset({"dry_run", "as_person", "actor_ref", "plan_digest", "client_request_id"})  # not for the model to say

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}

ACTING = {
    "plan_digest": {
        "type": "string",
        "pattern": DIGEST,
        "description": "Leave it out to be told the plan, which changes nothing. With its digest just that plan is"
        " carried out, or refused because the world has moved.",
    },
    "client_request_id": {
        "type": "string",
        "pattern": LOWER_UUID,
        "description": "Makes repeating safe; take the one that came with the plan.",
    },
}
REASON = "Why it is done, in the words of who wants it; kept with the act. Needed with plan_digest."

MEANINGS = {
    "next": "The `next` of the page before; without it the first page.",
    "page_size": f"How many items a page has, {PAGE_SIZE} unless said.",
    "execution_id": "The run's id.",
    "stage_id": "The stage's id; as a filter one or several.",
    "effect_id": "The effect's id.",
    "attempt_id": "The attempt's id; one or several.",
    "level": "Of log lines, such as warning; one or several.",
    "item_id": "The id of what was left.",
    "checkpoint_id": "The checkpoint's id.",
    "letter_id": "The dead letter's id.",
    "approval_id": "The id of the gate or request, from list_approvals.",
    "trigger_id": "The trigger's id.",
    "trigger_binding_id": "The trigger's id.",
    "backfill_id": "The backfill's id.",
    "bulk_id": "The bulk operation's id.",
    "release_id": "The release's id.",
    "artifact_id": "The artifact's id.",
    "table_id": "The table's id.",
    "reason": REASON,
    "note": "What was found out, and how.",
    "override_reason": "Why it starts although a blackout or the freeze holds; only when a person said so.",
    "scope": "`stage`, or `stage_and_downstream`: all that follows from it as well.",
    "input": "Another input than before.",
    "acknowledge_effects": "That effects outside may happen twice is known and wanted; only when a person said so.",
    "output": "What the stage's dependents are given in place of its output.",
    "outcome": "What was found out: it happened outside, it did not, or what is known contradicts itself. As a filter:"
    " allowed or refused.",
    "evidence": "What an outside system says.",
    "until": "Until when; of a pause: when the engine resumes the run by itself.",
    "from_step_id": "The stage from which on all runs again; without it from the newest checkpoint.",
    "flow_slug": "The pipeline; leave it out, unless it has to be made sure of.",
    "environment": "The environment's slug.",
    "freeze_release": "A recorded hint.",
    "approved": "true approves, false rejects.",
    "type": "`gate` or `operation`.",
    "view": "`waiting`, `mine`: what may be decided now, `asked`, `decided`.",
    "application": "The application's name; as a filter one or several.",
    "pipeline": "The pipeline's slug; as a filter one or several.",
    "status": "One or several.",
    "state": "One or several.",
    "kind": "One or several.",
    "class_": "The effect's class; one or several.",
    "search": "Words and beginnings of words, in names, keywords and context.",
    "created_after": "From this moment on, with its offset.",
    "created_before": "Before this moment, with its offset.",
    "since": "From this moment on, with its offset.",
    "from_time": "From this moment on, with its offset.",
    "to_time": "Before this moment, with its offset.",
    "error_code": "One or several.",
    "handler": "A handler's name; one or several.",
    "parent_id": "The run whose stage started it.",
    "recovered_from": "The run that it was forked from.",
    "requested_by": "Whose request it was.",
    "stage": "The stage's name; one or several.",
    "moment": "When in a stage it was left; one or several.",
    "name": "By name; of a new run: what it is called, with stages.",
    "is_baseline": "Whether it is a baseline.",
    "settled": "Whether somebody looked after it.",
    "enabled": "Whether it is switched on.",
    "is_freeze": "Whether it is a freeze.",
    "action": "Such as retry or gate.approve; one or several.",
    "actor": "Who; one or several.",
    "bulk": "Of this bulk operation.",
    "channel": "console, api, mcp, admin, command or application; one or several.",
    "request_id": "The X-Request-Id it came with.",
    "run": "The run's id.",
    "trigger": "The trigger's id; one or several.",
    "slug": "One or several.",
    "where": "Only rows whose columns hold exactly this.",
    "workload_id": "The application's id; leave it out, unless it has to be made sure of.",
    "cron": "Only to make sure that it is still the trigger's.",
    "timezone": "Only to make sure that it is still the trigger's.",
    "gap": "Only to make sure that it is still the trigger's.",
    "overlap": "Only to make sure that it is still the trigger's.",
    "max_concurrent": "How many of its runs go on at once.",
    "reprocess": "Which ticks that have a run already are done again.",
    "order": "Which ticks go first.",
    "max_ticks": "Refuse more than this.",
    "execution_ids": "The runs.",
    "stage_ids": "The stages.",
    "dead_letter_ids": "The dead letters.",
    "filter": 'Instead of ids: the filters of the list, such as {"status": "failed"}.',
    "rate": "Items a minute.",
    "canary": "So many first, and the rest only when they went well.",
    "stop_ratio": "Stops when this part of them failed, from 0 to 1.",
    "idempotency_key": "One stable key for the business operation. After an unknown outcome: the same key again.",
    "stages": "Inline stages; instead of pipeline.",
    "context": 'Words that go with the run, such as {"order": "7"}.',
    "keywords": "Words that the run is found by.",
    "trace_id": "The caller's own trace.",
    "traceparent": "W3C trace context.",
    "tracestate": "W3C trace context.",
    "deadline_seconds": "After so many seconds the run is over for good.",
    "limits": "What the run may use.",
    "baseline": "Artifacts that the run builds on.",
    "timeout_seconds": f"How long to wait, {MOST_WAIT} seconds at most.",
}
INSTEAD = {  # where a word means something else
    ("reconcile_stage", "effect_id"): "The effect that this is about; without it the stage itself.",
    ("reconcile_stage", "output"): "The stage's output, when it happened.",
    ("start_bulk_operation", "kind"): "The verb.",
    ("start_run", "input"): "The pipeline's input.",
    ("get_readiness", "slug"): "The pipeline's slug.",
    ("start_run", "pipeline"): "The managed pipeline's slug; instead of stages.",
}


def define_of(tool: Tool) -> Any:
    """What defines the client's method."""
    group, _, method = tool.method.partition(".")
    return inspect.getattr_static(getattr(_GROUPS, group), method)


def has_dry_run(tool: Tool) -> bool:
    return isinstance(define_of(tool), plans)


@cache
def input_schema(name: str) -> Mapping[str, Any]:
    """JSON Schema of what the tool takes: the method's parameters, and for acts how a plan is carried out."""
    tool = TOOLS[name]
    define = define_of(tool).define
    hints = typing.get_type_hints(define)
    properties, required = {}, []
    for word, parameter in list(inspect.signature(define).parameters.items())[1:]:
        if word in NEVER or word in tool.always:
            continue
        properties[word] = _schema(hints[word]) | {"description": INSTEAD.get((name, word)) or MEANINGS.get(word, word)}
        if parameter.default is inspect.Parameter.empty and word != "reason":
            required.append(word)
    if "page_size" in properties:
        properties["page_size"] |= {"minimum": 1, "maximum": MOST_PAGE_SIZE, "default": PAGE_SIZE}
    if tool.kind == "wait":
        properties["timeout_seconds"] = {
            "type": "number",
            "minimum": 0,
            "maximum": MOST_WAIT,
            "default": 25,
            "description": MEANINGS["timeout_seconds"],
        }
    if tool.kind == "start":
        properties["plan_digest"] = ACTING["plan_digest"]
    if tool.kind == "act":
        properties |= ACTING
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def mistakes(name: str, arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """What is wrong with which argument; the limits are named."""
    from jsonschema import Draft202012Validator

    found: dict[str, list[str]] = {}
    for error in Draft202012Validator(input_schema(name)).iter_errors(arguments):
        at = str(error.absolute_path[0]) if error.absolute_path else "arguments"
        found.setdefault(at, []).append(error.message[:500])
    return found


def _schema(hint: Any) -> dict[str, Any]:
    """Of a type, as JSON Schema. Text that may be a moment is one; a filter takes one text or several."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (typing.Union, UnionType):
        kinds = [one for one in arguments if one is not type(None)]
        if datetime in kinds:
            return {"type": "string", "format": "date-time"}
        if bool in kinds:
            return {"type": "boolean"}
        listed = [_schema(one) for one in kinds if one is not Any]
        if len(listed) < len(kinds):
            return {}
        mapping = [one for one in listed if one.get("type") == "object"]
        return mapping[0] if mapping else listed[0] if len(listed) == 1 else {"anyOf": listed}
    if typing.is_typeddict(hint):
        fields = typing.get_type_hints(hint, include_extras=True)
        needed = [name for name, one in fields.items() if typing.get_origin(one) is not typing.NotRequired]
        plain = typing.get_type_hints(hint)
        return {"type": "object", "properties": {n: _schema(one) for n, one in plain.items()}, "required": needed}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object"}
    if origin is not None:
        return {"type": "array", "items": _schema(arguments[0])}
    return {}


class _Nobody(Sync):
    """Sends nothing: its groups are only looked at."""


_GROUPS: Groups[Sync] = Groups(_Nobody())
