"""What people do with their own account: password, log-ins, tokens; and what admins do with those of members."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core import signing
from django.test import Client
from django.utils import timezone

from config import first_login, sessions
from config.log_in_limit import PER_NAME, TOO_MANY
from config.models import Session
from pipelines import credentials, keys
from pipelines.errors import Refusal
from pipelines.models import AuditEvent, Member, PersonalToken, Workspace
from pipelines.sql import database_now
from tests.cast import Api, Person
from tests.console.conftest import Visitor, text_of
from tests.factories import MemberFactory, UserFactory

pytestmark = pytest.mark.django_db

Browse = Callable[[Person], Visitor]
NEW = {"old_password": "secret", "new_password1": "ninety-nine-red", "new_password2": "ninety-nine-red"}


def logged_in(name: str, password: str = "secret", **meta: str) -> Client:
    """A browser in which somebody logged in by the form."""
    browser = Client()
    answer = browser.post("/console/login/", {"username": name, "password": password}, **meta)
    assert answer.status_code == 302
    return browser


def got_in(browser: Client) -> bool:
    return browser.get("/console/account/").status_code == 200


def events(action: str) -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(action=action).order_by("at"))


# sessions, as they are kept


def test_a_session_is_kept_by_its_digest_and_never_by_its_cookie(people: dict[str, Person]) -> None:
    """Whoever reads the table cannot log in with what stands there."""
    browser = logged_in("viewer-acme")
    cookie = browser.cookies["sessionid"].value
    row = Session.objects.get()
    assert bytes(row.digest) == keys.digest(cookie)
    assert cookie not in row.data
    assert cookie not in str(signing.loads(row.data, salt=sessions.SessionStore().key_salt, serializer=_Plain))
    assert row.user == people["viewer"].user
    thief = Client()
    thief.cookies["sessionid"] = bytes(row.digest).hex()
    assert not got_in(thief)


class _Plain:
    def loads(self, data: bytes) -> str:
        return data.decode()


def test_a_log_in_gets_a_new_cookie_whatever_came_before(people: dict[str, Person]) -> None:
    """Session fixation: a cookie that somebody else put there is not the one that is logged in."""
    store = sessions.SessionStore()
    store["workspace"] = "planted"
    store.save()
    planted = store.session_key
    browser = Client()
    browser.cookies["sessionid"] = planted
    browser.post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    assert browser.cookies["sessionid"].value != planted
    attacker = Client()
    attacker.cookies["sessionid"] = planted
    assert not got_in(attacker)
    assert got_in(browser)


def test_a_cookie_that_nobody_gave_makes_no_session(people: dict[str, Person]) -> None:
    for cookie in ("a" * 32, "x", "'; DROP TABLE config_session; --", "é" * 40):
        browser = Client()
        browser.cookies["sessionid"] = cookie
        assert browser.get("/console/login/").status_code == 200
        assert not got_in(browser)
    assert not Session.objects.exists()


def test_a_session_that_has_expired_is_nobodys_and_is_forgotten(people: dict[str, Person]) -> None:
    browser = logged_in("viewer-acme")
    Session.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert not got_in(browser)
    logged_in("operator-acme")
    assert [row.user.username for row in Session.objects.select_related("user")] == ["operator-acme"]


def test_being_seen_is_written_once_a_minute_and_costs_nothing_in_between(
    people: dict[str, Person], clock: Any, django_assert_num_queries: Any
) -> None:
    browser = logged_in("viewer-acme")
    first = Session.objects.get().seen_at
    with django_assert_num_queries(5) as asked:
        browser.get("/console/account/password/")
    assert not [one for one in asked.captured_queries if one["sql"].startswith("UPDATE")]
    assert Session.objects.get().seen_at == first
    clock.advance(sessions.SEEN_SECONDS + 1)
    with django_assert_num_queries(6):
        browser.get("/console/account/password/")
    assert Session.objects.get().seen_at > first


def test_who_may_not_log_in_any_more_is_logged_out_for_good(people: dict[str, Person]) -> None:
    """Switching an account on again does not bring its old log-ins back."""
    user = people["viewer"].user
    browser = logged_in("viewer-acme")
    user.is_active = False
    user.save()
    assert not got_in(browser)
    user.is_active = True
    user.save()
    assert not got_in(browser)
    assert not Session.objects.exists()


# where one is logged in


def test_one_sees_where_one_is_logged_in_and_which_is_this_one(people: dict[str, Person]) -> None:
    logged_in("viewer-acme", HTTP_USER_AGENT="Firefox on a ship", REMOTE_ADDR="192.0.2.7")
    here = logged_in("viewer-acme", HTTP_USER_AGENT="Chromium ashore", REMOTE_ADDR="192.0.2.8")
    logged_in("operator-acme", HTTP_USER_AGENT="Lynx of another", REMOTE_ADDR="192.0.2.9")
    told = text_of(here.get("/console/account/"))
    assert "This one Chromium ashore 192.0.2.8" in told
    assert "Firefox on a ship 192.0.2.7" in told
    assert "Lynx of another" not in told
    assert told.count("This one") == 1


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/131.0 Safari/537.36 Edg/131.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 Chrome/131.0 Mobile Safari/537.36", "Chrome on Android"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18 like Mac OS X) Version/18.0 Safari/604.1", "Safari on iPhone"),
        ("curl/8.0", "curl/8.0"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("", "unknown"),
    ],
)
def test_a_browser_is_called_as_people_call_it(people: dict[str, Person], agent: str, told: str) -> None:
    here = logged_in("viewer-acme", HTTP_USER_AGENT=agent)
    assert f">{told}</span>" in here.get("/console/account/").content.decode()


def test_one_log_in_is_ended_and_the_others_stay(people: dict[str, Person]) -> None:
    lost, here = logged_in("viewer-acme"), logged_in("viewer-acme")
    found = Session.objects.get(digest=keys.digest(lost.cookies["sessionid"].value))
    page = here.get(f"/console/account/sessions/{found.id}/end/")
    assert "its next click asks for a log-in" in text_of(page)
    assert got_in(lost), "looking ends nothing"
    assert here.post(f"/console/account/sessions/{found.id}/end/").status_code == 303
    assert not got_in(lost)
    assert got_in(here)
    (event,) = events("session.end")
    assert (event.outcome, event.actor, event.data) == ("allowed", "viewer-acme", {"user": "viewer-acme", "count": 1})
    assert here.post(f"/console/account/sessions/{found.id}/end/").status_code == 404


def test_this_very_log_in_can_be_ended_too(people: dict[str, Person]) -> None:
    here = logged_in("viewer-acme")
    answer = here.post(f"/console/account/sessions/{Session.objects.get().id}/end/")
    assert answer.status_code == 303
    assert not got_in(here)
    assert not Session.objects.filter(user__isnull=False).exists()


def test_all_others_are_ended_and_this_one_stays(people: dict[str, Person]) -> None:
    others = [logged_in("viewer-acme") for _ in range(3)]
    here, stranger = logged_in("viewer-acme"), logged_in("operator-acme")
    assert "End 3 log-ins" in text_of(here.get("/console/account/sessions/end/"))
    assert here.post("/console/account/sessions/end/").status_code == 303
    assert [got_in(one) for one in others] == [False] * 3
    assert got_in(here)
    assert got_in(stranger)
    (event,) = events("session.end")
    assert event.data["count"] == 3


def test_anothers_log_in_is_not_found_even_by_an_admin(people: dict[str, Person]) -> None:
    theirs = logged_in("viewer-acme")
    address = f"/console/account/sessions/{Session.objects.get().id}/end/"
    boss = logged_in("admin-acme")
    assert boss.get(address).status_code == 404
    assert boss.post(address).status_code == 404
    assert got_in(theirs)
    assert [event.outcome for event in events("session.end")] == ["failed"]


# the password


def test_a_new_password_ends_the_other_log_ins_and_leaves_its_trace_in_each_workspace(
    people: dict[str, Person], other_workspace: Workspace
) -> None:
    """As when the admin site changes an account; never a word of the password itself."""
    MemberFactory(workspace=other_workspace, user=people["viewer"].user, role="viewer")
    other, here = logged_in("viewer-acme"), logged_in("viewer-acme")
    before = here.cookies["sessionid"].value
    assert here.post("/console/account/password/", NEW).status_code == 303
    assert here.cookies["sessionid"].value != before
    assert got_in(here)
    assert not got_in(other)
    told = events("user.save")
    assert {event.workspace.slug for event in told} == {"acme", "globex"}
    assert all(event.data == {"user": "viewer-acme", "change": "password"} for event in told)
    assert "ninety" not in str([event.__dict__ for event in AuditEvent.objects.all()])
    assert not got_in_with("secret")
    assert got_in_with("ninety-nine-red")


def got_in_with(password: str) -> bool:
    return Client().post("/console/login/", {"username": "viewer-acme", "password": password}).status_code == 302


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"old_password": "not it"}, "Your old password was entered incorrectly"),
        ({"new_password2": "another-one-99"}, "didn’t match"),
        ({"new_password1": "short-1", "new_password2": "short-1"}, "at least 10 characters"),
        ({"new_password1": "viewer-acme", "new_password2": "viewer-acme"}, "too similar to the username"),
        ({"new_password1": "1029384756019", "new_password2": "1029384756019"}, "entirely numeric"),
        ({"new_password1": "password123", "new_password2": "password123"}, "too common"),
        ({"new_password1": "", "new_password2": ""}, "This field is required"),
    ],
)
def test_a_password_that_cannot_be_taken_is_told_and_changes_nothing(
    people: dict[str, Person], wrong: dict[str, str], said: str
) -> None:
    other, here = logged_in("viewer-acme"), logged_in("viewer-acme")
    answer = here.post("/console/account/password/", NEW | wrong)
    assert answer.status_code == 400
    assert said in text_of(answer)
    assert got_in(other)
    assert got_in_with("secret")
    assert [event.outcome for event in events("user.save")] == ["failed"]


def test_a_session_that_was_left_open_is_no_way_to_guess_the_password(people: dict[str, Person]) -> None:
    here = logged_in("viewer-acme")
    for _ in range(PER_NAME):
        here.post("/console/account/password/", NEW | {"old_password": "guess"})
    answer = here.post("/console/account/password/", NEW)
    assert TOO_MANY in text_of(answer)
    people["viewer"].user.refresh_from_db()
    assert people["viewer"].user.check_password("secret")


def test_who_is_a_member_nowhere_still_changes_their_password() -> None:
    UserFactory(username="newcomer")
    here = logged_in("newcomer")
    assert "member of no workspace" in text_of(here.get("/console/account/"))
    assert here.post("/console/account/password/", NEW).status_code == 303
    assert not AuditEvent.objects.exists(), "there is no workspace in whose audit it would belong"


def test_the_first_password_is_known_by_its_file_and_asks_to_be_another(
    settings: Any, tmp_path: Path, workspace: Workspace
) -> None:
    settings.DATA_DIR = tmp_path
    sentence = first_login.ensure(tmp_path)
    first = sentence.rpartition(" ")[2]
    here = logged_in("admin", first)
    assert "Choose a password of your own" in text_of(here.get("/console/account/"))
    here.post("/console/account/password/", NEW | {"old_password": first})
    assert "Choose a password of your own" not in text_of(here.get("/console/account/"))
    later = logged_in("admin", "ninety-nine-red")
    assert "Choose a password of your own" not in text_of(later.get("/console/account/"))
    assert first_login.ensure(tmp_path) == "log in with your account"


# tokens


@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "release_manager", "admin"])
def test_everybody_makes_tokens_of_their_own_and_gets_no_more_than_their_role(
    people: dict[str, Person], role: str, browse: Browse
) -> None:
    person = people[role]
    page = browse(person).post("/console/account/tokens/new/", {"name": "laptop", "days": "30"})
    secret = secret_of(page)
    found = keys.find_person(secret)
    assert found is not None
    assert (found[0], found[3]) == (person.user.pk, role)
    made = PersonalToken.objects.get(name="laptop")
    assert timedelta(days=29) < made.expires_at - database_now() <= timedelta(days=30)
    (event,) = events("token.issue")
    assert (event.outcome, event.actor, event.data["prefix"]) == ("allowed", person.user.username, made.prefix)
    assert secret not in str([one.__dict__ for one in AuditEvent.objects.all()])


def secret_of(page: Any) -> str:
    match = re.search(r'value="(rt_[\w-]+)"', page.content.decode())
    assert match, text_of(page)
    return match[1]


def test_a_token_is_shown_once_and_kept_by_no_cache(people: dict[str, Person], browse: Browse) -> None:
    here = browse(people["viewer"])
    page = here.post("/console/account/tokens/new/", {"name": "laptop", "days": "30"})
    secret = secret_of(page)
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers.get("Location") is None, "it is in no address"
    made = PersonalToken.objects.get(name="laptop")
    for address in ("/console/account/", f"/console/account/tokens/{made.id}/revoke/", "/console/members/"):
        assert secret not in here.get(address).content.decode()
    assert secret not in str([row.data for row in Session.objects.all()])
    assert bytes(made.digest) == keys.digest(secret)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "", "days": "30"}, "what it is for"),
        ({"name": "x" * 101, "days": "30"}, "at most 100"),
        ({"name": "ok", "days": "366"}, "Choose one of these"),
        ({"name": "ok", "days": "-1"}, "Choose one of these"),
        ({"name": "ok", "days": "٣٠"}, "Choose one of these"),
        ({"name": "ok", "days": "\0"}, "Choose one of these"),
    ],
)
def test_a_token_that_cannot_be_made_is_told_by_field_and_none_is_made(
    people: dict[str, Person], browse: Browse, given: dict[str, str], said: str
) -> None:
    before = PersonalToken.objects.count()
    answer = browse(people["viewer"]).post("/console/account/tokens/new/", given)
    assert answer.status_code == 400
    assert said in text_of(answer)
    assert PersonalToken.objects.count() == before
    assert [event.outcome for event in events("token.issue")] == ["failed"]


def test_nobodys_own_token_lives_longer_than_a_year(people: dict[str, Person]) -> None:
    """Both sides of the limit; nothing said means as long as may be."""
    actor, user, now = people["viewer"].actor, people["viewer"].user, database_now()
    token, _ = credentials.issue_token(actor=actor, user=user)
    assert token.expires_at is not None
    assert token.expires_at <= database_now() + credentials.LONGEST_LIFE
    credentials.issue_token(actor=actor, user=user, expires_at=now + credentials.LONGEST_LIFE)
    for wrong in (now + credentials.LONGEST_LIFE + timedelta(minutes=1), now):
        with pytest.raises(Refusal) as refused:
            credentials.issue_token(actor=actor, user=user, expires_at=wrong)
        assert list(refused.value.errors) == ["expires_at"]


def test_a_revoked_token_stops_at_once_and_revoking_again_changes_nothing(
    people: dict[str, Person], browse: Browse
) -> None:
    here = browse(people["viewer"])
    secret = secret_of(here.post("/console/account/tokens/new/", {"name": "laptop", "days": "30"}))
    made = PersonalToken.objects.get(name="laptop")
    assert Api({"Authorization": f"Bearer {secret}"}).get("/v1/executions").status_code == 200
    address = f"/console/account/tokens/{made.id}/revoke/"
    assert "for good" in text_of(here.get(address))
    assert here.post(address).status_code == 303
    assert Api({"Authorization": f"Bearer {secret}"}).get("/v1/executions").status_code == 401
    first = PersonalToken.objects.get(id=made.id).revoked_at
    assert here.post(address).status_code == 303
    assert PersonalToken.objects.get(id=made.id).revoked_at == first
    assert [event.outcome for event in events("token.revoke")] == ["allowed", "no_op"]


def test_anothers_token_is_not_found_save_by_admins_of_its_workspace(
    people: dict[str, Person], outsider: Person, browse: Browse
) -> None:
    """I16: an id that is not theirs is 404, whether or not it is there."""
    token = PersonalToken.objects.get(user=people["operator"].user)
    address = f"/console/account/tokens/{token.id}/revoke/"
    for stranger in (people["viewer"], people["release_manager"], outsider):
        assert browse(stranger).get(address).status_code == 404
        assert browse(stranger).post(address).status_code == 404
        with pytest.raises(Refusal, match="no such"):
            credentials.revoke_token(token.id, actor=stranger.actor)
    token.refresh_from_db()
    assert token.revoked_at is None
    assert browse(people["admin"]).post(address).status_code == 303
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_the_use_of_a_token_is_written_down_once_a_minute(
    people: dict[str, Person], clock: Any, as_person: Callable[[Person], Api]
) -> None:
    person = people["viewer"]
    token = PersonalToken.objects.get(user=person.user)
    assert token.last_used_at is None
    used = []
    for seconds in (0, keys.USED_SECONDS - 1, 2):
        clock.advance(seconds)
        assert as_person(person).get("/v1/workers").status_code == 200
        token.refresh_from_db()
        used.append(token.last_used_at)
    assert used[0] == used[1] < used[2]


def test_a_wrong_token_is_written_down_nowhere(people: dict[str, Person]) -> None:
    assert Api({"Authorization": "Bearer rt_wrong"}).get("/v1/workers").status_code == 401
    assert not PersonalToken.objects.filter(last_used_at__isnull=False).exists()


def test_tokens_of_another_workspace_stay_out_of_sight(
    people: dict[str, Person], other_workspace: Workspace, browse: Browse
) -> None:
    MemberFactory(workspace=other_workspace, user=people["viewer"].user, role="admin")
    keys.issue_token(people["viewer"].user, other_workspace, name="of globex")
    here = browse(people["viewer"])
    assert "of globex" not in text_of(here.get("/console/account/?workspace=acme"))
    assert "of globex" in text_of(here.get("/console/account/?workspace=globex"))


# members


def test_members_are_seen_by_all_and_their_tokens_and_log_ins_by_admins(
    people: dict[str, Person], outsider: Person, browse: Browse
) -> None:
    told = text_of(browse(people["viewer"]).get("/console/members/"))
    assert "release_manager-acme" in told
    assert "olga" not in told
    assert "rt_" not in told
    assert "Log-ins" not in told
    boss = text_of(browse(people["admin"]).get("/console/members/"))
    assert "Tokens of members" in boss
    assert boss.count("rt_") == len(people)


def test_an_admin_logs_a_member_out_everywhere_with_a_reason(people: dict[str, Person], browse: Browse) -> None:
    theirs = [logged_in("operator-acme") for _ in range(2)]
    member = Member.objects.get(user=people["operator"].user)
    boss, address = browse(people["admin"]), f"/console/members/{member.id}/log-out/"
    assert boss.post(address).status_code == 400, "without a reason"
    assert all(got_in(one) for one in theirs)
    assert boss.post(address, {"reason": "a laptop was lost"}).status_code == 303
    assert not any(got_in(one) for one in theirs)
    assert boss.get("/console/account/").status_code == 200
    event = events("session.end")[-1]
    assert (event.outcome, event.reason, event.data) == (
        "allowed",
        "a laptop was lost",
        {"user": "operator-acme", "count": 2},
    )


def test_only_an_admin_of_their_workspace_logs_somebody_out(
    people: dict[str, Person], outsider: Person, browse: Browse
) -> None:
    theirs = logged_in("operator-acme")
    member = Member.objects.get(user=people["operator"].user)
    address = f"/console/members/{member.id}/log-out/"
    assert browse(people["release_manager"]).post(address, {"reason": "x"}).status_code == 403
    assert browse(outsider).post(address, {"reason": "x"}).status_code == 404
    assert browse(people["admin"]).post(f"/console/members/{2**70}/log-out/", {"reason": "x"}).status_code == 404
    assert got_in(theirs)


def test_a_member_who_is_removed_is_let_in_nowhere_by_what_they_have(
    people: dict[str, Person], as_person: Callable[[Person], Api]
) -> None:
    here, person = logged_in("operator-acme"), people["operator"]
    assert here.get("/console/").status_code == 200
    credentials.remove_member(actor=people["admin"].actor, user=person.user)
    assert here.get("/console/").status_code == 403
    assert as_person(person).get("/v1/executions").status_code == 401
    with pytest.raises(Refusal, match="no such member"):
        credentials.remove_member(actor=people["admin"].actor, user=person.user)


def test_another_role_holds_for_the_next_click_and_the_next_call(
    people: dict[str, Person], as_person: Callable[[Person], Api], start_run: Any
) -> None:
    run, person = start_run(), people["operator"]
    here = logged_in("operator-acme")
    credentials.set_role(actor=people["admin"].actor, user=person.user, role="viewer")
    assert here.post(f"/console/runs/{run.id}/pause/", {"reason": "x"}).status_code == 403
    assert as_person(person).post(f"/v1/executions/{run.id}/pause").status_code == 403


# forms


@pytest.fixture
def strict(people: dict[str, Person]) -> Iterator[Client]:
    """A browser that is logged in and sends forms of another site."""
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(people["admin"].user)
    return browser


def test_no_form_of_another_site_does_anything(strict: Client, people: dict[str, Person], settings: Any) -> None:
    session, token = Session.objects.get(), PersonalToken.objects.get(user=people["admin"].user)
    member = Member.objects.get(user=people["viewer"].user)
    addresses = [
        "/console/login/",
        "/console/logout/",
        "/console/account/password/",
        "/console/account/connect/",
        "/console/account/disconnect/",
        "/console/account/sessions/end/",
        f"/console/account/sessions/{session.id}/end/",
        "/console/account/tokens/new/",
        f"/console/account/tokens/{token.id}/revoke/",
        f"/console/members/{member.id}/log-out/",
    ]
    for address in addresses:
        body = NEW | {"name": "x", "days": "30", "reason": "x", "password": "secret", "username": "admin-acme"}
        assert strict.post(address, body).status_code == 403, address
    assert got_in(strict)
    token.refresh_from_db()
    assert token.revoked_at is None
    assert not PersonalToken.objects.filter(name="x").exists()
    assert people["admin"].user.check_password("secret")


@pytest.mark.parametrize("name", ["account", "members"])
def test_pages_of_the_account_cost_a_fixed_number_of_queries(
    people: dict[str, Person], workspace: Workspace, browse: Browse, name: str, django_assert_max_num_queries: Any
) -> None:
    for number in range(8):
        user = MemberFactory(workspace=workspace, role="viewer", user=UserFactory(username=f"m{number}")).user
        keys.issue_token(user, workspace)
        keys.issue_token(people["admin"].user, workspace)
        logged_in("admin-acme")
    here = browse(people["admin"])
    with django_assert_max_num_queries(11):
        assert here.get(f"/console/{name}/").status_code == 200
