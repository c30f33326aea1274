"""The workspace store by the operations API: what may be seen of it, by whom, and how some of it is taken away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import AuditEvent, Role, Run, StoreTable
from pipelines.sql import query
from tests.cast import Api, Person, Worker
from tests.kept import INVOICES, ask, assert_counted

StartRun = Callable[..., Run]
AsPerson = Callable[[Person], Api]
pytestmark = pytest.mark.django_db
TABLES = "/v1/store/tables"


@pytest.fixture
def job(start_run: StartRun, worker: Worker) -> dict[str, Any]:
    start_run("first")
    return worker.take()


@pytest.fixture
def table(worker: Worker, job: dict[str, Any]) -> StoreTable:
    ask(worker, job, "insert", rows=[{"id": number, "even": number % 2 == 0} for number in range(7)], key=["id"])
    return StoreTable.objects.get()


def test_tables_tell_what_they_hold_and_who_wrote_last(
    worker: Worker, job: dict[str, Any], table: StoreTable, people: dict[str, Person], as_person: AsPerson
) -> None:
    """N22: by name, page by page; the same number of statements for one as for many."""
    viewer = as_person(people["viewer"])
    with CaptureQueriesContext(connection) as one:
        (told,) = viewer.get(TABLES).json()["results"]
    assert told == {
        "id": str(table.id),
        "name": "invoices",
        "key": ["id"],
        "application": "billing",
        "environment": "development",
        "rows": 7,
        "bytes": sum(len(json.dumps({"id": n, "even": n % 2 == 0}, separators=(",", ":"))) for n in range(7)),
        "created_at": told["created_at"],
        "written_at": told["written_at"],
        "written_by_execution_id": str(Run.objects.get().id),
        "written_by_attempt_id": job["executionId"],
    }
    for name in ("aa", "zz", "mm"):
        ask(worker, job, "table", name, key=["id"])
    with CaptureQueriesContext(connection) as many:
        page = viewer.get(f"{TABLES}?page_size=3").json()
    assert [one["name"] for one in page["results"]] == ["aa", "invoices", "mm"]
    assert len(one) == len(many)
    rest = viewer.get(page["next"].partition("testserver")[2]).json()
    assert ([one["name"] for one in rest["results"]], rest["next"]) == (["zz"], None)
    back = viewer.get(rest["previous"].partition("testserver")[2]).json()
    assert back["results"] == page["results"]
    assert viewer.get(f"{TABLES}?name=zz&environment=development").json()["results"][0]["name"] == "zz"
    assert viewer.get(f"{TABLES}?environment=production").json()["results"] == []
    assert viewer.get(f"{TABLES}/{table.id}").json() == told


def test_rows_are_read_page_by_page_and_by_what_they_hold(
    table: StoreTable, people: dict[str, Person], as_person: AsPerson
) -> None:
    viewer = as_person(people["viewer"])

    def numbers(address: str) -> list[int]:
        return [one["row"]["id"] for one in viewer.get(address).json()["results"]]

    address: str | None = f"{TABLES}/{table.id}/rows?page_size=3"
    pages = []
    while address:
        page = viewer.get(address).json()
        pages.append([one["row"]["id"] for one in page["results"]])
        last, address = page, page["next"] and page["next"].partition("testserver")[2]
    assert pages == [[0, 1, 2], [3, 4, 5], [6]]
    assert {one["execution_id"] for one in last["results"]} == {str(Run.objects.get().id)}
    assert numbers(last["previous"].partition("testserver")[2]) == [3, 4, 5]
    assert numbers(f"{TABLES}/{table.id}/rows?{urlencode({'where': json.dumps({'even': True})})}") == [0, 2, 4, 6]
    assert numbers(f"{TABLES}/{table.id}/rows?{urlencode({'where': json.dumps({'id': 5})})}") == [5]
    for wrong in ("[]", "{", '{"a":"\\u0000"}', '{"a":NaN}', '"x"', '{"a":"\\ud800"}'):
        refused = viewer.get(f"{TABLES}/{table.id}/rows?{urlencode({'where': wrong})}")
        assert (refused.status_code, list(refused.json()["errors"])) == (400, ["where"]), wrong
    refused = viewer.get(f"{TABLES}/{table.id}/rows?cursor=WyJuIiwieCJd")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["cursor"])


@pytest.mark.parametrize("cursor", ["WyJuIiwgIlx1MDAwMCIsICIwMDAwIl0", "bm9uZQ", "W10"])
def test_a_cursor_that_is_none_is_refused(people: dict[str, Person], as_person: AsPerson, cursor: str) -> None:
    refused = as_person(people["viewer"]).get(f"{TABLES}?cursor={cursor}")
    assert (refused.status_code, list(refused.json()["errors"])) == (400, ["cursor"])


def test_nobody_sees_the_tables_of_others(
    table: StoreTable, api: Api, outsider: Person, as_person: AsPerson, foreign_key: str, sibling_key: str
) -> None:
    """N22: 404 for another tenant and another application, whatever is asked."""
    assert api.get(f"{TABLES}/{table.id}").json()["name"] == "invoices"
    assert len(api.get(f"{TABLES}/{table.id}/rows").json()["results"]) == 7
    others = [as_person(outsider), Api({"X-API-Key": foreign_key}), Api({"X-API-Key": sibling_key})]
    for other in others:
        assert other.get(TABLES).json()["results"] == []
        for path in ("", "/rows"):
            assert other.get(f"{TABLES}/{table.id}{path}").status_code == 404
        assert other.post(f"{TABLES}/{table.id}/remove", {"dry_run": True}).status_code == 404
        assert other.post(f"{TABLES}/{table.id}/remove", {}).status_code == 404
    assert StoreTable.objects.get().rows == 7


def test_rows_go_as_they_were_seen_and_the_audit_tells_of_it(
    worker: Worker, job: dict[str, Any], table: StoreTable, people: dict[str, Person], as_person: AsPerson
) -> None:
    """First looked at, which changes nothing; then done, unless something else would go by now."""
    manager, remove = as_person(people["release_manager"]), f"{TABLES}/{table.id}/remove"
    where = {"even": True}
    seen = manager.post(remove, {"where": where, "dry_run": True}).json()
    assert (seen["rows"], seen["whole_table"], seen["dry_run"]) == (4, False, True)
    assert StoreTable.objects.get().rows == 7
    ask(worker, job, "upsert", rows=[{"id": 8, "even": True}])
    moved = manager.post(remove, {"where": where, "plan_digest": seen["plan_digest"]})
    assert (moved.status_code, moved.json()["code"]) == (409, "plan_changed")
    assert StoreTable.objects.get().rows == 8
    again = manager.post(remove, {"where": where, "dry_run": True}).json()
    gone = manager.post(remove, {"where": where, "plan_digest": again["plan_digest"], "reason": "to be done again"})
    assert (gone.status_code, gone.json()["rows"], gone.json()["dry_run"]) == (200, 5, False)
    assert [json.loads(body)["id"] for (body,) in query("SELECT body::text FROM recourse_store.rows ORDER BY id")] == [
        1,
        3,
        5,
    ]
    assert_counted()
    event = AuditEvent.objects.filter(action="store.remove", outcome="allowed").get()
    assert (event.reason, event.data["table"], event.data["rows"], event.data["where"]) == (
        "to be done again",
        "invoices",
        5,
        where,
    )
    nothing = manager.post(remove, {"where": where})
    assert (nothing.status_code, nothing.json()["rows"]) == (200, 0)
    assert AuditEvent.objects.filter(action="store.remove", outcome="no_op").count() == 1


def test_a_table_goes_with_its_key_and_its_rows(
    worker: Worker, job: dict[str, Any], table: StoreTable, people: dict[str, Person], as_person: AsPerson
) -> None:
    admin, remove = as_person(people["admin"]), f"{TABLES}/{table.id}/remove"
    assert admin.post(remove).json()["whole_table"] is True
    assert (StoreTable.objects.count(), query("SELECT count(*) FROM recourse_store.rows")) == (0, [(0,)])
    assert admin.post(remove).status_code == 404
    assert ask(worker, job, "insert", rows=INVOICES).json()["rows"] == 2  # made anew, without a key
    assert StoreTable.objects.get().key == []
    assert_counted()


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_filter_that_came_out_empty_is_no_wish_to_lose_the_table(
    table: StoreTable, people: dict[str, Person], as_person: AsPerson, is_dry: bool
) -> None:
    """A program that puts its filter together may put nothing in it; who means the table says nothing of rows."""
    asked = as_person(people["admin"]).post(f"{TABLES}/{table.id}/remove", {"where": {}, "dry_run": is_dry})
    assert (asked.status_code, list(asked.json()["errors"])) == (400, ["where"])
    assert StoreTable.objects.get().rows == 7


@pytest.mark.parametrize("role", sorted({*Role.values} - {"release_manager", "admin"}))
def test_who_may_not_removes_nothing_and_the_audit_knows(
    table: StoreTable, people: dict[str, Person], as_person: AsPerson, role: str
) -> None:
    one = as_person(people[role])
    assert one.post(f"{TABLES}/{table.id}/remove", {"dry_run": True}).status_code == 200
    refused = one.post(f"{TABLES}/{table.id}/remove", {})
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert AuditEvent.objects.get(action="store.remove").outcome == "denied"
    assert StoreTable.objects.get().rows == 7


def test_an_application_removes_nothing_by_its_key(table: StoreTable, api: Api) -> None:
    assert api.post(f"{TABLES}/{table.id}/remove", {}).status_code == 403
    assert StoreTable.objects.get().rows == 7
