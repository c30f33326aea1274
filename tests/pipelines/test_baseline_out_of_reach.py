"""A storage that is away for a while costs nobody a result: an import that comes next begins once it answers (R17)."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pipelines import queries, sweeps
from pipelines.artifact_storing import add_baseline
from pipelines.artifacts import Given
from pipelines.models import Run, Stage
from tests.cast import Api, Hand, Person
from tests.clock import Clock
from tests.stored import in_directory

pytestmark = pytest.mark.django_db
DATA = b"a,b\n1,2\n"


@pytest.fixture
def run(api: Api, people: dict[str, Person], settings: Any, tmp_path: Path) -> Run:
    """Two stages, the second an import, on a baseline that lies in a directory."""
    in_directory(settings, tmp_path / "artifacts")
    kept = add_baseline(people["admin"].actor, Given("gold.csv", DATA, sha256(DATA).hexdigest()))
    body = {
        "name": "n",
        "idempotencyKey": "k",
        "stages": [
            {"stageName": "load", "stageHandlerName": "Handler"},
            {"stageName": "check", "stageHandlerName": "desk", "mode": "import"},
        ],
        "baseline": [{"name": "gold", "artifactId": str(kept.id)}],
    }
    assert api.post("/pipelines/idempotent", body).status_code == 201
    return Run.objects.get()


def states(run: Run) -> list[str]:
    return list(Stage.objects.filter(run=run).order_by("position").values_list("state", flat=True))


def away(settings: Any) -> Callable[[], None]:
    """The storage is gone, as while it is being moved; calling what is returned brings it back."""
    kept, kind = settings.STORAGES, settings.RECOURSE_ARTIFACTS
    settings.STORAGES = {name: one for name, one in kept.items() if name != "artifacts"}
    settings.RECOURSE_ARTIFACTS = "database"

    def back() -> None:
        settings.STORAGES, settings.RECOURSE_ARTIFACTS = kept, kind

    return back


def test_the_result_before_an_import_is_taken_and_the_import_begins_later(
    run: Run, hand: Hand, settings: Any, clock: Clock
) -> None:
    job = hand.take()
    back = away(settings)
    assert hand.report(job, output={"rows": 2}).accepted
    assert states(run) == ["completed", "ready"]
    assert not hand.pull(5), "nobody of ours does an import"
    (cause,) = [one.cause for one in queries.blockers(Run.objects.get())]
    assert "awaited once the run's baseline can be looked at" in cause
    clock.advance(60)
    assert sweeps.move_on_stuck_runs() == 0, "still away"
    assert states(run) == ["completed", "ready"]
    back()
    assert sweeps.sweep()["stuck"] == 1
    assert states(run) == ["completed", "waiting"]
    assert Run.objects.get().status == "waiting"
    assert sweeps.sweep()["stuck"] == 0


def test_what_was_damaged_meanwhile_stops_the_run(
    run: Run, hand: Hand, settings: Any, tmp_path: Path, clock: Clock
) -> None:
    job = hand.take()
    back = away(settings)
    hand.report(job, output=1)
    back()
    (file,) = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    file.chmod(0o600)
    file.write_bytes(b"a,b\n1,3\n")
    clock.advance(60)
    sweeps.sweep()
    found = Run.objects.get()
    assert (found.status, bool(found.changed)) == ("blocked", True)
    assert states(run) == ["completed", "ready"]
    clock.advance(60)
    assert sweeps.sweep()["stuck"] == 0, "and is not looked at for ever"
