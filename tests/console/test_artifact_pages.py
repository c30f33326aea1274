"""Artifacts on screens: on their run's page, in a list, to be saved; and the form that lays down a baseline."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import Application, Artifact, ArtifactContent, AuditEvent, Run
from tests.cast import Person, Worker
from tests.console.conftest import Visitor, text_of
from tests.console.test_hostile_bulks_and_accounts import VALUES
from tests.factories import ApplicationFactory
from tests.stored import REPORT, flipped, in_database, store

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]
ATTACK = "<script>alert(1)<script>.html"


@pytest.fixture
def manager(browse: Browse, people: dict[str, Person]) -> Visitor:
    return browse(people["release_manager"])


def told(response: Any) -> str:
    return unescape(text_of(response))


def upload(visitor: Visitor, data: bytes = b"a,b", **more: str) -> Any:
    file = SimpleUploadedFile("prices.csv", data, "text/csv")
    return visitor.post("/console/artifacts/new/", {"content": file, **more})


def test_a_runs_page_lists_what_its_attempts_stored(start_run: StartRun, worker: Worker, operator: Visitor) -> None:
    """Name, size, digest, stage, attempt; the newest, and where the others are."""
    run = start_run("report")
    assert "Artifacts" not in told(operator.get(f"/console/runs/{run.id}/"))
    job = worker.take()
    kept = store(worker, job).json()
    page = operator.get(f"/console/runs/{run.id}/")
    text = told(page)
    assert f"report.pdf application/pdf {len(REPORT)} bytes {kept['sha256'][:12]} report attempt 1 worker-1" in text
    assert f"/console/artifacts/{kept['artifactId']}/content/" in page.content.decode()
    assert f"/console/artifacts/?execution_id={run.id}" in page.content.decode()
    for number in range(8):
        store(worker, job, f"part-{number}", b"x")
    text = told(operator.get(f"/console/runs/{run.id}/"))
    assert "The newest; there are more." in text
    assert "report.pdf" not in text.partition("Artifacts")[2].partition("The newest")[0]


def test_bytes_are_saved_from_there(start_run: StartRun, worker: Worker, operator: Visitor) -> None:
    start_run("report")
    kept = store(worker, worker.take()).json()["artifactId"]
    answer = operator.get(f"/console/artifacts/{kept}/content/")
    assert (answer.status_code, answer.content) == (200, REPORT)
    assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''report.pdf"
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    in_database().change(Artifact.objects.get(), flipped)
    broken = operator.get(f"/console/artifacts/{kept}/content/")
    assert broken.status_code == 409
    assert "damaged" in told(broken)
    assert "Content-Disposition" not in broken.headers


def test_the_list_is_narrowed_by_its_address(
    start_run: StartRun, worker: Worker, manager: Visitor, operator: Visitor
) -> None:
    run = start_run("report")
    store(worker, worker.take())
    upload(manager)
    everything = told(operator.get("/console/artifacts/"))
    assert "report.pdf" in everything
    assert "prices.csv" in everything
    assert "Baseline of the workspace release_manager-acme" in everything
    for query, there, gone in (
        ("is_baseline=true", "prices.csv", "report.pdf"),
        (f"execution_id={run.id}", "report.pdf", "prices.csv"),
        ("name=report.pdf", "report.pdf", "prices.csv"),
    ):
        text = told(operator.get(f"/console/artifacts/?{query}"))
        assert there in text
        assert gone not in text
    assert "None that match" in told(operator.get("/console/artifacts/?name=nothing"))
    assert "prices.csv" in told(operator.get("/console/artifacts/?name="))
    assert operator.get("/console/artifacts/?stage_id=x").status_code == 400


def test_an_empty_list_says_what_artifacts_are_and_who_may_add_one(operator: Visitor, manager: Visitor) -> None:
    page = operator.get("/console/artifacts/")
    assert "No artifact yet" in told(page)
    assert "/console/artifacts/new/" not in page.content.decode()
    assert "release manager" in told(page)
    assert "/console/artifacts/new/" in manager.get("/console/artifacts/").content.decode()
    assert "/console/artifacts/?is_baseline=true" in manager.get("/console/pipelines/").content.decode()


def test_lists_cost_the_same_however_long_they_are(start_run: StartRun, worker: Worker, operator: Visitor) -> None:
    run = start_run("report")
    job = worker.take()
    pages = ("/console/artifacts/", f"/console/runs/{run.id}/")

    def cost(address: str) -> int:
        with CaptureQueriesContext(connection) as found:
            assert operator.get(address).status_code == 200
        return len(found)

    store(worker, job, "first")
    for page in pages:
        operator.get(page)
    few = [cost(page) for page in pages]
    for number in range(12):
        store(worker, job, f"more-{number}")
    assert [cost(page) for page in pages] == few


def test_a_baseline_is_laid_down_by_a_form(manager: Visitor, application: Application) -> None:
    """Called like its file; for one application and environment where somebody chose them. Audited, with the reason."""
    answer = upload(manager, application=str(application.id), environment="staging", reason="of May")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/artifacts/?is_baseline=true")
    artifact = Artifact.objects.get()
    assert (artifact.name, artifact.application, artifact.environment.slug) == (  # type: ignore[union-attr]
        "prices.csv",
        application,
        "staging",
    )
    page = told(manager.get("/console/artifacts/"))
    assert "prices.csv is kept." in page
    assert "Baseline billing in staging" in page
    event = AuditEvent.objects.get(action="artifact.add_baseline")
    assert (event.outcome, event.channel, event.reason) == ("allowed", "console", "of May")
    upload(manager, application=str(application.id), environment="staging")
    assert "kept already" in told(manager.get("/console/artifacts/"))
    assert Artifact.objects.count() == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"name": "a/b"}, "Must not contain /"),
        ({"media_type": "text"}, "Must be a media type"),
        ({"application": "not one"}, "There is no such application"),
        ({"environment": "moon"}, "There is no such environment"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(manager: Visitor, more: dict[str, str], says: str) -> None:
    page = upload(manager, **more)
    assert page.status_code == 400
    assert says in told(page)
    assert 'aria-invalid="true"' in page.content.decode()
    assert (Artifact.objects.count(), ArtifactContent.objects.count()) == (0, 0)
    assert AuditEvent.objects.get().action == "artifact.add_baseline"


def test_a_missing_file_a_large_one_and_another_under_its_name_are_refused(manager: Visitor, settings: Any) -> None:
    assert "Choose a file" in told(manager.post("/console/artifacts/new/", {"name": "a"}))
    settings.RECOURSE_ARTIFACT_MAX_BYTES = 3
    page = upload(manager, b"1234")
    assert page.status_code == 413
    assert "at most 3 bytes" in told(page)
    upload(manager, b"123")
    page = upload(manager, b"124")
    assert page.status_code == 409
    assert "other bytes, which stay as they are" in told(page)
    assert Artifact.objects.count() == 1


def test_another_workspaces_application_cannot_be_chosen(manager: Visitor, other_workspace: Any) -> None:
    """I16."""
    foreign = ApplicationFactory(workspace=other_workspace, name="theirs")
    page = upload(manager, application=str(foreign.id))
    assert page.status_code == 400
    assert "theirs" not in told(page)


def test_hostile_names_are_shown_as_text(start_run: StartRun, worker: Worker, operator: Visitor) -> None:
    run = start_run("report")
    store(worker, worker.take(), ATTACK)
    for address in ("/console/artifacts/", f"/console/runs/{run.id}/"):
        page = operator.get(address).content.decode()
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;script&gt;.html" in page


def test_nothing_that_is_typed_or_uploaded_fails_the_form_or_the_list(manager: Visitor) -> None:
    """O59: whatever the field."""
    wrong = []
    sendable = [value for value in VALUES if value == value.encode(errors="replace").decode()]
    for field in ("name", "media_type", "application", "environment", "reason"):
        for value in sendable:
            file = SimpleUploadedFile(f"{len(wrong)}.csv", b"a,b")
            answer = manager.post("/console/artifacts/new/", {"content": file, field: value})
            if answer.status_code >= 500:
                wrong.append((field, value[:40]))
    for value in sendable:
        for name in ("execution_id", "stage_id", "name", "is_baseline", "cursor", "page_size"):
            if manager.get("/console/artifacts/", {name: value}).status_code >= 500:
                wrong.append((name, value[:40]))
        if manager.post("/console/artifacts/new/", {"content": value}).status_code >= 500:
            wrong.append(("content", value[:40]))
    assert wrong == []
