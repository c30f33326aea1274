"""docs/tutorials, each followed from a fresh start on the embedded database, and what is so afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.journeys.followed import TUTORIALS, Reader, Step, agrees, steps_of

pytestmark = [pytest.mark.embedded, pytest.mark.xdist_group("up")]

FOLLOWED = {
    "README.md",
    "1-an-idempotent-pipeline.md",
    "2-a-long-job-that-resumes.md",
    "3-a-worker-with-curl.md",
    "4-a-celery-task-moves-in.md",
}


@pytest.fixture
def reader(tmp_path: Path, migrated: Path) -> Iterator[Reader]:
    """Of a page, at a console whose tables are there."""
    made = Reader(tmp_path, migrated)
    try:
        made.begin()
        made.follow("README.md")
        yield made
    finally:
        made.close()


def asked(reader: Reader, path: str) -> Any:
    """What the operations API answers the page's person."""
    headers = {"Authorization": f"Bearer {(reader.folder / 'token').read_text().strip()}"}
    answer = httpx.get(f"{reader.console.url}/v1/{path}", headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def runs(reader: Reader) -> list[dict[str, Any]]:
    """Every run that there is, oldest first, with its attempts: (stage, number, state, error code)."""
    found = asked(reader, "executions")["results"]
    for run in found:
        attempts = asked(reader, f"executions/{run['execution_id']}/attempts")["results"]
        run["attempts"] = sorted((one["stage"], one["number"], one["status"], one["error_code"]) for one in attempts)
    return list(reversed(found))


def effects(reader: Reader, run: dict[str, Any]) -> list[tuple[str, str]]:
    told = asked(reader, f"executions/{run['execution_id']}/effects")["results"]
    return sorted((one["class"], one["state"]) for one in told)


def test_every_tutorial_is_followed_by_a_test() -> None:
    assert {path.name for path in TUTORIALS.iterdir()} == FOLLOWED
    index = (TUTORIALS / "README.md").read_text()
    assert all(f"({name})" in index for name in FOLLOWED - {"README.md"})


def test_an_idempotent_pipeline(reader: Reader) -> None:
    """N7, N12, N19, N20, N23, N24: a busy shop costs no attempt; invoked again from outside, by REST and after a
    failure, the rows are one for each invoice and each receipt is printed once. Nothing is tried again unasked (N1).
    """
    reader.follow("1-an-idempotent-pipeline.md")
    done = ("run", 1, "succeeded", None)
    refused = ("run", 1, "failed", "UPSTREAM_REFUSED")
    made = runs(reader)
    assert [run["attempts"] for run in made] == [[done], [done], [refused], [done]]
    assert [run["status"] for run in made] == ["completed", "completed", "failed", "completed"]
    wrote = ("tool_side_effect", "committed")
    printed = ("external_http", "committed")
    assert effects(reader, made[0]) == [wrote]
    assert effects(reader, made[2]) == [("external_http", "absent"), printed, wrote]
    assert effects(reader, made[3]) == [printed, wrote], "what was printed is not printed again"


def test_a_long_job_that_resumes(reader: Reader) -> None:
    """N18, N20, N21: five batches, of which the third fails; the retry processes 3 to 5, a new run none."""
    reader.follow("2-a-long-job-that-resumes.md")
    first, again = runs(reader)
    assert first["attempts"] == [("run", 1, "failed", "VALIDATION_ERROR"), ("run", 2, "succeeded", None)]
    assert again["attempts"] == [("run", 1, "succeeded", None)]


def test_a_worker_with_curl(reader: Reader) -> None:
    """P48–P52, R4: bootstrap, pull, acquire, renew, progress, effects and results, with a shell and curl."""
    reader.follow("3-a-worker-with-curl.md")
    good, bad = runs(reader)
    assert good["attempts"] == [("print", 1, "succeeded", None)]
    assert bad["attempts"] == [("print", 1, "failed", "VALIDATION_ERROR")]
    assert effects(reader, good) == [("tool_side_effect", "committed")]
    assert effects(reader, bad) == []
    assert asked(reader, f"executions/{good['execution_id']}")["status"] == "completed"


def test_a_celery_task_moves_in(reader: Reader) -> None:
    """P2, P3: the task's code in the console's own Celery workers; its retry and its key outside are the console's."""
    reader.follow("4-a-celery-task-moves-in.md")
    (run,) = runs(reader)
    assert run["attempts"] == [
        ("collect_letters", 1, "succeeded", None),
        ("post_letters", 1, "failed", "POST_OFFICE_BUSY"),
        ("post_letters", 2, "succeeded", None),
    ]
    before, after = (json.loads((reader.folder / f"{name}.json").read_text()) for name in ("before", "after"))
    assert sorted(before.values()) == sorted(after.values()), "the same letters, each once"


def test_a_page_is_read_as_its_reader_reads_it() -> None:
    page = (
        "One file.\n\n`one.py`, small:\n\n```python\nx = 1\n```\n\nText.\n\n```sh\npython one.py\n```\n\n"
        "```\n1 …\n```\n\n"
        "In a second terminal, in the folder:\n\n```sh\nserve\n```\n"
    )
    assert list(steps_of(page)) == [
        Step("file", "one.py", "x = 1\n"),
        Step("typed", "own", "python one.py\n"),
        Step("said", "own", "1 …\n"),
        Step("typed", "second", "serve\n"),
    ]
    with pytest.raises(AssertionError, match="which file"):
        list(steps_of("Nothing.\n\n```python\nx\n```\n"))
    assert agrees("run …\nstate  done\n", "run    7\nstate  done  \n")
    assert not agrees("run …\nstate  done\n", "run 7\nstate  failed\n")
