"""A directory as the place of artifacts: a file has its name only once all of it is on the disk."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from django.core.files.storage import FileSystemStorage


class Directory(FileSystemStorage):
    """Writes beside the name and then moves there, so that a crash leaves no half of a file under a digest.

    Nobody else on the host may read the files. The same name again replaces the same bytes.
    """

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        return name

    def _save(self, name: str, content: Any) -> str:
        path = self.path(name)
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(prefix=".", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                for chunk in content.chunks():
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise
        _sync(folder)
        return name

    def probe(self) -> None:
        """Raises OSError where nothing could be written."""
        os.makedirs(self.location, mode=0o700, exist_ok=True)
        if not os.access(self.location, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError("the directory of artifacts cannot be written")


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
