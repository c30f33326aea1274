"""Whether what a notice asks for is still to be done: one answer as it is taken up and as a digest closes.

What needs nobody any more is left out rather than told as "no longer open": a message asks for attention, and a list of
thirty things of which two are left hides those two. How each of them ended is a notice of its own (`decided`,
`expired`), for whoever wants to know that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from pipelines.sql import query, recordset

_GATE = "EXISTS (SELECT FROM pipelines_gate g WHERE g.id = {0}.subject AND g.state = 'open')"
_REQUEST = "EXISTS (SELECT FROM approvals_approvalrequest a WHERE a.subject = {0}.subject AND a.state = 'open')"

# a condition on a row with kind, run and subject; an acknowledged dead letter has found its person
STILL_ASKS = (
    "CASE {0}.kind"  # noqa: S608 - our own names
    f" WHEN 'gate_opened' THEN {_GATE}"
    f" WHEN 'approval_asked' THEN {_REQUEST}"
    f" WHEN 'review_asked' THEN {_REQUEST}"
    f" WHEN 'expiring' THEN {_GATE} OR {_REQUEST}"
    " WHEN 'dead_letter' THEN EXISTS (SELECT FROM pipelines_deadletter d WHERE d.id = {0}.subject AND d.state = 'open')"
    " WHEN 'run_blocked' THEN EXISTS (SELECT FROM pipelines_run r WHERE r.id = {0}.run AND r.status = 'blocked')"
    " ELSE true END"
)


def still_asking(rows: Iterable[tuple[int, str, uuid.UUID | None, uuid.UUID | None]]) -> set[int]:
    """Of rows (number, kind, run, subject) the numbers of those that still ask for somebody, or only tell something."""
    given = [{"number": number, "kind": kind, "run": run, "subject": subject} for number, kind, run, subject in rows]
    if not given:
        return set()
    found = query(
        "SELECT n.number FROM json_to_recordset(%s::json) AS n(number bigint, kind text, run uuid, subject uuid)"  # noqa: S608 - our own names
        f" WHERE {STILL_ASKS.format('n')}",
        [recordset(given)],
    )
    return {number for (number,) in found}
