"""Who gets in, and which workspace they see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import get_resolver

from pipelines.models import Run, Workspace
from tests.cast import Person
from tests.console.conftest import Visitor, text_of
from tests.factories import MemberFactory, UserFactory

pytestmark = pytest.mark.django_db


def test_the_root_leads_to_the_console_and_the_console_to_the_log_in() -> None:
    visitor = Client()
    assert visitor.get("/").headers["Location"] == "/console/"
    assert visitor.get("/console/?status=failed").headers["Location"] == (
        "/console/login/?next=%2Fconsole%2F%3Fstatus%3Dfailed"
    )


def test_a_log_in_leads_on_to_where_one_wanted_to_go_and_a_log_out_ends_it(people: dict[str, Person]) -> None:
    visitor = Client()
    answer = visitor.post(
        "/console/login/", {"username": "operator-acme", "password": "secret", "next": "/console/workers/"}
    )
    assert answer.headers["Location"] == "/console/workers/"
    assert visitor.get("/console/workers/").status_code == 200
    assert visitor.post("/console/logout/").headers["Location"] == "/console/login/"
    assert visitor.get("/console/workers/").status_code == 302


def test_a_log_in_never_leads_to_another_site(people: dict[str, Person]) -> None:
    answer = Client().post(
        "/console/login/", {"username": "operator-acme", "password": "secret", "next": "https://evil.example/"}
    )
    assert answer.headers["Location"] == "/console/"


@pytest.mark.parametrize(
    "target", ["//evil.example/", "/\\evil.example", "javascript:alert(1)", "http:///evil.example", "\0", "x" * 9000]
)
def test_a_log_in_never_leads_astray(people: dict[str, Person], target: str) -> None:
    given = {"username": "operator-acme", "password": "secret", "next": target}
    assert Client().post("/console/login/", given).headers["Location"] == "/console/"
    page = Client().get("/console/login/", {"next": target})
    assert page.status_code == 200
    assert 'href="javascript:' not in page.content.decode()


def test_an_account_that_is_switched_off_is_told_like_a_wrong_password(people: dict[str, Person]) -> None:
    """Whoever guesses learns of no account whether it is there."""
    people["viewer"].user.is_active = False
    people["viewer"].user.save()
    off = Client().post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    unknown = Client().post("/console/login/", {"username": "nobody-acme", "password": "secret"})
    assert "sessionid" not in off.cookies
    assert text_of(off).replace("viewer-acme", "") == text_of(unknown).replace("nobody-acme", "")


def test_a_wrong_password_is_told_without_telling_which_half_was_wrong(people: dict[str, Person]) -> None:
    wrong = Client().post("/console/login/", {"username": "operator-acme", "password": "x"})
    unknown = Client().post("/console/login/", {"username": "nobody-at-all", "password": "x"})
    assert "correct username and password" in text_of(wrong)
    assert text_of(wrong).replace("operator-acme", "") == text_of(unknown).replace("nobody-at-all", "")


def test_a_log_out_needs_a_form_of_ours(people: dict[str, Person]) -> None:
    visitor = Client(enforce_csrf_checks=True)
    visitor.force_login(people["operator"].user)
    assert visitor.post("/console/logout/").status_code == 403
    assert visitor.get("/console/logout/").status_code == 405
    assert visitor.get("/console/").status_code == 200


def test_somebody_who_is_a_member_nowhere_gets_help_and_no_runs(start_run: Callable[..., Run]) -> None:
    """A missing right is said, never shown as an empty list (model §5)."""
    start_run(name="secret-run")
    visitor = Visitor()
    visitor.force_login(UserFactory(username="newcomer"))
    answer = visitor.get("/console/")
    assert answer.status_code == 403
    assert "not a member of any workspace" in text_of(answer)
    assert "--user newcomer" in text_of(answer)
    assert "secret-run" not in answer.content.decode()


def test_a_superuser_who_is_no_member_sees_nothing(start_run: Callable[..., Run]) -> None:
    run = start_run(name="secret-run")
    visitor = Visitor()
    visitor.force_login(UserFactory(is_superuser=True, is_staff=True))
    assert visitor.get("/console/").status_code == 403
    assert visitor.get(f"/console/runs/{run.id}/").status_code == 403


def test_one_workspace_is_taken_and_of_several_one_is_chosen_and_kept(
    people: dict[str, Person], other_workspace: Workspace, browse: Callable[[Person], Visitor]
) -> None:
    visitor = browse(people["operator"])
    assert visitor.get("/console/").status_code == 200
    MemberFactory(workspace=other_workspace, user=people["operator"].user, role="viewer")
    assert visitor.get("/console/").headers["Location"] == "/console/workspaces/?next=%2Fconsole%2F"
    choice = text_of(visitor.get("/console/workspaces/"))
    assert "acme" in choice
    assert "globex" in choice
    assert "operator-acme is viewer in globex" in text_of(visitor.get("/console/?workspace=globex"))
    assert "operator-acme is viewer in globex" in text_of(visitor.get("/console/workers/"))
    assert "operator-acme is operator in acme" in text_of(visitor.get("/console/?workspace=acme"))


def test_another_workspace_is_404_by_name_and_by_id(
    start_run: Callable[..., Run], outsider: Person, browse: Callable[[Person], Visitor]
) -> None:
    """I16: a foreign id is 404, whatever the screen."""
    run = start_run(name="secret-run")
    stage = run.stages.get()
    visitor = browse(outsider)
    addresses = [
        "/console/?workspace=acme",
        f"/console/runs/{run.id}/",
        f"/console/runs/{run.id}/live/",
        f"/console/runs/{run.id}/events/",
        f"/console/runs/{run.id}/pause/",
        f"/console/runs/{run.id}/resume/",
        f"/console/runs/{run.id}/cancel/",
        f"/console/stages/{stage.id}/retry/",
        f"/console/stages/{stage.id}/skip/",
        f"/console/attempts/{run.id}/",
    ]
    for address in addresses:
        answer = visitor.get(address)
        assert answer.status_code == 404, address
        assert "secret-run" not in answer.content.decode()
    for verb in ("pause", "resume", "cancel"):
        assert visitor.post(f"/console/runs/{run.id}/{verb}/", {"reason": "mine"}).status_code == 404
    for verb in ("retry", "skip"):
        assert visitor.post(f"/console/stages/{stage.id}/{verb}/", {"reason": "mine"}).status_code == 404
    run.refresh_from_db()
    assert run.status == "queued"


def test_every_screen_but_the_log_in_asks_for_one() -> None:
    """A new address of the console is either behind the log-in or named here."""
    open_to_all = {"login", "logout", "preferences", "oidc-login", "oidc-done", "oidc-log-out"}
    visitor = Client()
    unknown = "01a227df-9724-743b-98e6-bd44739d5ece"
    for name, path in _console_addresses(unknown):
        if name not in open_to_all:
            answer = visitor.get(path)
            assert answer.status_code == 302, path
            assert answer.headers["Location"].startswith("/console/login/"), path


def test_preferences_are_kept_in_cookies_and_never_lead_away() -> None:
    visitor = Client()
    answer = visitor.post("/console/preferences/", {"theme": "dark", "next": "//evil.example/"})
    assert answer.headers["Location"] == "/console/"
    assert visitor.cookies["theme"].value == "dark"
    visitor.post("/console/preferences/", {"density": "comfortable", "theme": "<script>"})
    assert '<html lang="en" data-theme="dark" data-density="comfortable">' in (
        visitor.get("/console/login/").content.decode()
    )
    visitor.cookies["theme"] = '"><script>'
    assert '<html lang="en" data-density="comfortable">' in visitor.get("/console/login/").content.decode()


def test_a_log_in_that_ended_sends_a_part_of_a_page_to_the_log_in(start_run: Callable[..., Run]) -> None:
    run = start_run()
    answer = Visitor().get(
        f"/console/runs/{run.id}/live/",
        headers={"HX-Request": "true", "HX-Current-URL": f"http://testserver/console/runs/{run.id}/"},
    )
    assert answer.headers["HX-Redirect"] == f"/console/login/?next=%2Fconsole%2Fruns%2F{run.id}%2F"


def _console_addresses(some_id: str) -> list[tuple[str, str]]:
    from django.urls import reverse

    found = []
    console: Any = next(one for one in get_resolver().url_patterns if getattr(one, "namespace", None) == "console")
    for pattern in console.url_patterns:
        names = {name: "1" if name in ("sequence", "member_id") else some_id for name in pattern.pattern.converters}
        found.append((pattern.name, reverse(f"console:{pattern.name}", kwargs=names)))
    assert len(found) > 10
    return found
