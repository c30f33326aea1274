"""The run list: state, what, where it stands, why, since when."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from approvals.transitions import decide_gate
from pipelines.models import Application, AttemptProgress, Environment, Run
from pipelines.templatetags.console import capped, told
from pipelines.transitions import cancel_run
from recovery import backfills
from tests.cast import Hand, Person
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.recovery.backfilled import runs_of, trigger_of, wish
from tests.verbs import pause_run

pytestmark = pytest.mark.django_db


def test_an_empty_workspace_shows_how_to_make_the_first_run(operator: Visitor) -> None:
    page = operator.get("/console/")
    told = text_of(page)
    assert "No runs in acme yet" in told
    assert "curl --fail-with-body -i http://testserver/pipelines/idempotent" in told
    assert "--workspace acme" in told


def test_a_filter_that_leaves_nothing_says_so_and_offers_the_way_out(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    start_run()
    told = text_of(operator.get("/console/?status=failed"))
    assert "No run matches" in told
    assert "Clear all filters" in told
    assert "curl" not in told


def test_a_failed_run_shows_its_stage_and_the_first_line_of_its_error(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    start_run("extract", "load", name="orders", key="orders:2026-05-30")
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="orders_pkey is there\nDETAIL: row 7")
    told = _row(operator, "orders")
    assert "Failed" in told
    assert "orders:2026-05-30" in told
    assert "1/2 load" in told
    assert "UNIQUE: orders_pkey is there" in told
    assert "DETAIL" not in told


def test_runs_of_one_name_without_a_key_are_told_apart(
    operator: Visitor,
    start_run: Callable[..., Run],
    people: dict[str, Person],
    environment: Environment,
    application: Application,
) -> None:
    """O57: those of a trigger by the tick that they were made for, others by the end of their id; a key says it all."""
    trigger = trigger_of(people["admin"].actor, environment, application)
    made = backfills.start(wish(trigger, "2026-05-20T00:00Z", "2026-05-21T23:00Z"), people["admin"].actor)
    by_tick = {run.tick_at.strftime("%Y-%m-%d %H:%M"): str(run.id) for run in runs_of(made.backfill.id) if run.tick_at}
    assert sorted(by_tick) == ["2026-05-20 08:00", "2026-05-21 08:00"]
    bare = [str(start_run(name="bare").id) for _ in range(2)]
    keyed = str(start_run(name="keyed", key="orders:1").id)
    told_by_context = start_run(name="told", context_items=[{"key": "customer", "value": "globex"}])
    page = operator.get("/console/")
    for moment, run_id in by_tick.items():
        assert moment in _line(page, run_id)
        assert run_id[-6:] not in _line(page, run_id)
    for run_id in bare:
        assert f"…{run_id[-6:]}" in _line(page, run_id)
    assert "orders:1" in _line(page, keyed)
    assert "…" not in _line(page, keyed)
    assert "globex" in _line(page, str(told_by_context.id))
    assert "…" not in _line(page, str(told_by_context.id))


def test_each_state_says_what_it_waits_for(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand, people: dict[str, Person], clock: Clock
) -> None:
    actor = people["operator"].actor
    start_run("a", name="is-queued", in_place=None)
    job = hand.take()
    AttemptProgress.objects.create(attempt_id=job.attempt_id, percent=40, message="row 48 of 120")
    assert "hand-1 · 40 % row 48 of 120" in _row(operator, "is-queued")
    hand.report(job, output=1)

    start_run({"name": "a", "approval": {"when": "before", "expires_in": 600}}, name="is-waiting")
    assert re.search(r"a decision is awaited for \d+m?s", _row(operator, "is-waiting"))
    assert "expires in" in _row(operator, "is-waiting")

    start_run({"name": "a", "options": {"max_retries": 2, "retry_interval": 90}}, name="is-retrying")
    hand.report(hand.take(), "failed", error_code="UPSTREAM", error_message="502")
    assert "retry 1 after UPSTREAM: 502" in _row(operator, "is-retrying")
    assert "due in 1 min" in _row(operator, "is-retrying")

    paused = start_run("a", name="is-paused")
    pause_run(paused.id, actor=actor, reason="file is late")
    assert "paused: file is late" in _row(operator, "is-paused")

    cancelled = start_run("a", name="is-cancelled")
    cancel_run(cancelled.id, actor=actor, reason="bad source file")
    assert f"by {actor.name}: bad source file" in _row(operator, "is-cancelled")

    start_run({"name": "a", "handler": "Nobody"}, name="is-ready")
    assert "waits for a worker for Nobody" in _row(operator, "is-ready")


def test_a_stage_that_failed_says_why_while_other_branches_go_on(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """The run is not failed yet, but the row that shows the failed stage has its error."""
    start_run(
        "first", {"name": "left", "depends_on": ["first"]}, {"name": "right", "depends_on": ["first"]}, name="orders"
    )
    hand.report(hand.take(), output=1)
    left, _ = hand.pull(2)
    hand.report(left, "failed", error_code="BAD", error_message="no country", retryable=False)
    row = _row(operator, "orders")
    assert "Running" in row
    assert "BAD: no country" in row


def test_a_rejected_gate_is_the_reason_in_the_list(
    operator: Visitor, start_run: Callable[..., Run], people: dict[str, Person]
) -> None:
    run = start_run({"name": "a", "approval": {"when": "before"}}, name="guarded")
    decide_gate(run.stages.get().id, actor=people["approver"].actor, approved=False, reason="not this month")
    assert "gate_denied: not this month" in _row(operator, "guarded")


def test_sensitive_context_never_shows_and_open_context_can_be_searched(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    """P89, F-context: business identifiers are visible and searchable, secrets are neither."""
    items = [
        {"key": "invoice", "value": "INV-4711"},
        {"key": "token", "value": "hunter2", "is_sensitive": True},
    ]
    run = start_run("a", name="billing-run", context_items=items)
    assert "INV-4711" in _row(operator, "billing-run")
    assert "billing-run" in text_of(operator.get("/console/?search=inv-47"))
    assert "No run matches" in text_of(operator.get("/console/?search=hunter2"))
    for address in ("/console/", f"/console/runs/{run.id}/", f"/console/runs/{run.id}/events/"):
        assert "hunter2" not in operator.get(address).content.decode()
    assert "[REDACTED]" in text_of(operator.get(f"/console/runs/{run.id}/"))


def test_facets_are_links_with_counts_that_end_at_a_thousand(
    operator: Visitor, start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are capped: a thousand and one is enough to say `1,000+`."""
    from pipelines.console import run_facets

    for _ in range(3):
        start_run()
    assert _facet(operator, "?status=queued") == "Queued 3"
    assert _facet(operator, "?environment=development") == "development 3"
    monkeypatch.setattr(run_facets, "CAP", 1)
    counts = run_facets.facets(_actor(operator))
    assert [one.count for one in counts["status"].facets if one.value == "queued"] == [2]
    assert [one.count for one in counts["environment"].facets if one.value == "development"] == [2]
    assert capped(1000) == "1,000"
    assert capped(1001) == "1,000+"


@pytest.mark.parametrize(
    ("value", "said"),
    [(True, "yes"), (16_777_216, "16,777,216"), (0.5, "0.5"), (["BUSY", "AWAY"], "BUSY, AWAY"), ("fixed", "fixed")],
)
def test_settings_are_told_as_people_read_them(value: Any, said: str) -> None:
    assert told(value) == said


def test_a_set_filter_is_marked_and_its_link_takes_it_away_again(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    start_run()
    page = unescape(operator.get("/console/?status=queued&environment=development").content.decode())
    assert re.search(
        r'<a href="\?environment=development" aria-current="true"><span class="dot" data-status="queued">', page
    )
    assert 'aria-label="Remove the filter state queued"' in page


def test_an_unknown_filter_is_refused_by_name(operator: Visitor, start_run: Callable[..., Run]) -> None:
    """A mistyped filter never shows everything (contract §3)."""
    start_run(name="visible")
    answer = operator.get("/console/?staus=failed")
    assert answer.status_code == 400
    assert "staus" in text_of(answer)
    assert "visible" not in answer.content.decode()
    assert operator.get("/console/?status=succeeded").status_code == 400
    assert operator.get("/console/?cursor=nonsense").status_code == 400


def test_pages_follow_each_other_without_loss_or_repeat(operator: Visitor, start_run: Callable[..., Run]) -> None:
    names = [f"run-{number:02}" for number in range(7)]
    for name in names:
        start_run(name=name)
    seen: list[str] = []
    address: str | None = "/console/?page_size=3"
    while address:
        page = unescape(operator.get(address).content.decode())
        seen += re.findall(r'<a id="r-[^"]+" href="[^"]+">(run-\d\d)</a>', page)
        link = re.search(r'href="(\?[^"]+)" rel="next"', page)
        address = f"/console/{link[1]}" if link else None
    assert seen == names[::-1]


def test_the_number_of_queries_does_not_grow_with_the_rows(operator: Visitor, start_run: Callable[..., Run]) -> None:
    items = [{"key": "invoice", "value": "4711"}]
    for number in range(3):
        start_run("a", "b", key=f"few-{number}", context_items=items)
    few = _queries(operator)
    for number in range(12):
        start_run("a", "b", "c", key=f"many-{number}", context_items=items)
    assert _queries(operator) == few
    assert few <= 22


def test_a_list_being_read_answers_204_until_something_changed(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    start_run("a", name="older")
    address = _live_address(operator.get("/console/"))
    assert operator.part(address).status_code == 204
    assert operator.part(address).content == b""
    job = hand.take()
    changed = operator.part(address)
    assert changed.status_code == 200
    assert "Running" in text_of(changed)
    assert "<html" not in changed.content.decode()
    later = _live_address(changed)
    assert operator.part(later).status_code == 204
    hand.report(job, output=1)
    assert "Completed" in text_of(operator.part(later))


def test_an_empty_list_fills_by_itself(operator: Visitor, start_run: Callable[..., Run]) -> None:
    address = _live_address(operator.get("/console/"))
    assert operator.part(address).status_code == 204
    start_run(name="the-first")
    assert "the-first" in text_of(operator.part(address))


def test_nonsense_about_what_is_being_read_is_an_input_error(operator: Visitor, start_run: Callable[..., Run]) -> None:
    start_run()
    seen = _live_address(operator.get("/console/")).split("seen=")[1].split("&")[0]
    for top in ("2026-13-45", "2026-11-29T10:00:00", "9999-12-31T23:59:59+00:00", "x"):
        assert operator.part("/console/", top=top, seen=seen).status_code == 400, top


def test_new_runs_show_as_a_count_and_do_not_move_what_is_being_read(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    start_run("a", name="older")
    address = _live_address(operator.get("/console/"))
    start_run("a", name="newer")
    start_run("a", name="latest")
    part = operator.part(address)
    assert "2 new runs — show" in text_of(part)
    assert "newer" not in text_of(part)
    assert "latest" not in text_of(part)
    assert "older" not in text_of(part), "a row that looks as before is not sent again"
    assert "latest" in text_of(operator.get("/console/"))


def test_a_row_that_changed_comes_alone_and_takes_its_own_place(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """Nothing moves under the pointer, and an update is a few rows, not the list."""
    runs = [start_run("a", name=f"run-{number}") for number in range(12)]
    address = _live_address(operator.get("/console/"))
    job = hand.take()
    part = operator.part(address)
    changed = re.findall(
        r'<template>\s*<tr id="row-([^"]+)" data-id="[^"]+" hx-swap-oob="true">', part.content.decode()
    )
    assert changed == [str(job.stage.run_id)]
    assert len(part.content) < 4_000
    assert operator.part(_live_address(part)).status_code == 204
    assert {str(run.id) for run in runs} > set(changed)


def test_an_update_that_would_be_too_large_comes_in_parts(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    """At most 15 kB each, until every row is as it stands."""
    for number in range(40):
        start_run("a" * 100, name=f"run-{number}-" + "x" * 150, key=f"key-{number}" + "y" * 150)
    address = _live_address(operator.get("/console/"))
    for _ in range(40):
        hand.take()
    seen: set[str] = set()
    while True:
        part = operator.part(address)
        if part.status_code == 204:
            break
        assert len(part.content) <= 15_000
        sent = set(re.findall(r'<tr id="row-([^"]+)"', part.content.decode()))
        assert sent
        assert not sent & seen
        seen |= sent
        address = _live_address(part)
    assert len(seen) == 40


def test_a_run_that_comes_to_match_among_those_shown_is_counted_and_one_that_leaves_stays_in_its_place(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    start_run("a", name="older")
    first = hand.take()
    start_run("a", name="between")
    second = hand.take()
    start_run("a", name="newest")
    hand.report(first, "failed", error_code="BAD", retryable=False)
    hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
    address = _live_address(operator.get("/console/?status=failed"))
    hand.report(second, "failed", error_code="BAD", retryable=False)
    part = operator.part(address)
    assert "1 new run — show" in text_of(part)
    assert "between" not in text_of(part)
    actor = _actor(operator)
    run = Run.objects.get(name="older")
    from recovery.dead_letters import ask_redrive
    from recovery.transitions import perform

    perform(ask_redrive(run.dead_letters.get()), actor=actor)
    part = operator.part(_live_address(part))
    assert "older" in text_of(part)
    assert "Running" in text_of(part) or "Queued" in text_of(part)


def test_asking_for_news_takes_as_many_queries_for_many_rows_as_for_few(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    def queries() -> int:
        address = _live_address(operator.get("/console/"))
        with CaptureQueriesContext(connection) as captured:
            assert operator.part(address).status_code == 204
        return len(captured)

    start_run("a", "b")
    few = queries()
    for _ in range(12):
        start_run("a", "b")
    assert queries() == few
    assert few <= 18


def test_a_long_page_stands_still_and_says_so(operator: Visitor, start_run: Callable[..., Run]) -> None:
    for _ in range(101):
        start_run()
    page = operator.get("/console/?page_size=200")
    assert "data-live hx-get" not in page.content.decode().split('id="runs-live"')[1].split(">")[0]
    assert "stands still: too long a page" in text_of(page)


@pytest.mark.parametrize("seen", ["x", "====", "AAAA", "A" * 7, "A" * 5000, "é", "AAAAAAA" * 3])
def test_what_is_seen_is_an_input_like_any_other(operator: Visitor, start_run: Callable[..., Run], seen: str) -> None:
    start_run()
    assert operator.part("/console/", seen=seen).status_code in (200, 400)


def test_what_needs_a_person_stands_on_top_as_links(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    calm = text_of(operator.get("/console/"))
    assert "Nothing is blocked or waits for a decision, and nothing failed in the last day." in calm
    for _ in range(2):
        start_run("a")
        hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
    start_run({"name": "a", "approval": {"when": "before"}})
    page = operator.get("/console/")
    assert "2 failed in the last day 1 waits for a decision" in text_of(page)
    link = re.search(r'href="(/console/\?status=failed&amp;created_after=[^"]+)"', page.content.decode())
    assert link
    assert len(operator.get(unescape(link[1])).context["rows"].lines) == 2


def test_standard_views_are_addresses(operator: Visitor, start_run: Callable[..., Run], hand: Hand) -> None:
    """A view is an address and nothing that is kept; the one that is shown is marked."""
    start_run("a", name="broken")
    hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
    start_run("a", name="sound")
    views = {view.label: view for view in operator.get("/console/").context["views"]}
    assert list(views) == ["Needs attention", "Failed today", "Waiting for a decision", "Running long"]
    for label in ("Needs attention", "Failed today"):
        page = operator.get(f"/console/?{views[label].query}")
        assert [row.run.name for row in page.context["rows"].lines] == ["broken"], label
        assert [view.label for view in page.context["views"] if view.is_shown] == [label]
        link = re.search(r'data-copy="([^"]+)"', page.content.decode())
        assert link
        assert unescape(link[1]) == f"http://testserver/console/?{views[label].query}&workspace=acme"


def test_counts_regard_the_other_filters_and_say_which_they_do_not(
    operator: Visitor, start_run: Callable[..., Run], hand: Hand
) -> None:
    start_run("a", name="one")
    start_run("a", name="two")
    hand.take()
    counts = operator.get("/console/?status=running&search=one").context["facets"]
    told = {one.value: one.count for one in counts["environment"].facets}
    assert told["development"] == 1
    assert {one.value: one.count for one in counts["status"].facets}["queued"] == 1
    assert counts["environment"].without == ["search"]
    assert counts["pipeline"].without == ["status", "search"]
    told = text_of(operator.get("/console/?status=running&search=one"))
    assert "State, environment, application: counted whatever the search." in told
    assert "Pipeline: counted whatever the state or search." in told
    nowhere = operator.get("/console/?environment=nowhere").context["facets"]
    assert {one.count for one in nowhere["status"].facets} == {0}


def test_a_list_of_choices_that_is_cut_says_so(
    operator: Visitor, start_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F161: nothing is left out silently."""
    from pipelines.console import run_facets

    monkeypatch.setattr(run_facets, "LONGEST_GROUP", 2)
    start_run()
    page = text_of(operator.get("/console/"))
    assert "The first 2. Name another: ?environment=…" in page


def test_when_nothing_matches_the_filter_that_keeps_it_away_is_offered(
    operator: Visitor, start_run: Callable[..., Run]
) -> None:
    start_run("a", name="visible")
    page = operator.get("/console/?status=failed&environment=development")
    assert "without state failed" in text_of(page)
    assert "without environment" not in text_of(page)
    assert '<a class="chip" href="?environment=development">without' in page.content.decode()


def _row(visitor: Visitor, name: str) -> str:
    """The text of the row of the run called `name`."""
    page = visitor.get("/console/")
    rows = re.findall(r"<tr id=\"row-.*?</tr>", page.content.decode(), flags=re.S)
    found = [row for row in rows if f">{name}</a>" in row]
    assert len(found) == 1
    told = re.sub(r"<[^>]+>", " ", found[0])
    return " ".join(unescape(told).split())


def _facet(visitor: Visitor, address: str) -> str:
    page = unescape(visitor.get("/console/").content.decode())
    link = re.search(rf'<a href="{re.escape(address)}"[^>]*>(.*?)</a>', page, flags=re.S)
    assert link
    return " ".join(re.sub(r"<[^>]+>", " ", link[1]).split())


def _live_address(page: Any) -> str:
    link = re.search(r'id="runs-live" data-live hx-get="([^"]+)"', page.content.decode())
    assert link
    return f"/console/{unescape(link[1])}"


def _queries(visitor: Visitor) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert visitor.get("/console/").status_code == 200
    return len(captured)


def _actor(visitor: Visitor) -> Any:
    return visitor.get("/console/").context["visit"].actor


def _line(page: Any, run_id: str) -> str:
    """What the row of that run says."""
    (row,) = re.findall(rf'<tr id="row-{run_id}".*?</tr>', page.content.decode(), flags=re.S)
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", row).split()))
