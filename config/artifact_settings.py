"""Where the bytes of artifacts are kept, as the operator configured it: read from the environment, judged by the system
checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

NAME = "RECOURSE_ARTIFACTS"
S3 = "RECOURSE_ARTIFACTS_S3_"
EXAMPLES = "database, file:///srv/artifacts or s3://bucket/prefix"


@dataclass(frozen=True, slots=True)
class ArtifactPlace:
    """`kind` is database, file (with `location`) or s3 (with all else)."""

    kind: str = "database"
    location: str = ""
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)

    @property
    def storages(self) -> dict[str, Any]:
        """The entry for Django's STORAGES; none where the database keeps them."""
        if self.kind == "file":
            options: dict[str, Any] = {"location": self.location}
            return {"artifacts": {"BACKEND": "pipelines.artifact_directory.Directory", "OPTIONS": options}}
        if self.kind == "s3":
            options = {
                "bucket_name": self.bucket,
                "location": self.prefix,
                "endpoint_url": self.endpoint or None,
                "region_name": self.region or None,
                "addressing_style": self.addressing,
                "access_key": self.access_key or None,
                "secret_key": self.secret_key or None,
            }
            return {"artifacts": {"BACKEND": "pipelines.artifact_bucket.Bucket", "OPTIONS": options}}
        return {}


def read(text: Callable[[str], str], addressing: str, problems: list[str]) -> ArtifactPlace:
    """What the variables say; the database where they cannot be meant. `text` gives a variable by its name."""
    secret = text(f"{S3}SECRET_KEY")
    if file := text(f"{S3}SECRET_KEY_FILE"):
        if secret:
            problems.append(f"{S3}SECRET_KEY and {S3}SECRET_KEY_FILE are both set; one is enough.")
        try:
            secret = Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError):
            problems.append(f"{S3}SECRET_KEY_FILE names no file that can be read.")
    told = text(NAME)
    if told == "database":
        return ArtifactPlace()
    parts = _split(told)
    if parts is None or parts.query or parts.fragment or "@" in parts.netloc:
        # not shown: somebody may have put a password into it
        problems.append(f"{NAME} cannot be meant; it must look like {EXAMPLES}.")
        return ArtifactPlace()
    if parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        return ArtifactPlace("file", location=unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        return ArtifactPlace(
            "s3",
            bucket=parts.netloc,
            prefix=unquote(parts.path).strip("/"),
            endpoint=text(f"{S3}ENDPOINT").rstrip("/"),
            region=text(f"{S3}REGION"),
            addressing=addressing,
            access_key=text(f"{S3}ACCESS_KEY"),
            secret_key=secret,
        )
    problems.append(f"{NAME} cannot be meant; it must look like {EXAMPLES}.")
    return ArtifactPlace()


def _split(text: str) -> SplitResult | None:
    try:
        return urlsplit(text)
    except ValueError:
        return None
