"""Dead letters on screens: acknowledged, redriven or discarded where they are listed, each with its consequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines.models import AuditEvent, DeadLetter, Role, Run
from pipelines.transitions import cancel_run
from recovery.models import Operation
from tests.cast import Hand, Person, stages_of
from tests.console.conftest import HTMX, Visitor, text_of

pytestmark = pytest.mark.django_db

LIST = "/console/dead-letters/"
Start = Callable[..., Run]
Browse = Callable[[Person], Visitor]


@pytest.fixture
def letter(start_run: Start, hand: Hand) -> DeadLetter:
    start_run("load", "publish", name="orders", key="orders:2026-05-30")
    hand.report(hand.take(), "failed", error_code="UNIQUE", error_message="row is there")
    return DeadLetter.objects.get()


def address(letter: DeadLetter, verb: str) -> str:
    return f"{LIST}{letter.id}/{verb}/"


def state_of(letter: DeadLetter) -> str:
    return str(DeadLetter.objects.values_list("state", flat=True).get(id=letter.id))


def test_the_list_tells_runs_apart_and_offers_the_acts(operator: Visitor, letter: DeadLetter) -> None:
    page = operator.get(LIST)
    told = text_of(page)
    assert "orders orders:2026-05-30" in told
    assert "UNIQUE row is there" in told
    for verb in ("redrive", "acknowledge", "discard"):
        assert f'href="{address(letter, verb)}"' in page.content.decode()
    assert "orders" in text_of(operator.get(f"{LIST}?error_code=UNIQUE&handler=Handler"))
    assert "None open or acknowledged" in text_of(operator.get(f"{LIST}?error_code=OTHER"))


def test_a_letter_is_acknowledged_and_its_stage_stays_failed(operator: Visitor, letter: DeadLetter) -> None:
    assert "Kept 1 stage: load · it stays as it is" in text_of(operator.get(address(letter, "acknowledge")))
    assert state_of(letter) == "open"
    page = operator.post(address(letter, "acknowledge"), {"reason": "asking the bank"}, follow=True)
    assert "The dead letter of load in orders is acknowledged." in text_of(page)
    assert state_of(letter) == "acknowledged"
    assert stages_of(letter.run)[0].state == "failed"
    told = text_of(operator.get(f"/console/runs/{letter.run_id}/"))
    assert "Acknowledged: somebody deals with it." in told
    assert "Acknowledge: it is acknowledged already." in told


def test_a_letter_is_redriven_from_the_list(operator: Visitor, letter: DeadLetter) -> None:
    """F162: a new epoch begins and the letter is closed, together."""
    form = text_of(operator.get(address(letter, "redrive")))
    assert "Run again 1 stage: load · begins epoch 2; its counters start anew" in form
    assert "Closed the dead letter of load" in form
    assert "Show the plan for this choice" not in form
    page = operator.post(address(letter, "redrive"), {"reason": "row removed"}, follow=True)
    assert "load in orders runs again, in epoch 2." in text_of(page)
    assert state_of(letter) == "redriven"
    assert [(stage.state, stage.epoch) for stage in stages_of(letter.run)] == [("ready", 2), ("pending", 1)]
    assert Operation.objects.get().kind == "redrive"


def test_a_letter_is_discarded_only_with_a_reason(
    operator: Visitor, letter: DeadLetter, people: dict[str, Person]
) -> None:
    refused = operator.post(address(letter, "discard"), {"reason": " "})
    assert refused.status_code == 400
    assert "A reason is needed" in text_of(refused)
    assert state_of(letter) == "open"
    operator.post(address(letter, "discard"), {"reason": "a test file"})
    assert state_of(letter) == "discarded"
    assert stages_of(letter.run)[0].state == "failed"
    operator.get(LIST)  # takes the message
    assert "orders" not in text_of(operator.get(LIST))
    told = AuditEvent.objects.get(outcome="allowed")
    assert (told.action, told.user_id, told.reason) == (
        "dead_letter.discard",
        people["operator"].user.id,
        "a test file",
    )


def test_what_acted_outside_is_redriven_only_after_the_checks(operator: Visitor, start_run: Start, hand: Hand) -> None:
    """P59, P87: the same four checks as a retry."""
    start_run({"name": "pay", "effect_mode": "external"})
    hand.report(hand.take(), "failed", error_code="DECLINED")
    letter = DeadLetter.objects.get()
    assert "pay acted outside: before that is done again" in text_of(operator.get(address(letter, "redrive")))
    refused = operator.post(address(letter, "redrive"), {"reason": "again"})
    assert refused.status_code == 400
    assert "Needed, with its tick and its note." in text_of(refused)
    assert state_of(letter) == "open"
    checks = {f"check_{name}": "yes" for name in ("history", "outside", "cause", "repeat")}
    notes = {f"note_{name}": "looked" for name in ("history", "outside", "cause", "repeat")}
    operator.post(address(letter, "redrive"), {"reason": "again", **checks, **notes})
    assert state_of(letter) == "redriven"


def test_a_letter_that_somebody_closed_meanwhile_shows_how_it_stands(operator: Visitor, letter: DeadLetter) -> None:
    DeadLetter.objects.update(state="discarded")
    answer = operator.post(address(letter, "redrive"), {"reason": "again"}, headers=HTMX)
    assert answer.status_code == 409
    assert "A dead letter that is discarded cannot be redriven." in text_of(answer)
    page = operator.get(f"{LIST}?status=discarded")
    assert "It is discarded already." in page.content.decode()
    assert f'href="{address(letter, "redrive")}"' not in page.content.decode()


def test_a_letter_of_a_cancelled_run_offers_no_redrive(
    operator: Visitor, start_run: Start, hand: Hand, people: dict[str, Person]
) -> None:
    """I8: cancelling closed the letter too; the offer says so before anybody tries."""
    run = start_run("first", {"name": "left", "depends_on": ["first"]}, {"name": "right", "depends_on": ["first"]})
    hand.report(hand.take(), output=1)
    hand.report(hand.take(), "failed", error_code="BAD", retryable=False)
    cancel_run(run.id, actor=people["operator"].actor, reason="no longer needed")
    letter = DeadLetter.objects.get(state="resolved")
    page = operator.get(f"{LIST}?status=resolved").content.decode()
    assert f'href="{address(letter, "redrive")}"' not in page
    assert "It is resolved already." in page


@pytest.mark.parametrize("role", [Role.VIEWER, Role.APPROVER])
def test_who_may_not_recover_sees_why_and_cannot(
    role: Role, browse: Browse, people: dict[str, Person], letter: DeadLetter
) -> None:
    visitor = browse(people[role])
    page = visitor.get(LIST).content.decode()
    reason = f"Your role, {role}, may not do this; it needs one of: admin, operator, release manager."
    assert f'<p class="whynot">{reason}</p>' in page
    for verb in ("redrive", "acknowledge", "discard"):
        assert f'href="{address(letter, verb)}"' not in page
        assert visitor.get(address(letter, verb)).status_code == 403
        assert visitor.post(address(letter, verb), {"reason": "x"}).status_code == 403
    assert state_of(letter) == "open"


def test_a_letter_of_another_workspace_is_not_there(browse: Browse, outsider: Person, letter: DeadLetter) -> None:
    """I16."""
    for verb in ("redrive", "acknowledge", "discard"):
        assert browse(outsider).post(address(letter, verb), {"reason": "x"}).status_code == 404
    assert state_of(letter) == "open"


def test_whoever_works_through_a_narrowed_list_stays_in_it(operator: Visitor, letter: DeadLetter) -> None:
    """Only our own list and the letter's run are gone back to, never an act or another place."""
    run = f"/console/runs/{letter.run_id}/?stage=0"
    for told, place in (
        (f"{LIST}?handler=Handler", f"{LIST}?handler=Handler"),
        (run, run),
        (address(letter, "acknowledge"), LIST),
        ("/console/workers/", LIST),
    ):
        DeadLetter.objects.update(state="open")
        here = {"HX-Current-URL": f"http://testserver{told}"}
        answer = operator.post(address(letter, "acknowledge"), {}, headers={**HTMX, **here})
        assert answer.headers["HX-Redirect"] == place
    DeadLetter.objects.update(state="open")
    elsewhere = {"HX-Current-URL": f"http://elsewhere.test{LIST}?handler=Handler"}
    assert operator.post(address(letter, "acknowledge"), {}, headers={**HTMX, **elsewhere})["HX-Redirect"] == LIST
