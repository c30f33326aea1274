"""Context items: business identifiers that travel with a run. Sensitive values are encrypted at rest and never shown.

Serves P89: the next operator can follow the evidence.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipelines.encryption import fernet
from pipelines.sql import execute, query, recordset

REDACTED = "[REDACTED]"
APART = "#"  # before each word of keys and errors in the search index; 400 characters of it, as a lexeme holds 2 kB
SEARCHED_CHARACTERS = 100_000  # of a run; a tsvector holds one MiB at most, and refuses the whole text above it
ERROR_CHARACTERS = 2_000  # of one stage's error message; traces are longer, and say nothing that one would look for


def rows(run_id: uuid.UUID, items: Sequence[Mapping[str, Any]], attempt: uuid.UUID | None) -> list[dict[str, Any]]:
    """Items `{key, value, is_sensitive}` as rows ready for `save`."""
    return [
        {
            "run_id": run_id,
            "key": item["key"],
            "value": "" if item.get("is_sensitive") else item["value"],
            "is_sensitive": bool(item.get("is_sensitive")),
            "secret": fernet().encrypt(item["value"].encode()).hex() if item.get("is_sensitive") else None,
            "attempt": attempt,
        }
        for item in items
    ]


def save(items: Sequence[Mapping[str, Any]]) -> None:
    """Adds or replaces items; the latest value of a key wins. Non-sensitive values become searchable."""
    if not items:
        return
    latest = {(item["run_id"], item["key"]): item for item in items}
    execute(
        "INSERT INTO pipelines_contextitem (run_id, key, value, is_sensitive, secret, attempt, at)"
        " SELECT run_id, key, value, is_sensitive, decode(secret, 'hex'), attempt, recourse_now()"
        " FROM json_to_recordset(%s::json) AS r(run_id uuid, key text, value text, is_sensitive boolean, secret text,"
        " attempt uuid) ON CONFLICT (run_id, key) DO UPDATE SET value = excluded.value, secret = excluded.secret,"
        " is_sensitive = excluded.is_sensitive, attempt = excluded.attempt, at = excluded.at",
        [recordset(list(latest.values()))],
    )


def index(run_ids: Collection[uuid.UUID]) -> None:
    """Writes the search words of these runs anew: name, keywords, non-sensitive context; sensitive values never.

    Apart from those, the words of the idempotency key and of the errors that stages and run ended with: only the
    console searches them.
    """
    if not run_ids:
        return
    execute(
        "INSERT INTO pipelines_runsearch (run_id, words)"
        " SELECT r.id, to_tsvector('simple', translate(left(concat_ws(' ', r.name,"
        " (SELECT string_agg((k ->> 'key') || ' ' || (k ->> 'value'), ' ') FROM jsonb_array_elements(r.keywords) k),"
        " (SELECT string_agg(c.key || ' ' || c.value, ' ') FROM pipelines_contextitem c"
        " WHERE c.run_id = r.id AND NOT c.is_sensitive)), %(most)s), '-_/:.@', '      '))"
        # no lexeme of another text begins with the mark: each kind of search reads only its own postings
        " || array_to_tsvector(ARRAY(SELECT '#' || left(lexeme, 400) FROM unnest(to_tsvector('simple', translate("
        "left(concat_ws(' ', (SELECT i.key FROM pipelines_runidentity i WHERE i.run_id = r.id),"
        " r.failure_code, left(r.failure_message, %(error)s),"
        " (SELECT string_agg(s.last_error_code || ' ' || left(s.last_error_message, %(error)s), ' ')"
        " FROM pipelines_stage s WHERE s.run_id = r.id AND s.last_error_code <> '')),"
        " %(most)s), '-_/:.@', '      ')))))"
        " || array_to_tsvector(ARRAY['=' || r.workspace_id, '=' || r.application_id || '=' || r.environment_id])"
        " FROM pipelines_run r WHERE r.id = ANY(%(runs)s) ORDER BY r.id"
        " ON CONFLICT (run_id) DO UPDATE SET words = excluded.words",
        {"most": SEARCHED_CHARACTERS, "error": ERROR_CHARACTERS, "runs": list(run_ids)},
    )


def owner_words(workspace_id: uuid.UUID, application_id: uuid.UUID, environment_id: uuid.UUID) -> tuple[str, str]:
    """The lexemes that say in the search index whose run it is; no text yields any that begins like these."""
    return f"={workspace_id}", f"={application_id}={environment_id}"


def for_jobs(run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[dict[str, Any]]]:
    """The items of each run as workers get them: with their true values."""
    found: dict[uuid.UUID, list[dict[str, Any]]] = {}
    for run_id, key, value, is_sensitive, secret in query(
        "SELECT run_id, key, value, is_sensitive, secret FROM pipelines_contextitem WHERE run_id = ANY(%s) ORDER BY id",
        [list(run_ids)],
    ):
        true_value = fernet().decrypt(bytes(secret)).decode() if is_sensitive else value
        found.setdefault(run_id, []).append({"key": key, "value": true_value, "isSensitive": is_sensitive})
    return found
