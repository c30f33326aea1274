"""The audit trail through `/v1`: one event for each request that wanted to change something; its people read it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import IntegrityError, InternalError, transaction

from pipelines.models import AuditEvent, Environment, Run
from tests.cast import Api, Hand, Person, stages_of

StartRun = Callable[..., Run]


@pytest.fixture
def admin(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["admin"])


def requests(run: Run, stage_id: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Every kind of change there is: (path, action, body)."""
    return [
        (f"executions/{run.id}/pause", "run.pause", {"reason": "r"}),
        (f"executions/{run.id}/resume", "run.resume", {"reason": "r"}),
        (f"stages/{stage_id}/skip", "stage.skip", {"reason": "r"}),
        (f"stages/{stage_id}/retry", "stage.retry", {"reason": "r"}),
        (f"executions/{run.id}/cancel", "run.cancel", {"reason": "r"}),
        ("environments", "environment.save", {"slug": "demo"}),
        ("applications", "application.save", {"name": "shipping"}),
        ("pipelines", "pipeline.save", {"slug": "nightly", "name": "Nightly"}),
        (
            "releases",
            "release.register",
            {
                "pipeline": "nightly",
                "environment": "demo",
                "definition": {"name": "Nightly", "stages": [{"name": "a", "handler": "h"}]},
            },
        ),
        ("policies", "policy.add", {"name": "q", "kind": "timeout", "match": {}, "rule": {"seconds": 5}}),
    ]


def test_each_change_leaves_exactly_one_event(start_run: StartRun, admin: Api, people: dict[str, Person]) -> None:
    """F145: with actor, channel and, where there is one, reason and run."""
    run = start_run("first")
    for path, action, body in requests(run, stages_of(run)[0].id):
        before = AuditEvent.objects.count()
        answer = admin.post(f"/v1/{path}", body)
        assert answer.status_code in (200, 201), (path, answer.content)
        assert AuditEvent.objects.count() == before + 1, path
        event = AuditEvent.objects.order_by("-at", "-id").first()
        assert event is not None
        assert (event.action, event.outcome, event.channel) == (action, "allowed", "api")
        assert (event.user, event.actor) == (people["admin"].user, "admin-acme")
        if "reason" in body:
            assert (event.reason, event.run) == ("r", run.id)


def test_a_request_that_was_wrong_in_itself_leaves_none(start_run: StartRun, admin: Api) -> None:
    run = start_run("first")
    assert admin.post(f"/v1/executions/{run.id}/pause", {"colour": "red"}).status_code == 400
    assert not AuditEvent.objects.exists()


def test_the_workspaces_own_people_read_it(
    start_run: StartRun,
    admin: Api,
    people: dict[str, Person],
    outsider: Person,
    as_person: Callable[[Person], Api],
) -> None:
    """F144, F145: even a viewer, never anybody else."""
    run = start_run("first")
    admin.post(f"/v1/executions/{run.id}/pause", {"reason": "audit day"})
    (told,) = as_person(people["viewer"]).get("/v1/audit-events").json()["results"]
    assert (told["action"], told["outcome"], told["actor"], told["reason"]) == (
        "run.pause",
        "allowed",
        "admin-acme",
        "audit day",
    )
    assert told["execution_id"] == str(run.id)
    assert as_person(outsider).get("/v1/audit-events").json()["results"] == []


def test_it_is_filtered(
    start_run: StartRun, admin: Api, people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    run = start_run("first")
    admin.post(f"/v1/executions/{run.id}/pause")
    as_person(people["viewer"]).post(f"/v1/executions/{run.id}/resume")
    admin.post("/v1/environments", {"slug": "demo"})

    def found(query: str) -> list[str]:
        return [event["action"] for event in admin.get(f"/v1/audit-events?{query}").json()["results"]]

    assert found("") == ["environment.save", "run.resume", "run.pause"]
    assert found("outcome=denied") == ["run.resume"]
    assert found("actor=viewer-acme") == ["run.resume"]
    assert found(f"execution_id={run.id}") == ["run.resume", "run.pause"]
    assert found("action=run.pause&action=environment.save") == ["environment.save", "run.pause"]
    assert found("channel=console") == []
    last = AuditEvent.objects.order_by("-at").values_list("at", flat=True)[0]
    assert found(f"created_after={quote((last + timedelta(seconds=1)).isoformat())}") == []
    assert found(f"created_before={quote(last.isoformat())}") == ["run.resume", "run.pause"]


def test_it_is_paged_by_time(start_run: StartRun, admin: Api) -> None:
    for number in range(5):
        admin.post("/v1/environments", {"slug": f"demo-{number}"})
    first = admin.get("/v1/audit-events?page_size=3").json()
    path = first["next"].partition("testserver")[2]
    second = admin.get(path).json()
    names = [event["data"]["environment"] for page in (first, second) for event in page["results"]]
    assert names == [f"demo-{number}" for number in (4, 3, 2, 1, 0)]
    assert second["next"] is None


def test_nobody_edits_or_deletes_it(admin: Api) -> None:
    """I7."""
    admin.post("/v1/environments", {"slug": "demo"})
    for change in (lambda rows: rows.update(actor="nobody"), lambda rows: rows.delete()):
        with pytest.raises((IntegrityError, InternalError), match="only ever added"), transaction.atomic():
            change(AuditEvent.objects.all())
    assert AuditEvent.objects.get().actor == "admin-acme"


# what a workspace is made of


def test_the_ladder_is_told_and_changed(admin: Api, environments: dict[str, Environment]) -> None:
    """Contract §3: creates (201) or updates (200); what is left out stays; a new rung comes on top, unprotected."""
    told = admin.get("/v1/environments").json()["results"]
    assert [(rung["slug"], rung["rank"], rung["protected"]) for rung in told] == [
        ("development", 1, False),
        ("staging", 2, False),
        ("production", 3, True),
    ]
    new = admin.post("/v1/environments", {"slug": "demo"})
    assert (new.status_code, new.json()["rank"], new.json()["protected"]) == (201, 4, False)
    changed = admin.post("/v1/environments", {"slug": "production", "rank": 9})
    assert (changed.status_code, changed.json()["rank"], changed.json()["protected"]) == (200, 9, True)
    event = AuditEvent.objects.order_by("-at").first()
    assert event is not None
    assert event.data["before"] == {"rank": 3, "protected": True}
    assert admin.post("/v1/environments", {"slug": "production", "rank": 9}).status_code == 200
    assert AuditEvent.objects.order_by("-at").values_list("outcome", flat=True)[0] == "no_op"


def test_applications_are_made_found_again_and_renamed(admin: Api) -> None:
    made = admin.post("/v1/applications", {"name": "shipping"})
    again = admin.post("/v1/applications", {"name": "shipping"})
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json() == again.json()
    path = f"/v1/applications/{made.json()['id']}"
    assert admin.patch(path, {"name": "freight"}).json() == {"id": made.json()["id"], "name": "freight"}
    admin.post("/v1/applications", {"name": "shipping"})
    taken = admin.patch(path, {"name": "shipping"})
    assert (taken.status_code, list(taken.json()["errors"])) == (400, ["name"])
    assert sorted(one["name"] for one in admin.get("/v1/applications").json()["results"]) == ["freight", "shipping"]


def test_workers_are_listed_with_their_sign_of_life(
    hand: Hand,
    new_hand: Callable[..., Hand],
    admin: Api,
    clock: Any,
    outsider: Person,
    as_person: Callable[[Person], Api],
) -> None:
    """Silence marks a worker as not live, and never ends its session."""
    clock.advance(61)
    new_hand("hand-2", "Mail")
    newest, oldest = admin.get("/v1/workers").json()["results"]
    assert (newest["worker"], newest["live"], newest["handlers"]) == ("hand-2", True, ["Mail"])
    assert (oldest["worker"], oldest["live"], oldest["status"]) == ("hand-1", False, "active")
    assert [one["worker"] for one in admin.get("/v1/workers?handler=Mail").json()["results"]] == ["hand-2"]
    assert admin.get("/v1/workers?status=draining").json()["results"] == []
    assert as_person(outsider).get("/v1/workers").json()["results"] == []
    assert b"digest" not in admin.get("/v1/workers").content
