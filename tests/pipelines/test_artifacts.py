"""Artifacts of running attempts, over the worker's wire: immutable, known by their bytes, checked at each load."""

from __future__ import annotations

import base64
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines import keys
from pipelines.models import Application, Artifact, ArtifactContent, AuditEvent, Environment, Event, Run
from pipelines.transitions import cancel_run
from tests.cast import Api, Person, Worker, unknown_id
from tests.clock import Clock
from tests.engine_model.invariants import assert_invariants
from tests.pipelines.engine import kinds
from tests.stored import REPORT, Shelf, flipped, store

StartRun = Callable[..., Run]


def load(caller: Api, artifact_id: str, **headers: str) -> Any:
    return caller.get(f"/artifacts/{artifact_id}", **headers)


# storing


def test_what_an_attempt_stores_comes_back_as_it_was(start_run: StartRun, worker: Worker, shelf: Shelf) -> None:
    """R14, R15: wherever the bytes lie, under workspace and digest; with an event of the run."""
    run = start_run("report")
    job = worker.take()
    answer = store(worker, job)
    artifact = Artifact.objects.get()
    digest = sha256(REPORT).hexdigest()
    assert (answer.status_code, answer.json()) == (
        201,
        {"artifactId": str(artifact.id), "name": "report.pdf", "sha256": digest, "size": len(REPORT), "created": True},
    )
    assert (str(artifact.attempt), artifact.run_id, artifact.added_by) == (job["executionId"], run.id, "worker-1")
    assert shelf.names() == [f"{run.workspace_id}/{digest[:2]}/{digest}"]
    (event,) = Event.objects.filter(run=run, kind="artifact.store")
    told = {"artifact": str(artifact.id), "name": "report.pdf", "sha256": digest, "size": len(REPORT), "number": 1}
    assert (event.actor, str(event.attempt), event.data) == ("worker-1", job["executionId"], told)
    answer = load(worker, str(artifact.id))
    assert (answer.status_code, answer.content) == (200, REPORT)
    assert_invariants()


def test_the_same_again_is_the_same_artifact(start_run: StartRun, worker: Worker, shelf: Shelf) -> None:
    """R14: 200 instead of 201, one row, one object, one event."""
    run = start_run("report")
    job = worker.take()
    first, again = store(worker, job), store(worker, job)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json() | {"created": False}
    assert (Artifact.objects.count(), ArtifactContent.objects.count(), len(shelf.names())) == (1, 1, 1)
    assert kinds(run).count("artifact.store") == 1


def test_other_bytes_under_a_name_are_refused_and_the_first_stay(start_run: StartRun, worker: Worker) -> None:
    """R14: a second write to the same artifact is refused, and nothing of it is kept."""
    start_run("report")
    job = worker.take()
    kept = store(worker, job).json()["artifactId"]
    answer = store(worker, job, data=REPORT + b".")
    assert (answer.status_code, answer.json()["code"], list(answer.json()["errors"])) == (
        409,
        "artifact_immutable",
        ["name"],
    )
    assert load(worker, kept).content == REPORT
    assert (Artifact.objects.count(), ArtifactContent.objects.count()) == (1, 1)


def test_the_same_bytes_are_kept_once_in_a_workspace(start_run: StartRun, worker: Worker, shelf: Shelf) -> None:
    """Two names, two runs: four artifacts that refer to one content."""
    start_run("report")
    start_run("report")
    for job in worker.pull(maxJobs=2):
        for name in ("report.pdf", "copy.pdf"):
            assert store(worker, job, name).status_code == 201
    assert (Artifact.objects.count(), ArtifactContent.objects.count(), len(shelf.names())) == (4, 1, 1)


def test_another_attempt_may_use_the_name_again(start_run: StartRun, worker: Worker, clock: Clock) -> None:
    """A name is an attempt's own: what the failed one left stays beside it."""
    start_run({"name": "report", "options": {"max_retries": 1, "retry_interval": 1}})
    job = worker.take()
    store(worker, job)
    worker.report(job, "failed", errorCode="UPSTREAM")
    clock.advance(2)
    assert store(worker, worker.take(), data=b"another report").status_code == 201
    assert sorted(Artifact.objects.values_list("size", flat=True)) == [len(b"another report"), len(REPORT)]


def test_an_artifact_may_be_empty(start_run: StartRun, worker: Worker, shelf: Shelf) -> None:
    start_run("report")
    kept = store(worker, worker.take(), "nothing", b"").json()
    assert kept["size"] == 0
    assert load(worker, kept["artifactId"]).content == b""


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"sha256": sha256(b"another").hexdigest()}, "sha256"),
        ({"sha256": sha256(REPORT).hexdigest().upper()}, "sha256"),
        ({"sha256": "abc"}, "sha256"),
        ({"sha256": None}, "sha256"),
        ({"contentBase64": "%%%%"}, "contentBase64"),
        ({"contentBase64": "YWJj\n"}, "contentBase64"),
        ({"contentBase64": "YWJ"}, "contentBase64"),
        ({"contentBase64": "YWJjé"}, "contentBase64"),
        ({"contentBase64": 7}, "contentBase64"),
        ({"name": ""}, "name"),
        ({"name": " report"}, "name"),
        ({"name": "n" * 256}, "name"),
        ({"name": "../../etc/passwd"}, "name"),
        ({"name": ".."}, "name"),
        ({"name": "a\\b"}, "name"),
        ({"name": "a\r\nSet-Cookie: b=c"}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "a\x85b"}, "name"),
        ({"name": "fdp.\u202eexe"}, "name"),
        ({"name": "half \ud800"}, "name"),
        ({"mediaType": "application"}, "mediaType"),
        ({"mediaType": "text/html\r\nX-Evil: 1"}, "mediaType"),
        ({"mediaType": "a/" + "b" * 100}, "mediaType"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    start_run: StartRun, worker: Worker, wrong: dict[str, Any], field: str
) -> None:
    """Nothing of it is kept, and the attempt goes on."""
    start_run("report")
    job = worker.take()
    answer = store(worker, job, **wrong)
    assert (answer.status_code, answer.json()["code"], list(answer.json()["errors"])) == (
        400,
        "validation_error",
        [field],
    )
    assert (Artifact.objects.count(), ArtifactContent.objects.count()) == (0, 0)
    assert worker.report(job).json()["stageStatus"] == "completed"


@pytest.mark.parametrize(
    "name",
    ["Bericht für März.pdf", "报告.pdf", 'a"b;c=d.txt', "100 %.csv", "👩‍👩‍👧.png", "n" * 255, "a'b*c", ".hidden"],
)
def test_names_are_any_text_and_travel_unbroken(start_run: StartRun, worker: Worker, name: str) -> None:
    """RFC 6266: the header is ASCII, whatever the name is."""
    start_run("report")
    kept = store(worker, worker.take(), name).json()
    assert kept["name"] == name
    told = load(worker, kept["artifactId"]).headers["Content-Disposition"]
    assert told.isascii()
    assert told.startswith("attachment; filename*=UTF-8''")
    assert unquote(told.partition("''")[2]) == name
    assert not set('";\r\n ') & set(told.partition("''")[2])


def test_bytes_above_the_limit_are_refused(start_run: StartRun, worker: Worker, settings: Any) -> None:
    """413, with the limit; one byte less is taken."""
    settings.RECOURSE_ARTIFACT_MAX_BYTES = 10
    start_run("report")
    job = worker.take()
    answer = store(worker, job, data=b"x" * 11)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert "10 bytes" in answer.json()["detail"]
    assert store(worker, job, data=b"x" * 10).status_code == 201


def test_the_largest_artifact_that_a_setting_allows_fits_into_a_body(
    start_run: StartRun, worker: Worker, settings: Any
) -> None:
    settings.RECOURSE_ARTIFACT_MAX_BYTES = 11 * 1024 * 1024
    run = start_run("report")
    limits = {**run.limits, "total_output_bytes": 100 * 1024 * 1024}
    Run.objects.filter(id=run.id).update(limits=limits)
    data = bytes(11 * 1024 * 1024)
    kept = store(worker, worker.take(), data=data)
    assert kept.status_code == 201
    assert load(worker, kept.json()["artifactId"]).content == data


def test_an_attempt_has_a_hundred_artifacts_at_most(start_run: StartRun, worker: Worker) -> None:
    start_run("report")
    job = worker.take()
    for number in range(100):
        assert store(worker, job, f"part-{number}", b"x").status_code == 201
    answer = store(worker, job, "part-100", b"x")
    assert (answer.status_code, answer.json()["code"]) == (409, "budget_exhausted")
    assert "100 artifacts" in answer.json()["detail"]
    assert store(worker, job, "part-99", b"x").status_code == 200
    assert Artifact.objects.count() == 100


def test_an_artifact_is_charged_to_its_run(start_run: StartRun, worker: Worker) -> None:
    """R25, R45: what the run's output allowance has no room for is refused; each artifact counts."""
    run = start_run("report")
    reserved = 262_144
    Run.objects.filter(id=run.id).update(limits={**run.limits, "total_output_bytes": reserved + 15})
    job = worker.take()
    assert store(worker, job, "a", b"x" * 10).status_code == 201
    answer = store(worker, job, "b", b"x" * 10)
    assert (answer.status_code, answer.json()["code"]) == (409, "budget_exhausted")
    assert store(worker, job, "c", b"x" * 5).status_code == 201
    assert store(worker, job, "a", b"x" * 10).status_code == 200
    assert worker.report(job).json()["stageStatus"] == "completed"


# the fence


def test_who_does_not_hold_the_lease_stores_nothing(
    start_run: StartRun, worker: Worker, new_worker: Callable[..., Worker], clock: Clock
) -> None:
    """Another session, an attempt that ended, a lease that ended: `stale_execution`, and no row, no bytes."""
    start_run("report")
    other = new_worker("worker-2", "Handler")
    job = worker.take()
    assert store(other, job).json()["code"] == "stale_execution"
    clock.advance(3600)
    assert store(worker, job).json()["code"] == "stale_execution"
    assert Artifact.objects.count() == 0
    start_run("report")
    ended = worker.pull(maxJobs=2)[0]
    worker.report(ended)
    assert (store(worker, ended).status_code, store(worker, ended).json()["code"]) == (409, "stale_execution")
    assert (Artifact.objects.count(), Event.objects.filter(kind="artifact.store").count()) == (0, 0)


def test_a_cancelled_run_takes_nothing_more(start_run: StartRun, worker: Worker, people: dict[str, Person]) -> None:
    """R37."""
    run = start_run("report")
    job = worker.take()
    cancel_run(run.id, actor=people["operator"].actor, reason="stop")
    assert store(worker, job).json()["code"] == "stale_execution"
    assert Artifact.objects.count() == 0


def test_a_stage_and_an_attempt_that_do_not_belong_together_are_not_found(start_run: StartRun, worker: Worker) -> None:
    start_run("report")
    start_run("report")
    one, other = worker.pull(maxJobs=2)
    mixed = {**one, "executionId": other["executionId"]}
    assert store(worker, mixed).status_code == 404
    assert store(worker, {**one, "executionId": unknown_id()}).status_code == 404
    assert store(worker, {"stageId": "no-id", "executionId": one["executionId"]}).status_code == 404


# the database itself


@pytest.mark.parametrize("statement", ["UPDATE {} SET size = 1", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["pipelines_artifact", "pipelines_artifactcontent"])
def test_the_database_lets_nobody_change_or_remove_an_artifact(
    start_run: StartRun, worker: Worker, statement: str, table: str
) -> None:
    """R14, I7: by whatever way."""
    start_run("report")
    store(worker, worker.take())
    with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement.format(table))
    assert Artifact.objects.count() == ArtifactContent.objects.count() == 1


# loading


def test_a_flipped_byte_fails_closed_everywhere(
    start_run: StartRun,
    worker: Worker,
    api: Api,
    people: dict[str, Person],
    as_person: Callable[[Person], Api],
    shelf: Shelf,
) -> None:
    """R15: no face gives out a byte of it, each try is in the audit, and nothing is built on it."""
    run = start_run("report")
    job = worker.take()
    kept = store(worker, job).json()["artifactId"]
    shelf.change(Artifact.objects.get(), flipped)
    page = Client()
    page.force_login(people["viewer"].user)
    viewer = as_person(people["viewer"])
    tries = [
        load(worker, kept),
        api.get(f"/v1/artifacts/{kept}/content"),
        viewer.get(f"/v1/artifacts/{kept}/content"),
        page.get(f"/console/artifacts/{kept}/content/"),
    ]
    for answer in tries:
        assert answer.status_code == 409
        assert b"nightly report" not in answer.content
        assert "attachment" not in answer.headers.get("Content-Disposition", "")
    assert {answer.json()["code"] for answer in tries[:3]} == {"artifact_corrupt"}
    told = list(AuditEvent.objects.filter(action="artifact.load").order_by("at").values_list("actor", "code", "run"))
    assert told == [
        ("billing", "artifact_corrupt", run.id),
        ("billing", "artifact_corrupt", run.id),
        ("viewer-acme", "artifact_corrupt", run.id),
        ("viewer-acme", "artifact_corrupt", run.id),
    ]
    assert viewer.get(f"/v1/artifacts/{kept}").status_code == 200  # what is known of it stays known
    answer = store(worker, job, "copy.pdf")
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_corrupt")
    assert Artifact.objects.count() == 1


@pytest.mark.parametrize(
    "how", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""], ids=["short", "long", "empty"]
)
def test_bytes_of_another_number_fail_closed(
    start_run: StartRun, worker: Worker, shelf: Shelf, how: Callable[[bytes], bytes]
) -> None:
    """R15."""
    start_run("report")
    kept = store(worker, worker.take()).json()["artifactId"]
    shelf.change(Artifact.objects.get(), how)
    answer = load(worker, kept)
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_corrupt")


def test_bytes_that_are_gone_fail_closed(start_run: StartRun, worker: Worker, shelf: Shelf) -> None:
    start_run("report")
    kept = store(worker, worker.take()).json()["artifactId"]
    shelf.lose(Artifact.objects.get())
    answer = load(worker, kept)
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_corrupt")
    assert "gone" in answer.json()["detail"]


def test_bytes_are_answered_to_be_saved_and_never_to_be_run(start_run: StartRun, worker: Worker) -> None:
    """A page that somebody stores must not speak in the console's name."""
    start_run("report")
    kept = store(worker, worker.take(), "page.html", b"<script>1</script>", mediaType="text/html").json()
    answer = load(worker, kept["artifactId"], Accept="image/png")
    assert answer.status_code == 200
    assert {name: answer.headers[name] for name in TOLD} == {
        "Content-Type": "text/html",
        "Content-Disposition": "attachment; filename*=UTF-8''page.html",
        "Content-Length": "18",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "ETag": f'"{kept["sha256"]}"',
        "Cache-Control": "no-store",
    }


TOLD = (
    "Content-Type",
    "Content-Disposition",
    "Content-Length",
    "X-Content-Type-Options",
    "Content-Security-Policy",
    "ETag",
    "Cache-Control",
)


def test_head_tells_what_get_would_without_the_bytes(start_run: StartRun, worker: Worker, api: Api) -> None:
    start_run("report")
    kept = store(worker, worker.take()).json()["artifactId"]
    for caller, path in ((worker, f"/artifacts/{kept}"), (api, f"/v1/artifacts/{kept}/content")):
        whole = caller.get(path)
        head = Client().head(path, headers=caller.headers)
        assert (head.status_code, head.content) == (200, b"")
        assert {name: head.headers[name] for name in TOLD} == {name: whole.headers[name] for name in TOLD}
    assert Client().head(f"/v1/artifacts/{kept}", headers=api.headers).status_code == 405


def test_without_a_media_type_bytes_are_just_bytes(start_run: StartRun, worker: Worker) -> None:
    start_run("report")
    kept = store(worker, worker.take(), mediaType=None).json()["artifactId"]
    assert load(worker, kept).headers["Content-Type"] == "application/octet-stream"


# whose they are


def test_nobody_elses_artifact_can_be_found(
    start_run: StartRun,
    worker: Worker,
    application: Application,
    environments: dict[str, Environment],
    foreign_key: str,
    sibling_key: str,
    outsider: Person,
    as_person: Callable[[Person], Api],
) -> None:
    """I16: another workspace's, application's or environment's key, session or person: 404, before anything is read."""
    run = start_run("report")
    job = worker.take()
    kept = store(worker, job).json()["artifactId"]
    _, staging = keys.issue_key(application, environments["staging"])
    for secret in (foreign_key, sibling_key, staging):
        stranger = Worker(secret, ["Handler"], "stranger")
        assert load(stranger, kept).status_code == 404
        assert store(stranger, job).status_code == 404
        assert store(stranger, job, sha256="wrong").status_code == 404
        assert store(stranger, job, sha256=sha256(b"wrong").hexdigest()).status_code == 404
        caller = Api({"X-API-Key": secret})
        for path in (f"artifacts/{kept}", f"artifacts/{kept}/content", f"executions/{run.id}/artifacts"):
            assert caller.get(f"/v1/{path}").status_code == 404, path
        assert caller.get("/v1/artifacts").json()["results"] == []
    stranger_person = as_person(outsider)
    for path in (f"artifacts/{kept}", f"artifacts/{kept}/content", f"executions/{run.id}/artifacts"):
        assert stranger_person.get(f"/v1/{path}").status_code == 404, path
    assert stranger_person.get(f"/v1/artifacts?execution_id={run.id}").json()["results"] == []
    assert Artifact.objects.count() == 1


def test_only_a_session_of_the_application_loads_by_the_workers_route(
    start_run: StartRun, worker: Worker, api: Api
) -> None:
    start_run("report")
    kept = store(worker, worker.take()).json()["artifactId"]
    assert load(api, kept).status_code == 401
    assert Api({}).get(f"/artifacts/{kept}").status_code == 401
    assert load(worker, "no-id").status_code == load(worker, unknown_id()).status_code == 404
    assert Api({}).get(f"/v1/artifacts/{kept}/content").status_code == 401


# what it costs


def test_storing_and_loading_cost_a_fixed_number_of_statements(start_run: StartRun, worker: Worker) -> None:
    start_run("report")
    job = worker.take()
    store(worker, job, "first")
    with CaptureQueriesContext(connection) as few:
        kept = store(worker, job, "second").json()["artifactId"]
    for number in range(20):
        store(worker, job, f"more-{number}")
    with CaptureQueriesContext(connection) as many:
        store(worker, job, "last")
    assert len(many) == len(few) <= 25
    with CaptureQueriesContext(connection) as loading:
        load(worker, kept)
    assert len(loading) <= 4


def test_base64_is_read_as_any_encoder_writes_it(start_run: StartRun, worker: Worker) -> None:
    """Of every length modulo three."""
    start_run("report")
    job = worker.take()
    for length in range(1, 7):
        data = bytes(range(250, 250 + length))[:length] if length < 6 else b"\xfb\xff\xfe\xfa\xf9\xf8"
        answer = store(worker, job, f"of-{length}", data, contentBase64=base64.b64encode(data).decode())
        assert load(worker, answer.json()["artifactId"]).content == data
