"""Operations, approvals, effects and forks on screens: what was done, what it might repeat, who may let it go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from typing import Any

import pytest
import rfc8785
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines.access import CAPABILITIES, FORK, RESOLVE
from pipelines.creation import Place
from pipelines.models import Effect, Environment, Role, Run
from recovery.models import EffectEvidence, Operation, Reconciliation
from tests.cast import Hand, Person, stages_of
from tests.clock import Clock
from tests.console.conftest import Visitor, text_of
from tests.console.test_approval_pages import digest
from tests.console.test_planned_acts import shown
from tests.recovery.stories import effect_of, in_review, leave_uncertain, payroll_in_review
from tests.verbs import cancel_as_operation, pause_run, resume_run

pytestmark = pytest.mark.django_db

StartRun = Callable[..., Run]
Browse = Callable[[Person], Visitor]
OUTSIDE = {"name": "pay", "effect_mode": "external", "effect_protocol": "intent"}
ATTACK = '"><script>alert(1)</script>'


@pytest.fixture
def failed(start_run: StartRun, hand: Hand) -> Run:
    """A run whose second stage failed."""
    run = start_run("load", "publish", "tell", name="orders")
    hand.report(hand.take(), output={"rows": 12})
    hand.report(hand.take(), "failed", error_code="UNIQUE", retryable=False)
    return Run.objects.get(id=run.id)


@pytest.fixture
def reviewed(start_run: StartRun, hand: Hand) -> Operation:
    """A rerun that is in review, because a committed effect is not cleared."""
    return payroll_in_review(start_run, hand)


# forks


def test_a_rerun_shows_what_is_kept_and_run_again_and_makes_the_new_run(
    operator: Visitor, failed: Run, people: dict[str, Person]
) -> None:
    """O17, O20, O57, O58: the operator's checklist, the plan, then a run of its own; the source stays."""
    page = operator.get(f"/console/runs/{failed.id}/rerun/")
    told = unescape(text_of(page))
    for words in (
        "A rerun goes on from a checkpoint that is known to be good",
        "Status failed",
        "Workload billing, an inline run",
        "Workspace acme, environment development",
        "at publish; its signature is valid",
        "Policies",
        "Untouched this run: it stays failed",
        "Kept 1 stage: load",
        "Run again 1 stage: publish",
        "Verdict recovery allowed",
    ):
        assert words in told
    answer = operator.post(f"/console/runs/{failed.id}/rerun/", {"shown": shown(page), "reason": "row removed"})
    fork = Run.objects.get(recovered_from=failed)
    assert answer.headers["Location"] == f"/console/runs/{fork.id}/"
    assert [stage.state for stage in stages_of(fork)] == ["completed", "ready", "pending"]
    lineage = unescape(text_of(operator.get(f"/console/runs/{fork.id}/")))
    assert "Forked from orders" in lineage
    assert "Type rerun" in lineage
    assert f"Original execution id {failed.id}" in lineage
    source = operator.get(f"/console/runs/{failed.id}/").content.decode()
    assert f'href="/console/runs/{fork.id}/"' in source
    graph = unescape(text_of(operator.get(f"/console/runs/{fork.id}/evidence/")))
    assert re.search(r"checkpoint \d at publish", graph)
    assert "rerun operator-acme made" in graph


def test_a_named_start_is_another_plan_and_is_looked_at_first(operator: Visitor, failed: Run) -> None:
    """O57: an explicit from_step is a choice of its own."""
    page = operator.get(f"/console/runs/{failed.id}/rerun/")
    form = {"from_step_id": "load", "reason": "from the start"}
    looked = operator.post(f"/console/runs/{failed.id}/rerun/", {"shown": shown(page), **form})
    assert looked.status_code == 200
    assert "New: 1 stage: load · runs at once; from a clean start" in text_of(looked)
    assert not Run.objects.filter(recovered_from=failed).exists()
    operator.post(f"/console/runs/{failed.id}/rerun/", {"shown": shown(looked), **form})
    assert Run.objects.get(recovered_from=failed).stages.get(position=0).state == "ready"


def test_a_replay_starts_anew_and_the_hint_changes_no_release(operator: Visitor, failed: Run) -> None:
    """O37, O41."""
    page = operator.get(f"/console/runs/{failed.id}/replay/")
    assert "It does not bring back the earlier release" in text_of(page)
    form = {"freeze_release": "yes", "reason": "to see it fail"}
    looked = operator.post(f"/console/runs/{failed.id}/replay/", {"shown": shown(page), "look": "yes", **form})
    operator.post(f"/console/runs/{failed.id}/replay/", {"shown": shown(looked), **form})
    fork = Run.objects.get(recovered_from=failed)
    assert [stage.state for stage in stages_of(fork)] == ["ready", "pending", "pending"]
    assert fork.recovery is not None
    assert fork.recovery["frozen_input"] is True
    assert fork.release_id == failed.release_id


def test_the_same_form_sent_twice_makes_one_run(operator: Visitor, failed: Run) -> None:
    """O31: a double click or a reload never forks twice."""
    address = f"/console/runs/{failed.id}/rerun/"
    form = {"shown": shown(operator.get(address)), "reason": "once"}
    operator.post(address, form)
    again = operator.post(address, form, follow=True)
    assert "A duplicate request" in text_of(again)
    assert Run.objects.filter(recovered_from=failed).count() == 1


def test_a_run_that_has_not_ended_is_not_forked_and_says_so(operator: Visitor, start_run: StartRun) -> None:
    """O18: on the run's page, and on the dialog whoever opens it all the same."""
    run = start_run("load")
    page = operator.get(f"/console/runs/{run.id}/")
    assert "Rerun, replay: the run is queued: only one that has ended is made anew." in text_of(page)
    answer = operator.get(f"/console/runs/{run.id}/rerun/")
    assert answer.status_code == 409
    assert 'class="btn primary' not in answer.content.decode()


def test_an_operators_rerun_in_a_protected_environment_waits_for_somebody_else(
    browse: Browse,
    people: dict[str, Person],
    place: Place,
    environments: dict[str, Environment],
    start_run: StartRun,
    new_hand: Any,
) -> None:
    """Model §5: asked for by the operator, approved by another, and only then made."""
    production = environments["production"]
    there = Place(place.workspace_id, place.application_id, production.id, production.slug)
    run = start_run("load", "publish", name="payroll", in_place=there)
    worker = Hand(there, "prod-1", ["Handler"])
    worker.report(worker.take(), "failed", error_code="X", retryable=False)
    operator = browse(people["operator"])
    page = operator.get(f"/console/runs/{run.id}/rerun/")
    assert "Needs approval 1 of admin, approver, release manager, other than who asks" in text_of(page)
    answer = operator.post(
        f"/console/runs/{run.id}/rerun/", {"shown": shown(page), "reason": "row removed"}, follow=True
    )
    assert "waits until somebody else approves it" in text_of(answer)
    operation = Operation.objects.get()
    assert (operation.state, Run.objects.count()) == ("awaiting_approval", 1)
    kept = text_of(operator.get(f"/console/operations/{operation.id}/"))
    assert "Needs approval 1 of admin, approver, release manager, other than who asks" in kept
    assert "Follow or withdraw" in kept
    assert "Look and decide" not in kept, "who asked does not decide"
    seen_by = {role: text_of(browse(people[role]).get(f"/console/operations/{operation.id}/")) for role in people}
    assert "Look and decide" in seen_by["approver"]
    assert "How it stands" in seen_by["viewer"]
    mine = text_of(operator.get("/console/approvals/?view=asked"))
    assert "Rerun of payroll" in mine
    assert "may not decide; it needs one of: admin, approver, release manager" in mine
    again = text_of(operator.get(f"/console/runs/{run.id}/rerun/"))
    assert re.search(r"The rerun that operator-acme asked for at \S+ \S+ UTC waits for others already", again)
    assert "waits for others already" not in text_of(operator.get(f"/console/runs/{run.id}/replay/"))
    approver = browse(people["approver"])
    page = approver.get(f"/console/approvals/{operation.id}/")
    assert "Run again 1 stage: load" in text_of(page)
    approver.post(f"/console/approvals/{operation.id}/approve/", {"plan_digest": digest(page), "reason": "seen"})
    assert Run.objects.filter(recovered_from=run).count() == 1
    told = text_of(approver.get(f"/console/operations/{operation.id}/"))
    assert "Approved approver-acme: seen" in told
    assert "How it was decided" in told
    assert "Nothing waits for you" in text_of(approver.get("/console/approvals/"))


# operations


def test_operations_are_listed_newest_first_and_narrowed_by_links(
    operator: Visitor, failed: Run, start_run: StartRun, people: dict[str, Person]
) -> None:
    actor = people["operator"].actor
    other = start_run("load", name="other")
    pause_run(other.id, actor=actor, reason="audit day")
    resume_run(other.id, actor=actor)
    told = text_of(operator.get("/console/operations/"))
    assert told.index("Resume other") < told.index("Pause other")
    assert f"Pause other …{str(other.id)[-6:]}" in told, "runs of one name are told apart"
    narrowed = text_of(operator.get("/console/operations/?kind=pause"))
    assert "audit day" in narrowed
    assert "Resume other" not in narrowed
    assert operator.get("/console/operations/?kind=explode").status_code == 400
    assert "None that match" in text_of(operator.get(f"/console/operations/?execution_id={failed.id}"))


@pytest.mark.parametrize("role", Role.values)
def test_each_role_may_do_on_these_screens_what_the_table_says(
    role: str, browse: Browse, people: dict[str, Person], failed: Run, reviewed: Operation
) -> None:
    """Model §5: links where it is possible, a disabled button with the reason where it is not."""
    visitor = browse(people[role])
    effect = Effect.objects.get()
    run = visitor.get(f"/console/runs/{failed.id}/").content.decode()
    for verb in ("rerun", "replay"):
        address = f"/console/runs/{failed.id}/{verb}/"
        assert (f'href="{address}"' in run) == (role in CAPABILITIES[FORK])
        assert visitor.get(address).status_code == (200 if role in CAPABILITIES[FORK] else 403)
    body = visitor.get(f"/console/effects/{effect.id}/").content.decode()
    for verb in ("evidence", "reconcile"):
        address = f"/console/effects/{effect.id}/{verb}/"
        assert (f'href="{address}"' in body) == (role in CAPABILITIES[RESOLVE])
        assert visitor.get(address).status_code == (200 if role in CAPABILITIES[RESOLVE] else 403)
    body = visitor.get(f"/console/approvals/{reviewed.id}/").content.decode()
    for verb in ("approve", "reject"):
        address = f"/console/approvals/{reviewed.id}/{verb}/"
        assert (f'action="{address}"' in body) == (role in CAPABILITIES[RESOLVE])
        assert visitor.get(address).status_code == (200 if role in CAPABILITIES[RESOLVE] else 403)


# effects


def test_an_effect_gets_evidence_and_a_finding_on_its_page(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    """O44, R13, P87: sealed evidence, a finding, and only then the stage goes on."""
    run = start_run(OUTSIDE, "book")
    (effect,) = leave_uncertain(run, hand, clock, {"key": "charge-7"})
    approver = browse(people["approver"])
    page = unescape(text_of(approver.get(f"/console/runs/{run.id}/")))
    assert "Effects outside" in page
    assert "external http pay with key charge-7 is unknown" in page
    stage = f"/console/stages/{stages_of(run)[0].id}/reconcile/"
    asked = approver.get(stage)
    assert "To be settled first External http with key charge-7, unknown since" in text_of(asked)
    assert f'href="/console/effects/{effect.id}/"' in asked.content.decode(), "it leads there"
    assert "Reconcile pay</button>" not in asked.content.decode()
    early = approver.post(stage, {"outcome": "committed", "output": '"ok"', "reason": "seen"})
    assert early.status_code == 409
    summary = {"outcome": "committed", "charge": "ch_1"}
    address = f"/console/effects/{effect.id}"
    approver.post(
        f"{address}/evidence/",
        {
            "source": "psp",
            "summary": json.dumps(summary),
            "digest": sha256(rfc8785.dumps(summary)).hexdigest(),
            "clean": "yes",
        },
    )
    told = text_of(browse(people["operator"]).get(f"{address}/"))
    assert "Add evidence, reconcile, reconcile the stage: your role, operator, may not do this" in told
    approver.post(f"{address}/reconcile/", {"outcome": "committed", "reason": "seen in the bank"})
    told = unescape(text_of(approver.get(f"{address}/")))
    assert "Now pay itself can be reconciled" in told
    assert "Reconcile the stage…" in told
    assert "psp sealed, clean" in told
    assert "as it was stored" in told
    assert "Committed approver-acme: seen in the bank" in told
    assert "Reconciled committed" in told
    approver.post(stage, {"outcome": "committed", "output": '{"charge": "ch_1"}', "reason": "seen"})
    assert [one.state for one in stages_of(run)] == ["completed", "ready"]
    listed = unescape(text_of(approver.get(f"/console/runs/{run.id}/effects/?state=reconciled_committed")))
    assert "1 summary, 1 finding" in listed


def test_answers_that_are_missing_or_wrong_are_refused_by_field_and_change_nothing(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    run = start_run(OUTSIDE)
    (effect,) = leave_uncertain(run, hand, clock)
    approver = browse(people["approver"])
    for form, words in (
        ({"summary": "{}"}, "Who says so"),
        ({"source": "psp", "summary": "{not json"}, "This is not JSON"),
        ({"source": "psp", "summary": "[" * 100_000}, "This is not JSON"),
        ({"source": "psp", "summary": "{}", "digest": "f" * 64}, "is not the SHA-256"),
    ):
        answer = approver.post(f"/console/effects/{effect.id}/evidence/", form)
        assert answer.status_code == 400, form
        assert words in text_of(answer)
    assert approver.post(f"/console/effects/{effect.id}/reconcile/", {"reason": "x"}).status_code == 400
    stage = f"/console/stages/{stages_of(run)[0].id}/reconcile/"
    missing = approver.post(stage, {"outcome": "committed", "reason": "x"})
    assert missing.status_code == 400
    assert "completed with an output" in text_of(missing)
    assert (EffectEvidence.objects.count(), Reconciliation.objects.count()) == (0, 0)


def test_what_outside_systems_and_workers_send_is_text_and_never_markup(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    run = start_run({**OUTSIDE, "name": ATTACK}, name=ATTACK)
    (effect,) = leave_uncertain(run, hand, clock, {"key": ATTACK})
    Effect.objects.update(external_ref=ATTACK, detail={"x": ATTACK}, request_hash=ATTACK)
    approver = browse(people["approver"])
    approver.post(
        f"/console/effects/{effect.id}/evidence/", {"source": ATTACK, "summary": json.dumps(ATTACK), "reason": ATTACK}
    )
    approver.post(f"/console/effects/{effect.id}/reconcile/", {"outcome": "absent", "reason": ATTACK})
    operation = Operation.objects.get()
    for address in (
        f"/console/runs/{run.id}/",
        f"/console/runs/{run.id}/effects/",
        f"/console/runs/{run.id}/evidence/",
        f"/console/effects/{effect.id}/",
        f"/console/effects/{effect.id}/reconcile/",
        f"/console/operations/{operation.id}/",
        "/console/operations/",
    ):
        page = approver.get(address)
        assert page.status_code == 200, address
        assert "<script>alert" not in page.content.decode(), address


def test_nobody_sees_another_workspaces_operations_and_effects(
    browse: Browse, outsider: Person, reviewed: Operation
) -> None:
    """I16: a foreign id is 404, for looking and for acting."""
    stranger = browse(outsider)
    effect = Effect.objects.get()
    for address in (
        f"/console/operations/{reviewed.id}/",
        f"/console/approvals/{reviewed.id}/",
        f"/console/approvals/{reviewed.id}/approve/",
        f"/console/effects/{effect.id}/",
        f"/console/effects/{effect.id}/evidence/",
        f"/console/effects/{effect.id}/reconcile/",
        f"/console/stages/{effect.stage_id}/reconcile/",
        f"/console/runs/{reviewed.run_id}/rerun/",
        f"/console/runs/{reviewed.run_id}/effects/",
        f"/console/runs/{reviewed.run_id}/evidence/",
    ):
        assert stranger.get(address).status_code == 404, address
    assert "payroll" not in text_of(stranger.get("/console/approvals/?view=waiting"))
    assert "payroll" not in text_of(stranger.get("/console/operations/"))


def test_no_page_asks_more_for_more_rows(
    operator: Visitor, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """N+1: operations, approvals, effects and the run's own page."""
    few, many = start_run(OUTSIDE, key="few"), start_run(OUTSIDE, key="many")
    for run, count in ((few, 1), (many, 12)):
        job = hand.take()
        for number in range(count):
            effect_of(run, "pay", key=f"{run.id}-{number}")
        hand.report(job, "failed", error_code="X", retryable=False)
    before = {
        path: _queries(operator, path)
        for path in ("/console/operations/", "/console/approvals/?view=waiting")
        if in_review(Run.objects.get(id=few.id))
    }
    for _ in range(8):
        in_review(Run.objects.get(id=many.id))
    for path, count in before.items():
        assert _queries(operator, path) == count <= 16, path
    for page in ("", "effects/", "evidence/"):
        paths = [f"/console/runs/{run.id}/{page}" for run in (few, many)]
        assert _queries(operator, paths[0]) == _queries(operator, paths[1]), page


def _queries(visitor: Visitor, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        page = visitor.get(path)
    assert page.status_code == 200
    assert re.search(r"<h1", page.content.decode())
    return len(captured)


def test_what_is_never_judged_shows_no_verdict(browse: Browse, people: dict[str, Person], start_run: StartRun) -> None:
    """A cancel repeats nothing: that it was "allowed" would say that somebody had weighed it."""
    cancel_as_operation(start_run("load").id, actor=people["operator"].actor, reason="not needed")
    operation = Operation.objects.get()
    viewer = browse(people["viewer"])
    assert "Recovery allowed" not in text_of(viewer.get("/console/operations/"))
    assert "Verdict" not in text_of(viewer.get(f"/console/operations/{operation.id}/"))


def test_what_a_cancelled_run_left_in_doubt_is_not_called_running(
    browse: Browse, people: dict[str, Person], start_run: StartRun, hand: Hand, clock: Clock
) -> None:
    run = start_run(OUTSIDE)
    leave_uncertain(run, hand, clock)
    cancel_as_operation(run.id, actor=people["operator"].actor, reason="not needed")
    told = text_of(browse(people["viewer"]).get(f"/console/runs/{run.id}/"))
    assert "Unknown pay: nobody knows whether attempt 1 did external http" in told
