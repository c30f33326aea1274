"""Takes published days, each once for its key, and sometimes says 503 before, or worse, after it has taken one.

PUT /published/2026-05-29 with Idempotency-Key → 201 {date, revision, replayed: false}; the same key again → 200 with
`replayed: true` and nothing written; the key with other content → 409 `key_reused`. Another key is a new revision.
GET /published → {days: [{date, revision}]} · GET /published/2026-05-29 → what was published.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from samples import places
from samples.local_http import Answer, Faults, Request

SHARES = {"unavailable": 0.08, "answer_lost": 0.08}
UNAVAILABLE = Answer.problem(503, "unavailable", "The publication cannot be reached just now.")

TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS published (day TEXT PRIMARY KEY, content TEXT NOT NULL, revision INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS request (key TEXT PRIMARY KEY, day TEXT NOT NULL, digest TEXT NOT NULL,
    revision INTEGER NOT NULL);
"""


def database_file() -> Path:
    return places.directory() / "published.sqlite"


class PublishService:
    """Keeps what it took in a file of its own: a key that it knows, it knows after a restart too."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._faults = faults or Faults("publish", SHARES)
        with closing(_connect()) as connection:
            connection.executescript(TABLES)

    def answer(self, request: Request) -> Answer:
        area, _, day = request.path.strip("/").partition("/")
        if area == "published" and request.method == "GET":
            return self._one(day) if day else self._all()
        if area == "published" and request.method == "PUT" and day:
            return self._put(day, request)
        return Answer.problem(404, "not_found", "There are GET /published, GET and PUT /published/YYYY-MM-DD.")

    def _put(self, day: str, request: Request) -> Answer:
        """An answer that gets lost is the dangerous one: only the key tells a second try from a second publication."""
        key = request.headers.get("idempotency-key", "").strip()
        if not key:
            return Answer.problem(400, "key_missing", "A publication needs the header Idempotency-Key.")
        try:
            date.fromisoformat(day)
            content = json.dumps(json.loads(request.body), sort_keys=True)
        except ValueError as error:
            return Answer.problem(400, "invalid", f"A day and JSON are needed: {error}.")
        fault = self._faults.next()
        if fault == "unavailable":
            return UNAVAILABLE
        answer = _take(day, key, content)
        return UNAVAILABLE if fault == "answer_lost" else answer

    def _all(self) -> Answer:
        with closing(_connect()) as connection:
            rows = connection.execute("SELECT day, revision FROM published ORDER BY day").fetchall()
        return Answer(200, {"days": [{"date": day, "revision": revision} for day, revision in rows]})

    def _one(self, day: str) -> Answer:
        with closing(_connect()) as connection:
            row = connection.execute("SELECT content FROM published WHERE day = ?", [day]).fetchone()
        return Answer(200, json.loads(row[0])) if row else Answer.problem(404, "not_found", f"{day} is not published.")


def _take(day: str, key: str, content: str) -> Answer:
    digest = sha256(f"{day}\n{content}".encode()).hexdigest()
    with closing(_connect()) as connection, connection:
        # The write lock first: two requests with one key must not both find it unused.
        connection.execute("BEGIN IMMEDIATE")
        known = connection.execute("SELECT digest, revision FROM request WHERE key = ?", [key]).fetchone()
        if known and known[0] != digest:
            return Answer.problem(409, "key_reused", f"The key {key!r} stands for another publication.")
        if known:
            return _taken(200, day, known[1], replayed=True)
        (revision,) = connection.execute(
            "INSERT INTO published (day, content, revision) VALUES (?, ?, 1)"
            " ON CONFLICT (day) DO UPDATE SET content = excluded.content, revision = revision + 1 RETURNING revision",
            [day, content],
        ).fetchone()
        connection.execute("INSERT INTO request VALUES (?, ?, ?, ?)", [key, day, digest, revision])
    return _taken(201, day, revision, replayed=False)


def _taken(status: int, day: str, revision: int, *, replayed: bool) -> Answer:
    body: dict[str, Any] = {"date": day, "revision": revision, "replayed": replayed}
    return Answer(status, body, {"location": f"/published/{day}"})


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(database_file(), timeout=20, isolation_level=None)
