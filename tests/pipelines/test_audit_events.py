"""The audit trail through `/v1`: one event for each request that wanted to change something; its people read it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import IntegrityError, InternalError, transaction

from pipelines import transitions
from pipelines.audit import Entry, audited, record_refusal, request_id
from pipelines.errors import Refusal
from pipelines.models import Application, AuditEvent, Environment, Event, Run
from tests.cast import Api, Hand, Person, Worker, stages_of

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
    """F145: with actor, channel and, where there is one, reason and run. What is recovered has its verdict besides."""
    run = start_run("first")
    events = AuditEvent.objects.exclude(action="execution.recovery_disposition")
    for path, action, body in requests(run, stages_of(run)[0].id):
        before = events.count()
        answer = admin.post(f"/v1/{path}", body)
        assert answer.status_code in (200, 201), (path, answer.content)
        assert events.count() == before + 1, path
        event = events.order_by("-at", "-id").first()
        assert event is not None
        assert (event.action, event.outcome, event.channel) == (action, "allowed", "api")
        assert (event.user, event.actor) == (people["admin"].user, "admin-acme")
        if "reason" in body:
            assert (event.reason, event.run) == ("r", run.id)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("executions/{run}/pause", {"colour": "red"}, "validation_error"),
        ("executions/{run}/pause?colour=red", {}, "validation_error"),
        ("executions/{run}/pause", b"{", "validation_error"),
        ("executions/{run}/pause", {"client_request_id": "X"}, "client_request_id_invalid"),
        ("executions/{run}/resume", {"reason": "not paused"}, "execution_state_invalid"),
        ("executions/{nobody}/pause", {}, "not_found"),
        ("releases", {"pipeline": "none", "environment": "nowhere", "definition": {}}, "validation_error"),
    ],
)
def test_a_request_that_fails_leaves_one_event_that_says_why(
    path: str, body: Any, code: str, start_run: StartRun, admin: Api
) -> None:
    """F145: also when it was wrong in itself; nothing else of it is kept."""
    run = start_run("first")
    answer = admin.post("/v1/" + path.format(run=run.id, nobody=uuid.uuid4()), body)
    assert answer.json()["code"] == code
    event = AuditEvent.objects.get()
    assert (event.outcome, event.code, event.actor, event.after) == ("failed", code, "admin-acme", None)
    assert event.reason == (body.get("reason", "") if isinstance(body, dict) else "")
    assert not Event.objects.filter(kind="run.pause").exists()


def test_looking_and_previews_leave_none(start_run: StartRun, admin: Api) -> None:
    run = start_run("first")
    for path in ("executions", f"executions/{run.id}", "operations", "audit-events"):
        assert admin.get(f"/v1/{path}").status_code == 200
    assert admin.post(f"/v1/executions/{run.id}/cancel", {"dry_run": True}).status_code == 200
    assert not AuditEvent.objects.exists()


def test_it_tells_what_was_found_and_what_was_left(start_run: StartRun, admin: Api, hand: Hand) -> None:
    """O4: the states that matter, before and after."""
    run = start_run("first")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    (stage,) = stages_of(run)
    admin.post(f"/v1/stages/{stage.id}/retry", {"reason": "r"})
    event = AuditEvent.objects.get(action="stage.retry")
    assert event.before == {"run": "failed", "stage": "failed", "epoch": 1}
    assert event.after == {"run": "running", "stage": "ready", "epoch": 2}
    admin.post(f"/v1/executions/{run.id}/pause")
    event = AuditEvent.objects.get(action="run.pause")
    assert (event.before, event.after) == ({"run": "running"}, {"run": "paused"})
    told = admin.get("/v1/audit-events?action=run.pause").json()["results"][0]
    assert (told["before"], told["after"]) == (event.before, event.after)


@pytest.mark.parametrize("given", ["", "x" * 101, "a b", "naïve", "-rf", "<script>"])
def test_a_request_has_an_id_in_its_answer_and_in_the_audit(given: str, start_run: StartRun, admin: Api) -> None:
    """One that cannot be meant is replaced by one of ours."""
    run = start_run("first")
    answer = admin.post(f"/v1/executions/{run.id}/pause", {"reason": "r"}, X_Request_Id=given)
    made = answer.headers["X-Request-Id"]
    assert uuid.UUID(made)
    assert AuditEvent.objects.get().request_id == made
    own = admin.post(f"/v1/executions/{run.id}/resume", X_Request_Id="trace:42/a")
    assert own.headers["X-Request-Id"] == "trace:42/a"
    (told,) = admin.get("/v1/audit-events?request_id=trace:42/a").json()["results"]
    assert (told["action"], told["request_id"]) == ("run.resume", "trace:42/a")
    assert request_id() == "", "it ends with the request"


def test_an_applications_requests_leave_one_each(
    api: Api, worker: Worker, application: Application, as_person: Callable[[Person], Api], people: dict[str, Person]
) -> None:
    """F145: creations and their repeats, conflicts, cancels; what workers say is the engine's to tell."""
    body = {"idempotencyKey": "k", "name": "n", "stages": [{"stageName": "a", "stageHandlerName": "Handler"}]}
    created = api.post("/pipelines/idempotent", body).json()["pipeline"]["id"]
    api.post("/pipelines/idempotent", body)
    api.post("/pipelines/idempotent", body | {"name": "other"})
    api.post("/pipelines/idempotent", body | {"colour": "red"})
    worker.report(worker.take(), output={})
    api.post(f"/pipelines/{created}/cancel", {"colour": "red"})
    api.post(f"/pipelines/{created}/cancel")
    api.post(f"/pipelines/{uuid.uuid4()}/cancel")
    told = AuditEvent.objects.order_by("at", "id")
    assert [(event.action, event.outcome, event.code) for event in told] == [
        ("run.create", "allowed", ""),
        ("run.create", "no_op", ""),
        ("run.create", "failed", "idempotency_conflict"),
        ("run.create", "failed", "validation_error"),
        ("run.cancel", "failed", "validation_error"),
        ("run.cancel", "failed", "execution_state_invalid"),
        ("run.cancel", "failed", "not_found"),
    ]
    assert {(event.actor, event.channel, event.user) for event in told} == {("billing", "application", None)}
    assert [str(event.run) for event in told[:2]] == [created, created]


def test_a_fault_of_ours_is_kept_too(
    start_run: StartRun, people: dict[str, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the verb did is undone with its event; one of its own says that it failed."""
    run = start_run("first")

    def breaks(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(transitions, "cancel", breaks)
    with pytest.raises(ZeroDivisionError):
        transitions.cancel_run(run.id, actor=people["operator"].actor, reason="r")
    event = AuditEvent.objects.get()
    assert (event.outcome, event.code, event.reason, event.run) == ("failed", "internal_error", "r", run.id)


def test_a_refusal_has_one_event_however_many_look_at_it(people: dict[str, Person]) -> None:
    """The outermost verb records it, whose end undoes what was written within."""
    actor = people["operator"].actor
    with pytest.raises(Refusal) as caught, audited(actor, "outer"), audited(actor, "inner"):
        raise Refusal("recovery_denied", "no")
    record_refusal(actor, "edge", caught.value, Entry())
    assert [(event.action, event.outcome) for event in AuditEvent.objects.all()] == [("outer", "denied")]


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
    assert found(f"run={run.id}&outcome=allowed") == ["run.pause"]
    last = AuditEvent.objects.order_by("-at").values_list("at", flat=True)[0]
    assert found(f"created_after={quote((last + timedelta(seconds=1)).isoformat())}") == []
    assert found(f"created_before={quote(last.isoformat())}") == ["run.resume", "run.pause"]
    assert found(f"until={quote(last.isoformat())}") == ["run.resume", "run.pause"]
    assert found(f"since={quote(last.isoformat())}") == ["environment.save"]


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
    assert event.before == {"rank": 3, "protected": True}
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
