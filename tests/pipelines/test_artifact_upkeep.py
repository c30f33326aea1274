"""What nothing refers to is taken away after a day, and never what somebody needs; all that is kept can be checked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from pipelines import artifact_places, artifact_storing, artifact_upkeep, retention, tasks
from pipelines.artifacts import Given
from pipelines.models import Artifact, ArtifactContent, Run
from tests.cast import Person, Worker
from tests.clock import Clock
from tests.pipelines.engine import kinds
from tests.stored import REPORT, Shelf, flipped, in_directory, store

StartRun = Callable[..., Run]
DIGEST = sha256(REPORT).hexdigest()


def ended_with_artifacts(start_run: StartRun, worker: Worker, *names: str) -> Run:
    run = start_run("report")
    job = worker.take()
    for name in names:
        assert store(worker, job, name).status_code == 201
    worker.report(job)
    return run


def test_artifacts_go_with_their_run_and_bytes_when_nothing_refers_to_them(
    start_run: StartRun, worker: Worker, clock: Clock, shelf: Shelf
) -> None:
    """Model §3.13: two runs share bytes; they stay for the second, and go after it."""
    ended_with_artifacts(start_run, worker, "a", "b")
    clock.advance(days=20)
    kept = ended_with_artifacts(start_run, worker, "c")
    clock.advance(days=20)
    assert retention.remove_older_than(30) == 1
    assert list(Artifact.objects.values_list("run", "name")) == [(kept.id, "c")]
    assert (artifact_upkeep.sweep(), ArtifactContent.objects.count(), len(shelf.names())) == (0, 1, 1)
    clock.advance(days=20)
    assert retention.remove_older_than(30) == 1
    shelf.age(100 * 86_400)
    assert tasks.sweep_artifacts() == 1
    assert (Artifact.objects.count(), ArtifactContent.objects.count(), shelf.names()) == (0, 0, [])


def test_a_baseline_outlives_every_run(
    start_run: StartRun, worker: Worker, people: dict[str, Person], clock: Clock, shelf: Shelf
) -> None:
    artifact_storing.add_baseline(people["admin"].actor, Given("report", REPORT, DIGEST))
    ended_with_artifacts(start_run, worker, "a")
    clock.advance(days=40)
    assert retention.remove_older_than(30) == 1
    assert (artifact_upkeep.sweep(), Artifact.objects.get().name, len(shelf.names())) == (0, "report", 1)


def test_what_a_crash_left_in_a_storage_goes_after_a_day(
    start_run: StartRun, worker: Worker, settings: Any, tmp_path: Path, clock: Clock
) -> None:
    """An object without a row, and one that was never finished; younger ones stay, and what is not ours."""
    shelf = in_directory(settings, tmp_path)
    run = start_run("report")
    store(worker, worker.take())
    other = sha256(b"never referred to").hexdigest()
    artifact_places.write(run.workspace_id, other, b"never referred to")
    (tmp_path / str(run.workspace_id) / other[:2] / ".unfinished").write_bytes(b"nev")
    (tmp_path / "README").write_text("of somebody else")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("too")
    assert artifact_upkeep.sweep() == 0
    assert len(shelf.names()) == 5
    clock.advance(days=1, seconds=60)
    assert artifact_upkeep.sweep() == 2
    assert set(shelf.names()) == {"README", f"{run.workspace_id}/{DIGEST[:2]}/{DIGEST}", "elsewhere/kept"}


def test_an_object_in_a_bucket_without_a_row_goes_too(
    start_run: StartRun, worker: Worker, clock: Clock, shelf: Shelf
) -> None:
    run = start_run("report")
    store(worker, worker.take())
    if not artifact_places.is_database():
        artifact_places.write(run.workspace_id, sha256(b"x").hexdigest(), b"x")
        assert (artifact_upkeep.sweep(), len(shelf.names())) == (0, 2)
        clock.advance(days=1, seconds=60)
        assert artifact_upkeep.sweep() == 1
    assert shelf.names() == [f"{run.workspace_id}/{DIGEST[:2]}/{DIGEST}"]


@pytest.mark.django_db(transaction=True)
def test_bytes_that_are_being_stored_anew_are_left_alone(
    people: dict[str, Person], clock: Clock, shelf: Shelf, workspace: Any
) -> None:
    """The race of upkeep with who stores the same bytes: whoever stores finds them whole."""
    actor, given = people["admin"].actor, Given("report", REPORT, DIGEST)
    with transaction.atomic():
        artifact_storing.add_baseline(actor, given)
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL recourse.retention = 'on'")
            cursor.execute("DELETE FROM pipelines_artifact")
    shelf.age(10 * 86_400)
    clock.advance(days=10)
    held, swept = threading.Event(), threading.Event()
    found: list[int] = []

    def upkeep() -> None:
        held.wait(10)
        found.append(artifact_upkeep.sweep())
        swept.set()
        connection.close()

    thread = threading.Thread(target=upkeep)
    thread.start()
    with transaction.atomic():
        artifact_storing.add_baseline(actor, given)
        held.set()
        assert swept.wait(30)
    thread.join(10)
    assert found == [0]
    assert artifact_upkeep.sweep() == 0
    assert (Artifact.objects.count(), len(shelf.names())) == (1, 1)


def test_an_unfinished_write_leaves_nothing_under_a_digest(settings: Any, tmp_path: Path, workspace: Any) -> None:
    """A directory: whole or not at all, whatever happens while it is written."""

    class Breaks(ContentFile):
        def chunks(self, chunk_size: int | None = None) -> Any:
            yield b"half"
            raise OSError("the disk is full")

    in_directory(settings, tmp_path)
    with pytest.raises(OSError, match="full"):
        storages["artifacts"].save(f"{workspace.id}/aa/{'a' * 64}", Breaks(b""))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# checking


def checked(*args: str) -> str:
    out = StringIO()
    call_command("verify_artifacts", *args, stdout=out)
    return out.getvalue().strip()


def test_all_artifacts_are_checked_by_a_command(start_run: StartRun, worker: Worker, shelf: Shelf) -> None:
    """R15: exit 1 with the first that is broken."""
    ended_with_artifacts(start_run, worker, "a", "b")
    assert checked() == checked("--workspace", "acme") == "2 artifacts hold"
    first = Artifact.objects.order_by("id")[0]
    shelf.change(first, flipped)
    with pytest.raises(CommandError, match=f"a \\({first.id}, {first.digest}\\) is broken: its bytes") as told:
        checked()
    assert told.value.returncode == 1


def test_more_artifacts_than_fit_on_a_page_are_all_checked(
    start_run: StartRun, worker: Worker, monkeypatch: pytest.MonkeyPatch, shelf: Shelf
) -> None:
    monkeypatch.setattr(artifact_upkeep, "BATCH", 2)
    ended_with_artifacts(start_run, worker, "a", "b", "c", "d", "e")
    assert checked() == "5 artifacts hold"


def test_another_workspace_is_not_checked_and_an_unknown_one_is_refused(
    start_run: StartRun, worker: Worker, other_workspace: Any
) -> None:
    ended_with_artifacts(start_run, worker, "a")
    assert checked("--workspace", other_workspace.slug) == "0 artifacts hold"
    with pytest.raises(CommandError) as told:
        checked("--workspace", "nowhere")
    assert told.value.returncode == 2


# a storage that is away


def test_a_storage_that_does_not_answer_is_no_damage(
    start_run: StartRun, worker: Worker, settings: Any, tmp_path: Path
) -> None:
    """503, to be repeated; nothing is stored, nothing is told as broken, and the same works once it is back."""
    in_directory(settings, tmp_path / "artifacts")
    run = start_run("report")
    job = worker.take()
    kept = store(worker, job).json()["artifactId"]
    mounted = settings.STORAGES["artifacts"]
    (tmp_path / "file").write_text("in the way")
    settings.STORAGES = {**settings.STORAGES, "artifacts": mounted | {"OPTIONS": {"location": str(tmp_path / "file")}}}
    for answer in (store(worker, job, "b", b"other"), worker.get(f"/artifacts/{kept}")):
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert str(tmp_path) not in answer.content.decode()
    with pytest.raises(CommandError) as told:
        checked()
    assert told.value.returncode == 2
    assert kinds(run).count("artifact.store") == 1
    settings.STORAGES = {**settings.STORAGES, "artifacts": mounted}
    assert store(worker, job, "b", b"other").status_code == 201
    assert worker.get(f"/artifacts/{kept}").content == REPORT


def test_what_the_database_keeps_stays_there_when_a_storage_is_configured(
    start_run: StartRun, worker: Worker, settings: Any, tmp_path: Path
) -> None:
    """Contents know their place; new ones go to the new one, the same bytes stay where they are."""
    start_run("report")
    job = worker.take()
    kept = store(worker, job).json()["artifactId"]
    shelf = in_directory(settings, tmp_path)
    assert store(worker, job, "again").status_code == 201
    assert store(worker, job, "new", b"new").status_code == 201
    assert worker.get(f"/artifacts/{kept}").content == REPORT
    assert len(shelf.names()) == 1
    settings.RECOURSE_ARTIFACTS = "database"
    del settings.STORAGES["artifacts"]
    settings.STORAGES = dict(settings.STORAGES)
    new = Artifact.objects.get(name="new")
    assert worker.get(f"/artifacts/{new.id}").status_code == 503
