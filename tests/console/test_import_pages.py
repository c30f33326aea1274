"""Imports on screens: what is awaited and what was refused on the run's page, the request as a file, and its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from pipelines.access import Actor
from pipelines.models import Attempt, AuditEvent, LateEvidence, Run, Stage
from pipelines.transitions import cancel_run
from tests.cast import Person
from tests.console.conftest import Visitor, text_of

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]
IMPORTED: dict[str, Any] = {"name": "correctness", "mode": "import"}


def awaited(run: Run) -> Attempt:
    return Attempt.objects.filter(run=run).order_by("-number")[0]


def state(run: Run) -> str:
    return Stage.objects.get(run=run).state


def answer(run: Run, **told: Any) -> str:
    return json.dumps({"request_digest": awaited(run).request_digest, "output": {"score": 1}, **told})


def address(run: Run, what: str = "import") -> str:
    return f"/console/stages/{awaited(run).stage_id}/{what}/"


def told(response: Any) -> str:
    return unescape(text_of(response))


def test_a_waiting_import_says_what_it_waits_for(
    start_run: StartRun, operator: Visitor, browse: Browse, people: dict[str, Person]
) -> None:
    """R18, R33: its digest, how long it waits, the request to be saved, and a form only for who may."""
    run = start_run(IMPORTED)
    page = operator.get(f"/console/runs/{run.id}/")
    assert awaited(run).request_digest in told(page)
    assert "cannot stop work that goes on elsewhere, nor bound what it spends" in told(page)
    assert address(run) in page.content.decode()
    seen = browse(people["viewer"]).get(f"/console/runs/{run.id}/").content.decode()
    assert address(run, "import-request") in seen
    assert address(run) not in seen


def test_a_run_without_imports_says_nothing_of_them(start_run: StartRun, operator: Visitor) -> None:
    run = start_run("first")
    assert "Made elsewhere" not in told(operator.get(f"/console/runs/{run.id}/"))


def test_the_request_is_saved_as_a_file(start_run: StartRun, operator: Visitor) -> None:
    run = start_run(IMPORTED)
    saved = operator.get(address(run, "import-request"))
    assert saved.headers["Content-Disposition"].startswith("attachment")
    assert json.loads(saved.content)["request_digest"] == awaited(run).request_digest


def test_an_answer_is_looked_at_before_it_is_taken(start_run: StartRun, operator: Visitor) -> None:
    """A file once, carried along; what was seen is what is done."""
    run = start_run(IMPORTED)
    file = SimpleUploadedFile("answer.json", answer(run).encode(), "application/json")
    looked = operator.post(address(run), {"file": file, "look": "1"})
    assert "correctness becomes completed, and the run is completed" in told(looked)
    assert state(run) == "waiting"
    assert not AuditEvent.objects.filter(action="stage.import").exists()
    found = re.search(r'name="plan_digest" value="([0-9a-f]{64})"', looked.content.decode())
    assert found
    other = operator.post(address(run), {"answer": answer(run, output=2), "plan_digest": found[1]})
    assert (other.status_code, state(run)) == (409, "waiting")
    done = operator.post(address(run), {"answer": answer(run), "plan_digest": found[1], "reason": "looked at"})
    assert (done.status_code, state(run)) == (303, "completed")
    event = AuditEvent.objects.get(action="stage.import", outcome="allowed")
    assert (event.actor, event.reason, event.channel) == ("operator-acme", "looked at", "console")


def test_what_is_refused_is_kept_and_shown_with_its_reason(
    start_run: StartRun, operator: Visitor, application_actor: Actor
) -> None:
    """R36: also when it was only to be looked at."""
    run = start_run(IMPORTED)
    cancel_run(run.id, actor=application_actor)
    looked = operator.post(address(run), {"answer": answer(run), "look": "1"})
    assert looked.status_code == 409
    assert "the run is cancelled" in told(looked)
    assert LateEvidence.objects.count() == 1
    page = told(operator.get(f"/console/runs/{run.id}/"))
    assert "Answers that were refused, and are kept as evidence" in page
    assert "Of operator-acme" in page


@pytest.mark.parametrize(
    "text", ["", " ", "[]", "\ufeff{}", '{"output": NaN}', '{"a": 1, "a": 2}', "\x00", "{" * 5000, '{"lease": 1}']
)
def test_what_is_no_answer_is_told_on_the_form(start_run: StartRun, operator: Visitor, text: str) -> None:
    run = start_run(IMPORTED)
    for more in ({}, {"look": "1"}):
        refused = operator.post(address(run), {"answer": text, **more})
        assert refused.status_code == 400
        assert "Not taken" in told(refused)
    assert state(run) == "waiting"


def test_only_who_may_brings_in_answers(
    start_run: StartRun, browse: Browse, people: dict[str, Person], outsider: Person
) -> None:
    """I16."""
    run = start_run(IMPORTED)
    assert browse(people["viewer"]).post(address(run), {"answer": answer(run)}).status_code == 403
    for path in (address(run), address(run, "import-request")):
        assert browse(outsider).get(path).status_code == 404
    assert browse(outsider).post(address(run), {"answer": answer(run)}).status_code == 404
    assert state(run) == "waiting"
