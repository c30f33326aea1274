"""A release that sends to others, or on other terms, is put in force only after another person's review (R41, R42)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from pipelines import material
from pipelines.models import AuditEvent, Member, Release, Role, Run, Workspace
from tests.cast import Api, Hand, Person, stages_of

HOUSE = {"organisation": "Model House", "service": "large", "billing": "prepaid", "retention": "none"}
OTHER = HOUSE | {"organisation": "Other House"}
StartRun = Callable[..., Run]
Registers = Callable[..., Any]


def defined(*recipients: Mapping[str, str], name: str = "ask", **more: Any) -> dict[str, Any]:
    stage = {"name": name, "handler": "Handler", **({"recipients": list(recipients)} if recipients else {}), **more}
    return {"slug": "nightly", "name": "Nightly", "stages": [stage]}


@pytest.fixture
def manager(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    made = as_person(people["release_manager"])
    assert made.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"}).status_code == 201
    return made


@pytest.fixture
def admin(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["admin"])


@pytest.fixture
def register(manager: Api) -> Registers:
    def make(*recipients: Mapping[str, str], activate: bool = True, by: Api = manager, **more: Any) -> Any:
        body = {"pipeline": "nightly", "environment": "development", "activate": activate}
        answer = by.post("/v1/releases", {**body, "definition": defined(*recipients, **more)})
        assert answer.status_code in (200, 201), answer.content
        return answer.json()

    return make


# what is one


@pytest.mark.parametrize("field", HOUSE)
def test_each_of_the_four_conditions_is_material(field: str) -> None:
    (change,) = material.changes(defined(HOUSE), defined(HOUSE | {field: "another"}))
    assert (change["stage"], change["what"]) == ("ask", field)
    assert "another" in material.sentence(change)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([HOUSE], [HOUSE, OTHER], ["added"]),
        ([HOUSE, OTHER], [HOUSE], ["removed"]),
        ([HOUSE], [], ["removed"]),
        ([], [HOUSE], ["added"]),
        ([HOUSE, OTHER], [OTHER, HOUSE], ["order"]),
        ([HOUSE], [HOUSE], []),
        ([], [], []),
    ],
)
def test_so_is_who_comes_goes_or_changes_places(before: Any, after: Any, told: list[str]) -> None:
    assert [one["what"] for one in material.changes(defined(*before), defined(*after))] == told


def test_another_name_hides_nobody_and_the_rest_is_not_material() -> None:
    assert [one["what"] for one in material.changes(defined(HOUSE), defined(OTHER, name="renamed"))] == ["added"]
    assert not material.changes(defined(HOUSE), defined(HOUSE, description="other", options={"max_retries": 3}))
    assert not material.changes(None, defined(HOUSE, OTHER)), "the first release of a pipeline needs none"


# put in force


def test_it_waits_as_a_draft_until_another_person_has_reviewed_it(
    register: Registers, manager: Api, admin: Api, people: dict[str, Person]
) -> None:
    """R41: not by who registered it; with a reason; audited with what was reviewed."""
    assert register(HOUSE)["status"] == "active"
    made = register(OTHER)
    assert (made["status"], made["needs_review"]) == ("draft", True)
    assert [one["what"] for one in made["changes"]] == ["organisation"]
    path = f"/v1/releases/{made['id']}"
    for someone in (manager, admin):
        answer = someone.post(f"{path}/activate", {"reason": "now"})
        assert (answer.status_code, answer.json()["code"]) == (409, "operator_review_required")
        assert "Other House/large" in answer.json()["detail"]
    assert manager.post(f"{path}/review", {"reason": "mine"}).json()["code"] == "self_approval"
    assert admin.post(f"{path}/review", {}).status_code == 400
    reviewed = admin.post(f"{path}/review", {"reason": "contract signed"})
    assert (reviewed.status_code, reviewed.json()["needs_review"]) == (200, False)
    event = AuditEvent.objects.filter(action="release.review", outcome="allowed").get()
    assert "Other House" in str(event.data)
    assert manager.post(f"{path}/activate", {}).json()["status"] == "active"


def test_nobody_else_reviews_it(
    register: Registers, people: dict[str, Person], as_person: Callable[[Person], Api], outsider: Person, api: Api
) -> None:
    """Not without the right, not from elsewhere, not an application."""
    register(HOUSE)
    path = f"/v1/releases/{register(OTHER)['id']}/review"
    assert as_person(people["operator"]).post(path, {"reason": "r"}).status_code == 403
    assert as_person(outsider).post(path, {"reason": "r"}).status_code == 404
    assert api.post(path, {"reason": "r"}).status_code in (401, 403)
    assert not Release.objects.filter(reviewed_at__isnull=False).exists()


def test_superusers_do_not_review_their_own(
    register: Registers, manager: Api, workspace: Workspace, as_person: Callable[[Person], Api], admin: Api
) -> None:
    register(HOUSE, by=admin)
    register(OTHER, by=admin)
    user = get_user_model().objects.get(username=f"admin-{workspace.slug}")
    user.is_superuser = user.is_staff = True
    user.save()
    release = Release.objects.get(status="draft")
    assert release.created_by == user
    assert Member.objects.get(user=user, workspace=workspace).role == Role.ADMIN
    assert admin.post(f"/v1/releases/{release.id}/review", {"reason": "r"}).json()["code"] == "self_approval"


def test_a_review_holds_for_what_was_reviewed_alone(register: Registers, manager: Api, admin: Api) -> None:
    """R41: when something else is in force by then, the change is another one and waits anew."""
    register(HOUSE)
    made = register(OTHER)
    admin.post(f"/v1/releases/{made['id']}/review", {"reason": "fine"})
    third = register(HOUSE | {"billing": "monthly"})
    admin.post(f"/v1/releases/{third['id']}/review", {"reason": "fine"})
    assert manager.post(f"/v1/releases/{third['id']}/activate", {}).status_code == 200
    again = manager.post(f"/v1/releases/{made['id']}/activate", {})
    assert again.json()["code"] == "operator_review_required"
    told = manager.get(f"/v1/releases/{made['id']}").json()
    assert sorted(one["what"] for one in told["changes"]) == ["billing", "organisation"]
    assert told["needs_review"]


def test_going_back_to_an_older_release_is_a_change_as_any(register: Registers, manager: Api, admin: Api) -> None:
    first = register(HOUSE)
    second = register(OTHER)
    admin.post(f"/v1/releases/{second['id']}/review", {"reason": "fine"})
    manager.post(f"/v1/releases/{second['id']}/activate", {})
    assert manager.post(f"/v1/releases/{first['id']}/activate", {}).json()["code"] == "operator_review_required"


def test_registering_the_same_again_goes_round_nothing(register: Registers, admin: Api) -> None:
    register(HOUSE)
    made = register(OTHER)
    again = register(OTHER, by=admin)
    assert (again["id"], again["status"], again["needs_review"]) == (made["id"], "draft", True)
    Release.objects.filter(status="active").update(status="revoked")
    assert register(OTHER)["status"] == "draft", "nor does it help that nothing is in force any more"


def test_the_failed_run_stays_as_it_was(register: Registers, admin: Api, start_run: StartRun, new_hand: Any) -> None:
    """R42, I12: neither the new release nor its fork changes it."""
    register(HOUSE)
    run = start_run(pipeline="nightly", name=None)
    hand: Hand = new_hand("w", recipients=[{"handler": "Handler", **HOUSE}])
    hand.report(hand.take(), "failed", error_code="E")
    run.refresh_from_db()
    before = (run.release_id, run.status, [(one.state, one.recipients) for one in stages_of(run)])
    made = register(OTHER)
    admin.post(f"/v1/releases/{made['id']}/review", {"reason": "fine"})
    assert admin.post(f"/v1/releases/{made['id']}/activate", {}).json()["status"] == "active"
    assert admin.post(f"/v1/executions/{run.id}/rerun", {"reason": "elsewhere"}).status_code < 300
    run.refresh_from_db()
    assert before == (run.release_id, run.status, [(one.state, one.recipients) for one in stages_of(run)])


def test_the_page_says_what_changed_and_who_may_review(register: Registers, people: dict[str, Person]) -> None:
    register(HOUSE)
    made = register(OTHER)
    path = f"/console/pipelines/releases/{made['id']}/"

    def browser(role: str) -> Client:
        client = Client()
        client.force_login(people[role].user)
        return client

    page = browser("viewer").get(path).content.decode()
    assert "Another person must review to whom it sends" in page
    assert "another organisation: Other House/large" in page
    assert "sends to Other House/large" in page
    own = browser("release_manager").get(f"{path}review/").content.decode()
    assert "You registered it" in own
    assert browser("release_manager").post(f"{path}review/", {"reason": "mine"}).status_code == 403
    assert browser("viewer").get(f"{path}review/").status_code == 403
    other = browser("admin")
    assert other.post(f"{path}review/", {"reason": ""}).status_code == 400
    assert other.post(f"{path}review/", {"reason": "signed"}).status_code == 303
    assert "To whom it sends was reviewed" in other.get(path).content.decode()
