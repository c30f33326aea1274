"""Cursors and bodies that nobody sends in good faith: a typed 400, nothing written."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.filters import MOST_WORDS
from pipelines.models import AuditEvent, LogLine, Run
from tests.cast import Api, Person, Worker, stages_of, unknown_id

pytestmark = pytest.mark.django_db

LISTS = ("executions", "operations", "audit-events", "dead-letters")


def cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("at", ["2026-01-01T00:00:00+23:59:59.999", "2026-01-01T00:00:00-23:59:59"])
def test_a_time_that_only_python_reads_is_no_fault_of_ours(
    path: str, at: str, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """A cursor with an offset that the database does not know is read as the instant that it is."""
    answer = as_person(people["viewer"]).get(f"/v1/{path}?cursor={cursor('n', at, unknown_id())}")
    assert answer.status_code == 200
    assert answer.json()["results"] == []


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2026-01-01T00:00:00", "2026", ""]
)
def test_a_time_that_nobody_can_place_is_refused(
    path: str, at: str, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    answer = as_person(people["viewer"]).get(f"/v1/{path}?cursor={cursor('n', at, unknown_id())}")
    assert answer.status_code == 400
    assert answer.json()["errors"].keys() == {"cursor"}


@pytest.mark.parametrize("output", ["\x00", "\ud800", {"a": ["x\x00"]}, {"\x00": 1}])
def test_a_skip_with_an_output_that_cannot_be_stored_is_refused(
    output: Any, people: dict[str, Person], as_person: Callable[[Person], Api], start_run: Callable[..., Run]
) -> None:
    (stage,) = stages_of(start_run())
    operator = as_person(people["operator"])
    answer = operator.post(f"/v1/stages/{stage.id}/skip", {"reason": "not needed", "output": output})
    assert answer.status_code == 400
    assert answer.json()["errors"].keys() == {"output"}
    assert stages_of(stage.run)[0].state == "ready"
    assert not AuditEvent.objects.filter(outcome="allowed").exists()


@pytest.mark.parametrize("apart", ["+", "-", "%2F", "+&search="])
def test_a_search_for_hundreds_of_words_is_refused_before_it_is_made(
    apart: str, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    """Each word is compared with every run that is looked at: a thousand of them took the database half a minute."""
    viewer = as_person(people["viewer"])
    words = [f"w{number}" for number in range(MOST_WORDS + 1)]
    assert viewer.get(f"/v1/executions?search={apart.join(words[1:])}").status_code == 200
    refused = viewer.get(f"/v1/executions?search={apart.join(words)}")
    assert refused.status_code == 400
    assert refused.json()["errors"] == {"search": [f"at most {MOST_WORDS} words"]}


@pytest.mark.parametrize("name", ["created_after", "created_before"])
@pytest.mark.parametrize("path", ["executions", "audit-events"])
def test_a_filter_by_a_time_that_only_python_reads_is_no_fault_of_ours(
    path: str, name: str, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    answer = as_person(people["viewer"]).get(f"/v1/{path}?{name}=2026-01-01T00:00:00%2B23:59:59.999")
    assert answer.status_code == 200


def test_a_line_at_a_time_that_only_python_reads_spoils_no_other_result(
    worker: Worker, start_run: Callable[..., Run]
) -> None:
    """Contract §2: the line is kept at the instant that it names, and every result of the batch is taken."""
    runs = [start_run(), start_run()]
    told = [
        {"stageId": job["stageId"], "executionId": job["executionId"], "attempt": 1, "status": "succeeded"}
        for job in worker.pull(maxJobs=2)
    ]
    told[0]["logs"] = [{"at": "2026-01-02T00:00:00+23:59:59.999", "level": "info", "message": "m"}]
    answer = worker.post("/results", {"results": told})
    assert [item["accepted"] for item in answer.json()["results"]] == [True, True]
    assert {Run.objects.get(id=run.id).status for run in runs} == {"completed"}
    assert LogLine.objects.get().at.isoformat() == "2026-01-01T00:00:00.001000+00:00"
