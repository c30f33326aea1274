"""A list that somebody reads holds still: what it shows changes in its place, what would come between is only counted.

The page says what it shows, each row with its digest, and gets back the rows that look otherwise by now, as many as fit
one update; the others follow with the next. Runs that are newer, or have come to match among those shown, are a number
with a link. Nothing is kept on the server.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines import listing
from pipelines.access import Actor
from pipelines.console.overview import DIGEST_BYTES, Row
from pipelines.errors import Refusal
from pipelines.filters import RunFilter
from pipelines.paging import Cut

ROW_BYTES = 16 + DIGEST_BYTES
MOST_ROWS = 100  # a longer page stands still; its token would not fit an address


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page shows: `mark` of what stands around its rows, and each row's run with its digest, in their order."""

    mark: bytes
    rows: tuple[tuple[uuid.UUID, bytes], ...]

    @property
    def ids(self) -> list[uuid.UUID]:
        return [run_id for run_id, _ in self.rows]


def token(mark: bytes, rows: Sequence[tuple[uuid.UUID, bytes]]) -> str:
    """What a page shows, for an address; blank of a page that is too long for one."""
    if len(rows) > MOST_ROWS:
        return ""
    told = mark + b"".join(run_id.bytes + digest for run_id, digest in rows)
    return base64.urlsafe_b64encode(told).decode().rstrip("=")


def read(text: str) -> Seen:
    """What the page shows that asks. A token of nobody's making is an input error."""
    try:
        told = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise _refuse() from error
    mark, rest = told[:DIGEST_BYTES], told[DIGEST_BYTES:]
    if len(mark) < DIGEST_BYTES or len(rest) % ROW_BYTES or len(rest) > MOST_ROWS * ROW_BYTES:
        raise _refuse()
    parts = [rest[at : at + ROW_BYTES] for at in range(0, len(rest), ROW_BYTES)]
    return Seen(mark, tuple((uuid.UUID(bytes=part[:16]), part[16:]) for part in parts))


def come_between(actor: Actor, wanted: RunFilter, cut: Cut, seen: Sequence[uuid.UUID], shown: Sequence[Row]) -> int:
    """How many runs match by now that the page does not show, among those that it does.

    Behind its last row others may have moved up: those are not news.
    """
    if not shown:
        return 0
    last = min((row.run.created_at, row.run.id) for row in shown)
    known = set(seen)
    return sum(place > last and place[1] not in known for place in listing.newest(actor, wanted, cut))


def changed(shown: Sequence[Row], seen: Seen, turn: int) -> list[Row]:
    """The rows that look otherwise than they were seen, beginning at another each `turn`, so that all get theirs."""
    known = dict(seen.rows)
    found = [row for row in shown if known.get(row.run.id) != row.digest]
    start = turn % len(found) if found else 0
    return found[start:] + found[:start]


def after(seen: Seen, sent: Sequence[Row]) -> list[tuple[uuid.UUID, bytes]]:
    """What the page shows once it has got these rows."""
    now = {row.run.id: row.digest for row in sent}
    return [(run_id, now.get(run_id, digest)) for run_id, digest in seen.rows]


def _refuse() -> Refusal:
    return Refusal("validation_error", "seen: not of this list", errors={"seen": ["not of this list"]})
