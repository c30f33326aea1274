"""The audit as a file: complete, safe to open, enough to check the chain with, streamed, and itself in the audit."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.core import signals
from django.db import close_old_connections, connection

from pipelines import audit, audit_chain, audit_export
from pipelines.models import AuditEvent, Workspace
from pipelines.sql import execute, query
from tests.cast import Person
from tests.console.conftest import Visitor, text_of

EXPORT = "/console/audit/export/"
HOWTO = Path(__file__).resolve().parents[2] / "docs/howto/audit.md"
Browse = Callable[[Person], Visitor]


@pytest.fixture
def operator(people: dict[str, Person]) -> Visitor:
    visitor = Visitor()
    visitor.force_login(people["operator"].user)
    return visitor


def download(visitor: Visitor, form: str, query_string: str = "") -> str:
    answer: Any = visitor.post(f"{EXPORT}{query_string}", {"format": form})
    assert answer.status_code == 200
    assert answer.streaming
    return b"".join(answer.streaming_content).decode()


def give_up(answer: Any) -> None:
    """Closes an answer as a server does whose reader has gone, but keeps the test's connection."""
    signals.request_finished.disconnect(close_old_connections)
    answer.close()
    signals.request_finished.connect(close_old_connections)


def events(visitor: Visitor, query_string: str = "") -> list[dict[str, Any]]:
    return [json.loads(line) for line in download(visitor, "jsonl", query_string).splitlines()]


def test_a_file_has_what_the_filters_ask_for_oldest_first(people: dict[str, Person], operator: Visitor) -> None:
    for who, reason in (("operator", "one"), ("admin", "two"), ("operator", "three")):
        audit.record(people[who].actor, "run.pause", audit.ALLOWED, reason=reason)
    assert [line["reason"] for line in events(operator, "?actor=operator-acme&action=run.pause")] == ["one", "three"]
    table = list(csv.DictReader(io.StringIO(download(operator, "csv", "?action=run.pause"))))
    assert [line["reason"] for line in table] == ["one", "two", "three"]
    assert tuple(table[0]) == audit_export.COLUMNS


def test_a_file_says_in_its_name_what_it_holds(operator: Visitor) -> None:
    answer = operator.post(f"{EXPORT}?outcome=denied&actor=a/../b", {"format": "csv"})
    told = answer.headers["Content-Disposition"]
    assert re.fullmatch(r'attachment; filename="audit-acme-\d{8}T\d{6}Z_outcome-denied_actor-a-..-b\.csv"', told), told
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert answer.headers["Cache-Control"] == "no-store"
    give_up(answer)


def test_an_export_is_an_event_before_its_first_byte(people: dict[str, Person], operator: Visitor) -> None:
    """F145: also when nothing of it is read; it says in which form and what was asked for."""
    give_up(operator.post(f"{EXPORT}?actor=ann&actor=ben&since=2026-01-01&page_size=7", {"format": "jsonl"}))
    event = AuditEvent.objects.get()
    assert (event.action, event.channel, event.user) == ("audit.export", "console", people["operator"].user)
    assert event.data["format"] == "jsonl"
    assert event.data["filters"]["actor"] == ["ann", "ben"]
    assert set(event.data["filters"]) == {"actor", "since"}
    (line,) = events(operator, "?action=audit.export&outcome=allowed&actor=operator-acme")[:1]
    assert line["sentence"].startswith(
        "operator-acme exported audit events as JSON lines (actor ann or ben, since 2026"
    )


def test_what_is_refused_is_told_and_streams_nothing(operator: Visitor) -> None:
    for address, form in (
        (EXPORT, "xlsx"),
        (EXPORT, ""),
        (f"{EXPORT}?run=all", "csv"),
        (f"{EXPORT}?nonsense=1", "csv"),
    ):
        answer = operator.post(address, {"format": form})
        assert answer.status_code == 400
    assert set(AuditEvent.objects.values_list("action", "outcome")) == {("audit.export", "failed")}
    assert operator.get(EXPORT).status_code == 405


def test_nobody_exports_another_workspaces_audit(people: dict[str, Person], outsider: Person) -> None:
    """I16, F144."""
    audit.record(people["operator"].actor, "run.pause", audit.ALLOWED)
    stranger = Visitor()
    stranger.force_login(outsider.user)
    assert [line["actor"] for line in events(stranger)] == ["olga"]
    assert stranger.post(f"{EXPORT}?workspace=acme", {"format": "csv"}).status_code == 404


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "\n@x"])
def test_no_cell_is_a_formula(text: str, people: dict[str, Person], operator: Visitor) -> None:
    """A spreadsheet that opens the file runs nothing that somebody wrote as a reason; JSON lines keep it as it was."""
    audit.record(people["operator"].actor, "run.pause", audit.ALLOWED, reason=text)
    (row,) = csv.DictReader(io.StringIO(download(operator, "csv", "?action=run.pause"), newline=""))
    assert row["reason"] == f"'{text}"
    assert all(not cell or cell.lstrip()[:1] not in set("=+-@") for cell in row.values())
    assert events(operator, "?action=run.pause")[0]["reason"] == text


def test_the_chain_can_be_checked_from_a_file_alone(
    people: dict[str, Person], workspace: Workspace, operator: Visitor
) -> None:
    """F147: each line has its position, its hash and the text that the hash is of."""
    for number in range(5):
        audit.record(people["operator"].actor, "run.pause", audit.ALLOWED, reason=f'ä = {number}\n"quoted"')
    audit_chain.seal()
    audit.record(people["operator"].actor, "run.resume", audit.ALLOWED)
    lines = events(operator)
    assert [line["position"] for line in lines] == [1, 2, 3, 4, 5, None, None]
    last = bytes(32)
    for line in lines[:5]:
        last = sha256(last + line["canonical"].encode()).digest()
        assert line["hash"] == last.hex()
    head = audit_chain.newest_head(workspace.id)
    assert head is not None
    assert head.hash == lines[4]["hash"]
    rows = list(csv.DictReader(io.StringIO(download(operator, "csv"), newline="")))
    assert [row["canonical"] for row in rows[:7]] == [line["canonical"] for line in lines[:7]]


def test_the_guides_own_program_finds_what_was_changed(
    people: dict[str, Person], operator: Visitor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        audit.record(people["operator"].actor, "run.pause", audit.ALLOWED, reason=f"reason {number}")
    audit_chain.seal()
    (program,) = re.findall(r"```python\n(.*?)```", HOWTO.read_text(), flags=re.S)
    file = tmp_path / "audit.jsonl"
    text = download(operator, "jsonl", "?action=run.pause")
    file.write_text(text)
    checks: dict[str, Any] = {}
    exec(program, checks)
    assert checks["check"](file) == "4 sealed events hold"
    file.write_text(text.replace("reason 2", "raison 2"))
    assert checks["check"](file).startswith("position 3 does not hold")
    file.write_text("\n".join(line for line in text.splitlines() if "reason 1" not in line))
    assert checks["check"](file).startswith("position 2 is missing")


def test_a_file_is_read_in_parts_and_takes_no_more_memory_for_more_events(
    people: dict[str, Person], operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F159: from a cursor of the database; a part is gone before the next is read."""
    monkeypatch.setattr(audit_export, "AT_ONCE", 50)
    actor = people["operator"].actor
    execute(
        "INSERT INTO pipelines_auditevent (id, workspace_id, at, action, outcome, code, actor, channel, reason, data)"
        " SELECT gen_random_uuid(), %s, recourse_now(), 'run.pause', 'allowed', '', 'ann', 'api', repeat('x', 2000),"
        " '{}'"
        " FROM generate_series(1, 3000)",
        [actor.workspace_id],
    )
    answer: Any = operator.post(f"{EXPORT}?action=run.pause", {"format": "jsonl"})
    parts = iter(answer.streaming_content)
    for _ in range(5):
        next(parts)
    tracemalloc.start()
    sizes = [len(part) for part in parts]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sizes) == 55
    assert peak < 4_000_000 < sum(sizes)


def advisory_locks() -> int:
    """That exports hold, of whatever workspace."""
    ((count,),) = query(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return int(count)


@contextmanager
def held(workspaces: list[str]) -> Iterator[None]:
    """An export of each of these workspaces is being read."""
    taken, leave = threading.Barrier(len(workspaces) + 1), threading.Event()

    def hold(whose: str) -> None:
        try:
            audit_export._slot(whose)
            taken.wait()
            leave.wait()
        finally:
            connection.close()

    holders = [threading.Thread(target=hold, args=(whose,)) for whose in workspaces]
    for holder in holders:
        holder.start()
    taken.wait()
    try:
        yield
    finally:
        leave.set()
        for holder in holders:
            holder.join()


@pytest.mark.django_db(transaction=True)
def test_exports_of_one_workspace_shut_out_no_other_until_all_places_are_taken(operator: Visitor) -> None:
    """What one tenant reads holds up another only where the console as a whole can read no more."""
    other = str(uuid.uuid4())
    with held([other] * audit_export.EXPORTS_AT_ONCE):
        give_up(operator.post(EXPORT, {"format": "csv"}))
    with held([str(uuid.uuid4()) for _ in range(audit_export.EXPORTS_OF_ALL)]):
        answer = operator.post(EXPORT, {"format": "csv"})
        assert (answer.status_code, "of all workspaces" in text_of(answer)) == (429, True)
    give_up(operator.post(EXPORT, {"format": "csv"}))
    assert advisory_locks() == 0


@pytest.mark.django_db(transaction=True)
def test_only_so_many_exports_are_read_at_once(people: dict[str, Person], operator: Visitor) -> None:
    """Each holds a thread and a snapshot: one more is told to come again, and finds a place when one has ended."""
    with held([str(people["operator"].actor.workspace_id)] * audit_export.EXPORTS_AT_ONCE):
        answer = operator.post(EXPORT, {"format": "csv"})
        assert answer.status_code == 429
        assert "try again" in text_of(answer)
    for _ in range(audit_export.EXPORTS_AT_ONCE + 1):
        give_up(operator.post(EXPORT, {"format": "csv"}))  # its place is given back although nothing was read
    assert advisory_locks() == 0
    told = AuditEvent.objects.filter(action="audit.export").order_by("at").values_list("outcome", "code")
    assert next(iter(told)) == ("failed", "rate_limited")
