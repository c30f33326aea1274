"""Artifacts in tests: the places in which they may lie, and how something there gets damaged."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from config.artifact_settings import ArtifactPlace
from pipelines.models import Artifact, ArtifactContent
from pipelines.sql import execute
from tests.cast import Api
from tests.tampering import past_the_triggers

REPORT = b"%PDF-1.7 the nightly report\x00\xff\r\n"
BUCKET = "artifacts"


@dataclass(frozen=True, slots=True)
class Shelf:
    """One place: which names lie in it, and what it does to the bytes of one."""

    names: Callable[[], list[str]]
    change: Callable[[Artifact, Callable[[bytes], bytes]], None]
    lose: Callable[[Artifact], None]
    age: Callable[[int], None] = lambda seconds: None


def flipped(data: bytes) -> bytes:
    """The same with one bit of its fourth byte another."""
    return data[:3] + bytes([data[3] ^ 1]) + data[4:]


def given(name: str = "report.pdf", data: bytes = REPORT, **more: Any) -> dict[str, Any]:
    """A body of the worker's route, but for the attempt."""
    told = {
        "name": name,
        "contentBase64": base64.b64encode(data).decode(),
        "sha256": sha256(data).hexdigest(),
        "mediaType": "application/pdf",
    }
    return told | more


def store(worker: Api, job: Mapping[str, Any], name: str = "report.pdf", data: bytes = REPORT, **more: Any) -> Any:
    body = {"executionId": job["executionId"], **given(name, data, **more)}
    return worker.post(f"/stages/{job['stageId']}/artifacts", body)


def baseline(name: str = "prices.csv", data: bytes = b"a,b\n1,2\n", **more: Any) -> dict[str, Any]:
    """A body of POST /v1/artifacts."""
    return {"name": name, "content_base64": base64.b64encode(data).decode(), **more}


def in_database() -> Shelf:
    def change(artifact: Artifact, how: Callable[[bytes], bytes]) -> None:
        content = ArtifactContent.objects.get(id=artifact.content_id)
        with past_the_triggers():
            ArtifactContent.objects.filter(id=content.id).update(body=how(bytes(content.body or b"")))

    def lose(artifact: Artifact) -> None:
        execute("SET CONSTRAINTS ALL IMMEDIATE")  # what this transaction wrote is checked while the bytes are there
        execute("SET CONSTRAINTS ALL DEFERRED")
        with past_the_triggers():
            execute("DELETE FROM pipelines_artifactcontent WHERE id = %s", [artifact.content_id])

    def names() -> list[str]:
        return [f"{one.workspace_id}/{one.digest[:2]}/{one.digest}" for one in ArtifactContent.objects.all()]

    return Shelf(names, change, lose)


def in_directory(settings: Any, folder: Path) -> Shelf:
    _use(settings, ArtifactPlace("file", location=str(folder)))

    def path_of(artifact: Artifact) -> Path:
        return folder / str(artifact.workspace_id) / artifact.digest[:2] / artifact.digest

    def change(artifact: Artifact, how: Callable[[bytes], bytes]) -> None:
        path_of(artifact).write_bytes(how(path_of(artifact).read_bytes()))

    def age(seconds: int) -> None:
        for path in folder.rglob("*"):
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))

    def names() -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    return Shelf(names, change, lambda artifact: path_of(artifact).unlink(), age)


def in_bucket(settings: Any, endpoint: str, prefix: str) -> Shelf:
    place = ArtifactPlace(
        "s3", bucket=BUCKET, prefix=prefix, endpoint=endpoint, region="us-east-1", access_key="key", secret_key="secret"
    )
    _use(settings, place)
    client = client_of(endpoint)

    def key_of(artifact: Artifact) -> str:
        return f"{prefix}/{artifact.workspace_id}/{artifact.digest[:2]}/{artifact.digest}"

    def change(artifact: Artifact, how: Callable[[bytes], bytes]) -> None:
        kept = client.get_object(Bucket=BUCKET, Key=key_of(artifact))["Body"].read()
        client.put_object(Bucket=BUCKET, Key=key_of(artifact), Body=how(kept))

    def names() -> list[str]:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
        return [one["Key"].removeprefix(f"{prefix}/") for one in found]

    def lose(artifact: Artifact) -> None:
        client.delete_object(Bucket=BUCKET, Key=key_of(artifact))

    return Shelf(names, change, lose)


def client_of(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret"
    )


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of an S3 server over real HTTP, with an empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client_of(endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["database", "directory", "bucket"])
def shelf(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> Shelf:
    """Each of the places in which artifacts may lie."""
    if request.param == "directory":
        return in_directory(settings, tmp_path / "artifacts")
    if request.param == "bucket":
        return in_bucket(settings, request.getfixturevalue("s3_endpoint"), tmp_path.name)
    return in_database()


def _use(settings: Any, place: ArtifactPlace) -> None:
    settings.STORAGES = {**settings.STORAGES, **place.storages}
    settings.RECOURSE_ARTIFACTS = place.kind
