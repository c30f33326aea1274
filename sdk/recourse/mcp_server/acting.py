"""One call of a tool, from its arguments to its answer.

An act without a digest is a dry run. Its plan comes with a digest; an act with that digest is carried out if the world
still is what the plan said. Where the console has no dry run, the digest stands for the arguments and for what was read
just before, and both are looked at again.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import uuid
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from recourse.client import Client
from recourse.errors import ApiError, ConfigurationError, NotFound, OutcomeUnknown
from recourse.mcp_server import answers
from recourse.mcp_server.bounding import TooLarge
from recourse.mcp_server.schemas import PAGE_SIZE, has_dry_run, input_schema, mistakes
from recourse.mcp_server.tools import Tool

Answer = dict[str, Any]
OWN = "seen-"  # begins a digest that is made here
FIRST_LOOK, LONGEST_LOOK = 0.2, 2.0
WHY = "<why, in the words of who wants it>"


async def call(client: Client, tool: Tool, given: Mapping[str, Any]) -> Answer:
    """What came of it. A refusal is an answer: nothing is raised for one."""
    given = {name: value for name, value in given.items() if value is not None}  # what some programs send for unsaid
    if wrong := mistakes(tool.name, given):
        detail = "; ".join(f"{name}: {', '.join(said)}" for name, said in wrong.items())
        return answers.refused("validation_error", detail, errors=wrong)
    try:
        if tool.kind == "read":
            return answers.told(answers.READ, await _method(client, tool.method)(**_sized(tool, given), **tool.always))
        if tool.kind == "wait":
            return await _wait(client, given)
        return await (_start if tool.kind == "start" else _act)(client, tool, given)
    except ApiError as error:
        return answers.refusal_of(error)
    except OutcomeUnknown as error:
        return answers.unknown(error, given)
    except ConfigurationError as error:
        return answers.refused("unauthorized", str(error), 401)
    except TooLarge:
        return answers.refused("answer_too_large", "the answer is larger than what is given out at once", 413)


async def _act(client: Client, tool: Tool, given: Mapping[str, Any]) -> Answer:
    asked = {name: value for name, value in given.items() if name not in ("plan_digest", "client_request_id")}
    digest, key = given.get("plan_digest"), given.get("client_request_id") or str(uuid.uuid4())
    if digest is None:
        plan, digest = await _plan(client, tool, asked)
        return _planned(tool, plan, asked | {"reason": WHY} | asked | {"plan_digest": digest, "client_request_id": key})
    reason = str(given.get("reason") or "").strip()
    if not reason or reason == WHY:
        return answers.refused("validation_error", "reason: say why", errors={"reason": ["say why it is done"]})
    carried = {"client_request_id": key}
    if digest.startswith(OWN) or tool.bound or not has_dry_run(tool):
        plan, now = await _plan(client, tool, asked)
        if now != digest:
            return _changed(plan, now)
        digest = plan.get("plan_digest")
    if has_dry_run(tool) and digest:
        carried["plan_digest"] = digest
    done = await _method(client, tool.method)(**asked, **carried)
    waits = "awaiting_approval" in (done.get("status"), done.get("state"))
    return answers.told(answers.WAITS if waits else answers.DONE, done)


async def _plan(client: Client, tool: Tool, asked: Mapping[str, Any]) -> tuple[Answer, str]:
    """What would be done, and the digest that stands for it."""
    if has_dry_run(tool):
        plan = await _method(client, tool.method).plan(**_reasoned(tool, asked))
        if plan.get("plan_digest") and not tool.bound:
            return plan, str(plan["plan_digest"])
        return plan, _digest(tool, asked, plan.get("plan_digest") or plan)
    standing: Answer = {}
    if tool.looks:
        look = _method(client, tool.looks)
        words = inspect.signature(look).parameters
        found = await look(**{name: value for name, value in asked.items() if name in words})
        standing = {name: found.get(name) for name in tool.seen}
    plan = {"would": tool.about, "with": dict(asked), "as_it_stands": standing}
    return plan, _digest(tool, asked, standing)


async def _start(client: Client, tool: Tool, given: Mapping[str, Any]) -> Answer:
    """Starts a run, or finds the one that its key made."""
    asked = {name: value for name, value in given.items() if name != "plan_digest"}
    try:
        there: Any = await client.runs.lookup(given["idempotency_key"])
    except NotFound:
        there = None
    existing = {"id": there["id"], "status": there["status"]} if there else None
    digest = _digest(tool, asked, existing and existing["id"])
    if given.get("plan_digest") is None:
        plan = {"would_create": existing is None, "existing": existing, "with": asked}
        return _planned(tool, plan, asked | {"plan_digest": digest})
    made_since = existing and given["plan_digest"] == _digest(tool, asked, None)  # by this very call, repeated
    if given["plan_digest"] != digest and not made_since:
        return _changed({"would_create": existing is None, "existing": existing, "with": asked}, digest)
    return answers.told(answers.DONE, await client.runs.create(**asked))


async def _wait(client: Client, given: Mapping[str, Any]) -> Answer:
    """The run, once it has ended for good or the time is over. One that is to retry itself has not."""
    until, pause = time.monotonic() + given.get("timeout_seconds", 25), FIRST_LOOK
    while True:
        run = await client.executions.get(given["execution_id"])
        retry: Any = run.get("run_retry") or {}
        ended = run["is_terminal"] and retry.get("status") != "due"
        left = until - time.monotonic()
        if ended or left <= 0:
            return answers.told(answers.READ, {**run, "is_terminal": ended})
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_LOOK)


def _planned(tool: Tool, plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> Answer:
    return answers.told(
        answers.PLAN,
        plan,
        detail="Nothing was changed. Show it to the person; when they want it, next_call carries it out.",
        next_call={"tool": tool.name, "arguments": dict(arguments)},
    )


def _changed(plan: Mapping[str, Any], digest: str) -> Answer:
    detail = "it is not what the digest stands for: the arguments are others, or the world has moved"
    return answers.refused("plan_changed", detail, 409, plan={**plan, "plan_digest": digest})


def _digest(tool: Tool, asked: Mapping[str, Any], standing: Any) -> str:
    """Stands for the tool, its arguments but for the reason, and how things stand."""
    words = {name: value for name, value in asked.items() if name != "reason"}
    text = json.dumps([tool.name, words, standing], sort_keys=True, ensure_ascii=True, default=str)
    return OWN + sha256(text.encode("ascii")).hexdigest()


def _sized(tool: Tool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Pages are small unless said."""
    has_pages = "page_size" in input_schema(tool.name)["properties"]
    return {"page_size": PAGE_SIZE, **given} if has_pages and "next" not in given else dict(given)


def _reasoned(tool: Tool, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A plan may be asked for before there is a reason, also where the verb needs one."""
    has_reason = "reason" in input_schema(tool.name)["properties"]
    return {**asked, "reason": asked.get("reason") or "asked for the plan"} if has_reason else dict(asked)


def _method(client: Client, name: str) -> Any:
    group, _, method = name.partition(".")
    return getattr(getattr(client, group), method)
