"""What outside systems say of an effect: sealed by its digest, signed as stored, only ever added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from pipelines import signing_keys
from pipelines.models import AuditEvent, Effect, Run
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from recovery import evidence
from recovery.models import EffectEvidence
from tests.cast import Api, Hand, Person, stages_of
from tests.recovery.stories import EXTERNAL, effect_of, sealed

StartRun = Callable[..., Run]
SUMMARY = {"outcome": "committed", "charge": "ch_1"}


@pytest.fixture
def approver(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["approver"])


@pytest.fixture
def effect(start_run: StartRun, hand: Hand) -> Effect:
    run = start_run({"name": "charge", **EXTERNAL})
    hand.take()
    return effect_of(run, "charge")


def path_of(effect: Effect) -> str:
    return f"/v1/executions/{effect.run_id}/effects/{effect.id}/evidence"


def test_a_sealed_summary_is_kept_signed_and_shown(effect: Effect, approver: Api) -> None:
    """O44: its digest is checked, the console signs what it stores, and the effect itself stays as it is."""
    answer = approver.post(path_of(effect), sealed(SUMMARY, reason="asked the provider"))
    assert answer.status_code == 201, answer.content
    told = answer.json()
    expected = {"summary": SUMMARY, "sealed": True, "clean": True, "outcome": "committed", "integrity": "valid"}
    assert {name: told[name] for name in expected} == expected
    assert told["key_id"]
    (listed,) = approver.get(path_of(effect)).json()["results"]
    assert listed["id"] == told["id"]
    effect.refresh_from_db()
    assert effect.state == "committed"
    event = AuditEvent.objects.get(action="effect.evidence")
    assert (event.outcome, event.reason, event.run) == ("allowed", "asked the provider", effect.run_id)


def test_a_summary_without_a_digest_counts_as_unsealed(effect: Effect, approver: Api) -> None:
    """O45, contract §3: saying that it is sealed does not seal it."""
    told = approver.post(path_of(effect), {"summary": SUMMARY, "source": "psp", "sealed": True, "clean": True}).json()
    assert (told["sealed"], told["integrity"]) == (False, "valid")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"digest": "0" * 64}, "digest"),
        ({"digest": 5}, "digest"),
        ({"summary": {"big": 2**60}}, "summary"),
        ({"summary": "half \ud800 a pair"}, "summary"),
        ({"source": ""}, "source"),
        ({"clean": "yes"}, "clean"),
        ({"outcome": "committed"}, "outcome"),
    ],
)
def test_what_is_wrong_with_a_summary_is_said_by_field_and_nothing_is_kept(
    effect: Effect, approver: Api, change: dict[str, Any], field: str
) -> None:
    answer = approver.post(path_of(effect), {**sealed(SUMMARY), **change})
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error"), answer.content
    assert field in answer.json()["errors"]
    assert not EffectEvidence.objects.exists()


def test_the_digest_is_that_of_the_canonical_form_whatever_the_order_sent(effect: Effect, approver: Api) -> None:
    body = sealed({"a": 1, "b": [2.50, "ü"]})
    body["summary"] = {"b": [2.5, "ü"], "a": 1}
    assert approver.post(path_of(effect), body).status_code == 201


def test_the_same_summary_again_is_one(effect: Effect, approver: Api) -> None:
    first = approver.post(path_of(effect), sealed(SUMMARY))
    again = approver.post(path_of(effect), sealed(SUMMARY))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert again.json()["replayed"] is True
    assert EffectEvidence.objects.count() == 1


def test_the_same_summary_is_stored_anew_once_the_key_that_signed_it_is_revoked(
    effect: Effect, approver: Api, people: dict[str, Person]
) -> None:
    """O36, I7: what the revoked key signed counts no more, and the same person may say it again."""
    first = approver.post(path_of(effect), sealed(SUMMARY)).json()
    signing_keys.revoke(first["key_id"], actor=people["admin"].actor)
    again = approver.post(path_of(effect), sealed(SUMMARY))
    assert (again.status_code, again.json()["replayed"], again.json()["integrity"]) == (201, False, "valid")
    assert again.json()["id"] != first["id"]
    third = approver.post(path_of(effect), sealed(SUMMARY))
    assert (third.status_code, third.json()["id"]) == (200, again.json()["id"])
    told = {one["id"]: one["integrity"] for one in approver.get(path_of(effect)).json()["results"]}
    assert told == {first["id"]: "invalid", again.json()["id"]: "valid"}


def test_one_key_is_for_one_summary(effect: Effect, approver: Api, people: dict[str, Person]) -> None:
    """Contract §3: the same again is the same; another summary, or another's, under the key adds nothing."""
    key = {"Idempotency_Key": "psp-7"}
    first = approver.post(path_of(effect), sealed(SUMMARY), **key)
    again = approver.post(path_of(effect), sealed(SUMMARY), **key)
    assert (first.status_code, again.status_code) == (201, 200)
    other = approver.post(path_of(effect), sealed({**SUMMARY, "more": 1}), **key)
    assert (other.status_code, other.json()["code"]) == (409, "recovery_idempotency_conflict")
    assert EffectEvidence.objects.count() == 1
    signing_keys.revoke(first.json()["key_id"], actor=people["admin"].actor)
    assert approver.post(path_of(effect), sealed(SUMMARY), **key).status_code == 201


def test_evidence_is_only_ever_added(effect: Effect, approver: Api) -> None:
    """I7, O44: the database refuses a change, and one made past it no longer counts."""
    approver.post(path_of(effect), sealed(SUMMARY))
    kept = EffectEvidence.objects.get()
    for change in ("UPDATE recovery_effectevidence SET is_clean = true", "DELETE FROM recovery_effectevidence"):
        with pytest.raises(IntegrityError), transaction.atomic():
            execute(change)
    assert evidence.are_trusted(effect.run.workspace_id, [kept]) == [True]
    for name, other in (("summary", "{}"), ("is_clean", False), ("source", "me"), ("signature", ""), ("key_id", "k")):
        forged = EffectEvidence.objects.get()
        setattr(forged, name, other)
        assert evidence.are_trusted(effect.run.workspace_id, [kept, forged]) == [True, False], name


def test_who_may_not_resolve_adds_no_evidence(
    effect: Effect, people: dict[str, Person], as_person: Callable[[Person], Api], outsider: Person
) -> None:
    """Model §5: operators and viewers are refused; for another workspace there is no such effect."""
    for role, status in (("viewer", 403), ("operator", 403), ("release_manager", 201), ("admin", 201)):
        assert as_person(people[role]).post(path_of(effect), sealed(SUMMARY)).status_code == status, role
    assert as_person(outsider).post(path_of(effect), sealed(SUMMARY)).status_code == 404
    assert AuditEvent.objects.filter(action="effect.evidence", outcome="denied").count() == 2


def test_an_effect_is_looked_for_in_the_run_that_the_path_names(
    effect: Effect, approver: Api, start_run: StartRun
) -> None:
    other = start_run("first")
    assert approver.post(f"/v1/executions/{other.id}/effects/{effect.id}/evidence", sealed(SUMMARY)).status_code == 404


def test_what_came_too_late_from_the_attempt_is_offered(
    start_run: StartRun, hand: Hand, approver: Api, people: dict[str, Person]
) -> None:
    """Model §2: late evidence stands where reconciliation can use it."""
    run = start_run({"name": "charge", **EXTERNAL})
    job = hand.take()
    effect = effect_of(run, "charge", "declared")
    approver_path = path_of(effect)
    cancel_run(run.id, actor=people["operator"].actor)
    assert not hand.report(job, output={"charge": "ch_9"}).accepted
    (late,) = approver.get(approver_path.replace("/evidence", "/late-results")).json()["results"]
    assert approver.post(approver_path, sealed(SUMMARY)).json()["late_results"] == [late]
    assert late["result"]["output"] == {"charge": "ch_9"}
    assert late["attempt"] == 1
    assert stages_of(run)[0].state == "cancelled"
