"""Pipelines as code: `async def run(ctx)`, and stages that need each other, in one Python file."""

from recourse.authoring.context import Context, Logger, Params

__all__ = ["Context", "Logger", "Params"]
