"""Checkpoints on screens: where a run stood, whether that may be believed, and what differs between any two."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.models import Checkpoint, CheckpointEvidence, Run
from tests.cast import Hand, Person
from tests.console.conftest import Visitor, text_of

pytestmark = pytest.mark.django_db


def test_a_runs_checkpoints_are_listed_newest_first_with_their_verdict(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """O13, O57: where it stood after each stage, and that the signatures hold now."""
    run = start_run("load", "publish")
    hand.finish()
    page = operator.get(f"/console/runs/{run.id}/checkpoints/")
    told = text_of(page)
    assert told.index("Stage end publish") < told.index("Stage end load") < told.index("Run start")
    assert told.count("superseded") == 2
    assert page.content.decode().count('data-status="valid"') == 3


def test_one_checkpoint_shows_its_fields_identity_payload_and_what_was_added(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    run = start_run("load", "publish")
    hand.report(hand.take(), output={"rows": 12})
    one = Checkpoint.objects.get(run=run, sequence=2)
    CheckpointEvidence.objects.create(
        checkpoint=one, body={"seen": "in the books"}, digest="d" * 64, added_by="runtime"
    )
    told = unescape(text_of(operator.get(f"/console/runs/{run.id}/checkpoints/2/")))
    for words in (
        "Checkpoint 2 of nightly",
        "Valid",
        str(run.release_id),
        one.payload_digest,
        one.key_id,
        one.signature,
        '"current_step_id": "publish"',
        '{"seen": "in the books"}',
    ):
        assert words in told
    assert operator.get(f"/console/runs/{run.id}/checkpoints/99/").status_code == 404


def test_what_differs_between_two_comes_first_with_minus_and_plus(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """Changed places carry − and + as text, so that colour is never alone; the order of naming does not matter."""
    run = start_run("load", "publish")
    hand.finish()
    pages = [
        text_of(operator.get(f"/console/runs/{run.id}/checkpoints/changes/", {"one": one, "other": other}))
        for one, other in (("1", "3"), ("3", "1"))
    ]
    assert pages[0] == pages[1]
    told = unescape(pages[0])
    assert "What changed from checkpoint 1 to 3" in told
    assert 'status changed − "queued" + "completed"' in told
    assert 'done[load].stage added + "load"' in told
    assert told.index("+ ") < told.index("are the same")
    for nonsense in ("x", "", "-1", "²"):
        assert operator.get(f"/console/runs/{run.id}/checkpoints/changes/", {"one": nonsense}).status_code == 400


def test_one_that_is_not_to_be_believed_says_so_and_is_shown_as_text(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    """O25, O34: what it says stays readable beside its verdict; whatever it holds is text."""
    run = start_run("load")
    attack = '</pre><script>alert("x")</script>'
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pipelines_checkpoint DISABLE TRIGGER USER")
        cursor.execute("UPDATE pipelines_checkpoint SET payload = %s, key_id = %s", [attack, "<b>k</b>"])
        cursor.execute("ALTER TABLE pipelines_checkpoint ENABLE TRIGGER USER")
    page = operator.get(f"/console/runs/{run.id}/checkpoints/1/")
    assert "Nothing is started from it" in text_of(page)
    assert "This is not JSON any more." in text_of(page)
    for address in ("checkpoints/1/", "checkpoints/", "checkpoints/changes/?one=1&other=1"):
        body = operator.get(f"/console/runs/{run.id}/{address}").content.decode()
        assert 'data-status="invalid"' in body
        assert "<script>alert" not in body
        assert "<b>k</b>" not in body


def test_nobody_sees_another_workspaces_checkpoints(
    browse: Callable[[Person], Visitor], outsider: Person, start_run: Callable[..., Run]
) -> None:
    """I16."""
    run = start_run("load")
    for address in ("checkpoints/", "checkpoints/1/", "checkpoints/changes/?one=1&other=1"):
        assert browse(outsider).get(f"/console/runs/{run.id}/{address}").status_code == 404


def test_long_lists_are_cut_and_cost_no_more_queries(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    short, long = start_run("load", key="short"), start_run(*[f"stage-{number}" for number in range(60)], key="long")
    hand.finish()
    page = operator.get(f"/console/runs/{long.id}/checkpoints/").content.decode()
    assert 'rel="next"' in page
    assert page.count("<tr>") == 51
    assert _queries(operator, short) == _queries(operator, long) <= 14


def _queries(visitor: Visitor, run: Run) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert visitor.get(f"/console/runs/{run.id}/checkpoints/").status_code == 200
    return len(captured)


def test_the_two_newest_are_chosen_to_be_compared(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    run = start_run("load", "publish")
    hand.finish()
    page = operator.get(f"/console/runs/{run.id}/checkpoints/").content.decode()
    assert re.findall(r'name="(\w+)" value="(\d)"[^>]* checked', page) == [("other", "3"), ("one", "2")]


def test_while_the_keyring_cannot_be_read_nothing_is_said_against_a_signature(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, settings: Any
) -> None:
    """O35: it is not believed either; what was altered and what cannot be checked are told apart."""
    run = start_run("load", "publish")
    hand.report(hand.take(), "failed", error_code="X", retryable=False)
    settings.RECOURSE_ENCRYPTION_KEY = Fernet.generate_key().decode()
    for path in ("", "checkpoints/", "checkpoints/1/", "rerun/"):
        told = text_of(operator.get(f"/console/runs/{run.id}/{path}"))
        assert "annot be checked now" in told, path
        assert "does not fit" not in told, path
    assert "the keyring cannot be read" in text_of(operator.get(f"/console/runs/{run.id}/"))
