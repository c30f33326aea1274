"""The life of a worker session: opened at bootstrap, drained at shutdown, never ended by silence."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from pipelines import keys
from pipelines.ids import new_id
from pipelines.keys import KeyHolder
from pipelines.sql import execute


def open_session(key: KeyHolder, registration: Mapping[str, Any]) -> tuple[uuid.UUID, str]:
    """A new session of the key's application and environment: its id, and its token, which nobody can read again (P48).

    A worker that comes back gets another session; what its old one holds is not the new one's.
    """
    session_id, token = new_id(), keys.make_secret("rs")
    execute(
        "INSERT INTO pipelines_workersession (id, application_id, environment_id, digest, state, worker_name,"
        " instance_id, handlers, worker_version, sdk_version, host_name, pid, metadata, recipients, started_at,"
        " last_seen_at)"
        " VALUES (%s, %s, %s, %s, 'active', %s, %s, %s, %s, %s, %s, %s, %s, %s, recourse_now(), recourse_now())",
        [
            session_id,
            key.application_id,
            key.environment_id,
            keys.digest(token),
            registration["worker_name"],
            registration["instance_id"],
            list(dict.fromkeys(registration["supported_handlers"])),
            registration["worker_version"],
            registration["sdk_version"],
            registration["host_name"],
            registration.get("pid"),
            json.dumps(registration["metadata"]),
            json.dumps(registration["recipients"]),
        ],
    )
    return session_id, token


def drain_session(session_id: uuid.UUID) -> None:
    """active → draining: nothing more is handed out to it; what it holds it may finish. Again: nothing changes."""
    execute(
        "UPDATE pipelines_workersession SET state = 'draining', ended_at = recourse_now()"
        " WHERE id = %s AND state = 'active'",
        [session_id],
    )
