"""Every route and every form that changes something, found in the URL map, is sent what nobody sends in good faith.

Wrong types, NULs, unpaired surrogates, other alphabets, far too much, nothing at all, files for texts, ids of another
workspace, no CSRF token: a typed refusal or a shown one, never a fault of ours, and no decision changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from pipelines import artifact_storing, catalog
from pipelines.artifacts import Given
from pipelines.models import AuditEvent, Run
from tests.cast import Api, Person, stages_of
from tests.decided import DECIDED, Decided, rows
from tests.recovery.test_decisions_told import addresses
from tests.routes import every_route

pytestmark = pytest.mark.django_db
AsPerson = Callable[[Person], Api]
EVIL = [
    "\u0000",
    "x\u0000y",
    "𝕊\u202e🏴\u200d☠️",
    "'; DROP TABLE pipelines_run; --",
    "<script>alert(1)</script>",
    "x" * 300_000,
]
NAMES = (
    *("reason", "note", "outcome", "output", "input", "scope", "status", "state", "name", "environment", "pipeline"),
    *("request_digest", "requestDigest", "plan_digest", "source", "error_code", "summary", "digest", "sha256", "data"),
    *("executionId", "attempt", "termination", "effects", "checkpoint", "lines", "limits", "recipients", "definition"),
    *("kind", "match", "rule", "approved", "dry_run", "from_step_id", "override_reason", "artifactId", "baseline"),
)
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b'{"a": NaN}',
    b"[" * 5_000,
    b'{"reason": "a", "reason": "b"}',
]


def hostile_bodies() -> Iterator[bytes]:
    yield from RAW
    for value in (0, -1, 1e308, True, None, [], [None], {}, {"a": {"b": []}}, *EVIL, "\ud800"):
        yield json.dumps(dict.fromkeys(NAMES, value)).encode()


@pytest.fixture
def targets(decided: Decided, start_run: Callable[..., Run], people: dict[str, Person]) -> list[str]:
    """Every address of the map that the scene has ids for: of what was decided, of an import that is awaited, of a
    baseline and of a policy."""
    admin = people["admin"].actor
    awaited = start_run({"name": "correctness", "mode": "import"})
    given = Given("prices", b"a,b", sha256(b"a,b").hexdigest())
    policy = catalog.add_policy(
        actor=admin, name="calm", kind="rate", match={}, rule={"count": 9, "per_seconds": 1}, status="active"
    )
    more = {
        "artifact_id": str(artifact_storing.add_baseline(admin, given).id),
        "policy_id": str(policy.id),
        "run_id": str(awaited.id),
        "execution_id": str(awaited.id),
        "stage_id": str(stages_of(awaited)[0].id),
    }
    return sorted({*addresses(decided.names, wide=False), *addresses(decided.names | more, wide=False)})


def open_addresses() -> set[str]:
    """Routes without an id in them."""
    return {f"/{route}" for route, _ in every_route() if "<" not in route and not route.startswith(("^", "admin"))}


def missing(before: dict[str, set[str]]) -> dict[str, set[str]]:
    now = rows()
    return {table: before[table] - now[table] for table in DECIDED if before[table] - now[table]}


def test_every_route_takes_whatever_comes_without_a_fault(
    targets: list[str], people: dict[str, Person], as_person: AsPerson, api: Api
) -> None:
    """Over both APIs; what is refused says so in problem+json."""
    before, bodies = rows(), list(hostile_bodies())
    boss = as_person(people["admin"])
    wanted = {one for one in {*targets, *open_addresses()} if not one.startswith(("/console", "/admin"))}
    routes = sorted(
        one for one in wanted if not re.search(r"/(docs|schema|metrics|healthz|readyz|rotate|revoke|activate)", one)
    )
    assert len(routes) > 90
    tried = 0
    for number, address in enumerate(routes):
        for client in (boss, api):
            # each address meets a few of them, and all of them meet each kind of address
            for body in bodies[number % 6 :: 6]:
                answer = client.post(address, body)
                tried += 1
                assert answer.status_code < 500, (address, body[:80], answer.content[:300])
                if answer.status_code >= 400 and answer.status_code not in (404, 405):
                    assert answer["Content-Type"] == "application/problem+json", (address, body[:80])
    assert tried > 400
    assert not missing(before)


def test_every_form_takes_whatever_comes_without_a_fault(targets: list[str], people: dict[str, Person]) -> None:
    """The fields are those that the form itself shows, sent as texts, as lists and as files."""
    before = rows()
    client = Client(raise_request_exception=False)
    client.force_login(people["admin"].user)
    pages = sorted(
        one
        for one in {*targets, *open_addresses()}
        if one.startswith("/console/")
        and not re.search(r"log(in|out)|sessions|tokens|rotate|revoke|password|activate", one)
    )
    forms = 0
    for number, address in enumerate(pages):
        shown = client.get(address)
        assert shown.status_code < 500, address
        names = set(re.findall(rb'name="([\w-]+)"', shown.content)) - {b"csrfmiddlewaretoken", b"viewport"}
        fields = {name.decode() for name in names} | {"reason", "note", "answer", "plan_digest"}
        for evil in (EVIL[number % len(EVIL)], EVIL[(number + 1) % len(EVIL)]):
            answer = client.post(address, dict.fromkeys(fields, evil))
            assert answer.status_code < 500, (address, evil[:20], answer.content[:300])
        file = {name: SimpleUploadedFile(f"{name}\u202e.json", b'{"status": "\\u0000"}\xff') for name in fields}
        for sent in ({}, {name: [evil, "", "1"] for name in fields}, file):
            answer = client.post(address, sent)
            assert answer.status_code < 500, (address, str(sent)[:80], answer.content[:300])
            forms += answer.status_code != 405
    assert forms > 40
    assert not missing(before)


def test_no_form_takes_anything_without_its_token(targets: list[str], people: dict[str, Person]) -> None:
    """CSRF: 403 before anything is looked at, on every form of the map."""
    before, events = rows(), AuditEvent.objects.count()
    client = Client(enforce_csrf_checks=True)
    client.force_login(people["admin"].user)
    for address in sorted({*targets, *open_addresses()}):
        if address.startswith("/console/"):
            answer = client.post(address, {"reason": "x", "note": "x", "confirm": "yes"})
            assert answer.status_code in (403, 405), address
    assert rows() == before
    assert AuditEvent.objects.count() == events


def test_ids_of_another_workspace_are_not_there(
    targets: list[str], outsider: Person, as_person: AsPerson, foreign_key: str
) -> None:
    """I16: on every route that names one, whatever is sent; 404, and nothing of it is told."""
    before = rows()
    stranger, other = as_person(outsider), Api({"X-API-Key": foreign_key})
    screens = Client()
    screens.force_login(outsider.user)
    body = {"reason": "x", "note": "x", "approved": True}
    for address in targets:
        if address.startswith("/admin") or "00000000" in address:
            continue
        if address.startswith("/console"):
            answers = [screens.get(address), screens.post(address, body)]
        elif address.startswith("/v1"):
            answers = [stranger.get(address), stranger.post(address, body), other.get(address)]
        else:
            answers = [other.get(address), other.post(address, body)]
        for answer in answers:
            assert answer.status_code in (400, 401, 403, 404, 405, 409), (address, answer.status_code)
            assert b"contract signed" not in answer.content
            assert b"the wrong month" not in answer.content
    assert rows() == before
