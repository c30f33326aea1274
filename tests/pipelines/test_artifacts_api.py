"""Artifacts through `/v1`: lists, what is known of one, its bytes, and baselines, which people lay down."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines import keys
from pipelines.models import Application, Artifact, ArtifactContent, AuditEvent, Environment, Run
from tests.cast import Api, Person, Worker
from tests.factories import ApplicationFactory
from tests.stored import REPORT, Shelf, baseline, flipped, store

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
PRICES = b"a,b\n1,2\n"


@pytest.fixture
def manager(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["release_manager"])


@pytest.fixture
def viewer(people: dict[str, Person], as_person: AsPerson) -> Api:
    return as_person(people["viewer"])


def names(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [one["name"] for one in answer.json()["results"]]


# looking


def test_what_is_known_of_an_artifact(start_run: StartRun, worker: Worker, viewer: Api, api: Api) -> None:
    run = start_run("report")
    job = worker.take()
    kept = store(worker, job).json()["artifactId"]
    told = viewer.get(f"/v1/artifacts/{kept}").json()
    assert told.pop("created_at").endswith("+00:00")
    assert told == {
        "id": kept,
        "name": "report.pdf",
        "media_type": "application/pdf",
        "sha256": sha256(REPORT).hexdigest(),
        "size": len(REPORT),
        "is_baseline": False,
        "execution_id": str(run.id),
        "stage_id": job["stageId"],
        "stage": "report",
        "attempt_id": job["executionId"],
        "attempt": 1,
        "application": "billing",
        "environment": "development",
        "added_by": "worker-1",
    }
    for caller in (viewer, api):
        assert caller.get(f"/v1/artifacts/{kept}/content").content == REPORT


def test_lists_are_newest_first_narrowed_and_paged_by_keyset(
    start_run: StartRun, worker: Worker, viewer: Api, api: Api, manager: Api
) -> None:
    """Every artifact once, whatever the page size; a filter may repeat; what is no filter is refused by name."""
    first, second = start_run("one"), start_run("two")
    jobs = {job["stageName"]: job for job in worker.pull(maxJobs=2)}
    for name in ("a", "b", "c"):
        store(worker, jobs["one"], name)
    store(worker, jobs["two"], "d")
    manager.post("/v1/artifacts", baseline("e"))
    assert names(viewer.get("/v1/artifacts")) == ["e", "d", "c", "b", "a"]
    pages, address = [], "/v1/artifacts?page_size=2"
    while address:
        page = viewer.get(address)
        pages.append(names(page))
        address = page.json()["next"]
    assert pages == [["e", "d"], ["c", "b"], ["a"]]
    stage = jobs["two"]["stageId"]
    for query, expected in {
        f"execution_id={first.id}": ["c", "b", "a"],
        f"execution_id={first.id}&execution_id={second.id}": ["d", "c", "b", "a"],
        f"stage_id={stage}": ["d"],
        "name=a&name=d": ["d", "a"],
        "is_baseline=true": ["e"],
        "is_baseline=false&name=e": [],
    }.items():
        assert names(viewer.get(f"/v1/artifacts?{query}")) == expected, query
        assert names(api.get(f"/v1/artifacts?{query}")) == expected, query
    assert names(viewer.get(f"/v1/executions/{first.id}/artifacts")) == ["c", "b", "a"]
    assert names(api.get(f"/v1/executions/{first.id}/artifacts?name=b")) == ["b"]
    for wrong in ("artifacts?stage_id=x", "artifacts?pipeline=a", f"executions/{first.id}/artifacts?execution_id=a"):
        assert viewer.get(f"/v1/{wrong}").status_code == 400, wrong


def test_a_list_costs_the_same_however_long_it_is(start_run: StartRun, worker: Worker, viewer: Api) -> None:
    run = start_run("report")
    job = worker.take()

    def cost(address: str) -> int:
        with CaptureQueriesContext(connection) as found:
            assert viewer.get(address).status_code == 200
        return len(found)

    store(worker, job, "first")
    addresses = ("/v1/artifacts", f"/v1/executions/{run.id}/artifacts")
    viewer.get("/v1/artifacts")  # the use of a token is written down now and then
    few = [cost(address) for address in addresses]
    for number in range(30):
        store(worker, job, f"more-{number}")
    assert [cost(address) for address in addresses] == few
    assert max(few) <= 8


# baselines


def test_a_baseline_is_laid_down_once(manager: Api, viewer: Api, shelf: Shelf) -> None:
    """R14: 201, then 200 with the same id for the same bytes; others are refused; audited each time."""
    first = manager.post("/v1/artifacts", baseline(media_type="text/csv", reason="of May"))
    again = manager.post("/v1/artifacts", baseline(media_type="text/csv"))
    other = manager.post("/v1/artifacts", baseline(data=PRICES + b"3,4\n"))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"], list(other.json()["errors"])) == (
        409,
        "artifact_immutable",
        ["name"],
    )
    told = first.json()
    assert (told["is_baseline"], told["execution_id"], told["attempt"], told["added_by"]) == (
        True,
        None,
        None,
        "release_manager-acme",
    )
    assert viewer.get(f"/v1/artifacts/{told['id']}/content").content == PRICES
    assert (Artifact.objects.count(), ArtifactContent.objects.count(), len(shelf.names())) == (1, 1, 1)
    events = AuditEvent.objects.filter(action="artifact.add_baseline").order_by("at")
    assert list(events.values_list("outcome", "code", "reason")) == [
        ("allowed", "", "of May"),
        ("no_op", "", ""),
        ("failed", "artifact_immutable", ""),
    ]
    assert events[0].data["artifact"] == told["id"]


def test_a_baseline_comes_as_a_form_too(manager: Api, people: dict[str, Person], workspace: Any) -> None:
    """multipart/form-data, by token; called like its file where nothing else is said."""
    file = SimpleUploadedFile("prices.csv", PRICES)
    answer = Client().post("/v1/artifacts", {"content": file, "media_type": "text/csv"}, headers=manager.headers)
    assert answer.status_code == 201, answer.content
    assert (answer.json()["name"], answer.json()["size"], answer.json()["media_type"]) == ("prices.csv", 8, "text/csv")
    again = SimpleUploadedFile("other.csv", PRICES)
    named = {"content": again, "name": "prices.csv", "sha256": sha256(PRICES).hexdigest()}
    assert Client().post("/v1/artifacts", named, headers=manager.headers).status_code == 200


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"name": "a"}, "content_base64"),
        ({"content": SimpleUploadedFile("a", b"1"), "surprise": "1"}, "surprise"),
        ({"other": SimpleUploadedFile("a", b"1"), "name": "a"}, "other"),
        ({"content": SimpleUploadedFile("a", b"1"), "sha256": "0" * 64}, "sha256"),
        ({"content": SimpleUploadedFile("a", b"1"), "name": "../a"}, "name"),
    ],
)
def test_a_form_is_as_strict_as_json(manager: Api, form: dict[str, Any], field: str) -> None:
    answer = Client().post("/v1/artifacts", form, headers=manager.headers)
    assert answer.status_code == 400, answer.content
    assert field in answer.json()["errors"]
    assert Artifact.objects.count() == 0


def test_a_broken_form_and_a_large_one_are_refused(manager: Api) -> None:
    headers = {**manager.headers, "Content-Type": "multipart/form-data"}
    client = Client()
    broken = client.generic("POST", "/v1/artifacts", b"--x", content_type="multipart/form-data", headers=headers)
    assert (broken.status_code, broken.json()["code"]) == (400, "validation_error")
    form = {"content": SimpleUploadedFile("a", bytes(17 * 1024 * 1024))}
    large = client.post("/v1/artifacts", form, headers=manager.headers)
    assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")
    some = {"content": SimpleUploadedFile("a", bytes(12 * 1024 * 1024))}
    above = client.post("/v1/artifacts", some, headers=manager.headers)
    assert (above.status_code, above.json()["code"]) == (413, "payload_too_large")
    assert Artifact.objects.count() == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"content_base64": "?"}, "content_base64"),
        ({"content_base64": None}, "content_base64"),
        ({"sha256": sha256(b"x").hexdigest()}, "sha256"),
        ({"media_type": "text"}, "media_type"),
        ({"application": "nobody"}, "application"),
        ({"dry_run": True}, "dry_run"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_cannot_be_a_baseline_is_refused_by_name(manager: Api, wrong: dict[str, Any], field: str) -> None:
    answer = manager.post("/v1/artifacts", baseline(**wrong))
    assert (answer.status_code, answer.json()["code"], list(answer.json()["errors"])) == (
        400,
        "validation_error",
        [field],
    )
    assert (Artifact.objects.count(), ArtifactContent.objects.count()) == (0, 0)
    assert AuditEvent.objects.get().code == "validation_error"


def test_an_environment_that_is_none_is_said_to_be_unknown(manager: Api) -> None:
    answer = manager.post("/v1/artifacts", baseline(environment="moon"))
    assert (answer.status_code, answer.json()["code"]) == (422, "environment_unknown")


def test_a_key_sees_the_baselines_that_are_for_it(
    manager: Api,
    api: Api,
    worker: Worker,
    application: Application,
    environments: dict[str, Environment],
    foreign_key: str,
    sibling_key: str,
) -> None:
    """I16: those of the whole workspace, of its application and its environment, and no other."""
    made = {
        name: manager.post("/v1/artifacts", baseline(name, **more)).json()["id"]
        for name, more in {
            "all": {},
            "billing": {"application": "billing"},
            "development": {"environment": "development"},
            "both": {"application": "billing", "environment": "development"},
            "staging": {"environment": "staging"},
        }.items()
    }
    ApplicationFactory(workspace=application.workspace, name="nobody")
    assert manager.post("/v1/artifacts", baseline("nobody's", application="nobody")).status_code == 201
    _, staging = keys.issue_key(application, environments["staging"])
    seen = {"all", "billing", "development", "both"}
    assert set(names(api.get("/v1/artifacts"))) == seen
    assert set(names(Api({"X-API-Key": staging}).get("/v1/artifacts"))) == {"all", "billing", "staging"}
    assert set(names(Api({"X-API-Key": sibling_key}).get("/v1/artifacts"))) == {"all", "development"}
    assert names(Api({"X-API-Key": foreign_key}).get("/v1/artifacts")) == []
    for name, artifact_id in made.items():
        status = 200 if name in seen else 404
        assert worker.get(f"/artifacts/{artifact_id}").status_code == status, name
        assert api.get(f"/v1/artifacts/{artifact_id}/content").status_code == status, name


def test_two_workspaces_have_their_names_and_bytes_apart(
    manager: Api, outsider: Person, as_person: AsPerson, shelf: Shelf
) -> None:
    """I16: the same name and bytes elsewhere are another artifact and another object."""
    ours = manager.post("/v1/artifacts", baseline())
    theirs = as_person(outsider).post("/v1/artifacts", baseline())
    assert (ours.status_code, theirs.status_code) == (201, 201)
    assert len(shelf.names()) == ArtifactContent.objects.count() == 2
    shelf.change(Artifact.objects.get(id=ours.json()["id"]), flipped)
    assert as_person(outsider).get(f"/v1/artifacts/{theirs.json()['id']}/content").content == PRICES


def test_a_baseline_on_damaged_bytes_is_refused(manager: Api, shelf: Shelf) -> None:
    """R15: nothing is built on what is broken; the refusal is in the audit."""
    manager.post("/v1/artifacts", baseline())
    shelf.change(Artifact.objects.get(), flipped)
    answer = manager.post("/v1/artifacts", baseline("again"))
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_corrupt")
    assert Artifact.objects.count() == 1
    assert AuditEvent.objects.filter(action="artifact.add_baseline", code="artifact_corrupt").count() == 1


def test_a_key_and_who_may_not_release_lay_nothing_down(
    api: Api, people: dict[str, Person], as_person: AsPerson
) -> None:
    for role in ("viewer", "operator", "approver"):
        answer = as_person(people[role]).post("/v1/artifacts", baseline())
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), role
    assert api.post("/v1/artifacts", baseline()).status_code == 403
    assert Artifact.objects.count() == 0
    assert AuditEvent.objects.filter(action="artifact.add_baseline", outcome="denied").count() == 4
