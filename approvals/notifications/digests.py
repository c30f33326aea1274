"""Digests: what a rule has gathered goes out as one delivery, of bounded size, once its oldest message is due.

A digest tells of each run once a kind; of the many it lists some of every kind, and says how many it left out. A rule
is held while its digest is made, so many closers make one. What was gathered under a rule or for a channel that was
turned off since is forgotten: off is off.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from approvals.models import Delivery
from approvals.notifications import sentences
from approvals.notifications.notices import INBOX, RUN_PAGE, link
from approvals.notifications.standing import STILL_ASKS
from pipelines.ids import new_id
from pipelines.sql import execute, query

LISTED = 50  # lines of one digest
MOST = 20  # digests of one call
LEFT_OUT = "left_out"  # the kind of the line that counts the rest

_DUE = (
    "SELECT r.id FROM approvals_notificationrule r CROSS JOIN LATERAL (SELECT m.at FROM approvals_message m"
    " WHERE m.rule_id = r.id AND m.delivery_id IS NULL ORDER BY m.id LIMIT 1) oldest"
    " WHERE oldest.at <= recourse_now() - make_interval(secs => r.digest_seconds)"
)


@dataclass(frozen=True, slots=True)
class Line:
    """Messages of one kind about one run: how many, the content of the newest, and the first stages by name."""

    kind: str
    count: int
    content: dict[str, Any]
    stages: Sequence[str]

    def told(self) -> dict[str, Any]:
        """The line as it is sent: the message itself, or one that stands for several."""
        if self.count == 1:
            return self.content
        content = self.content
        path = RUN_PAGE.format(id=content["execution_id"]) if content["execution_id"] else INBOX
        sentence = sentences.tell_group(
            self.kind, content["execution_name"], content["environment"], self.stages, self.count
        )
        only_one = {"stage": "", "id": None, "expires_at": None}
        return {
            **content,
            **only_one,
            "count": self.count,
            "sentence": sentence,
            "link": link(path, content["workspace"]),
        }


def close_digests(most: int = MOST) -> int:
    """Makes a delivery of each digest that is due, the longest due first; returns how many. What is more than `most` is
    left to the next call."""
    return sum(_close(rule) for (rule,) in query(f"{_DUE} ORDER BY oldest.at LIMIT %s", [most]))


def _close(rule: uuid.UUID) -> int:
    with transaction.atomic():
        held = query(
            "SELECT r.workspace_id, w.slug, r.channel_id, r.enabled AND c.enabled AND c.workspace_id = r.workspace_id"
            " FROM approvals_notificationrule r JOIN approvals_channel c ON c.id = r.channel_id"
            " JOIN pipelines_workspace w ON w.id = r.workspace_id"
            " WHERE r.id = %s FOR NO KEY UPDATE OF r SKIP LOCKED",
            [rule],
        )
        # after the lock: its snapshot sees what the last closer took
        if not held or not query(f"{_DUE} AND r.id = %s", [rule]):
            return 0
        workspace, slug, channel, is_on = held[0]
        forget = "DELETE FROM approvals_message m WHERE m.rule_id = %s AND m.delivery_id IS NULL"
        execute(forget if not is_on else f"{forget} AND NOT ({STILL_ASKS.format('m')})", [rule])
        delivery = new_id()
        taken = execute(
            "UPDATE approvals_message SET delivery_id = %s WHERE rule_id = %s AND delivery_id IS NULL", [delivery, rule]
        )
        if not taken:
            return 0
        counts, lines = _lines(delivery)
        Delivery.objects.create(
            id=delivery,
            workspace_id=workspace,
            channel_id=channel,
            subject=sentences.subject(slug, counts),
            body=[line.told() for line in lines] + _left_out(counts, lines, slug),
        )
    return 1


def _lines(delivery: uuid.UUID) -> tuple[Counter[str], list[Line]]:
    """How many messages there are of each kind, and the lines to be listed: of each kind in turn, its first ones.

    What was asked again of the same gate or operation counts once, in the words of the last time.
    """
    rows = query(
        "WITH once AS (SELECT DISTINCT ON (kind, subject, CASE WHEN subject IS NULL THEN id END) id, kind, run, content"
        " FROM approvals_message WHERE delivery_id = %s"
        " ORDER BY kind, subject, CASE WHEN subject IS NULL THEN id END, id DESC),"
        " grouped AS (SELECT kind, run, count(*) AS count, min(id) AS first, max(id) AS newest,"
        " (array_agg(content ->> 'stage' ORDER BY id))[1:%s] AS stages FROM once GROUP BY kind, run),"
        " ranked AS (SELECT *, row_number() OVER (PARTITION BY kind ORDER BY first) AS rank,"
        " sum(count) OVER (PARTITION BY kind) AS of_kind FROM grouped)"
        " SELECT g.kind, g.of_kind, g.count, m.content, g.stages, g.rank FROM ranked g"
        " JOIN approvals_message m ON m.id = g.newest WHERE g.rank <= %s ORDER BY g.rank, g.kind",
        [delivery, sentences.NAMED, LISTED],
    )
    counts = Counter({kind: int(of_kind) for kind, of_kind, *_ in rows})
    order = list(sentences.COUNTS)
    lines = [Line(kind, count, json.loads(content), stages) for kind, _, count, content, stages, _ in rows[:LISTED]]
    return counts, sorted(lines, key=lambda line: order.index(line.kind) if line.kind in order else len(order))


def _left_out(counts: Counter[str], lines: Sequence[Line], workspace: str) -> list[dict[str, Any]]:
    """The line that says how much is not listed; none when all is."""
    rest = counts.total() - sum(line.count for line in lines)
    if not rest:
        return []
    sentence = f"{rest:,} more {'is' if rest == 1 else 'are'} not listed here"
    return [
        {"kind": LEFT_OUT, "sentence": sentence, "link": link(INBOX, workspace), "workspace": workspace, "count": rest}
    ]
