"""Log-in by OpenID Connect, against a real issuer over HTTP: who gets in, and all that must let nobody in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from joserfc.jwk import RSAKey

from config import oidc_settings
from config.models import Identity, Session, UsedState
from config.oidc_settings import Oidc
from pipelines.models import AuditEvent, Member, Role, Workspace
from tests.cast import Person
from tests.config.console_process import BASE_DIR, clean_environment
from tests.config.oidc_issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.console.conftest import text_of
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
START, DONE = "/console/login/oidc/", "/console/login/oidc/done/"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    server = found.serve()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def oidc(issuer: Issuer, settings: Any) -> Any:
    """Switches log-in by this issuer on; called, with other settings of it."""

    def switch_on(**more: Any) -> None:
        settings.RECOURSE_OIDC = Oidc(issuer.url, CLIENT_ID, CLIENT_SECRET, **more)

    switch_on(makes_users=True)
    return switch_on


def go(browser: Client, address: str = START) -> str:
    """From our link to the issuer and back: the address that the issuer sends the browser to."""
    answer = browser.get(address)
    assert answer.status_code == 302, text_of(answer)
    return at_issuer(answer.headers["Location"])


def at_issuer(address: str) -> str:
    parts = urlsplit(address)
    connection = HTTPConnection(parts.netloc, timeout=5)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 302
    return str(answer.headers["Location"])


def log_in(browser: Client, address: str = START) -> Any:
    """The whole way: our answer to what the issuer sent back."""
    return browser.get(inner(go(browser, address)))


def inner(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.path}?{parts.query}"


def who(browser: Client) -> str | None:
    user = browser.get("/console/account/").wsgi_request.user
    return user.get_username() if user.is_authenticated else None


def is_refused(answer: Any, why: str, browser: Client) -> bool:
    """A page that says so, with the way out, and nobody logged in."""
    assert answer.status_code in (400, 403, 409, 503), answer.status_code
    assert f'<p class="sub mono">{why}</p>' in answer.content.decode(), text_of(answer)
    assert 'href="/console/login/"' in answer.content.decode()
    assert "Traceback" not in text_of(answer)
    return who(browser) is None


# who gets in


def test_whom_the_issuer_knows_gets_in_under_a_new_account(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann", email="ann@example.org", email_verified=True)
    browser = Client()
    answer = log_in(browser, f"{START}?next=/console/workers/")
    assert answer.headers["Location"] == "/console/workers/"
    assert who(browser) == "ann"
    identity = Identity.objects.select_related("user").get()
    assert (identity.issuer, identity.subject, identity.user.email) == (issuer.url, "subject-1", "ann@example.org")
    assert not identity.user.has_usable_password()
    assert not Member.objects.filter(user=identity.user).exists(), "an account is no right"
    assert not identity.user.is_staff


def test_an_account_is_its_subject_whatever_its_name_becomes(oidc: Any, issuer: Issuer) -> None:
    """Bound to issuer and subject: a name that moves on at the issuer takes nobody's account along."""
    issuer.logs_in("subject-1", preferred_username="ann")
    log_in(Client())
    issuer.logs_in("subject-1", preferred_username="ann-married")
    browser = Client()
    log_in(browser)
    assert who(browser) == "ann"
    issuer.logs_in("subject-2", preferred_username="ann")
    thief = Client()
    assert is_refused(log_in(thief), "name_taken", thief)


def test_the_cookie_changes_and_the_log_in_says_by_what_and_ends_in_half_a_day(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    back = inner(go(browser))
    browser.cookies["sessionid"] = before = "a" * 32
    browser.get(back)
    assert browser.cookies["sessionid"].value != before
    page = text_of(browser.get("/console/account/"))
    assert "by OpenID Connect" in page
    row = Session.objects.get(user__isnull=False)
    assert 11.9 < (row.expires_at - row.seen_at).total_seconds() / 3600 <= 12
    assert "id_token" not in row.data


def test_what_was_begun_shortens_no_log_in_by_password(oidc: Any, people: dict[str, Person]) -> None:
    browser = Client()
    go(browser)
    browser.post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    row = Session.objects.get(user__isnull=False)
    assert (row.expires_at - row.seen_at).days >= 13


def test_what_the_id_token_lacks_is_asked_of_userinfo(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in()
    issuer.userinfo = {"sub": "subject-1", "preferred_username": "ann"}
    browser = Client()
    log_in(browser)
    assert who(browser) == "ann"
    assert "/userinfo" in issuer.asked


def test_a_key_that_the_issuer_changed_is_asked_for_anew(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    log_in(Client())
    issuer.key = RSAKey.generate_key(2048, {"kid": "second", "use": "sig"})
    browser = Client()
    log_in(browser)
    assert who(browser) == "ann"
    assert issuer.asked.count("/.well-known/openid-configuration") == 1
    assert issuer.asked.count("/keys") == 2


# what the answer must prove


def other_key(issuer: Issuer) -> Any:
    forged = RSAKey.generate_key(2048, {"kid": issuer.key.kid})
    return lambda claims: Issuer(key=forged).signed(claims)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonce": "of another log-in"},
        {"nonce": None},
        {"aud": "another client"},
        {"aud": None},
        {"aud": [CLIENT_ID, "another client"], "azp": "another client"},
        {"iss": "https://elsewhere.example"},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"exp": "soon"},
        {"iat": 99_999_999_999},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "s" * 256},
        {"sub": "a\0b"},
    ],
    ids=str,
)
def test_an_id_token_that_is_wrong_in_anything_lets_nobody_in(oidc: Any, issuer: Issuer, wrong: dict[str, Any]) -> None:
    issuer.logs_in(preferred_username="ann")
    issuer.spoil = lambda claims: {name: value for name, value in {**claims, **wrong}.items() if value is not None}
    browser = Client()
    assert is_refused(log_in(browser), "wrong", browser)
    assert not Identity.objects.exists()
    assert not get_user_model().objects.filter(username="ann").exists()


@pytest.mark.parametrize("how", ["another key", "the secret", "nothing", "rubbish"])
def test_a_signature_that_is_not_the_issuers_lets_nobody_in(oidc: Any, issuer: Issuer, how: str) -> None:
    signers = {
        "another key": other_key(issuer),
        "the secret": issuer.signed_with_the_secret,
        "nothing": issuer.not_signed,
        "rubbish": lambda _: "a.b.c",
    }
    issuer.logs_in(preferred_username="ann")
    issuer.sign = signers[how]
    browser = Client()
    assert is_refused(log_in(browser), "wrong", browser)
    assert not Identity.objects.exists()


def test_userinfo_about_somebody_else_lets_nobody_in(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in()
    issuer.userinfo = {"sub": "subject-2", "preferred_username": "root"}
    browser = Client()
    assert is_refused(log_in(browser), "wrong", browser)


def test_an_issuer_that_calls_itself_otherwise_is_not_the_one(oidc: Any, issuer: Issuer) -> None:
    issuer.metadata = {"issuer": "https://elsewhere.example"}
    browser = Client()
    answer = browser.get(START)
    assert answer.status_code == 503
    assert is_refused(answer, "unreachable", browser)


# whose answer it is


def test_an_answer_serves_once(oidc: Any, issuer: Issuer) -> None:
    """A state that was used is gone, also where the first use failed."""
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    back = inner(go(browser))
    assert browser.get(back).status_code == 302
    browser.post("/console/logout/")
    assert is_refused(browser.get(back), "expired", browser)
    issuer.spoil = lambda claims: {**claims, "nonce": "x"}
    back = inner(go(browser))
    assert is_refused(browser.get(back), "wrong", browser)
    assert is_refused(browser.get(back), "expired", browser)


def test_the_answer_of_another_browser_logs_nobody_in(oidc: Any, issuer: Issuer) -> None:
    """Log-in CSRF: whoever is led to an attacker's answer does not become the attacker."""
    issuer.logs_in(preferred_username="mallory")
    attacker, victim = Client(), Client()
    back = inner(go(attacker))
    assert is_refused(victim.get(back), "expired", victim)
    go(victim)
    assert is_refused(victim.get(back), "expired", victim)


def test_a_code_of_another_log_in_is_of_no_use_in_this_one(oidc: Any, issuer: Issuer) -> None:
    """PKCE: a code that was stolen needs the verifier of the browser that began."""
    issuer.logs_in(preferred_username="victim")
    stolen = parse_qs(urlsplit(go(Client())).query)["code"][0]
    attacker = Client()
    mine = parse_qs(urlsplit(go(attacker)).query)
    answer = attacker.get(DONE, {"code": stolen, "state": mine["state"][0]})
    assert is_refused(answer, "wrong", attacker)


@pytest.mark.parametrize("query", ["", "?code=x", "?state=x", "?code=x&state=x", "?error=access_denied", "?state=%00"])
def test_an_answer_that_nobody_asked_for_is_a_page(oidc: Any, query: str) -> None:
    browser = Client()
    assert is_refused(browser.get(f"{DONE}{query}"), "expired", browser)


def test_an_answer_without_a_code_is_a_page(oidc: Any, issuer: Issuer) -> None:
    browser = Client()
    state = parse_qs(urlsplit(go(browser)).query)["state"][0]
    assert is_refused(browser.get(DONE, {"state": state}), "wrong", browser)


def test_who_calls_it_off_there_is_told_so_here_without_the_issuers_words(oidc: Any, issuer: Issuer) -> None:
    issuer.refuses = "<script>alert(1)</script>"
    browser = Client()
    answer = log_in(browser)
    assert is_refused(answer, "refused", browser)
    assert "alert(1)" not in answer.content.decode()


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_log_in_leads_to_no_other_site(oidc: Any, issuer: Issuer, target: str) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    browser.get(START, {"next": target})
    back = at_issuer(browser.get(START, {"next": target}).headers["Location"])
    assert browser.get(inner(back)).headers["Location"] == "/console/"


def test_the_redirect_is_the_public_address_where_one_is_set(oidc: Any, issuer: Issuer, settings: Any) -> None:
    settings.RECOURSE_PUBLIC_URL = "https://console.example.org"
    way = Client().get(START).headers["Location"]
    assert parse_qs(urlsplit(way).query)["redirect_uri"] == [f"https://console.example.org{DONE}"]


def test_one_browser_keeps_few_log_ins_that_it_began(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    backs = [inner(go(browser)) for _ in range(8)]
    assert len([one for one in browser.cookies.values() if one.key.startswith("oidc_") and one.value]) == 5
    assert is_refused(browser.get(backs[0]), "expired", browser)
    assert browser.get(backs[-1]).status_code == 302


def test_of_who_only_begins_nothing_is_stored(oidc: Any, issuer: Issuer) -> None:
    """Whoever asks for the way a million times leaves no row: what was begun lies in an encrypted cookie for ten
    minutes."""
    browser = Client()
    way = browser.get(START).headers["Location"]
    assert (Session.objects.count(), UsedState.objects.count()) == (0, 0)
    (cookie,) = [one for one in browser.cookies.values() if one.key.startswith("oidc_")]
    assert (cookie["path"], cookie["samesite"], cookie["httponly"], cookie["max-age"]) == (START, "Lax", True, 600)
    for secret in parse_qs(urlsplit(way).query)["nonce"] + ["code_verifier"]:
        assert secret not in cookie.value
    at_issuer(way)
    assert "sessionid" not in browser.cookies


def test_a_copy_of_the_cookie_is_of_no_use_afterwards(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    browser, thief = Client(), Client()
    back = inner(go(browser))
    for name, one in browser.cookies.items():
        thief.cookies[name] = one.value
    assert browser.get(back).status_code == 302
    assert not [one for one in browser.cookies.values() if one.key.startswith("oidc_") and one.value]
    assert is_refused(thief.get(back), "expired", thief)


def test_a_log_in_that_was_begun_too_long_ago_is_none(oidc: Any, issuer: Issuer, clock: Any) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    back = inner(go(browser))
    clock.advance(601)
    assert is_refused(browser.get(back), "expired", browser)
    assert not UsedState.objects.exists()


def test_a_cookie_that_is_not_ours_or_not_of_this_state_proves_nothing(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    back = inner(go(browser))
    (cookie,) = [one for one in browser.cookies.values() if one.key.startswith("oidc_")]
    other = Client()
    other_back = inner(go(other))
    (others,) = [one for one in other.cookies.values() if one.key.startswith("oidc_")]
    browser.cookies[cookie.key] = others.value
    assert is_refused(browser.get(back), "expired", browser)
    browser.cookies[cookie.key] = "x" * 100
    assert is_refused(browser.get(back), "expired", browser)
    assert other.get(other_back).status_code == 302


def test_a_long_way_to_go_on_leads_to_the_runs(oidc: Any, issuer: Issuer) -> None:
    """A browser would drop a cookie that is too large."""
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    assert log_in(browser, f"{START}?next=/console/?search={'x' * 2_000}").headers["Location"] == "/console/"


# who does not get in


def test_whom_the_console_does_not_know_stays_out_where_no_accounts_are_made(oidc: Any, issuer: Issuer) -> None:
    oidc(makes_users=False)
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    assert is_refused(log_in(browser), "unknown", browser)
    assert not get_user_model().objects.exists()


def test_an_account_that_is_switched_off_stays_out(oidc: Any, issuer: Issuer, workspace: Workspace) -> None:
    issuer.logs_in(preferred_username="ann")
    log_in(Client())
    user = get_user_model().objects.get()
    Member.objects.create(user=user, workspace=workspace, role=Role.VIEWER)
    log_in(Client())
    assert AuditEvent.objects.get(action="session.log_in").data == {"user": "ann", "by": "oidc"}
    user.is_active = False
    user.save()
    browser = Client()
    assert is_refused(log_in(browser), "inactive", browser)
    assert list(AuditEvent.objects.filter(action="session.log_in", outcome="failed").values_list("actor", "data")) == [
        ("somebody", {"user": "ann", "by": "oidc", "failures": 1, "detail": "the account is switched off"})
    ], "F145: in the workspace of which it is a member"


@pytest.mark.parametrize("name", ["root", "ROOT", " root "])
def test_a_name_that_is_here_already_is_nobody_elses(oidc: Any, issuer: Issuer, name: str) -> None:
    """Whoever may choose their name at the issuer could otherwise choose whose account they get."""
    root = UserFactory(username="root", is_superuser=True, is_staff=True)
    issuer.logs_in(preferred_username=name)
    browser = Client()
    assert is_refused(log_in(browser), "name_taken", browser)
    assert not Identity.objects.filter(user=root).exists()


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({}, "unnamed"),
        ({"preferred_username": ""}, "unnamed"),
        ({"preferred_username": ["ann"]}, "unnamed"),
        ({"preferred_username": "ann or bob"}, "name_unusable"),
        ({"preferred_username": "a" * 151}, "name_unusable"),
        ({"preferred_username": "a\0b"}, "name_unusable"),
        ({"preferred_username": "\ud800"}, "name_unusable"),
    ],
)
def test_a_name_that_cannot_be_an_accounts_makes_none(oidc: Any, issuer: Issuer, claims: Any, why: str) -> None:
    issuer.logs_in()
    issuer.userinfo = {"sub": "subject-1", **claims}
    browser = Client()
    assert is_refused(log_in(browser), why, browser)
    assert not get_user_model().objects.exists()


@pytest.mark.parametrize(("verified", "gets_in"), [(True, True), (False, False), ("true", False), (None, False)])
def test_an_address_names_an_account_only_when_it_was_verified(
    oidc: Any, issuer: Issuer, verified: Any, gets_in: bool
) -> None:
    oidc(makes_users=True, name_claim="email")
    issuer.logs_in(email="ann@example.org", email_verified=verified)
    browser = Client()
    answer = log_in(browser)
    assert (who(browser) == "ann@example.org") is gets_in
    assert gets_in or is_refused(answer, "unverified", browser)


def test_an_issuer_that_does_not_answer_is_a_page_with_the_way_out(oidc: Any, settings: Any, issuer: Issuer) -> None:
    settings.RECOURSE_OIDC = Oidc("http://127.0.0.1:9/", CLIENT_ID)
    browser = Client()
    answer = browser.get(START)
    assert answer.status_code == 503
    assert is_refused(answer, "unreachable", browser)


# connecting an account that is here already


def test_an_account_is_connected_by_whoever_has_its_password(
    oidc: Any, issuer: Issuer, people: dict[str, Person]
) -> None:
    oidc(makes_users=False)
    issuer.logs_in(preferred_username="somebody")
    browser = Client()
    browser.post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    assert "Go to 127.0.0.1" in text_of(browser.post("/console/account/connect/", {"password": "secret"}))
    assert log_in(browser).headers["Location"] == "/console/account/"
    assert Identity.objects.get().user == people["viewer"].user
    (event,) = AuditEvent.objects.filter(action="user.save")
    assert (event.actor, event.data["change"]) == ("viewer-acme", f"connected with {issuer.url}")
    other = Client()
    log_in(other)
    assert who(other) == "viewer-acme"
    browser.post("/console/account/disconnect/")
    assert not Identity.objects.exists()
    other.post("/console/logout/")
    assert is_refused(log_in(other), "unknown", other)


def test_nothing_is_connected_without_the_password(oidc: Any, issuer: Issuer, people: dict[str, Person]) -> None:
    """Whoever can make a browser log in there as somebody else would otherwise get the account here."""
    issuer.logs_in(preferred_username="mallory")
    browser = Client()
    browser.post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    assert browser.get(START).headers["Location"] == "/console/", "who is logged in is not sent away"
    assert browser.post("/console/account/connect/", {"password": "wrong"}).status_code == 400
    assert browser.get(START).headers["Location"] == "/console/"
    assert not Identity.objects.exists()


def test_one_identity_is_one_account(oidc: Any, issuer: Issuer, people: dict[str, Person]) -> None:
    issuer.logs_in(preferred_username="ann")
    log_in(Client())
    browser = Client()
    browser.post("/console/login/", {"username": "viewer-acme", "password": "secret"})
    browser.post("/console/account/connect/", {"password": "secret"})
    answer = log_in(browser)
    assert answer.status_code == 409
    assert Identity.objects.get().user.username == "ann"


def test_who_has_no_password_stays_connected(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    log_in(browser)
    assert browser.post("/console/account/disconnect/").status_code == 400
    assert Identity.objects.exists()
    assert browser.get("/console/account/password/").status_code == 404


# roles


def test_groups_give_roles_and_take_them_where_the_configuration_names_the_workspace(
    oidc: Any, issuer: Issuer, workspace: Workspace, other_workspace: Workspace
) -> None:
    """The first that fits; at each log-in; with an audit event for each change. Elsewhere nothing is touched."""
    roles = (("leads", "acme", "release_manager"), ("ops", "acme", "operator"), ("ops", "no-such", "admin"))
    oidc(makes_users=True, role_claim="groups", roles=roles)
    issuer.logs_in(preferred_username="ann", groups=["ops", "leads", 7])
    log_in(Client())
    user = get_user_model().objects.get(username="ann")
    other_workspace.members.create(user=user, role="viewer")

    def held() -> dict[str, str]:
        return dict(Member.objects.filter(user=user).values_list("workspace__slug", "role"))

    assert held() == {"acme": "release_manager", "globex": "viewer"}
    issuer.userinfo = {"sub": "subject-1"}
    issuer.logs_in(groups="ops")
    log_in(Client())
    assert held() == {"acme": "operator", "globex": "viewer"}
    log_in(Client())
    for groups in ({"ops": 1}, [], None, 7):
        issuer.logs_in(groups=groups)
        log_in(Client())
        assert held() == {"globex": "viewer"}
    changes = AuditEvent.objects.filter(action__startswith="member.").order_by("at")
    told = changes.filter(workspace=workspace).values_list("action", "outcome", "actor")
    assert list(told) == [(f"member.{verb}", "allowed", "127.0.0.1") for verb in ("save", "save", "remove")]
    assert not changes.filter(workspace=other_workspace).exists()


def test_the_words_for_roles_are_the_models() -> None:
    assert tuple(Role.values) == oidc_settings.ROLES


# out, and off


def test_a_log_out_says_that_one_may_be_logged_in_there_still(oidc: Any, issuer: Issuer) -> None:
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    log_in(browser)
    answer = browser.post("/console/logout/")
    assert answer.headers["Location"] == "/console/login/?out=1"
    assert who(browser) is None
    assert "Log out there too" in text_of(browser.get("/console/login/?out=1"))
    way = urlsplit(browser.get("/console/login/oidc/out/").headers["Location"])
    assert f"{way.scheme}://{way.netloc}{way.path}" == f"{issuer.url}/logout"
    asked = parse_qs(way.query)
    assert asked["client_id"] == [CLIENT_ID]
    assert asked["post_logout_redirect_uri"] == ["http://testserver/console/login/"]


def test_the_log_in_offers_the_issuer_and_hides_the_password_where_it_is_off(
    oidc: Any, issuer: Issuer, settings: Any, people: dict[str, Person]
) -> None:
    page = Client().get("/console/login/?next=/console/workers/").content.decode()
    assert 'href="/console/login/oidc/?next=%2Fconsole%2Fworkers%2F"' in page
    assert 'name="password"' in page
    settings.RECOURSE_PASSWORD_LOGIN = False
    assert 'name="password"' not in Client().get("/console/login/").content.decode()
    given = {"username": "admin-acme", "password": "secret"}
    for address in ("/console/login/", "/admin/login/"):
        browser = Client()
        answer = browser.post(address, given)
        assert "switched off" in text_of(answer), address
        assert who(browser) is None
    issuer.logs_in(preferred_username="ann")
    browser = Client()
    log_in(browser)
    assert who(browser) == "ann"


@pytest.mark.parametrize("address", [START, DONE, "/console/login/oidc/out/"])
def test_where_it_is_off_its_addresses_are_not_found(settings: Any, address: str) -> None:
    assert settings.RECOURSE_OIDC is None
    assert Client().get(address).status_code == 404


def test_where_it_is_off_none_of_it_is_loaded(tmp_path: Path) -> None:
    """An idle console pays nothing for what it does not use."""
    # the HTTP client that it shares with the keyring of Vault may be there
    code = (
        "import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'config.settings'\n"
        "import django; django.setup()\n"
        "from django.urls import get_resolver; get_resolver().url_patterns\n"
        "import config.console_urls\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('authlib', 'joserfc')])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=BASE_DIR, env=clean_environment(tmp_path), capture_output=True, check=False
    )
    assert told.stdout.decode().strip() == "[]", told.stderr.decode()
