"""Dead letters through `/v1`: what the machine gave up on, and what people do about it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from pipelines.models import AuditEvent, DeadLetter, Event, Run
from pipelines.states import DEAD_LETTER_MOVES, DeadLetterState
from recovery.models import Operation
from tests.cast import Api, Hand, Person, stages_of

StartRun = Callable[..., Run]


@pytest.fixture
def operator(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["operator"])


@pytest.fixture
def letter(start_run: StartRun, hand: Hand) -> DeadLetter:
    start_run("first", name="nightly")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", error_message="no such customer")
    return DeadLetter.objects.get()


def test_a_failed_stage_is_listed_with_its_cause(
    letter: DeadLetter, operator: Api, api: Api, sibling_key: str, outsider: Person, as_person: Callable[[Person], Api]
) -> None:
    """N3 (we build it), I16: the workspace sees it, and so does its own application; nobody else."""
    (told,) = operator.get("/v1/dead-letters").json()["results"]
    assert told["id"] == str(letter.id)
    assert (told["reason"], told["error_code"], told["status"]) == ("terminal_error", "BUSINESS_REJECTED", "open")
    assert (told["stage"], told["execution_name"], told["error_message"]) == ("first", "nightly", "no such customer")
    assert len(api.get("/v1/dead-letters").json()["results"]) == 1
    for stranger in (as_person(outsider), Api({"X-API-Key": sibling_key})):
        assert stranger.get("/v1/dead-letters").json()["results"] == []


def test_letters_are_filtered(letter: DeadLetter, operator: Api) -> None:
    def found(query: str) -> int:
        return len(operator.get(f"/v1/dead-letters?{query}").json()["results"])

    assert found("status=open&status=acknowledged") == 1
    assert found("status=discarded") == 0
    assert found("reason=terminal_error&error_code=BUSINESS_REJECTED") == 1
    assert found("handler=Handler&application=billing") == 1
    assert found("handler=Other") == 0
    assert found(f"execution_id={letter.run_id}") == 1
    assert found(f"execution_id={uuid.uuid4()}") == 0
    assert operator.get("/v1/dead-letters?reason=boredom").status_code == 400


def test_acknowledging_keeps_it_in_hand(letter: DeadLetter, operator: Api) -> None:
    answer = operator.post(f"/v1/dead-letters/{letter.id}/acknowledge", {"reason": "asking sales"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["dead_letter_status"], body["execution_id"]) == ("acknowledged", str(letter.run_id))
    letter.refresh_from_db()
    assert (letter.state, letter.closed_at) == ("acknowledged", None)
    assert letter.stage.state == "failed"
    assert Event.objects.get(kind="dead_letter.acknowledged").actor == "operator-acme"
    event = AuditEvent.objects.get()
    assert (event.action, event.outcome, event.reason) == ("dead_letter.acknowledge", "allowed", "asking sales")


def test_redriving_queues_the_stage_and_closes_the_letter(letter: DeadLetter, hand: Hand, operator: Api) -> None:
    """F162: one transaction; the run goes on to its end."""
    answer = operator.post(f"/v1/dead-letters/{letter.id}/redrive", {"reason": "customer added"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["dead_letter_status"], body["stage_status"], body["epoch"]) == ("redriven", "ready", 2)
    letter.refresh_from_db()
    assert letter.state == "redriven"
    assert letter.closed_at is not None
    assert hand.finish() == 1
    assert Run.objects.get().status == "completed"
    assert Operation.objects.get().kind == "redrive"


def test_discarding_needs_a_reason_and_leaves_the_stage_failed(letter: DeadLetter, operator: Api) -> None:
    without = operator.post(f"/v1/dead-letters/{letter.id}/discard")
    assert (without.status_code, list(without.json()["errors"])) == (400, ["reason"])
    assert operator.post(f"/v1/dead-letters/{letter.id}/discard", {"reason": "a test"}).status_code == 200
    letter.refresh_from_db()
    assert (letter.state, letter.stage.state) == ("discarded", "failed")
    assert Run.objects.get().status == "failed"


@pytest.mark.parametrize("state", DeadLetterState.values)
@pytest.mark.parametrize("verb", ["acknowledge", "redrive", "discard"])
def test_each_verb_takes_exactly_the_states_of_the_table(
    letter: DeadLetter, operator: Api, verb: str, state: str
) -> None:
    """F47: every cell is either the table's move or a typed 409."""
    DeadLetter.objects.filter(id=letter.id).update(state=state)
    answer = operator.post(f"/v1/dead-letters/{letter.id}/{verb}", {"reason": "r"})
    letter.refresh_from_db()
    if state in DEAD_LETTER_MOVES[verb]:
        assert answer.status_code == 200
        assert letter.state == DEAD_LETTER_MOVES[verb][DeadLetterState(state)]
    else:
        assert (answer.status_code, answer.json()["code"]) == (409, "stage_state_invalid")
        assert letter.state == state
        assert stages_of(letter.run)[0].state == "failed"


def test_one_key_redrives_once(letter: DeadLetter, operator: Api) -> None:
    """F56: the answer of the first is told again, though the letter is closed by now."""
    body = {"client_request_id": str(uuid.uuid4())}
    once = operator.post(f"/v1/dead-letters/{letter.id}/redrive", body).json()
    again = operator.post(f"/v1/dead-letters/{letter.id}/redrive", body)
    assert again.json() == once | {"replayed": True}
    assert stages_of(letter.run)[0].epoch == 2


def test_a_letter_whose_stage_was_done_otherwise_is_resolved(letter: DeadLetter, operator: Api) -> None:
    operator.post(f"/v1/stages/{letter.stage_id}/skip", {"reason": "paid by hand"})
    letter.refresh_from_db()
    assert letter.state == "resolved"
    assert operator.post(f"/v1/dead-letters/{letter.id}/redrive").status_code == 409
