"""Runs pin what they build on: which artifacts they may name, what is handed to workers, what follows when one changes
(R16, R17)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from django.db import connection

from pipelines.access import Actor
from pipelines.artifact_storing import Stored, add_baseline
from pipelines.artifacts import Given
from pipelines.models import Application, Artifact, Attempt, Run, RunIdentity
from tests.cast import Api, Hand, Person, Worker
from tests.stored import REPORT, flipped

StartRun = Callable[..., Run]
Lay = Callable[..., Stored]


@pytest.fixture
def lay(people: dict[str, Person]) -> Lay:
    """A baseline of the workspace: lay("gold.csv", b"…", application_id=…)."""

    def add(name: str = "gold.csv", data: bytes = REPORT, *, by: Actor = people["admin"].actor, **more: Any) -> Stored:
        return add_baseline(by, Given(name, data, sha256(data).hexdigest()), **more)

    return add


def asked(*baseline: Any, key: str = "k", **more: Any) -> dict[str, Any]:
    told = [{"name": name, "artifactId": str(artifact)} for name, artifact in baseline]
    stage = {"stageName": "a", "stageHandlerName": "Handler"}
    body = {"name": "n", "idempotencyKey": key, "stages": [stage], **more}
    return body | ({"baseline": told} if told else {})


def run_of(key: str = "k") -> Run:
    return Run.objects.get(id=RunIdentity.objects.get(key=key).run_id)


def damage(artifact: uuid.UUID) -> None:
    """As somebody does who may switch off the database's own guard."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE pipelines_artifactcontent DISABLE TRIGGER USER")
        content = Artifact.objects.get(id=artifact).content
        cursor.execute(
            "UPDATE pipelines_artifactcontent SET body = %s WHERE id = %s", [flipped(bytes(content.body)), content.id]
        )
        cursor.execute("ALTER TABLE pipelines_artifactcontent ENABLE TRIGGER USER")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


def test_it_is_pinned_and_handed_to_the_worker(api: Api, api_key: str, lay: Lay) -> None:
    """R17: with its digest, which the request's digest covers."""
    kept = lay()
    assert api.post("/pipelines/idempotent", asked(("gold", kept.id))).status_code < 300
    assert run_of().baseline == [{"name": "gold", "artifact_id": str(kept.id), "sha256": kept.sha256}]
    (job,) = Worker(api_key, ["Handler"]).pull()
    assert job["baseline"] == [{"name": "gold", "artifactId": str(kept.id), "sha256": kept.sha256}]
    assert api.post("/pipelines/idempotent", asked(key="other")).status_code < 300
    (job,) = Worker(api_key, ["Handler"], "w2").pull()
    assert "baseline" not in job


def test_it_is_a_part_of_what_makes_two_requests_the_same(api: Api, lay: Lay) -> None:
    """Only where it is given: what says nothing of it is what it was."""
    one, other = lay("a.csv"), lay("b.csv", b"other")
    assert api.post("/pipelines/idempotent", asked(("gold", one.id))).status_code == 201
    assert api.post("/pipelines/idempotent", asked(("gold", one.id))).status_code == 200
    for others in (asked(), asked(("gold", other.id)), asked(("silver", one.id))):
        assert api.post("/pipelines/idempotent", others).json()["code"] == "idempotency_conflict"
    assert api.post("/pipelines/idempotent", asked(key="x")).status_code == 201
    assert api.post("/pipelines/idempotent", asked(key="x", baseline=[])).status_code == 200


def test_nobody_builds_on_what_is_not_theirs(
    api: Api, lay: Lay, outsider: Person, sibling_key: str, environments: dict[str, Any]
) -> None:
    """R17, I16: another workspace's, application's or environment's artifact is none at all, by its path."""
    foreign = lay("theirs", b"1", by=outsider.actor)
    sibling = lay("sibling", b"2", application_id=Application.objects.exclude(name="billing").latest("created_at").id)
    elsewhere = lay("elsewhere", b"3", environment_id=environments["staging"].id)
    own = lay("own", b"4")
    for wrong in (foreign.id, sibling.id, elsewhere.id, uuid.uuid4()):
        answer = api.post("/pipelines/idempotent", asked(("gold", own.id), ("silver", wrong)))
        assert answer.status_code == 400
        assert list(answer.json()["errors"]) == ["baseline[1].artifactId"]
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("baseline", "path"),
    [
        ([{"name": "", "artifactId": str(uuid.uuid4())}], "baseline[0].name"),
        ([{"name": "a"}], "baseline[0].artifactId"),
        ([{"name": "a", "artifactId": "1"}], "baseline[0].artifactId"),
        ([{"name": "a", "artifactId": str(uuid.uuid4())}] * 2, "baseline[1].name"),
        ([{"name": str(at), "artifactId": str(uuid.uuid4())} for at in range(21)], "baseline"),
        ("gold", "baseline"),
    ],
)
def test_what_names_nothing_certain_is_refused(api: Api, baseline: Any, path: str) -> None:
    answer = api.post("/pipelines/idempotent", asked(baseline=baseline))
    assert answer.status_code == 400
    assert path in answer.json()["errors"]


def test_a_flipped_byte_stops_whatever_was_built_on_it(api: Api, hand: Hand, lay: Lay, start_run: StartRun) -> None:
    """R17: nothing of it is dispatched, it says what differs; others go on, and so does a new run on another."""
    kept = lay()
    api.post("/pipelines/idempotent", asked(("gold", kept.id)))
    other = start_run("first", name="another")
    damage(kept.id)
    (job,) = hand.pull(10)
    assert job.run_id == other.id
    run = run_of()
    assert run.status == "blocked"
    assert run.changed is not None
    (difference,) = run.changed
    assert (difference["what"], difference["name"], difference["pinned"]) == ("baseline", "gold", kept.sha256)
    assert "damaged" in difference["found"]
    assert not Attempt.objects.filter(run_id=run.id).exists()
    fresh = lay("gold-2.csv", b"whole")
    assert api.post("/pipelines/idempotent", asked(("gold", fresh.id), key="anew")).status_code == 201
    assert hand.take().run_id == run_of("anew").id


def test_a_pipeline_names_them_for_all_its_runs(
    people: dict[str, Person], as_person: Callable[[Person], Api], lay: Lay, api: Api, outsider: Person
) -> None:
    """Managed runs inherit it, and a fork pins it anew; a request adds to it, and replaces none."""
    kept, more, foreign = lay(), lay("more.csv", b"more"), lay("theirs", b"1", by=outsider.actor)
    manager = as_person(people["admin"])
    assert manager.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"}).status_code == 201

    def register(artifact: uuid.UUID) -> Any:
        told = {"name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}]}
        told["baseline"] = [{"name": "gold", "artifact_id": str(artifact)}]
        body = {"pipeline": "nightly", "environment": "development", "activate": True, "definition": told}
        return manager.post("/v1/releases", body)

    refused = register(foreign.id)
    assert refused.status_code == 400
    assert list(refused.json()["errors"]) == ["definition.baseline[0].artifact_id"]
    release = register(kept.id)
    assert release.status_code == 201
    assert manager.get(f"/v1/releases/{release.json()['id']}").json()["definition"]["baseline"][0]["name"] == "gold"

    def create(key: str, *baseline: Any) -> Any:
        told = [{"name": name, "artifactId": str(artifact)} for name, artifact in baseline]
        body = {"pipeline": "nightly", "idempotencyKey": key}
        return api.post("/pipelines/idempotent", body | ({"baseline": told} if told else {}))

    assert create("plain").status_code == 201
    assert [one["sha256"] for one in run_of("plain").baseline] == [kept.sha256]
    assert create("more", ("extra", more.id)).status_code == 201
    assert [one["name"] for one in run_of("more").baseline] == ["gold", "extra"]
    assert list(create("instead", ("gold", more.id)).json()["errors"]) == ["baseline[0].name"]
    run = run_of("more")
    assert manager.post(f"/v1/executions/{run.id}/cancel", {}).status_code == 200
    forked = manager.post(f"/v1/executions/{run.id}/replay", {"reason": "anew"})
    assert forked.status_code < 300, forked.content
    fork = Run.objects.get(recovered_from=run)
    assert fork.baseline == run.baseline
