"""Where the samples keep their things: DATA/samples, beside the console's own and never in its database."""

from __future__ import annotations

import os
from pathlib import Path


def directory() -> Path:
    """The samples' directory, made when it is not there."""
    data_dir = os.environ.get("RECOURSE_DATA") or Path(__file__).resolve().parent.parent / "var"
    path = Path(data_dir).absolute() / "samples"
    path.mkdir(parents=True, exist_ok=True)
    return path


def address_file(service: str) -> Path:
    """Holds `host:port` of a running service: the port is free to change at its next start."""
    return directory() / f"{service}.address"


def key_file(application: str) -> Path:
    """Holds the API key of an application, readable by its owner alone."""
    return directory() / f"{application}.key"


def position_file() -> Path:
    """How many days back from which newest day there are runs already. Losing it costs requests, nothing else."""
    return directory() / "feed.json"


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Put `text` in `path` so that a reader sees the old text or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text + "\n")
    draft.replace(path)
