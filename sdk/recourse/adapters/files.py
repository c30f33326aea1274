"""Files below one folder: rows as JSON lines or CSV, anything else as bytes. A file is there whole or not at all.

Names are relative and lead nowhere else, symbolic links included. `upsert` replaces the file of that name, so that done
twice it is the same; `insert` makes a new one. Of two that write one name at once, the file of either is whole; nothing
more is promised of them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from recourse.adapters import matrix
from recourse.adapters.base import (
    INVALID,
    MISCONFIGURED,
    REFUSED,
    TOO_LARGE,
    Capabilities,
    Ground,
    Op,
    Row,
    RowLimits,
    Written,
    digest_of,
    failure,
)
from recourse.adapters.http import encoded
from recourse.adapters.rows import check
from recourse.effects import Effect

MISSING = "MISSING_REQUIRED_DATA"
MOST_NAME = 200


@dataclass(frozen=True, slots=True)
class FilesSettings:
    """A folder that exists."""

    folder: Path
    max_bytes: int = 100 * 1024 * 1024
    limits: RowLimits = field(default_factory=lambda: RowLimits(max_rows=1_000_000))


class Files:
    """`ctx.adapters.NAME` of kind `files`."""

    def __init__(self, ground: Ground, settings: FilesSettings) -> None:
        self._ground = ground
        self._settings = settings
        self._written = 0

    @property
    def name(self) -> str:
        return self._ground.name

    @property
    def capabilities(self) -> Capabilities:
        return matrix.BY_KIND["files"]

    async def read(self, where: Row | None = None) -> list[dict[str, Any]]:
        """The rows of the file `where["name"]` (`.jsonl`, or `.csv`, of which every value is text) whose fields equal
        the rest of `where`; `"limit"` in it bounds them.
        """
        filters = dict(where or {})
        name = str(filters.pop("name", ""))
        limit = filters.pop("limit", None)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise failure(INVALID, f"limit is a whole number from 0, not {limit!r}", False)
        rows = [
            row
            for row in parsed(name, await self.read_bytes(name))
            if all(row.get(field) == value for field, value in filters.items())
        ]
        return rows if limit is None else rows[:limit]

    async def read_bytes(self, name: str) -> bytes:
        """Raises `StageFailure` with MISSING_REQUIRED_DATA where there is no such file."""
        self._ground.look()
        return await self._ground.in_thread(lambda: self._load(name))

    async def write(self, rows: Sequence[Row], op: Op = "insert", *, name: str = "") -> Written:
        """All rows as one file, by its suffix; one effect."""
        suffix(name)
        found = check(rows, "insert", key=[], limits=self._settings.limits, before=self._written)
        written = await self.write_bytes(name, composed(name, found.columns, found.rows), op)
        self._written += len(found.rows)
        return Written(len(found.rows), len(found.rows) if written.already else 0)

    async def write_bytes(self, name: str, data: bytes, op: Op = "upsert") -> Written:
        """The file with these bytes, in its place at once."""
        if op not in ("insert", "upsert"):
            raise failure(INVALID, f"op is insert or upsert, not {op!r}", False)
        if len(data) > self._settings.max_bytes:
            raise failure(TOO_LARGE, f"{len(data)} bytes, more than {self._settings.max_bytes} (max_bytes)", False)
        path = self._path(name)
        self._ground.look()
        detail = {"file": name, "bytes": len(data)}
        async with self._ground.effect("tool_side_effect", op, [op, name, digest_of(data)], detail=detail) as effect:
            effect.unknown()  # as long as the thread has not said otherwise
            already = await self._ground.in_thread(lambda: self._place(path, name, data, op, effect))
        return Written(1, int(already))

    def _place(self, path: Path, name: str, data: bytes, op: Op, effect: Effect) -> bool:
        """Whether it was there already. Until the file has its name, nothing is there."""
        placed = False
        try:
            if op == "insert" and path.exists():
                return self._same(path, name, data, effect)
            path.parent.mkdir(parents=True, exist_ok=True)
            held, written = tempfile.mkstemp(prefix=".recourse-", dir=path.parent)
            try:
                with os.fdopen(held, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(written, 0o640)
                self._ground.stage.raise_if_stopped()
                if op == "upsert":
                    os.replace(written, path)
                else:
                    os.link(written, path)
                placed = True
            finally:
                Path(written).unlink(missing_ok=True)
            effect.committed(name)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileExistsError:
            return self._same(path, name, data, effect)
        except OSError as error:
            if not placed:
                effect.not_sent()
            raise failure(REFUSED, f"{self.name}: {name} cannot be written: {error.strerror}", None) from error
        except BaseException:
            if not placed:
                effect.not_sent()
            raise
        return False

    def _same(self, path: Path, name: str, data: bytes, effect: Effect) -> bool:
        """An insert finds a file: with these bytes it is done already, by whomever."""
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            effect.committed(name)
            return True
        effect.not_sent()
        raise failure(REFUSED, f"{self.name} has another {name} already, which stays", False)

    def _load(self, name: str) -> bytes:
        path = self._path(name)
        try:
            # what became a link since is not followed, and nobody is waited for who might write into it
            held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            if not stat.S_ISREG(os.fstat(held).st_mode):
                os.close(held)
                raise failure(REFUSED, f"{self.name}: {name} is no file", False)
            with os.fdopen(held, "rb") as file:
                data = file.read(self._settings.max_bytes + 1)
        except FileNotFoundError as error:
            raise failure(MISSING, f"{self.name} has no file {name}", False) from error
        except OSError as error:
            raise failure(REFUSED, f"{self.name}: {name} cannot be read: {error.strerror}", None) from error
        if len(data) > self._settings.max_bytes:
            raise failure(TOO_LARGE, f"{name} has more than {self._settings.max_bytes} bytes (max_bytes)", False)
        return data

    def _path(self, name: str) -> Path:
        """Where the file lies, with all links followed. Raises `StageFailure` for a name that leads out."""
        root = self._settings.folder
        if not root.is_dir():
            raise failure(MISCONFIGURED, f"the folder of {self.name} is not there", False)
        pure = PurePosixPath(name)
        strange = not name or len(name) > MOST_NAME or not name.isprintable() or "\\" in name
        if strange or pure.is_absolute() or any(part in ("..", ".") or part[0] == "." for part in pure.parts):
            raise failure(INVALID, f"{name[:MOST_NAME]!r} is no name of a file below the folder of {self.name}", False)
        try:
            root = root.resolve()
            path = (root / pure).resolve()
        except (OSError, RuntimeError) as error:
            raise failure(INVALID, f"{name!r} is a link that leads nowhere", False) from error
        if path == root or not path.is_relative_to(root):
            raise failure(INVALID, f"{name!r} leads out of the folder of {self.name}", False)
        return path


def suffix(name: str) -> str:
    """Of a file of rows."""
    found = PurePosixPath(name).suffix.lower()
    if found not in (".jsonl", ".csv"):
        raise failure(INVALID, f"rows are in files called .jsonl or .csv, not {name!r}: take the bytes", False)
    return found


def parsed(name: str, data: bytes) -> list[dict[str, Any]]:
    try:
        text = data.decode("utf-8")
        if suffix(name) == ".csv":
            rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("a line has not as many fields as the first")
            return rows
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError, csv.Error) as error:
        raise failure(INVALID, f"{name} cannot be read: {error}", False) from error
    if not all(isinstance(row, dict) for row in rows):
        raise failure(INVALID, f"{name} has lines that are no JSON objects", False)
    return rows


def composed(name: str, columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    if suffix(name) == ".jsonl":
        return b"".join(encoded(dict(row)) + b"\n" for row in rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        return text.getvalue().encode()
    except ValueError as error:
        raise failure(INVALID, f"what is to be written is no UTF-8: {error}", False) from error
