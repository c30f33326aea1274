"""Where artifacts are kept, as an operator sets it: read, refused before the start, and looked after in /readyz."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from config.artifact_settings import ArtifactPlace
from config.environment import Environment
from tests.config.test_checks import SOUND, SOUND_IN_PRODUCTION, found
from tests.stored import BUCKET, in_bucket, in_directory

S3 = {"RECOURSE_ARTIFACTS": "s3://bucket/some/prefix"}
KEYS = {"RECOURSE_ARTIFACTS_S3_ACCESS_KEY": "key", "RECOURSE_ARTIFACTS_S3_SECRET_KEY": "very secret"}


def place(**values: str) -> ArtifactPlace:
    return Environment.from_os(SOUND | values).artifacts


def test_the_database_keeps_them_unless_something_else_is_said(tmp_path: Path) -> None:
    assert place() == ArtifactPlace()
    assert place().storages == {}
    directory = place(RECOURSE_ARTIFACTS=f"file://{tmp_path}/of%20ours")
    assert (directory.kind, directory.location) == ("file", f"{tmp_path}/of ours")
    bucket = place(**S3, **KEYS, RECOURSE_ARTIFACTS_S3_ENDPOINT="https://s3.example.org/")
    assert (bucket.bucket, bucket.prefix, bucket.endpoint) == ("bucket", "some/prefix", "https://s3.example.org")
    assert found(**S3, **KEYS) == {}
    assert found(RECOURSE_ARTIFACTS=f"file://{tmp_path}/new") == {}


@pytest.mark.parametrize(
    "told",
    [
        "disk",
        "file://host/path",
        "file:///",
        "srv/artifacts",
        "s3://",
        "s3://key:very-secret@bucket",
        "http://[x",
        "s3://b?c=d",
    ],
)
def test_what_cannot_be_meant_is_refused_and_not_shown(told: str) -> None:
    wrong = found(RECOURSE_ARTIFACTS=told)
    assert list(wrong) == ["recourse.E001"]
    assert "RECOURSE_ARTIFACTS cannot be meant" in wrong["recourse.E001"]
    assert "very-secret" not in str(wrong)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert list(found(RECOURSE_ARTIFACTS=f"file://{tmp_path}/file/below")) == ["recourse.E019"]


def test_a_bucket_needs_both_keys_or_none_and_an_address() -> None:
    one = {"RECOURSE_ARTIFACTS_S3_ACCESS_KEY": "key"}
    assert list(found(**S3)) == []
    assert list(found(**S3, **one)) == ["recourse.E020"]
    assert list(found(**S3, RECOURSE_ARTIFACTS_S3_ENDPOINT="s3.example.org")) == ["recourse.E020"]
    http = {"RECOURSE_ARTIFACTS_S3_ENDPOINT": "http://s3.example.org"}
    assert found(**S3, **http) == {}
    assert list(found(**SOUND_IN_PRODUCTION, **S3, **http)) == ["recourse.E020"]
    assert list(found(RECOURSE_ARTIFACT_MAX_BYTES=str(12 * 1024 * 1024))) == ["recourse.E001"]


def test_a_secret_may_stand_in_a_file_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("very secret\n")
    by_file = place(**S3, RECOURSE_ARTIFACTS_S3_ACCESS_KEY="key", RECOURSE_ARTIFACTS_S3_SECRET_KEY_FILE=str(file))
    assert by_file.secret_key == "very secret"
    assert "secret" not in repr(by_file).replace("secret_key", "")
    assert list(found(**S3, **KEYS, RECOURSE_ARTIFACTS_S3_SECRET_KEY_FILE=str(file))) == ["recourse.E001"]
    assert list(found(**S3, RECOURSE_ARTIFACTS_S3_SECRET_KEY_FILE=str(tmp_path))) == ["recourse.E001"]


@pytest.mark.django_db
def test_a_console_without_its_storage_is_degraded_and_ready(client: Client, settings: Any, tmp_path: Path) -> None:
    """200, so that nobody takes it out: all that has nothing to do with artifacts goes on."""
    in_directory(settings, tmp_path / "artifacts")
    assert client.get("/readyz").json()["status"] == "ready"
    (tmp_path / "file").write_text("in the way")
    in_directory(settings, tmp_path / "file")
    answer = client.get("/readyz")
    told = answer.json()
    assert (answer.status_code, told["status"], told["checks"]["database"]) == (200, "degraded", "ok")
    assert told["checks"]["artifacts"] == "FileExistsError"
    assert str(tmp_path) not in answer.content.decode()


@pytest.mark.django_db
def test_a_bucket_that_does_not_answer_is_found_out_quickly(client: Client, settings: Any, s3_endpoint: str) -> None:
    """Neither its address nor its keys are told."""
    in_bucket(settings, s3_endpoint, "here")
    assert client.get("/readyz").json()["checks"]["artifacts"] == "ok"
    away = ArtifactPlace("s3", bucket=BUCKET, endpoint="http://127.0.0.1:1", access_key="key", secret_key="very secret")
    settings.STORAGES = {**settings.STORAGES, **away.storages}
    began = time.monotonic()
    answer = client.get("/readyz")
    assert time.monotonic() - began < 10
    assert (answer.status_code, answer.json()["checks"]["artifacts"]) == (200, "EndpointConnectionError")
    assert b"127.0.0.1" not in answer.content
    assert b"secret" not in answer.content
