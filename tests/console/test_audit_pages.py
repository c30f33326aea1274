"""The audit on screens: sentences by day, filters, how the chain stands, and one event with what it found and left."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from pipelines import audit, audit_chain, audit_listing, transitions
from pipelines.models import AuditEvent, Environment, Run, Workspace
from pipelines.sql import execute
from tests.cast import Person, stages_of
from tests.console.conftest import Visitor, text_of
from tests.pipelines.test_audit_chain import as_owner

AUDIT = "/console/audit/"
StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]


@pytest.fixture
def told(people: dict[str, Person], start_run: StartRun) -> Run:
    """A run that an operator cancelled, and what else happened in the workspace."""
    run = start_run("first", name="orders 2026-05-30")
    transitions.cancel_run(run.id, actor=people["operator"].actor, reason="bad source file")
    refused: dict[str, Any] = {"run": run.id, "stage": stages_of(run)[0].id, "code": "permission_denied"}
    audit.record(people["viewer"].actor, "stage.retry", audit.DENIED, **refused)
    return run


def test_the_audit_tells_each_event_as_a_sentence_under_its_day(told: Run, operator: Visitor) -> None:
    """F145: who, what, where and why, with a link to the run; newest first, and the day once."""
    page = text_of(operator.get(AUDIT))
    assert "operator-acme cancelled orders 2026-05-30 in development: bad source file" in page
    assert page.index("viewer-acme was not allowed to retry") < page.index("operator-acme cancelled")
    assert page.count("today") == 1
    assert f"/console/runs/{told.id}/" in operator.get(AUDIT).content.decode()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("actor=operator-acme", {"run.cancel"}),
        ("action=stage.retry", {"stage.retry"}),
        ("outcome=denied", {"stage.retry"}),
        ("outcome=allowed", {"run.cancel"}),
        ("channel=api", {"run.cancel", "stage.retry"}),
        ("channel=console", set()),
        ("actor=operator-acme&outcome=denied", set()),
        ("action=run.cancel&action=stage.retry", {"run.cancel", "stage.retry"}),
        ("since=2001-01-01", {"run.cancel", "stage.retry"}),
        ("until=2001-01-01 08:00", set()),
        ("request_id=none-such", set()),
    ],
)
def test_each_filter_of_the_address_narrows_the_list(told: Run, operator: Visitor, query: str, found: set[str]) -> None:
    shown = {line.event.action for _, lines in operator.get(f"{AUDIT}?{query}").context["days"] for line in lines}
    assert shown == found


def test_a_run_and_a_stage_have_their_own_audit(told: Run, start_run: StartRun, operator: Visitor) -> None:
    other = start_run("first")
    stage = stages_of(told)[0]
    assert len(operator.get(f"{AUDIT}?run={told.id}").context["page"].rows) == 2
    assert len(operator.get(f"{AUDIT}?stage_id={stage.id}").context["page"].rows) == 1
    assert "No event matches" in text_of(operator.get(f"{AUDIT}?run={other.id}"))
    assert f"{AUDIT}?run={told.id}" in operator.get(f"/console/runs/{told.id}/").content.decode()


def test_what_cannot_be_meant_is_refused_by_name(operator: Visitor) -> None:
    for query in ("run=all", "since=yesterday", "nonsense=1"):
        answer = operator.get(f"{AUDIT}?{query}")
        assert answer.status_code == 400
        assert query.partition("=")[0] in text_of(answer)


def test_a_bulk_operation_is_told_with_everything_that_it_did(people: dict[str, Person], operator: Visitor) -> None:
    """F146: one parent and one child for each thing that it did, found together."""
    bulk, actor = uuid.uuid4(), people["operator"].actor
    audit.record(actor, "bulk.start", audit.ALLOWED, data={"bulk": str(bulk)})
    for _ in range(20):
        audit.record(actor, "run.cancel", audit.ALLOWED, data={"bulk": str(bulk)})
    audit.record(actor, "run.cancel", audit.ALLOWED, data={"bulk": str(uuid.uuid4())})
    audit.record(actor, "run.cancel", audit.ALLOWED)
    rows = operator.get(f"{AUDIT}?bulk={bulk}").context["page"].rows
    assert [row.action for row in rows] == ["run.cancel"] * 20 + ["bulk.start"]


def test_pages_follow_one_another_without_a_gap(people: dict[str, Person], operator: Visitor) -> None:
    for number in range(7):
        audit.record(people["operator"].actor, "run.pause", audit.ALLOWED, reason=f"reason {number}")
    seen, address = [], f"{AUDIT}?page_size=3"
    while address:
        page = operator.get(address).context["page"]
        seen += [row.reason for row in page.rows]
        address = f"{AUDIT}?page_size=3&cursor={page.next}" if page.next else ""
    assert seen == [f"reason {number}" for number in range(6, -1, -1)]
    assert page.previous
    before = operator.get(f"{AUDIT}?page_size=3&cursor={page.previous}").context["page"]
    assert [row.reason for row in before.rows] == ["reason 3", "reason 2", "reason 1"]


def test_filters_that_rarely_meet_are_looked_for_in_steps(
    people: dict[str, Person], operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F158, F159: a page looks at no more events than it may, says how far back that was, and misses none."""
    monkeypatch.setattr(audit_listing, "DEPTH", 4)
    ann, ben = people["operator"].actor, people["admin"].actor
    audit.record(ann, "run.cancel", audit.ALLOWED, reason="the one")
    for _ in range(6):
        audit.record(ann, "run.pause", audit.ALLOWED)
        audit.record(ben, "run.cancel", audit.ALLOWED)
    address, steps = f"{AUDIT}?actor={ann.name}&action=run.cancel", 0
    answer = operator.get(address)
    assert "None of those looked at" in text_of(answer)
    while not answer.context["page"].rows:
        steps += 1
        answer = operator.get(f"{address}&cursor={answer.context['page'].next}")
    assert [row.reason for row in answer.context["page"].rows] == ["the one"]
    assert steps == 1
    assert answer.context["page"].next is None


def test_a_list_is_asked_for_in_the_same_few_questions_however_long_it_is(
    people: dict[str, Person], start_run: StartRun, operator: Visitor, django_assert_max_num_queries: Any
) -> None:
    """F158."""
    for number in range(12):
        audit.record(people["operator"].actor, "run.pause", audit.ALLOWED, run=start_run(name=f"run-{number}").id)
    operator.get(AUDIT)
    with django_assert_max_num_queries(26):
        operator.get(AUDIT)


def test_what_is_read_holds_still_and_says_how_much_is_new(
    told: Run, people: dict[str, Person], operator: Visitor
) -> None:
    """Nothing moves under the pointer: a part with the number of newer events; 204 while nothing changed."""
    first = operator.get(AUDIT).context
    held = {"top": first["top"].isoformat(), "seen": first["token"]}
    assert operator.part(AUDIT, **held).status_code == 204
    audit.record(people["operator"].actor, "run.pause", audit.ALLOWED)
    part = operator.part(AUDIT, **held)
    assert "1 new event — show" in text_of(part)
    assert "cancelled" not in text_of(part)
    assert len(part.content) < 15_000
    assert operator.part(AUDIT, outcome="denied", **held).context["fresh"] == 0


def test_another_workspaces_audit_is_not_there(told: Run, browse: Browse, outsider: Person) -> None:
    """I16, F144: in list, facets and export alike."""
    stranger, event = browse(outsider), AuditEvent.objects.get(action="run.cancel")
    page = stranger.get(AUDIT)
    assert "Nothing yet in globex" in text_of(page)
    assert "operator-acme" not in page.content.decode()
    assert stranger.get(f"{AUDIT}{event.id}/").status_code == 404
    assert stranger.get(f"{AUDIT}?run={told.id}").context["page"].rows == []


def test_a_name_is_not_learnt_from_an_id_that_somebody_tried(told: Run, outsider: Person, browse: Browse) -> None:
    audit.record(outsider.actor, "run.cancel", audit.FAILED, run=told.id, code="not_found")
    stranger = browse(outsider)
    assert "orders" not in stranger.get(AUDIT).content.decode()
    event = AuditEvent.objects.get(workspace=outsider.actor.workspace_id)
    page = text_of(stranger.get(f"{AUDIT}{event.id}/"))
    assert "orders" not in page
    assert "never one of this workspace" in page


# one event


def test_an_event_says_what_it_found_what_it_left_and_why(told: Run, operator: Visitor) -> None:
    event = AuditEvent.objects.get(action="run.cancel")
    page = text_of(operator.get(f"{AUDIT}{event.id}/"))
    for words in ("bad source file", "Run − queued + cancelled", "operator-acme over api", str(event.id)):
        assert words in page
    part = operator.part(f"{AUDIT}{event.id}/")
    assert part.content.decode().strip().startswith(f'<tr class="detail" id="detail-{event.id}">')


def test_a_refusal_says_why_in_words(people: dict[str, Person], operator: Visitor) -> None:
    audit.record(people["viewer"].actor, "stage.retry", audit.FAILED, code="stale_request")
    event = AuditEvent.objects.get()
    assert "stale_request : what it is about has moved on" in text_of(operator.get(f"{AUDIT}{event.id}/"))


def test_an_events_seal_is_checked_as_it_is_looked_at(told: Run, operator: Visitor) -> None:
    """I17: it waits, holds, or does not hold any more."""
    event = AuditEvent.objects.get(action="run.cancel")
    address = f"{AUDIT}{event.id}/"
    assert "to be sealed" in text_of(operator.get(address))
    audit_chain.seal()
    assert "Holds at position" in text_of(operator.get(address))
    with as_owner():
        execute("UPDATE pipelines_auditevent SET reason = 'none of your business' WHERE id = %s", [event.id])
    assert "Does not hold" in text_of(operator.get(address))
    assert "was edited" in text_of(operator.get(address))


# the chain


def test_how_the_chain_stands_is_said_above_the_list(told: Run, operator: Visitor) -> None:
    assert "nothing is sealed yet" in text_of(operator.get(AUDIT))
    audit_chain.seal()
    page = text_of(operator.get(AUDIT))
    assert "Sealed up to event 2" in page
    assert "never checked as a whole" in page
    assert "verify_audit --workspace acme" in page
    call_command("verify_audit", workspace="acme", stdout=None)
    assert "checked as a whole" in text_of(operator.get(AUDIT))


def test_a_check_that_fails_names_the_first_event_that_does_not_hold(told: Run, operator: Visitor) -> None:
    """F147: on the page, with a link to the event, until a later check holds."""
    audit_chain.seal()
    event = AuditEvent.objects.order_by("at")[0]
    with as_owner():
        execute("UPDATE pipelines_auditevent SET actor = 'somebody else' WHERE id = %s", [event.id])
    with pytest.raises(CommandError):
        call_command("verify_audit", workspace="acme")
    answer = operator.get(AUDIT)
    assert "broken , as a check found" in text_of(answer)
    assert "Position 1: event" in text_of(answer)
    assert f"{AUDIT}{event.id}/" in answer.content.decode()


def test_a_chain_whose_end_was_taken_away_is_told_as_such(told: Run, operator: Visitor) -> None:
    audit_chain.seal()
    with as_owner():
        execute("DELETE FROM pipelines_audithead")
    assert "The chain's end was tampered with" in text_of(operator.get(AUDIT))


# what is beside the list


def test_facets_name_what_there_is_and_count_what_is_not_the_normal_day(
    told: Run, people: dict[str, Person], workspace: Workspace
) -> None:
    found = audit_listing.facets(workspace.id)
    assert {facet.value: facet.count for facet in found["action"]} == {
        "run.create": None,
        "run.cancel": 1,
        "stage.retry": 1,
    }
    assert {facet.value: facet.count for facet in found["outcome"]} == {
        "allowed": None,
        "denied": 1,
        "failed": 0,
        "no_op": 0,
    }
    assert [facet.value for facet in found["actor"]] == ["operator-acme", "viewer-acme"]


def test_an_empty_audit_says_what_will_stand_there(operator: Visitor, environments: dict[str, Environment]) -> None:
    assert "Nothing yet in acme" in text_of(operator.get(AUDIT))
