"""Audit events as a file: CSV or JSON lines, oldest first, each with its place in the chain, so that it can be checked.

A file is streamed from one cursor of the database: however many events there are, it takes the memory of `AT_ONCE` of
them, and shows them as they were at one moment. Millions take minutes and a gigabyte each; so no more than
`EXPORTS_AT_ONCE` of a workspace, and `EXPORTS_OF_ALL` of all of them, are read at the same time, and one whose reader
has gone is given up. Who exports leaves an event,
`audit.export`, before the first byte. Serves F145, F147, F159.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import QueryDict, StreamingHttpResponse
from django.utils.http import content_disposition_header

from pipelines import audit, audit_chain, audit_listing
from pipelines.access import VIEW, Actor
from pipelines.audit_names import as_json, names_of
from pipelines.errors import Refusal
from pipelines.list_filters import AuditEventFilter
from pipelines.models import AuditEvent
from pipelines.sql import database_now, execute, query

CSV, JSON_LINES = "csv", "jsonl"
EXPORTED = "audit.export"
COLUMNS = (
    *("id", "at", "sentence", "action", "outcome", "code", "actor", "channel", "on_behalf_of", "execution_id"),
    *("stage_id", "reason", "before", "after", "plan_digest", "request_id", "data", "position", "hash", "canonical"),
)
AT_ONCE = 1000
EXPORTS_AT_ONCE = 2  # of one workspace
EXPORTS_OF_ALL = 8
LOCK = 0x41455850  # what the advisory locks of exports are called
PATIENCE = 60  # seconds that a reader may take for `AT_ONCE` events
LONGEST_NAME = 150
Slot = tuple[tuple[int, int], ...]  # the advisory locks that an export holds
FORMULA = frozenset("=+-@＝＋－＠\t\r\n")  # what a spreadsheet takes for more than a text, when it begins with it


def answer(actor: Actor, workspace: str, params: QueryDict, form: str) -> StreamingHttpResponse:
    """The events of the actor's workspace that `params` ask for, as a file. Refused: another form, a wrong filter, and
    `rate_limited` while as many exports as may be are being read."""
    actor.require(VIEW)
    check_form(form)
    rows = audit_listing.narrowed(actor.workspace_id, params)
    told = {name: params.getlist(name) for name in AuditEventFilter.names() if any(params.getlist(name))}
    return stream(rows, form, name_of(workspace, told), str(actor.workspace_id), lambda: leave_event(actor, form, told))


def check_form(form: str) -> None:
    if form not in WRITERS:
        message = f"must be one of: {', '.join(WRITERS)}"
        raise Refusal("validation_error", f"format: {message}", errors={"format": [message]})


def stream(
    rows: QuerySet[AuditEvent], form: str, name: str, whose: str, keep: Callable[[], None]
) -> StreamingHttpResponse:
    """These events as a download of that name; `keep` writes down that they are exported, once it is sure. `whose` is
    the id of the workspace whose places it takes."""
    content, write = WRITERS[form]
    return download(lambda: _read(rows, write), content, f"{name}.{form}", whose, keep)


def download(
    read: Callable[[], Generator[str]], content: str, name: str, whose: str, keep: Callable[[], None]
) -> StreamingHttpResponse:
    """What is read as a file of that name, part by part; the rest as `stream`."""
    slot = _slot(whose)
    try:
        keep()
    except BaseException:
        _give_back(slot)
        raise
    response = StreamingHttpResponse(_Reading(read(), slot), content_type=content)
    response.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
    return response


def name_of(workspace: str, told: Mapping[str, Sequence[str]]) -> str:
    """What a file is called: the workspace, the moment, and what it was narrowed to."""
    filters = "_".join(f"{name}-{'-'.join(values)}" for name, values in told.items())
    name = f"audit-{workspace}-{database_now():%Y%m%dT%H%M%SZ}{f'_{filters}' if filters else ''}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:LONGEST_NAME]


def leave_event(actor: Actor, form: str, told: Mapping[str, Sequence[str]]) -> None:
    """Keeps that somebody exported, in which form, and what they asked for."""
    data: dict[str, Any] = {"format": form, "filters": dict(told)} if told else {"format": form}
    audit.record(actor, EXPORTED, audit.ALLOWED, data=data)


def lines(events: Sequence[AuditEvent]) -> Iterator[dict[str, Any]]:
    """The events as what is written of each, in two questions for all."""
    names = names_of(events)
    links = audit_chain.links_of([event.id for event in events])
    for event in events:
        position, digest = links.get(event.id, (None, None))
        yield {
            **as_json(event, names),
            "position": position,
            "hash": digest,
            "canonical": event.canonical,
        }


def cell(value: Any) -> str:
    """A value in a cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a number below zero too: none of it is a formula
    return f"'{value}" if value[:1] in FORMULA or value.lstrip()[:1] in FORMULA else value


class _Reading:
    """What is left to be sent. Closing it ends the transaction and gives the place to the next, also when nothing was
    read of it."""

    def __init__(self, parts: Generator[str], slot: Slot) -> None:
        self._slot = slot
        self._parts = parts

    def __iter__(self) -> Iterator[str]:
        return self._parts

    def close(self) -> None:
        self._parts.close()
        _give_back(self._slot)


def _read(rows: QuerySet[AuditEvent], write: Callable[[Iterator[AuditEvent]], Iterator[str]]) -> Any:
    with transaction.atomic():
        execute(f"SET LOCAL idle_in_transaction_session_timeout = '{PATIENCE}s'")
        yield from write(rows.order_by("at", "id").iterator(AT_ONCE))


def _csv(events: Iterator[AuditEvent]) -> Iterator[str]:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)  # whatever a reader separates by
    table.writerow(COLUMNS)
    yield _taken(text)
    for some in _chunks(events):
        table.writerows([cell(line[name]) for name in COLUMNS] for line in lines(some))
        yield _taken(text)


def _json_lines(events: Iterator[AuditEvent]) -> Iterator[str]:
    for some in _chunks(events):
        yield "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines(some))


# form → its media type and how it is written
WRITERS: dict[str, tuple[str, Callable[[Iterator[AuditEvent]], Iterator[str]]]] = {
    CSV: ("text/csv; charset=utf-8; header=present", _csv),
    JSON_LINES: ("application/jsonl; charset=utf-8", _json_lines),
}


def _chunks(events: Iterable[AuditEvent]) -> Iterator[list[AuditEvent]]:
    left = iter(events)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _taken(text: io.StringIO) -> str:
    told = text.getvalue()
    text.seek(0)
    text.truncate()
    return told


def _slot(whose: str) -> Slot:
    """One of the workspace's places in which an export is read, and one of all, held by this connection until they are
    given back."""
    own = _place(zlib.crc32(whose.encode()) >> 1, EXPORTS_AT_ONCE)
    if own is None:
        raise Refusal("rate_limited", f"{EXPORTS_AT_ONCE} exports are being read already; try again when one has ended")
    shared = _place(LOCK, EXPORTS_OF_ALL)
    if shared is None:
        _give_back((own,))
        detail = f"{EXPORTS_OF_ALL} exports of all workspaces are being read already; try again when one has ended"
        raise Refusal("rate_limited", detail)
    return own, shared


def _place(name: int, places: int) -> tuple[int, int] | None:
    """The first free place under this name of advisory locks, taken."""
    for place in range(places):
        if query("SELECT pg_try_advisory_lock(%s, %s)", [name, place])[0][0]:
            return name, place
    return None


def _give_back(slot: Slot) -> None:
    for place in slot:
        query("SELECT pg_advisory_unlock(%s, %s)", list(place))
