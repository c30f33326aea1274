"""The storage in which artifacts' bytes lie when not in the database: objects named by workspace and digest.

Which storage is configured under `artifacts` in Django's STORAGES; callers see neither its kind nor its errors.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import InvalidStorageError, storages

from pipelines.errors import Refusal

log = structlog.get_logger(__name__)

_WORKSPACE = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_SHELF = re.compile(r"[0-9a-f]{2}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Away(Refusal):
    """The storage does not answer, or none is configured: nothing is known of what lies in it (503)."""

    def __init__(self, why: str) -> None:
        super().__init__("result_not_confirmed", f"the storage of artifacts does not answer ({why}); repeat it later")
        self.code = "unavailable"


class Damaged(Exception):
    """What lies in the place is not what was put there; the text says how."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object of ours in the storage; `digest` is blank for one that was never finished."""

    name: str
    workspace_id: uuid.UUID
    digest: str


def is_database() -> bool:
    """Whether new contents go into the database."""
    return settings.RECOURSE_ARTIFACTS == "database"


def write(workspace_id: uuid.UUID, digest: str, data: bytes) -> None:
    """Puts the bytes there, durably; the same bytes again change nothing. Raises `Away`."""
    try:
        _storage().save(_name(workspace_id, digest), ContentFile(data))
    except Exception as error:
        raise _away(error) from error


def read(workspace_id: uuid.UUID, digest: str, size: int) -> bytes:
    """The bytes, not checked but for their number. Raises `Damaged` when they are gone or of another size, `Away`."""
    try:
        with _storage().open(_name(workspace_id, digest), "rb") as file:
            found: int = file.size
            data: bytes = file.read() if found == size else b""
    except FileNotFoundError as error:
        raise Damaged("its bytes are gone") from error
    except Exception as error:
        raise _away(error) from error
    if found != size:
        raise Damaged(f"there are {found} bytes instead of {size}")
    return data


def remove(found: Found) -> None:
    """Takes the object away; one that is gone already is fine. Raises `Away`."""
    try:
        _storage().delete(found.name)
    except Exception as error:
        raise _away(error) from error


def found_of(workspace_id: uuid.UUID, digest: str) -> Found:
    return Found(_name(workspace_id, digest), workspace_id, digest)


def written_at(found: Found) -> datetime | None:
    """When the object was written; None when it is gone. Raises `Away`."""
    try:
        at: datetime = _storage().get_modified_time(found.name)
    except FileNotFoundError:
        return None
    except Exception as error:
        if getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
            return None
        raise _away(error) from error
    return at


def shelves() -> Iterator[list[Found]]:
    """All that lies in the storage and is ours by its name, a 256th of a workspace at a time. Raises `Away`."""
    for workspace in _listed("")[0]:
        if _WORKSPACE.fullmatch(workspace):
            for shelf in _listed(workspace)[0]:
                if _SHELF.fullmatch(shelf):
                    here = f"{workspace}/{shelf}"
                    names = [name for name in _listed(here)[1] if _DIGEST.fullmatch(name) or name.startswith(".")]
                    owner = uuid.UUID(workspace)
                    yield [Found(f"{here}/{name}", owner, "" if name[0] == "." else name) for name in names]


def probe() -> None:
    """Raises when the storage could not be used now; whatever its driver raises. The database is not asked for."""
    if not is_database():
        _storage().probe()


def _name(workspace_id: uuid.UUID, digest: str) -> str:
    return f"{workspace_id}/{digest[:2]}/{digest}"


def _storage() -> Any:
    try:
        return storages["artifacts"]
    except InvalidStorageError as error:
        raise Away("none is configured") from error


def _listed(folder: str) -> tuple[list[str], list[str]]:
    try:
        folders, files = _storage().listdir(folder)
    except FileNotFoundError:
        return [], []
    except Exception as error:
        raise _away(error) from error
    return folders, files


def _away(error: Exception) -> Away:
    """Told by the kind of error alone: a driver's message may hold addresses and names."""
    if isinstance(error, Away):
        return error
    log.warning("artifacts.storage_unavailable", error=type(error).__name__)
    return Away(type(error).__name__)
