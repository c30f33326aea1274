"""Text that a database cannot hold: refused or kept escaped, never an error of ours, never the neighbour's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import Run
from tests.cast import Worker
from tests.pipelines.engine import states

StartRun = Callable[..., Run]
STRANGE = ["a\x00b", "\ud800", "x" * 300]
FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "errorCode": lambda text: {"errorCode": text},
    "errorMessage": lambda text: {"errorMessage": text},
    "traceback": lambda text: {"traceback": text},
    "contextItems key": lambda text: {"contextItems": [{"key": text, "value": "v"}]},
    "contextItems value": lambda text: {"contextItems": [{"key": "k", "value": text}]},
    "logs message": lambda text: {"logs": [{"level": "info", "message": text}]},
    "logs fields": lambda text: {"logs": [{"level": "info", "message": "m", "fields": {text: text}}]},
    "usage": lambda text: {"usage": {text: text}},
    "output": lambda text: {"output": {text: text}},
}


@pytest.mark.parametrize("text", STRANGE, ids=["NUL", "half a surrogate pair", "long"])
@pytest.mark.parametrize("field", sorted(FIELDS))
@pytest.mark.parametrize("status", ["failed", "succeeded"])
def test_a_result_with_strange_text_is_taken_or_refused(
    start_run: StartRun, worker: Worker, field: str, text: str, status: str
) -> None:
    run = start_run("first")
    answer = worker.report(worker.take(), status, **FIELDS[field](text))
    assert answer.status_code in (202, 400), answer.content
    if answer.status_code == 400:
        assert answer.json()["errors"]
        assert states(run) == {"first": "running"}
    else:
        assert states(run) == {"first": "completed" if status == "succeeded" else "failed"}


@pytest.mark.parametrize("text", STRANGE, ids=["NUL", "half a surrogate pair", "long"])
@pytest.mark.parametrize("field", sorted(FIELDS))
def test_one_strange_item_of_a_batch_spoils_no_other(
    start_run: StartRun, worker: Worker, field: str, text: str
) -> None:
    runs = [start_run("first") for _ in range(2)]
    bad, good = worker.pull(maxJobs=2)
    items = [
        {"stageId": job["stageId"], "executionId": job["executionId"], "attempt": job["attempt"], "status": "failed"}
        for job in (bad, good)
    ]
    items[0] |= FIELDS[field](text)
    answer = worker.post("/results", {"results": items})
    assert answer.status_code == 202, answer.content
    assert answer.json()["results"][1]["accepted"] is True
    by_stage = {str(run.stages.get().id): run.stages.get().state for run in runs}
    assert by_stage[good["stageId"]] == "failed"
