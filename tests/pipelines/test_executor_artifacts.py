"""Artifacts of handlers that the console itself runs, under Celery."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from recourse import Registry, StageContext

from pipelines.executor import Executor
from pipelines.models import Artifact, Run
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import output, stage, status
from tests.pipelines.test_executor import drain, impatient, make, registry  # noqa: F401
from tests.stored import flipped, in_database

pytestmark = pytest.mark.django_db(transaction=True)
StartRun = Callable[..., Run]


def test_handlers_of_the_console_store_and_load_artifacts(
    make: Callable[..., Executor],  # noqa: F811
    registry: Registry,  # noqa: F811
    start_run: StartRun,
) -> None:
    """R14, R15: by the executor's own connection, with the rights of the run's application; a damaged one fails."""

    @registry.handler("Make")
    def made(context: StageContext) -> str:
        return context.artifact("report.pdf", b"the report", "application/pdf").artifact_id

    @registry.handler("Check")
    async def checked(context: StageContext) -> int:
        return len(await context.load_artifact_async(context.dependencies["make"]))

    run = start_run({"name": "make", "handler": "Make"}, {"name": "check", "handler": "Check", "depends_on": ["make"]})
    drain(make())
    assert (status(run), output(run, "check")) == ("completed", "10")
    artifact = Artifact.objects.get()
    assert (artifact.name, artifact.run_id, artifact.application_id) == ("report.pdf", run.id, run.application_id)
    again = start_run({"name": "again", "handler": "Again"})
    in_database().change(artifact, flipped)

    @registry.handler("Again")
    def damaged(context: StageContext) -> None:
        context.load_artifact(str(artifact.id))

    drain(make())
    assert (status(again), stage(again, "again").last_error_code) == ("failed", "ARTIFACT_CORRUPT")
    assert_invariants()
