"""From what somebody types to what the API calls it: runs, stages, triggers.

The API knows no beginnings of ids, and so a run is named by its whole id, or by the idempotency key that made it.
"""

from __future__ import annotations

import re
from typing import Any

from recourse.errors import ConfigurationError
from recourse.terminal.exits import Refused

RUN_HELP = "its id, or key:IDEMPOTENCY_KEY"
STAGE_HELP = "its id, or RUN/NAME"
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def run_id(client: Any, text: str) -> str:
    """The id of a run. `key:K` is asked of the application API, since a key is an application's: it takes its key."""
    if is_id(text):
        return text
    if text.startswith("key:"):
        try:
            found: str = client.runs.lookup(text.removeprefix("key:"))["id"]
        except ConfigurationError:
            raise Refused(
                f"{text} is a key of an application, and only with that application's API key is it found: set"
                " RECOURSE_API_KEY, or look for the run with: recourse execution list --search WORDS"
            ) from None
        return found
    raise Refused(
        f"{text!r} names no run: give its whole id, or key:IDEMPOTENCY_KEY; to find it: recourse execution list"
        " --search WORDS"
    )


def stage_id(client: Any, text: str) -> str:
    """The id of a stage, which may be named as `RUN/NAME`."""
    if is_id(text):
        return text
    run, slash, name = text.partition("/") if not text.startswith("key:") else text.rpartition("/")
    if not slash:
        raise Refused(f"{text!r} names no stage: give its id, or RUN/NAME; recourse execution show RUN lists both")
    stages = client.executions.stages(run_id(client, run))["results"]
    for stage in stages:
        if stage["name"] == name:
            return str(stage["stage_id"])
    raise Refused(f"the run has no stage {name}; it has: {', '.join(stage['name'] for stage in stages)}")


def trigger_id(client: Any, text: str) -> str:
    """The id of a trigger, which may be named; a name that several have is refused with their ids."""
    if is_id(text):
        return text
    found = client.triggers.list(name=text)["results"]
    if len(found) == 1:
        return str(found[0]["id"])
    if found:
        several = ", ".join(f"{one['id']} in {one['environment']}" for one in found)
        raise Refused(f"several triggers are called {text}: {several}; give the id")
    there = client.triggers.list(page_size=10)
    known = ", ".join(sorted({one["name"] for one in there["results"]})) or "none"
    raise Refused(f"no trigger is called {text}; there are: {known}{', and more' if there.get('next') else ''}")
