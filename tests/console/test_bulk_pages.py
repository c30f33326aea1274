"""Bulk operations on screens: the draft with its plan, its start, how far it is, steering it, its targets."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pipelines.models import AuditEvent, Run
from recovery import bulk_work, bulks
from recovery.models import BulkItem, BulkOperation
from recovery.states import OperationKind
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.console.conftest import HTMX, Visitor, text_of
from tests.recovery.bulked import begun, failing, letters_of, of, work_through

pytestmark = pytest.mark.django_db

Start = Callable[..., Run]
K = OperationKind
TERMS = {"reason": "the upstream is back", "rate": "1000"}


def draft(visitor: Visitor, kind: str, ids: list[Any], **more: str) -> BulkOperation:
    """A draft made as the list makes it."""
    told = " ".join(str(getattr(one, "id", one)) for one in ids)
    answer = visitor.post("/console/bulk/new/", {"kind": kind, "selected": told, **more})
    assert answer.status_code == 303, answer.content
    found = BulkOperation.objects.get(id=answer.headers["Location"].split("/")[-2])
    assert found.state == "draft"
    return found


def page_of(bulk: BulkOperation, part: str = "") -> str:
    return f"/console/bulk/{bulk.id}/{part}"


def digest_in(page: Any) -> str:
    found = re.search(r'name="plan_digest" value="(\w+)"', page.content.decode())
    assert found
    return found[1]


def start(visitor: Visitor, bulk: BulkOperation, **more: str) -> Any:
    shown = digest_in(visitor.get(page_of(bulk)))
    return visitor.post(page_of(bulk, "start/"), {"plan_digest": shown, **TERMS, **more})


def test_a_draft_says_what_it_would_do_and_does_nothing(operator: Visitor, start_run: Start, hand: Hand) -> None:
    """Its title is the sentence; what stands otherwise is told apart from what is acted on."""
    runs = failing(start_run, hand, 3, name="orders")
    ended = letters_of(runs)[0]
    operator.post(f"/console/dead-letters/{ended.id}/discard/", {"reason": "not needed"})
    bulk = draft(operator, "redrive", letters_of(runs))
    told = text_of(operator.get(page_of(bulk)))
    assert "Redrive 3 dead letters in development Nothing is done yet" in told
    assert "Does redrives 2 dead letters" in told
    assert "Skips 1 that is discarded" in told
    assert "Targets 3, frozen just now" in told
    assert "Chosen by hand" in told
    assert "of no pipeline" in told
    assert "Redrive 2 dead letters" in told
    assert {stages_of(run)[0].state for run in runs} == {"failed"}
    assert set(BulkItem.objects.values_list("state", flat=True)) == {"pending"}


def test_a_draft_is_started_with_its_terms_and_goes_on_by_itself(
    operator: Visitor, start_run: Start, hand: Hand, clock: Clock
) -> None:
    runs = failing(start_run, hand, 3)
    bulk = draft(operator, "redrive", letters_of(runs))
    answer = start(operator, bulk, canary="2", stop="25", rate="50")
    assert (answer.status_code, answer.headers["Location"]) == (303, page_of(bulk))
    bulk.refresh_from_db()
    assert (bulk.state, bulk.reason, bulk.rate, bulk.canary, bulk.stop_ratio) == (
        "running",
        "the upstream is back",
        50,
        2,
        0.25,
    )
    work_through(bulk, clock)
    told = text_of(operator.get(page_of(bulk)))
    assert "Its first 2 are through: 2 done" in told
    assert "2 of 3 dealt with 66 %" in told
    assert "The other 1 wait." in told
    assert AuditEvent.objects.filter(action="bulk.start", outcome="allowed").count() == 1


def test_a_reason_and_readable_terms_are_needed_and_what_was_typed_stays(
    operator: Visitor, start_run: Start, hand: Hand
) -> None:
    bulk = draft(operator, "redrive", letters_of(failing(start_run, hand, 1)))
    for posted, name in (
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 2001}, "reason"),
        ({"rate": "0"}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "²"}, "rate"),
        ({"canary": "-1"}, "canary"),
        ({"canary": "9" * 30}, "canary"),
        ({"stop": "101"}, "stop_ratio"),
        ({"stop": "0.5"}, "stop_ratio"),
    ):
        answer = start(operator, bulk, **posted)
        assert answer.status_code == 400, posted
        assert name in answer.context["refusal"].errors
        assert ('value="the upstream is back"' in answer.content.decode()) == ("reason" not in posted)
        bulk.refresh_from_db()
        assert bulk.state == "draft"
    assert BulkItem.objects.get().state == "pending"


def test_when_the_world_has_moved_the_new_plan_is_shown_in_place(
    operator: Visitor, start_run: Start, hand: Hand, clock: Clock
) -> None:
    """O57: only what was looked at is started."""
    bulk = draft(operator, "redrive", letters_of(failing(start_run, hand, 2)))
    answer = operator.post(page_of(bulk, "start/"), {**TERMS, "plan_digest": "0" * 64})
    assert answer.status_code == 409
    told = text_of(answer)
    assert "Not started: this is another plan than the one before" in told
    assert 'value="the upstream is back"' in answer.content.decode()
    bulk.refresh_from_db()
    assert bulk.state == "draft"
    again = operator.post(page_of(bulk, "start/"), {**TERMS, "plan_digest": digest_in(answer)})
    assert again.status_code == 303


def test_another_choice_is_shown_before_it_is_done(operator: Visitor, start_run: Start, hand: Hand) -> None:
    """A rerun starts at the newest checkpoint unless somebody says where; the targets of the draft stay as they are."""
    runs = failing(start_run, hand, 2, "first", "second")
    bulk = draft(operator, "rerun", runs)
    page = operator.get(page_of(bulk))
    assert "each from its last believed checkpoint" in text_of(page)
    looked = operator.post(page_of(bulk, "start/"), {"look": "yes", "from": "failed_stage", "reason": "kept"})
    assert looked.status_code == 200
    assert "each from its first failed stage" in text_of(looked)
    assert 'value="kept"' in looked.content.decode()
    bulk.refresh_from_db()
    assert (bulk.state, bulk.choices["from"]) == ("draft", "checkpoint")
    assert set(BulkItem.objects.values_list("stage", flat=True)) == {None}
    posted = {**TERMS, "plan_digest": digest_in(looked), "from": "failed_stage"}
    assert operator.post(page_of(bulk, "start/"), posted).status_code == 303
    bulk.refresh_from_db()
    assert bulk.choices["from"] == "failed_stage"


def test_a_choice_that_was_not_looked_at_is_not_started(operator: Visitor, start_run: Start, hand: Hand) -> None:
    runs = failing(start_run, hand, 1)
    bulk = draft(operator, "retry", runs)
    answer = start(operator, bulk, scope="stage_and_downstream")
    assert answer.status_code == 409
    assert "another plan" in text_of(answer)
    bulk.refresh_from_db()
    assert bulk.state == "draft"


@pytest.mark.parametrize(
    ("kind", "choices", "kept"),
    [
        ("pause", {"until": "2030-01-01T08:00"}, {"until": "2030-01-01T08:00:00+00:00"}),
        ("replay", {"freeze_release": "yes"}, {"freeze_release": True, "environment": None}),
        ("rerun", {"from": "stage", "stage": "first"}, {"from": "first", "environment": None}),
        ("retry", {"scope": "stage"}, {"scope": "stage"}),
        ("skip", {}, {}),
    ],
)
def test_every_verb_takes_its_choices(
    operator: Visitor, start_run: Start, hand: Hand, kind: str, choices: dict[str, str], kept: dict[str, Any]
) -> None:
    runs = [start_run("first")] if kind == "pause" else failing(start_run, hand, 1)
    bulk = draft(operator, kind, runs)
    looked = operator.post(page_of(bulk, "start/"), {"look": "yes", **choices})
    assert looked.status_code == 200, text_of(looked)
    posted = {**TERMS, "plan_digest": digest_in(looked), **choices}
    answer = operator.post(page_of(bulk, "start/"), posted)
    assert answer.status_code == 303, text_of(answer)
    bulk.refresh_from_db()
    assert dict(bulk.choices) == kept


def test_how_far_it_is_adds_up_and_answers_204_until_something_changed(
    operator: Visitor, people: dict[str, Person], start_run: Start, hand: Hand, clock: Clock
) -> None:
    """F152: total = done + failed + skipped + denied + pending, and an update is small."""
    bulk = begun(of(K.REDRIVE, letters_of(failing(start_run, hand, 5)), rate=2), people["operator"].actor)
    page = operator.get(page_of(bulk))
    assert "0 of 5 dealt with" in text_of(page)
    address = unescape(re.search(r'data-live hx-get="(/console/bulk/[^"]+)"', page.content.decode())[1])
    assert operator.part(address).status_code == 204
    clock.advance(1)
    bulk_work.step(bulk.id)
    part = operator.part(address)
    assert part.status_code == 200
    assert len(part.content) < 15_000
    assert "<html" not in part.content.decode()
    work_through(bulk, clock)
    bulks.verify(bulk.id)
    BulkOperation.objects.filter(id=bulk.id).update(verified_at=bulk.finished_at)
    ended = operator.get(page_of(bulk))
    assert "5 of 5 dealt with 100 %" in text_of(ended)
    assert "All that was done stood as it was left" in text_of(ended)
    assert "data-live hx-get" not in ended.content.decode().split('id="progress"')[1].split(">")[0]


def test_it_is_paused_resumed_and_aborted_with_what_follows_told_first(
    operator: Visitor, people: dict[str, Person], start_run: Start, hand: Hand, clock: Clock
) -> None:
    bulk = begun(of(K.REDRIVE, letters_of(failing(start_run, hand, 4)), rate=1), people["operator"].actor)
    clock.advance(1)
    bulk_work.step(bulk.id)
    left = bulks.progress(bulk).pending
    assert 0 < left < 4
    assert f"Wait {left} dead letter" in text_of(operator.get(page_of(bulk, "pause/")))
    told = text_of(operator.post(page_of(bulk, "pause/"), {"reason": "to look"}, follow=True))
    assert "It is paused: no more targets are begun." in told
    assert "Paused" in told
    told = text_of(operator.post(page_of(bulk, "resume/"), {"reason": "fine"}, follow=True))
    assert "It goes on where it stopped." in told
    form = text_of(operator.get(page_of(bulk, "abort/")))
    assert f"Left alone {left} dead letter" in form
    assert "What was done stays done, and an aborted bulk stays so." in form
    assert operator.post(page_of(bulk, "abort/"), {"reason": ""}).status_code == 400
    told = text_of(operator.post(page_of(bulk, "abort/"), {"reason": "wrong letters"}, follow=True))
    assert "It is aborted; what was done stays done." in told
    assert f"Aborted by {people['operator'].actor.name} Wrong letters." in told
    assert bulks.progress(bulk).done == 4 - left
    for action in ("bulk.pause", "bulk.resume"):
        assert AuditEvent.objects.filter(action=action, outcome="allowed").count() == 1
    assert operator.post(page_of(bulk, "resume/"), {"reason": "no"}).status_code == 409


def test_a_halted_one_says_its_rule_and_its_numbers(
    operator: Visitor, people: dict[str, Person], start_run: Start, hand: Hand
) -> None:
    bulk = begun(of(K.REDRIVE, letters_of(failing(start_run, hand, 2)), stop_ratio=0.05), people["operator"].actor)
    reason = "40% of the last targets came to nothing; it halts above 5%"
    BulkOperation.objects.filter(id=bulk.id).update(state="halted", held_reason=reason)
    told = text_of(operator.get(page_of(bulk)))
    assert f"Halted by its stop rule {reason}." in told
    assert "Go on all the same…" in told


def test_every_target_is_listed_with_its_outcome_and_what_came_of_it(
    operator: Visitor, people: dict[str, Person], start_run: Start, hand: Hand, clock: Clock
) -> None:
    runs = failing(start_run, hand, 3, name="orders", key=None)
    bulk = begun(of(K.REPLAY, runs), people["operator"].actor)
    work_through(bulk, clock)
    page = operator.get(page_of(bulk, "targets/"))
    made = list(BulkItem.objects.values_list("made", flat=True))
    assert len(made) == 3
    for run_id in made:
        assert f'href="/console/runs/{run_id}/"' in page.content.decode()
    assert operator.get(page_of(bulk, "targets/?status=failed")).context["page"].rows == []
    assert len(operator.get(page_of(bulk, "targets/?status=done&page_size=2")).context["page"].rows) == 2
    assert operator.get(page_of(bulk, "targets/?status=nonsense")).status_code == 400
    assert operator.get(page_of(bulk, "targets/?state=done")).status_code == 400
    item = BulkItem.objects.order_by("position").first()
    assert item is not None
    BulkItem.objects.filter(id=item.id).update(verified=False, found="gone")
    assert "Stood otherwise: gone." in text_of(operator.get(page_of(bulk, "targets/")))
    assert "1 stood otherwise" in _verified(operator, bulk)


def test_a_draft_is_its_makers_alone_and_a_bulk_its_workspaces(
    browse: Callable[[Person], Visitor],
    people: dict[str, Person],
    outsider: Person,
    start_run: Start,
    hand: Hand,
) -> None:
    operator, admin = browse(people["operator"]), browse(people["admin"])
    bulk = draft(operator, "redrive", letters_of(failing(start_run, hand, 1)))
    assert admin.get(page_of(bulk)).status_code == 404
    assert "redrive" not in text_of(admin.get("/console/bulk/")).lower()
    assert start(operator, bulk).status_code == 303
    assert admin.get(page_of(bulk)).status_code == 200
    assert "Redrive 1 dead letter" in text_of(admin.get("/console/bulk/"))
    stranger = browse(outsider)
    for part in ("", "targets/", "pause/", "resume/", "abort/"):
        assert stranger.get(page_of(bulk, part)).status_code == 404, part
    assert stranger.post(page_of(bulk, "start/"), TERMS).status_code == 404


def test_a_viewer_sees_how_far_it_is_and_may_not_steer(
    browse: Callable[[Person], Visitor], people: dict[str, Person], start_run: Start, hand: Hand
) -> None:
    bulk = begun(of(K.REDRIVE, letters_of(failing(start_run, hand, 1))), people["operator"].actor)
    viewer = browse(people["viewer"])
    assert "Your role, viewer, may not do this" in viewer.get(page_of(bulk)).content.decode()
    for verb in ("pause", "abort"):
        assert viewer.post(page_of(bulk, f"{verb}/"), {"reason": "x"}).status_code == 403
    bulk.refresh_from_db()
    assert bulk.state == "running"


def test_a_draft_with_nothing_to_do_has_no_button(operator: Visitor, start_run: Start) -> None:
    bulk = draft(operator, "resume", [start_run()])
    told = text_of(operator.get(page_of(bulk)))
    assert "There is nothing to do." in told


def test_the_list_is_narrowed_by_its_address_in_few_queries(
    operator: Visitor, people: dict[str, Person], start_run: Start, hand: Hand
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert operator.get("/console/bulk/").status_code == 200
        return len(captured)

    begun(of(K.REDRIVE, letters_of(failing(start_run, hand, 1))), people["operator"].actor)
    few = queries()
    for _ in range(4):
        begun(of(K.PAUSE, [start_run()]), people["operator"].actor)
    assert queries() == few
    assert len(operator.get("/console/bulk/?kind=pause").context["rows"]) == 4
    assert operator.get("/console/bulk/?kind=redrive&status=halted").context["rows"] == []
    assert operator.get("/console/bulk/?staus=halted").status_code == 400


def test_an_expired_draft_says_so(operator: Visitor, start_run: Start, hand: Hand) -> None:
    bulk = draft(operator, "redrive", letters_of(failing(start_run, hand, 1)))
    BulkOperation.objects.filter(id=bulk.id).update(
        state="expired", created_at=bulk.created_at - timedelta(hours=2), finished_at=bulk.created_at
    )
    assert "Expired" in text_of(operator.get(page_of(bulk)))
    assert operator.post(page_of(bulk, "start/"), TERMS, headers=HTMX).status_code == 409


def _verified(operator: Visitor, bulk: BulkOperation) -> str:
    BulkOperation.objects.filter(id=bulk.id).update(verified_at=bulk.finished_at)
    return text_of(operator.get(page_of(bulk)))


@pytest.mark.parametrize("checked", [False, True])
def test_a_form_of_more_fields_than_may_be_is_answered_by_a_page_of_the_console(
    people: dict[str, Person], start_run: Start, checked: bool
) -> None:
    """F161: it says what is wrong and leads on, whoever reads the form first; nothing is kept of it."""
    run = start_run()
    visitor = Client(enforce_csrf_checks=checked, raise_request_exception=False)
    visitor.force_login(people["operator"].user)
    visitor.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32
    form = {"of": "runs", "kind": "cancel", "ids": [str(run.id)] * 1_001}
    answer = visitor.post("/console/bulk/new/", form)
    text = answer.content.decode()
    assert answer.status_code == 400
    assert "holds more than a form of this console sends" in text
    assert 'href="/console/"' in text
    assert not BulkOperation.objects.exists()
    told = visitor.post("/v1/bulk-operations", form)
    assert told.headers["Content-Type"] == "application/problem+json"
    assert 400 <= told.status_code < 500
    assert told.json()["code"]
