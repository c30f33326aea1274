"""Secrets that are made once in the data directory when the environment does not give them."""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def secret_key(data_dir: Path, problems: list[str]) -> str:
    """The key that signs sessions: `DATA/SECRET_KEY`."""
    return load_or_make(data_dir / "SECRET_KEY", lambda: secrets.token_urlsafe(48), problems)


def encryption_key(data_dir: Path, problems: list[str]) -> str:
    """The Fernet key for values encrypted at rest: `DATA/RECOURSE_ENCRYPTION_KEY`."""
    make = lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()  # noqa: E731
    return load_or_make(data_dir / "RECOURSE_ENCRYPTION_KEY", make, problems)


def load_or_make(path: Path, make: Callable[[], str], problems: list[str]) -> str:
    """Read the secret in `path`, or make it there, readable by its owner alone.

    Of several processes that start at once, one makes it and all read the same. When it can be neither read nor
    written, a value for this process alone is returned and `problems` gets a sentence.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror}).")
        return make()
    value = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _publish(path, value)
        return path.read_text().strip()
    except OSError as error:
        problems.append(f"{path} cannot be written ({error.strerror}): set the variable {path.name}.")
        return value


def _publish(path: Path, value: str) -> None:
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(value + "\n")
        # Fails when another process was first; its value counts then.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
