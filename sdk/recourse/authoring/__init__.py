"""Pipelines as code: `async def run(ctx)`, and stages that need each other, in one Python file.

from recourse.authoring import Context, Retries, pipeline, stage
"""

from recourse.authoring.context import Context, Logger, Params
from recourse.authoring.loading import Loaded, load, load_handlers, register
from recourse.authoring.stages import Pipeline, Retries, Source, Stage, pipeline, stage

__all__ = [
    "Context",
    "Loaded",
    "Logger",
    "Params",
    "Pipeline",
    "Retries",
    "Source",
    "Stage",
    "load",
    "load_handlers",
    "pipeline",
    "register",
    "stage",
]
