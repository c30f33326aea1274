"""Rows that somebody selects: one form, every id in one field, all that match, and a draft that does nothing yet."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from pipelines.models import AuditEvent, Run
from recovery.models import BulkItem, BulkOperation
from tests.cast import Hand, Person
from tests.console.conftest import Visitor, text_of
from tests.recovery.bulked import failing

pytestmark = pytest.mark.django_db

Start = Callable[..., Run]
NEW = "/console/bulk/new/"


def form_of(page: Any) -> dict[str, str]:
    """The hidden fields of the selection's form."""
    form = re.search(r'<form class="selection".*?</form>', page.content.decode(), flags=re.S)
    assert form
    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[0])}


def test_every_row_can_be_selected_by_name(operator: Visitor, start_run: Start) -> None:
    run = start_run(name="orders", key="orders:7")
    page = operator.get("/console/").content.decode()
    box = f'name="ids" value="{run.id}" form="selection" aria-label="Select orders orders:7">'
    assert box in page
    assert f'data-id="{run.id}"' in page


def test_what_is_ticked_becomes_a_draft_without_javascript(operator: Visitor, start_run: Start) -> None:
    """The boxes of the page are sent as they are."""
    chosen, other = start_run(name="one"), start_run(name="two")
    answer = operator.post(NEW, {"of": "runs", "filter": "", "selected": "", "ids": [str(chosen.id)], "kind": "pause"})
    bulk = BulkOperation.objects.get()
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/console/bulk/{bulk.id}/")
    assert (bulk.kind, bulk.state, bulk.total) == ("pause", "draft", 1)
    assert list(BulkItem.objects.values_list("run", flat=True)) == [chosen.id]
    for run in (chosen, other):
        run.refresh_from_db()
        assert not run.paused, "a draft does nothing"


def test_twelve_hundred_ids_come_in_one_field(operator: Visitor, start_run: Start) -> None:
    """F164: more than any limit of fields, and more than a page of a list holds."""
    runs = [start_run(name=f"run-{number}") for number in range(3)]
    Run.objects.bulk_create(
        [
            Run(
                **{f.attname: getattr(runs[0], f.attname) for f in Run._meta.concrete_fields if f.name != "id"},
                id=uuid.uuid4(),
            )
            for _ in range(1_197)
        ]
    )
    ids = " ".join(str(one) for one in Run.objects.values_list("id", flat=True))
    answer = operator.post(NEW, {"of": "runs", "filter": "", "selected": ids, "kind": "pause"})
    assert answer.status_code == 303
    assert BulkOperation.objects.get().total == 1_200


def test_selected_over_pages_and_ticked_on_this_one_are_each_taken_once(operator: Visitor, start_run: Start) -> None:
    """F156: the field holds those of other pages, the boxes those of this one."""
    runs = [start_run() for _ in range(5)]
    told = " ".join(str(run.id) for run in runs[:4])
    operator.post(NEW, {"of": "runs", "selected": told, "ids": [str(run.id) for run in runs[3:]], "kind": "cancel"})
    assert BulkOperation.objects.get().total == 5


def test_all_that_match_are_those_that_the_list_shows(operator: Visitor, start_run: Start, hand: Hand) -> None:
    """F154: the very filter of the list, with all of its fields, also what only screens search."""
    failing(start_run, hand, 2, name="nightly")
    failing(start_run, hand, 2, name="hourly")
    start_run(name="nightly")
    page = operator.get("/console/?status=failed&search=nightly+business&environment=development")
    shown = {row.run.id for row in page.context["rows"].lines}
    assert len(shown) == 2
    fields = form_of(page)
    assert fields["filter"] == "status=failed&environment=development&search=nightly+business"
    operator.post(NEW, {**fields, "all": "yes", "kind": "rerun"})
    assert set(BulkItem.objects.values_list("run", flat=True)) == shown


def test_an_empty_filter_is_never_all(operator: Visitor, start_run: Start) -> None:
    start_run()
    page = operator.get("/console/")
    assert "filter the list first" in text_of(page)
    assert re.search(r'name="all" value="yes" disabled', page.content.decode())
    answer = operator.post(NEW, {**form_of(page), "all": "yes", "kind": "cancel"})
    assert answer.status_code == 400
    assert not BulkOperation.objects.exists()
    letters = operator.post(NEW, {"of": "letters", "filter": "", "all": "yes", "kind": "discard"})
    assert letters.status_code == 400


@pytest.mark.parametrize(
    "posted",
    [
        {"kind": "pause"},
        {"kind": "explode", "selected": str(uuid.uuid4())},
        {"selected": str(uuid.uuid4())},
        {"kind": "pause", "selected": "x"},
        {"kind": "pause", "all": "yes", "filter": "staus=failed"},
        {"kind": "pause", "all": "yes", "filter": "status=\x00"},
        {"kind": "redrive", "all": "yes", "filter": "status=nonsense"},
    ],
)
def test_nonsense_makes_no_draft(operator: Visitor, start_run: Start, posted: dict[str, str]) -> None:
    start_run()
    assert operator.post(NEW, posted).status_code == 400
    assert not BulkOperation.objects.exists()


def test_an_id_that_is_not_there_makes_no_draft(operator: Visitor, start_run: Start) -> None:
    run = start_run()
    answer = operator.post(NEW, {"kind": "pause", "selected": f"{run.id} {uuid.uuid4()}"})
    assert answer.status_code == 404
    assert not BulkOperation.objects.exists()


def test_a_foreign_run_is_as_good_as_none(
    browse: Callable[[Person], Visitor], outsider: Person, start_run: Start
) -> None:
    """F151, F144."""
    run = start_run()
    assert browse(outsider).post(NEW, {"kind": "pause", "selected": str(run.id)}).status_code == 404
    assert not BulkOperation.objects.exists()


def test_a_viewer_sees_why_they_may_not_and_is_refused(
    browse: Callable[[Person], Visitor], people: dict[str, Person], start_run: Start
) -> None:
    run = start_run()
    viewer = browse(people["viewer"])
    page = viewer.get("/console/").content.decode()
    form = page.split('<form class="selection"')[1].split("</form>")[0]
    assert form.count('aria-disabled="true" title="Your role, viewer, may not do this') == 7
    assert 'name="kind"' not in form
    answer = viewer.post(NEW, {"kind": "cancel", "selected": str(run.id)})
    assert answer.status_code == 403
    assert AuditEvent.objects.filter(action="bulk.draft", outcome="denied").count() == 1
    assert not BulkOperation.objects.exists()


def test_asked_for_by_itself_it_says_where_to_begin(operator: Visitor) -> None:
    page = operator.get(NEW)
    assert page.status_code == 400
    assert "select rows in a list" in text_of(page).lower()
    assert not BulkOperation.objects.exists()
