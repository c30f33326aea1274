"""Two lives of a stage beside each other: a retry erases nothing, and what it changed can be read."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.console.differences import compare
from pipelines.models import Run
from tests.cast import Hand, Person, stages_of
from tests.console.conftest import Visitor, text_of
from tests.verbs import retry_stage

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]


def test_the_last_two_epochs_are_compared_with_input_output_and_error(
    operator: Visitor, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """R12, F58: the earlier input, error and output stay readable beside the new ones, with who began what and why."""
    run = start_run({"name": "load", "input": '{"day": "monday", "rows": 3}'})
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="a row is there already")
    load = stages_of(run)[0]
    retry_stage(load.id, actor=people["operator"].actor, reason="cleaned up", new_input='{"day": "tuesday", "rows": 3}')
    hand.report(hand.take(), output={"written": 3})
    told = unescape(text_of(operator.get(f"/console/stages/{load.id}/changes/")))
    assert "What changed in load from epoch 1 to 2" in told
    assert "begun by operator-acme: cleaned up" in told
    for words in (
        'outcome changed − "failed" + "succeeded"',
        'error.code removed − "UNIQUE"',
        'input.day changed − "monday" + "tuesday"',
        "output.written added + 3",
    ):
        assert words in told
    assert told.index("input.day") < told.index("are the same") < told.index("input.rows")
    turned = text_of(operator.get(f"/console/stages/{load.id}/changes/", {"one": "2", "other": "1"}))
    assert unescape(turned) == told, "the earlier one comes first whichever way round they are named"


def test_a_stage_that_was_never_retried_says_so(operator: Visitor, start_run: StartRun) -> None:
    run = start_run("load")
    page = operator.get(f"/console/stages/{stages_of(run)[0].id}/changes/")
    assert page.status_code == 200
    assert "It has one epoch so far" in text_of(page)


def test_what_is_no_epoch_is_refused(operator: Visitor, start_run: StartRun) -> None:
    load = stages_of(start_run("load"))[0]
    for query, status in (({"one": "x"}, 400), ({"one": "²"}, 400), ({"other": "2"}, 404), ({"one": "0"}, 404)):
        assert operator.get(f"/console/stages/{load.id}/changes/", query).status_code == status


def test_nobody_sees_another_workspaces_stage(
    browse: Callable[[Person], Visitor], outsider: Person, start_run: StartRun
) -> None:
    """I16."""
    load = stages_of(start_run("load"))[0]
    assert browse(outsider).get(f"/console/stages/{load.id}/changes/").status_code == 404


def test_it_costs_the_same_however_often_the_stage_was_tried(
    operator: Visitor, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    run = start_run({"name": "load", "options": {"max_retries": 30, "retry_interval": 0}})
    load = stages_of(run)[0]
    counts = []
    for _ in range(4):
        hand.report(hand.take(), "failed", error_code="X", retryable=False)
        with CaptureQueriesContext(connection) as captured:
            assert operator.get(f"/console/stages/{load.id}/changes/").status_code == 200
        counts.append(len(captured))
        retry_stage(load.id, actor=people["operator"].actor, reason="again")
    assert len(set(counts[1:])) == 1
    assert counts[-1] <= 15


def test_a_text_of_many_lines_is_compared_line_by_line() -> None:
    """A traceback of forty lines that differs in one shows that one, with what stands around it."""
    before = "\n".join(f"line {number}" for number in range(40))
    (change,) = compare(before, before.replace("line 20", "line twenty"))
    assert change.lines == [
        ("⋯", ""),
        ("", "line 18"),
        ("", "line 19"),
        ("−", "line 20"),
        ("+", "line twenty"),
        ("", "line 21"),
        ("", "line 22"),
    ]


@pytest.mark.parametrize(("before", "after"), [("a\nb", "a"), (None, "a\nb"), (["a\nb"], {"c": 1}), ("a\nb", "a\nb")])
def test_what_is_no_text_of_lines_is_told_whole(before: Any, after: Any) -> None:
    for change in compare(before, after):
        sides = [text for text in (change.before, change.after) if text is not None]
        assert [text for _, text in change.lines] == sides
