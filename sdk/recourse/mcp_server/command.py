"""`recourse mcp`: serves the tools to a program with a language model."""

from __future__ import annotations

import argparse
from typing import Any

from recourse.errors import ConfigurationError
from recourse.terminal.exits import DONE
from recourse.terminal.parsing import command, whole

DESCRIPTION = """\
Serves the console to a program with a language model, by the Model Context Protocol over standard input and output.

It acts as whose token this is, within their rights, plans and approvals. A tool that changes something answers a plan;
only a second call, with the plan's digest and a reason, carries it out. With an application's key it starts runs too.
"""


def add_commands(topics: Any) -> None:
    """Adds `mcp`."""
    mcp = command(
        topics,
        "mcp",
        "serve the console to a language model's program",
        _serve,
        description=DESCRIPTION,
        examples=["recourse mcp", "recourse mcp --read-only", "recourse mcp --without decide_approval --http 8765"],
        alone=True,
    )
    mcp.add_argument("--read-only", action="store_true", help="offer no tool that changes anything")
    mcp.add_argument("--without", action="append", default=[], metavar="TOOL", help="do not offer this one; repeatable")
    mcp.add_argument(
        "--http",
        type=whole(1, 65535),
        metavar="PORT",
        help="serve http://127.0.0.1:PORT/mcp instead; each request brings a token of its own",
    )


def _serve(options: argparse.Namespace) -> int:
    import asyncio

    from recourse.client import Client
    from recourse.mcp_server.tools import TOOLS, offered
    from recourse.terminal import profiles

    unknown = sorted(set(options.without) - set(TOOLS))
    if unknown:
        raise ConfigurationError(f"there is no tool {unknown[0]}; there are: {', '.join(TOOLS)}")
    try:
        from recourse.mcp_server import serving
    except ImportError as error:
        raise ConfigurationError(f"`recourse mcp` needs more: pip install 'recourse[mcp]' ({error})") from error
    found = profiles.connection(options, options.out.note)
    if options.http is None and not (found.token or found.api_key):
        raise ConfigurationError(
            "as whom: set RECOURSE_TOKEN, or a profile; manage.py issue_token makes a token. recourse config show tells"
        )
    starts = bool(found.api_key) or options.http is not None
    tools = offered(read_only=options.read_only, without=frozenset(options.without), starts=starts)
    if options.http is not None:
        options.out.note(f"serves http://{serving.HOST}:{options.http}/mcp until Ctrl-C")
        asyncio.run(serving.serve_http(tools, found.url, options.http))
        return DONE
    client = Client(found.url, api_key=found.api_key, token=found.token, channel=serving.CHANNEL)
    asyncio.run(serving.serve_stdio(tools, client))
    return DONE
