"""Screens of signing keys: everybody sees the public halves, administrators change them, with consequences first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from pipelines import signing_keys
from pipelines.models import AuditEvent, Run
from tests.cast import Hand, Person

pytestmark = pytest.mark.django_db
KEYS = "/console/signing-keys/"


def of(person: Person) -> Client:
    client = Client()
    client.force_login(person.user)
    return client


@pytest.fixture
def active(start_run: Callable[..., Run], hand: Hand) -> str:
    """The key that signed a first checkpoint."""
    run = start_run("first")
    hand.report(hand.take())
    return signing_keys.listed(run.workspace_id)[0].key_id


def test_a_viewer_sees_the_public_halves_and_why_they_may_change_none(active: str, people: dict[str, Person]) -> None:
    """O34: whoever wants to verify finds the key; nothing that signs is on the page."""
    text = of(people["viewer"]).get(KEYS).content.decode()
    (key,) = signing_keys.listed(people["viewer"].actor.workspace_id)
    assert key.text in text
    assert "may not change signing keys" in text
    assert f"{KEYS}rotate/" not in text


def test_rotating_makes_a_new_key_and_leaves_the_old_one_to_verify(active: str, people: dict[str, Person]) -> None:
    """O35: the page that was looked at names the key that is replaced; sent twice, it is done once."""
    client = of(people["admin"])
    page = client.get(f"{KEYS}rotate/").content.decode()
    assert active in page
    assert "still believed" in page
    form = {"replaces": active, "reason": "each quarter"}
    assert client.post(f"{KEYS}rotate/", {"replaces": active}).status_code == 400, "a reason is needed"
    assert client.post(f"{KEYS}rotate/", form).status_code == 303
    assert client.post(f"{KEYS}rotate/", form).status_code == 409
    states = {key.key_id: str(key.state) for key in signing_keys.listed(people["admin"].actor.workspace_id)}
    assert sorted(states.values()) == ["active", "retiring"]
    assert states[active] == "retiring"
    told = AuditEvent.objects.filter(action="key.rotate").order_by("at", "id").values_list("outcome", flat=True)
    assert list(told) == ["failed", "allowed", "failed"]


def test_revoking_says_what_is_believed_no_more_and_is_for_good(active: str, people: dict[str, Person]) -> None:
    """O36."""
    client = of(people["admin"])
    address = f"{KEYS}{active}/revoke/"
    page = client.get(address).content.decode()
    assert "cannot be taken back" in page
    assert "a key is made that takes its place" in page
    assert client.post(address, {"reason": "it leaked"}).status_code == 303
    assert client.post(address, {"reason": "it leaked"}).status_code == 303, "again changes nothing"
    states: dict[str, Any] = {
        key.key_id: str(key.state) for key in signing_keys.listed(people["admin"].actor.workspace_id)
    }
    assert states.pop(active) == "revoked"
    assert list(states.values()) == ["active"]


def test_a_key_that_is_not_there_or_another_workspaces_is_not_found(
    active: str, people: dict[str, Person], outsider: Person
) -> None:
    """I16."""
    assert of(people["admin"]).get(f"{KEYS}nothing/revoke/").status_code == 404
    assert of(outsider).post(f"{KEYS}{active}/revoke/", {"reason": "mine"}).status_code in (403, 404)
    assert [str(key.state) for key in signing_keys.listed(people["admin"].actor.workspace_id)] == ["active"]
