"""Search from any page: names, keywords, open context, business keys, errors, and ids that lead to their page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.models import DeadLetter, Run
from tests.cast import Api, Hand, Person, stages_of
from tests.console.conftest import Visitor

pytestmark = pytest.mark.django_db

Start = Callable[..., Run]


def found(visitor: Visitor, words: str, **more: Any) -> list[str]:
    """The names of the runs that a search shows."""
    page = visitor.get("/console/", {"search": words, **more})
    assert page.status_code == 200, page.content
    return re.findall(r'<a id="r-[^"]+" href="[^"]+">([^<]*)</a>', page.content.decode())


def by_api(api: Api, words: str) -> list[str]:
    return [one["name"] for one in api.get(f"/v1/executions?search={words}").json()["results"]]


def test_a_run_is_found_by_any_part_of_its_business_key(operator: Visitor, start_run: Start) -> None:
    """P89: the key that the application made it with, whole, a word of it, or the beginning of one."""
    start_run(name="nightly", key="orders:2026-05-30/EU")
    start_run(name="other", key="orders:2026-06-01/US")
    for words in ("orders:2026-05-30/EU", "2026-05-30", "eu", "orders 05 30"):
        assert found(operator, words) == ["nightly"], words
    assert found(operator, "orders") == ["other", "nightly"]
    assert found(operator, "nightly eu") == ["nightly"]
    assert found(operator, "nightly us") == []


def test_a_run_is_found_by_the_code_and_the_words_of_its_error(operator: Visitor, start_run: Start, hand: Hand) -> None:
    start_run("load", name="broken", key="b-1")
    start_run("load", name="sound", key="s-1")
    hand.report(hand.take(), "failed", error_code="UNIQUE_KEY", error_message="row 4711 of orders_pkey is there")
    hand.report(hand.take(), output=1)
    for words in ("UNIQUE_KEY", "unique", "4711", "orders_pkey", "row 4711 broken"):
        assert found(operator, words) == ["broken"], words
    assert found(operator, "4711", status="completed") == []


def test_a_run_that_failed_without_a_stage_is_found_by_why(operator: Visitor, start_run: Start, people: Any) -> None:
    from approvals.transitions import decide_gate

    run = start_run({"name": "a", "approval": {"when": "before"}}, name="guarded")
    decide_gate(run.stages.get().id, actor=people["approver"].actor, approved=False, reason="ledger closed already")
    assert found(operator, "ledger") == ["guarded"]
    assert found(operator, "gate_denied") == ["guarded"]


def test_the_api_searches_what_it_says_and_no_more(
    operator: Visitor, start_run: Start, hand: Hand, api: Api, as_person: Callable[[Person], Api], people: Any
) -> None:
    """Its `search` means names, keywords and open context values; keys and errors are the console's alone."""
    start_run("load", name="nightly", key="orders-77", keywords=[{"key": "team", "value": "billing"}])
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="row is there")
    person = as_person(people["operator"])
    for words, in_both in (("nightly", True), ("billing", True), ("orders", False), ("unique", False)):
        assert found(operator, words) == ["nightly"], words
        assert by_api(person, words) == (["nightly"] if in_both else []), words


def test_sensitive_values_are_never_found(operator: Visitor, start_run: Start, hand: Hand) -> None:
    """P89: they are in no index, also after the run's words are written anew."""
    start_run("load", name="payroll", context_items=[{"key": "iban", "value": "DE8937", "is_sensitive": True}])
    hand.report(hand.take(), "failed", error_code="BAD")
    assert found(operator, "bad") == ["payroll"]
    assert found(operator, "DE8937") == []


def test_what_was_searched_before_is_found_after_an_error_too(operator: Visitor, start_run: Start, hand: Hand) -> None:
    start_run("load", name="nightly", key="orders-77", context_items=[{"key": "invoice", "value": "INV-4"}])
    hand.report(hand.take(), "failed", error_code="BAD")
    for words in ("nightly", "orders-77", "inv-4", "bad"):
        assert found(operator, words) == ["nightly"], words


@pytest.mark.parametrize(
    "words", ["o'brien", "a+b", "x<->y", "50%", "\\", "'':*", "ünï", "#orders", "!", "a & b | c", "(" * 30]
)
def test_any_text_may_be_searched_for(operator: Visitor, start_run: Start, hand: Hand, words: str) -> None:
    start_run("load", name="nightly", key=f"k {words}")
    assert found(operator, words) in (["nightly"], [])
    if any(map(str.isalnum, words)):
        assert found(operator, words) == ["nightly"]


def test_an_id_leads_to_its_page(operator: Visitor, start_run: Start, hand: Hand) -> None:
    run = start_run("load", name="orders")
    job = hand.take()
    hand.report(job, "failed", error_code="BAD", error_message="no")
    stage = stages_of(run)[0]
    letter = DeadLetter.objects.get()
    for one, page in (
        (run.id, f"/console/runs/{run.id}/"),
        (stage.id, f"/console/runs/{run.id}/?stage=0"),
        (job.attempt_id, f"/console/attempts/{job.attempt_id}/"),
        (letter.id, f"/console/runs/{run.id}/?stage=0"),
        (str(run.id).upper(), f"/console/runs/{run.id}/"),
        (f" {run.id} ", f"/console/runs/{run.id}/"),
    ):
        answer = operator.get("/console/", {"search": str(one)})
        assert (answer.status_code, answer.headers.get("Location")) == (302, page)


def test_the_beginning_of_an_id_leads_to_the_run_when_there_is_only_one(operator: Visitor, start_run: Start) -> None:
    run = start_run("load", name="orders")
    start_run("load", name="other")
    answer = operator.get("/console/", {"search": str(run.id)[:30]})
    assert answer.status_code == 302
    assert answer.headers["Location"] == f"/console/runs/{run.id}/"


def test_an_id_that_nobody_may_see_is_searched_like_any_word(
    browse: Callable[[Person], Visitor], outsider: Person, start_run: Start
) -> None:
    """F144: it does not tell that it exists."""
    run = start_run("load", name="orders")
    stranger = browse(outsider)
    for one in (run.id, stages_of(run)[0].id, str(run.id)[:30]):
        page = stranger.get("/console/", {"search": str(one)})
        assert page.status_code == 200
        assert "orders" not in page.content.decode()
