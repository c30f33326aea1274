"""The workspace store on screens: its tables, the rows of one, their export, and taking them away."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import audit_export, store_export
from pipelines.models import AuditEvent, Run, StoreTable
from tests.cast import Person, Worker
from tests.console.conftest import Visitor, text_of
from tests.kept import ask, assert_counted
from tests.pipelines.test_audit_export import give_up

pytestmark = pytest.mark.django_db
StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "note": "<script>alert(1)</script>", "tags": ["a"]},
    {"id": 2, "note": "=HYPERLINK(0)", "paid": True},
    {"id": 3, "note": 'zürich, "quoted"\nsecond line', "=1+1": None},
]


@pytest.fixture
def manager(browse: Browse, people: dict[str, Person]) -> Visitor:
    return browse(people["release_manager"])


@pytest.fixture
def table(start_run: StartRun, worker: Worker) -> StoreTable:
    start_run("first")
    ask(worker, worker.take(), "insert", rows=ROWS, key=["id"])
    return StoreTable.objects.get()


def told(response: Any) -> str:
    return unescape(text_of(response))


def streamed(response: Any) -> str:
    text = b"".join(response.streaming_content).decode()
    give_up(response)
    return text


def test_the_list_tells_what_each_table_holds_and_which_run_wrote_last(operator: Visitor, table: StoreTable) -> None:
    """N22: rows and bytes as they are counted, never by reading the table."""
    with CaptureQueriesContext(connection) as asked:
        page = operator.get("/console/store/")
    text = told(page)
    assert f"invoices key id billing in development 3 rows {table.bytes} bytes" in text
    assert f"/console/runs/{table.written_by_run}/" in page.content.decode()
    assert not any("recourse_store" in one["sql"] or "COUNT(" in one["sql"].upper() for one in asked)
    StoreTable.objects.update(written_by_run=table.id)
    assert "a run that was removed" in told(operator.get("/console/store/"))
    assert "None that match" in told(operator.get("/console/store/?name=other"))
    StoreTable.objects.all().delete()
    assert "No table yet" in told(operator.get("/console/store/"))


def test_a_tables_page_shows_its_rows_and_what_a_filter_leaves(operator: Visitor, table: StoreTable) -> None:
    page = operator.get(f"/console/store/{table.id}/")
    assert "<script>alert(1)" not in page.content.decode()
    assert '1 <script>alert(1)</script> ["a"]' in told(page)
    for value, shown, hidden in (("2", "HYPERLINK", "zürich"), ('"2"', "No row holds that", "HYPERLINK")):
        text = told(operator.get(f"/console/store/{table.id}/", {"column": "id", "value": value}))
        assert (shown in text, hidden in text) == (True, False)
    assert "HYPERLINK" in told(operator.get(f"/console/store/{table.id}/", {"column": "paid", "value": "true"}))
    assert "zürich" in told(operator.get(f"/console/store/{table.id}/", {"column": "paid", "value": ""}))
    assert operator.get(f"/console/store/{table.id}/", {"value": "2"}).status_code == 400
    assert operator.get(f"/console/store/{table.id}/", {"other": "2"}).status_code == 400


def test_all_rows_are_exported_as_they_are(operator: Visitor, table: StoreTable) -> None:
    """Every column that some row has; a text that a spreadsheet would run is only shown; and the audit knows."""
    lines = operator.post(f"/console/store/{table.id}/export/", {"format": "jsonl"})
    assert [json.loads(line) for line in streamed(lines).splitlines()] == ROWS
    answer = operator.post(f"/console/store/{table.id}/export/", {"format": "csv"})
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="invoices-acme-')
    header, *rows = csv.reader(io.StringIO(streamed(answer), newline=""))
    assert header == ["id", "'=1+1", "note", "paid", "tags"]
    assert rows[0] == ["1", "", "<script>alert(1)</script>", "", '["a"]']
    assert rows[1] == ["2", "", "'=HYPERLINK(0)", "true", ""]
    assert rows[2][2] == ROWS[2]["note"]
    narrowed = operator.post(f"/console/store/{table.id}/export/?column=id&value=2", {"format": "jsonl"})
    assert json.loads(streamed(narrowed)) == ROWS[1]
    events = AuditEvent.objects.filter(action="store.export").order_by("id")
    assert [one.data["format"] for one in events] == ["jsonl", "csv", "jsonl"]
    assert events[2].data["where"] == {"id": 2}


def test_a_number_below_zero_is_exported_as_one_and_a_text_like_it_is_no_formula() -> None:
    """A credit note of −1.5 stays an amount: only a text can be taken for a formula."""
    assert [audit_export.cell(one) for one in (-1, -1.5, -1e300, True, None, ["-1"])] == [
        "-1",
        "-1.5",
        "-1e+300",
        "true",
        "",
        '["-1"]',
    ]
    assert [audit_export.cell(one) for one in ("-1", "=1", " +1", "@a", "\t=1")] == [
        "'-1",
        "'=1",
        "' +1",
        "'@a",
        "'\t=1",
    ]


def test_an_export_of_many_rows_is_read_in_parts(
    operator: Visitor, table: StoreTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_export, "AT_ONCE", 2)
    answer = operator.post(f"/console/store/{table.id}/export/", {"format": "csv"})
    assert len(list(csv.reader(io.StringIO(streamed(answer), newline="")))) == 4
    monkeypatch.setattr(store_export, "MOST_COLUMNS", 4)
    refused = operator.post(f"/console/store/{table.id}/export/", {"format": "csv"})
    assert (refused.status_code, "take JSON lines" in told(refused)) == (400, True)
    assert operator.post(f"/console/store/{table.id}/export/", {"format": "xml"}).status_code == 400
    assert AuditEvent.objects.filter(action="store.export", outcome="allowed").count() == 1


def test_rows_are_removed_as_they_were_seen(manager: Visitor, worker: Worker, table: StoreTable) -> None:
    """What would go stands there first; where it is something else by then, that is shown, and nothing is done."""
    address, chosen = f"/console/store/{table.id}/remove/", {"column": "paid", "value": "true"}
    page = manager.get(address, chosen)
    assert "1 row of" in told(page)
    shown = page.context["act"].digest
    refused = manager.post(address, chosen | {"shown": shown})
    assert (refused.status_code, "A reason is needed" in told(refused)) == (400, True)
    StoreTable.objects.update(written_at=None)
    moved = manager.post(address, chosen | {"shown": shown, "reason": "wrong"})
    assert (moved.status_code, "another plan" in told(moved)) == (409, True)
    assert StoreTable.objects.get().rows == 3
    done = manager.post(address, chosen | {"shown": moved.context["act"].digest, "reason": "wrong"})
    assert (done.status_code, done.headers["Location"]) == (303, f"/console/store/{table.id}/")
    assert "1 row of invoices removed" in told(manager.get(done.headers["Location"]))
    assert StoreTable.objects.get().rows == 2
    assert_counted()
    event = AuditEvent.objects.get(action="store.remove", outcome="allowed")
    assert (event.reason, event.data["where"], event.channel) == ("wrong", {"paid": True}, "console")
    whole = manager.get(address)
    assert "The table, its key columns, and 2 rows" in told(whole)
    gone = manager.post(address, {"shown": whole.context["act"].digest, "reason": "done with it"})
    assert gone.headers["Location"] == "/console/store/"
    assert not StoreTable.objects.exists()


def test_who_may_not_remove_is_told_why(operator: Visitor, table: StoreTable) -> None:
    assert "may not remove rows" in told(operator.get(f"/console/store/{table.id}/"))
    for answer in (
        operator.get(f"/console/store/{table.id}/remove/"),
        operator.post(f"/console/store/{table.id}/remove/"),
    ):
        assert answer.status_code == 403
    assert StoreTable.objects.get().rows == 3


def test_another_workspaces_table_is_not_there(browse: Browse, outsider: Person, table: StoreTable) -> None:
    """N22: 404, to look at as to export and to remove."""
    olga = browse(outsider)
    assert "No table yet" in told(olga.get("/console/store/"))
    for path in ("", "remove/"):
        assert olga.get(f"/console/store/{table.id}/{path}").status_code == 404
    for path, form in (("export/", {"format": "csv"}), ("remove/", {"reason": "mine"})):
        assert olga.post(f"/console/store/{table.id}/{path}", form).status_code == 404
    assert StoreTable.objects.get().rows == 3
