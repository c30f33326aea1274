"""A program with a language model, as far as the protocol goes: the official client and a `recourse mcp` of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

ROOT = Path(__file__).resolve().parents[2]


class Assistant:
    """Calls tools and waits for what they answer."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal, self.client = portal, client

    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self._portal.call(self.client.list_tools).tools}

    def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer, whose text and whose structure are the same, and which is an error where it was refused."""
        found = self._portal.call(self.client.call_tool, tool, arguments)
        answer: dict[str, Any] = found.structured_content
        assert json.loads(found.content[0].text) == answer
        assert found.is_error == (answer["outcome"] in ("refused", "unknown"))
        return answer

    def read(self, tool: str, **arguments: Any) -> Any:
        answer = self(tool, **arguments)
        assert answer["outcome"] == "read", answer
        return answer["answer"]

    def plan(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a second call is to say."""
        answer = self(tool, **arguments)
        assert answer["outcome"] == "plan", answer
        assert answer["next_call"]["tool"] == tool
        said: dict[str, Any] = answer["next_call"]["arguments"]
        return said

    def does(self, tool: str, **arguments: Any) -> Any:
        """Plans, and carries out what was planned."""
        said = self.plan(tool, **arguments)
        said |= {"reason": "they said so"} if "reason" in said else {}
        answer = self(tool, **said)
        assert answer["outcome"] in ("done", "awaiting_approval"), answer
        return answer["answer"]


@contextmanager
def assistant(*options: str, speaks: str = "auto", **environment: str) -> Iterator[Assistant]:
    """One who talks with a process of its own. `environment`: RECOURSE_URL, RECOURSE_TOKEN and the like. `speaks`:
    `legacy` is the protocol with its handshake, as of before 2026.
    """
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "recourse", "mcp", *options], env=environment, cwd=ROOT
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(command, mode=speaks)) as client:
        yield Assistant(portal, client)


@contextmanager
def over_http(url: str, **headers: str) -> Iterator[Assistant]:
    """One who talks with a server that runs already; the headers go with every request."""
    http = httpx2.AsyncClient(headers=headers, timeout=60)
    made = Client(streamable_http_client(url, http_client=http))
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(made) as client:
            yield Assistant(portal, client)
        portal.call(http.aclose)
