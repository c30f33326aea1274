"""Taking up notices: which rule wants each, and the message that it becomes.

Notices are removed in the transaction that writes what became of them: a crash neither loses nor doubles any, and
several takers pass over what another has. What no rule wants is only removed. A channel gets a notice once, by the rule
that is quickest, however many want it. Nothing here stops at one odd notice or rule: what cannot be put in words is
told by its kind, and logged.

A message is {kind, sentence, link, workspace, environment, pipeline, execution_id, execution_name, stage, id, at,
expires_at}; `id` is the gate, the operation or the dead letter, times are ISO 8601. Links are paths where
RECOURSE_PUBLIC_URL is not set.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from approvals import gates
from approvals.gates import Where
from approvals.models import ApprovalRequest
from approvals.notifications import sentences
from approvals.notifications.sentences import GATE, REQUEST, Facts
from approvals.notifications.standing import still_asking
from approvals.rules import PROTECTED
from approvals.states import DeliveryState
from pipelines.ids import new_id
from pipelines.sql import execute, query, recordset
from pipelines.states import NoticeKind

log = structlog.get_logger(__name__)
BATCH, MOST = 500, 2000

# paths of the console, so that no worker has to load its screens; tests hold them to the URL map
DECISION_PAGE = "/console/approvals/{id}/"
INBOX = "/console/approvals/"
RUN_PAGE = "/console/runs/{id}/"
LETTERS = "/console/dead-letters/"


@dataclass(frozen=True, slots=True)
class Taken:
    """A notice that was taken up."""

    id: int
    workspace: uuid.UUID
    kind: str
    run: uuid.UUID | None
    stage: uuid.UUID | None
    subject: uuid.UUID | None
    data: Any
    at: datetime


@dataclass(frozen=True, slots=True)
class Wish:
    """A rule of a workspace, with its channel: both enabled."""

    id: uuid.UUID
    workspace: uuid.UUID
    channel: uuid.UUID
    kinds: frozenset[str]
    environments: frozenset[str]
    pipelines: frozenset[str]
    digest_seconds: int

    def wants(self, notice: Taken, place: Place) -> bool:
        return (
            self.workspace == notice.workspace
            and (not self.kinds or notice.kind in self.kinds)
            and (not self.environments or not self.environments.isdisjoint(place.environments))
            and (not self.pipelines or place.pipeline in self.pipelines)
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a notice comes from."""

    workspace: str
    run: str = ""
    environment: str = ""
    is_protected: bool = False
    pipeline: str = ""
    stage: str = ""
    started_by: Sequence[str] = ()

    @property
    def environments(self) -> set[str]:
        """By what a rule may name its environment."""
        return {self.environment, PROTECTED} if self.is_protected else {self.environment}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a gate or a request asks for. `operation` is blank for a gate."""

    role: str
    count: int
    expires_at: datetime | None
    moment: str = ""
    operation: str = ""
    asked_by: str = ""


def take_up(limit: int = BATCH, most: int = MOST) -> int:
    """Makes messages of the notices that wait, a batch a transaction; returns how many notices it took.

    A rule without a digest gets a delivery for each at once, others gather them for `close_digests`. What is more than
    `most` is left to the next call, which comes in a second: the process that calls has other work too.
    """
    total = 0
    while total < most:
        taken = _take_some(limit)
        total += taken
        if taken < limit:
            break
    return total


def link(path: str, workspace: str) -> str:
    """The address of a page of the console in a workspace."""
    return f"{settings.RECOURSE_PUBLIC_URL.rstrip('/')}{path}?workspace={workspace}"


def _take_some(limit: int) -> int:
    with transaction.atomic():
        notices = _taken(limit)
        wishes = _wishes({notice.workspace for notice in notices}) if notices else []
        if wishes:
            _write(_told(notices, wishes))
    return len(notices)


def _taken(limit: int) -> list[Taken]:
    rows = query(
        "WITH taken AS MATERIALIZED"
        " (SELECT id FROM pipelines_notice ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)"
        " DELETE FROM pipelines_notice n USING taken WHERE n.id = taken.id"
        " RETURNING n.id, n.workspace, n.kind, n.run, n.stage, n.subject, n.data, n.at",
        [limit],
    )
    taken = (Taken(*row) for row in rows)
    return sorted((replace(one, data=json.loads(one.data)) for one in taken), key=lambda one: one.id)


def _wishes(workspaces: Iterable[uuid.UUID]) -> list[Wish]:
    """The rules in force, the quickest first. They are held: none is deleted while its messages are written."""
    rows = query(
        "SELECT r.id, r.workspace_id, r.channel_id, r.kinds, r.environments, r.pipelines, r.digest_seconds"
        " FROM approvals_notificationrule r JOIN approvals_channel c ON c.id = r.channel_id"
        " WHERE r.workspace_id = ANY(%s) AND c.workspace_id = r.workspace_id AND r.enabled AND c.enabled"
        " ORDER BY r.digest_seconds, r.id FOR KEY SHARE OF r, c",
        [list(workspaces)],
    )
    return [
        Wish(rule, workspace, channel, frozenset(kinds), frozenset(environments), frozenset(pipelines), seconds)
        for rule, workspace, channel, kinds, environments, pipelines, seconds in rows
    ]


def _told(notices: Sequence[Taken], wishes: Sequence[Wish]) -> list[dict[str, Any]]:
    """What the rules make of the notices, as rows for `_write`, in as many statements for one as for hundreds."""
    kinds = {(wish.workspace, kind) for wish in wishes for kind in wish.kinds or NoticeKind.values}
    places = _places([notice for notice in notices if (notice.workspace, notice.kind) in kinds])
    wanted: list[tuple[Taken, list[Wish]]] = []
    for notice in notices:
        place = places.get(notice.id)
        first: dict[uuid.UUID, Wish] = {}  # by channel
        for wish in wishes:
            if place and wish.wants(notice, place):
                first.setdefault(wish.channel, wish)
        if first:
            wanted.append((notice, list(first.values())))
    open_ones = still_asking((notice.id, notice.kind, notice.run, notice.subject) for notice, _ in wanted)
    asked = _asked([notice for notice, _ in wanted if notice.id in open_ones])
    rows = []
    for notice, by in wanted:
        if notice.id in open_ones:
            content = _content(notice, places[notice.id], asked.get(notice.subject))
            rows += [_row(notice, wish, content) for wish in by]
    return rows


def _row(notice: Taken, wish: Wish, content: dict[str, Any]) -> dict[str, Any]:
    told = f"{content['workspace']}: {content['sentence']}"
    return {
        "rule": wish.id,
        "delivery": None if wish.digest_seconds else new_id(),
        "workspace": notice.workspace,
        "channel": wish.channel,
        "headline": sentences.cut(told, sentences.LONGEST_SUBJECT),
        "kind": notice.kind,
        "run": notice.run,
        "subject": notice.subject,
        "content": content,
    }


def _write(rows: Sequence[dict[str, Any]]) -> None:
    """Adds the messages, and the deliveries of those that go by themselves. They are of now and not of their notices'
    time, so that a backlog is one digest."""
    if rows:
        execute(
            "WITH told AS MATERIALIZED (SELECT * FROM json_to_recordset(%s::json) AS r(rule uuid, delivery uuid,"
            " workspace uuid, channel uuid, headline text, kind text, run uuid, subject uuid, content jsonb)),"
            " sent AS (INSERT INTO approvals_delivery"
            " (id, workspace_id, channel_id, state, subject, body, tries, due_at, created_at)"
            " SELECT delivery, workspace, channel, %s, headline, jsonb_build_array(content), 0, recourse_now(),"
            " recourse_now() FROM told WHERE delivery IS NOT NULL)"
            " INSERT INTO approvals_message (rule_id, delivery_id, kind, run, subject, content, at)"
            " SELECT rule, delivery, kind, run, subject, content, recourse_now() FROM told",
            [recordset(rows), DeliveryState.PENDING],
        )


def _places(notices: Sequence[Taken]) -> dict[int, Place]:
    """Where the notices come from; one of a run, or workspace, that is no more has no place."""
    given = [{"id": one.id, "workspace": one.workspace, "run": one.run, "stage": one.stage} for one in notices]
    if not given:
        return {}
    rows = query(
        "SELECT n.id, w.slug, coalesce(r.name, ''), coalesce(e.slug, ''), coalesce(e.protected, false),"
        " coalesce(p.slug, ''), coalesce(s.name, ''),"
        " ARRAY(SELECT u.username FROM auth_user u WHERE u.id = ANY(r.requesters) ORDER BY u.username)"
        " FROM json_to_recordset(%s::json) AS n(id bigint, workspace uuid, run uuid, stage uuid)"
        " JOIN pipelines_workspace w ON w.id = n.workspace"
        " LEFT JOIN pipelines_run r ON r.id = n.run AND r.workspace_id = n.workspace"
        " LEFT JOIN pipelines_environment e ON e.id = r.environment_id"
        " LEFT JOIN pipelines_pipeline p ON p.id = r.pipeline_id"
        " LEFT JOIN pipelines_stage s ON s.id = n.stage AND s.run_id = r.id"
        " WHERE n.run IS NULL OR r.id IS NOT NULL",
        [recordset(given)],
    )
    places = {row[0]: Place(*row[1:]) for row in rows}
    for notice_id, where in _elsewhere(notices).items():
        if notice_id in places:
            places[notice_id] = replace(
                places[notice_id],
                run=where.name,
                environment=where.environment,
                is_protected=where.is_protected,
                pipeline=where.pipeline,
            )
    return places


def _elsewhere(notices: Sequence[Taken]) -> dict[int, Where]:
    """What the notices are about that are about no run, and where that acts."""
    subjects = {notice.id: notice.subject for notice in notices if notice.run is None and notice.subject is not None}
    if not subjects:
        return {}
    newest = ApprovalRequest.objects.filter(subject__in=subjects.values()).order_by("subject", "-round")
    told = gates.told(newest.distinct("subject"))
    found = {notice_id: told[subject].where for notice_id, subject in subjects.items() if subject in told}
    return {notice_id: where for notice_id, where in found.items() if where is not None}


def _asked(notices: Sequence[Taken]) -> dict[uuid.UUID | None, Asked]:
    """By subject: the gates, and the newest rounds of the requests, that notices are about."""
    subjects = list({notice.subject for notice in notices if notice.subject is not None})
    if not subjects:
        return {}
    rows = query(
        "SELECT g.id, g.approver_role, g.count, g.expires_at, g.moment, '', '' FROM pipelines_gate g"
        " WHERE g.id = ANY(%s)"
        " UNION ALL (SELECT DISTINCT ON (a.subject) a.subject, a.approver_role, a.count, a.expires_at, '', a.kind,"
        " u.username FROM approvals_approvalrequest a JOIN auth_user u ON u.id = a.requested_by_id"
        " WHERE a.subject = ANY(%s) ORDER BY a.subject, a.round DESC)",
        [subjects, subjects],
    )
    return {row[0]: Asked(*row[1:]) for row in rows}


def _content(notice: Taken, place: Place, asked: Asked | None) -> dict[str, Any]:
    path = RUN_PAGE.format(id=notice.run) if notice.run else INBOX
    if asked:
        path = DECISION_PAGE.format(id=notice.subject)
    elif notice.kind == NoticeKind.DEAD_LETTER:
        path = LETTERS
    return {
        "kind": notice.kind,
        "sentence": _sentence(notice, place, asked),
        "link": link(path, place.workspace),
        "workspace": place.workspace,
        "environment": place.environment,
        "pipeline": place.pipeline,
        "execution_id": str(notice.run) if notice.run else None,
        "execution_name": sentences.name(place.run),
        "stage": sentences.name(place.stage),
        "id": str(notice.subject) if notice.subject else None,
        "at": notice.at.isoformat(),
        "expires_at": asked.expires_at.isoformat() if asked and asked.expires_at else None,
    }


def _sentence(notice: Taken, place: Place, asked: Asked | None) -> str:
    try:
        return sentences.tell(_facts(notice, place, asked))
    except Exception:
        log.exception("notice.not_told", kind=notice.kind, run=str(notice.run), subject=str(notice.subject))
        return sentences.tell(Facts(notice.kind, place.run, place.environment, place.stage))


def _facts(notice: Taken, place: Place, asked: Asked | None) -> Facts:
    data = notice.data if isinstance(notice.data, Mapping) else {}
    operation = asked.operation if asked else ""
    have = data.get("have")
    return Facts(
        kind=notice.kind,
        run=place.run,
        environment=place.environment,
        stage=place.stage,
        what=REQUEST if operation else GATE,
        operation=operation,
        asked_by=[asked.asked_by] if asked and operation else place.started_by,
        decided_by=str(data.get("by") or ""),
        approved=data.get("approved") is True,
        ended_with_run=bool(asked and (asked.expires_at is None or asked.expires_at > notice.at)),
        role=asked.role if asked else "",
        count=asked.count if asked else 1,
        have=have if isinstance(have, int) else None,
        expires_at=asked.expires_at if asked else None,
        moment=asked.moment if asked else "",
        cause=str(data.get("reason") or ""),
        code=str(data.get("error_code") or ""),
    )
