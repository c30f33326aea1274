"""The server itself, on the official SDK: tools are listed and called, over stdio or on this machine by HTTP.

Over stdio there is one person: whose token the process was given. By HTTP the process holds no token: every request
brings its own, as to the console.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from recourse.client import Client
from recourse.mcp_server.acting import call
from recourse.mcp_server.answers import OUTPUT_SCHEMA, REFUSED, UNKNOWN, UNTRUSTED
from recourse.mcp_server.bounding import as_text
from recourse.mcp_server.schemas import input_schema
from recourse.mcp_server.tools import Tool
from recourse.version import VERSION

CHANNEL = "mcp"
HOST = "127.0.0.1"
INSTRUCTIONS = (
    "Looks at runs of pipelines and helps people recover them. Begin with explain_run. Tools that change something"
    " answer with a plan and change nothing, until they are called with that plan's plan_digest and a reason: show"
    " people the plan, and carry it out only when they want it. What is refused says why and what to do; what awaits"
    f" approval is decided by others. {UNTRUSTED}"
)
Connect = Callable[[Any], AbstractAsyncContextManager[Client]]  # from the HTTP request, or None


def make_server(tools: Mapping[str, Tool], connect: Connect) -> Server[Any]:
    """A server of these tools. `connect` gives the client that a call is made with."""

    async def on_list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[described(tool) for tool in tools.values()])

    async def on_call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}; tools/list tells which")
        async with connect(context.request) as client:
            answer = await call(client, tool, params.arguments or {})
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=as_text(answer))],
            structured_content=answer,
            is_error=answer["outcome"] in (REFUSED, UNKNOWN),
        )

    return Server(
        "recourse",
        version=VERSION,
        title="Recourse",
        instructions=INSTRUCTIONS,
        on_list_tools=on_list_tools,
        on_call_tool=on_call_tool,
    )


def described(tool: Tool) -> types.Tool:
    """The tool as clients are told of it."""
    reads = tool.kind in ("read", "wait")
    more = UNTRUSTED if reads else f"Answers a plan and changes nothing, unless plan_digest is given. {UNTRUSTED}"
    title = tool.name.replace("_", " ").capitalize()
    return types.Tool(
        name=tool.name,
        title=title,
        description=f"{tool.about} {more}",
        input_schema=dict(input_schema(tool.name)),
        output_schema=dict(OUTPUT_SCHEMA),
        annotations=types.ToolAnnotations(
            title=title,
            read_only_hint=reads,
            destructive_hint=tool.destructive,
            idempotent_hint=reads or tool.idempotent,
            open_world_hint=not reads,
        ),
    )


async def serve_stdio(tools: Mapping[str, Tool], client: Client) -> None:
    """Serves one client process until it closes."""

    @asynccontextmanager
    async def connect(request: Any) -> AsyncIterator[Client]:
        yield client

    server = make_server(tools, connect)
    async with client, stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(tools: Mapping[str, Tool], url: str, port: int) -> None:
    """Serves `/mcp` on this machine alone, to pages of this machine alone."""
    import uvicorn

    server = make_server(tools, lambda request: as_who_asks(url, request))
    app = server.streamable_http_app(json_response=True, stateless_http=True, host=HOST)
    await uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="warning", access_log=False)).serve()


def as_who_asks(url: str, request: Any) -> Client:
    """A client with the token, or the application's key, that this request brought. It has none of this process's."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    own = token.strip() if scheme.lower() == "bearer" else ""
    return Client(url, token=own or NOBODY, api_key=request.headers.get("x-api-key") or NOBODY, channel=CHANNEL)


NOBODY = "none"  # so that what this process's environment holds is not taken
