from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.core import checks
from django.db import connection

from config.checks import judge, server_is_supported
from config.environment import BY_NAME, OFF, ON, VARIABLES, Environment
from tests.config.console_process import BASE_DIR, clean_environment

SOUND = {"SECRET_KEY": "s" * 50, "RECOURSE_ENCRYPTION_KEY": Fernet.generate_key().decode()}
SOUND_IN_PRODUCTION = SOUND | {"RECOURSE_ENV": "production", "RECOURSE_ALLOWED_HOSTS": "console.example.org"}


def found(**values: str) -> dict[str, str]:
    """What is wrong with these variables: id → sentence."""
    return {str(message.id): message.msg for message in judge(Environment.from_os(SOUND | values))}


def test_the_defaults_are_sound_in_development_and_in_production() -> None:
    assert found() == {}
    assert found(**SOUND_IN_PRODUCTION) == {}


@pytest.mark.parametrize(
    ("lease", "renew", "sound"), [("60", "20", True), ("60", "21", False), ("15", "5", True), ("15", "6", False)]
)
def test_renewing_less_often_than_three_times_a_lease_is_refused(lease: str, renew: str, sound: bool) -> None:
    """F11: an interval close to the lease gives live work away at the first delay."""
    wrong = found(RECOURSE_LEASE_SECONDS=lease, RECOURSE_RENEW_SECONDS=renew)
    assert ("recourse.E003" in wrong) is not sound


@pytest.mark.parametrize("lease", ["3", "10", "60", "100", "3600"])
def test_the_interval_that_is_left_out_suits_every_lease(lease: str) -> None:
    """F11."""
    assert found(RECOURSE_LEASE_SECONDS=lease) == {}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "RECOURSE_LEASE_SECONDS",
            "soon",
            "RECOURSE_LEASE_SECONDS is 'soon'; it must be a whole number from 3 to 3600.",
        ),
        ("RECOURSE_LEASE_SECONDS", "2", "RECOURSE_LEASE_SECONDS is 2; it must be a whole number from 3 to 3600."),
        ("RECOURSE_LEASE_SECONDS", "3601", "RECOURSE_LEASE_SECONDS is 3601; it must be a whole number from 3 to 3600."),
        ("RECOURSE_WEB_PROCESSES", "1.5", "RECOURSE_WEB_PROCESSES is '1.5'; it must be a whole number from 1 to 64."),
        ("RECOURSE_ENV", "prod", "RECOURSE_ENV is 'prod'; it must be one of: development, production."),
        (
            "RECOURSE_DEBUG",
            "maybe",
            "RECOURSE_DEBUG is 'maybe'; it must be one of: 1, true, yes, on, 0, false, no, off.",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_limits(name: str, value: str, sentence: str) -> None:
    assert found(**{name: value}) == {"recourse.E001": sentence}


@pytest.mark.parametrize(
    "url", ["mysql://root@localhost/app", "sqlite:///app.db", "postgres://h:port/db", "postgres://host", "nonsense"]
)
def test_only_a_postgresql_address_is_taken(url: str) -> None:
    wrong = found(DATABASE_URL=url)
    assert list(wrong) == ["recourse.E001"]
    assert "DATABASE_URL" in wrong["recourse.E001"]


def test_a_mistyped_variable_is_refused_with_the_name_that_was_meant() -> None:
    sentence = "RECOURSE_LEASE_SECOND is set, but there is no such setting. Did you mean RECOURSE_LEASE_SECONDS?"
    assert found(RECOURSE_LEASE_SECOND="30") == {"recourse.E002": sentence}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        *[
            ("RECOURSE_PUBLIC_URL", value, "RECOURSE_PUBLIC_URL is not an address like https://console.example.org.")
            for value in (
                "console.example.org",
                "ftp://x.example",
                "https://",
                "https://me@x.example",
                "https://x/?a=b",
            )
        ],
        *[
            (
                "RECOURSE_NOTIFY_ALLOW",
                f"hooks.example,{value}",
                f"RECOURSE_NOTIFY_ALLOW holds {value!r}; it must be a host name, an address or a network.",
            )
            for value in ("10.0.0.1/8", "10.0.0", "https://hooks.example", "-a.example", "*.example", "::1/129")
        ],
    ],
)
def test_where_people_and_messages_go_must_be_an_address(name: str, value: str, sentence: str) -> None:
    assert found(**{name: value}) == {"recourse.E001": sentence}


@pytest.mark.parametrize(
    "url",
    ["mail.example", "http://u:hunter2@h", "smtp://", "smtp://u:hunter2@h:99999", "smtp://h?x=1", "smtp://h?tls=2"],
)
def test_a_mail_server_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    wrong = found(RECOURSE_EMAIL_URL=url, RECOURSE_EMAIL_FROM="recourse@console.example")
    assert wrong == {
        "recourse.E001": "RECOURSE_EMAIL_URL cannot be read; it must look like smtp://user:password@host:587?tls=1."
    }


@pytest.mark.parametrize("sender", ["", "recourse", "a@b@c", "x <a@b", "a@b.example\r\nBcc: c@d.example"])
def test_a_mail_server_needs_an_address_to_send_from(sender: str) -> None:
    wrong = found(RECOURSE_EMAIL_URL="smtp://mail.example", RECOURSE_EMAIL_FROM=sender)
    assert list(wrong) == ["recourse.E001"]
    assert "RECOURSE_EMAIL_FROM" in wrong["recourse.E001"]


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "ssl"),
    [
        ("smtp://mail.example", "mail.example", 25, False, False),
        ("smtp://mail.example?tls=1", "mail.example", 587, True, False),
        ("smtp://mail.example:2525?tls=0", "mail.example", 2525, False, False),
        ("smtps://mail.example", "mail.example", 465, False, True),
        ("smtps://[::1]:4650", "::1", 4650, False, True),
    ],
)
def test_the_address_of_a_mail_server_says_how_it_is_spoken_to(
    url: str, host: str, port: int, tls: bool, ssl: bool
) -> None:
    sender = "Recourse <recourse@console.example>"
    read = Environment.from_os(SOUND | {"RECOURSE_EMAIL_URL": url, "RECOURSE_EMAIL_FROM": sender})
    assert not read.problems
    told = {"host": host, "port": port, "tls": tls, "ssl": ssl, "sender": sender, "user": "", "password": ""}
    assert read.email == told
    named = Environment.from_os(
        SOUND | {"RECOURSE_EMAIL_URL": "smtp://a%40b:p%2Fw@h.example", "RECOURSE_EMAIL_FROM": "a@b.example"}
    )
    assert (named.email["user"], named.email["password"]) == ("a@b", "p/w")


def test_what_webhooks_may_reach_is_read_as_hosts_and_networks() -> None:
    read = Environment.from_os(SOUND | {"RECOURSE_NOTIFY_ALLOW": " Hooks.Example ,10.0.0.0/8,127.0.0.1,,::1"})
    assert (read.notify_allow, read.problems) == (["hooks.example", "10.0.0.0/8", "127.0.0.1/32", "::1/128"], ())
    assert Environment.from_os(SOUND | {"RECOURSE_PUBLIC_URL": "https://x.example/"}).public_url == "https://x.example"


def test_variables_of_other_programs_are_none_of_our_business() -> None:
    assert found(RECOURSEFUL="1", PATH="/bin", RECOURSE_URL="http://localhost:8000", RECOURSE_API_KEY="k") == {}


@pytest.mark.parametrize(
    ("waiting", "threads", "sound"), [("8", "16", True), ("15", "16", True), ("16", "16", False), ("20", "4", False)]
)
def test_waiting_pulls_always_leave_a_thread_free(waiting: str, threads: str, sound: bool) -> None:
    wrong = found(RECOURSE_WAITING_PULLS=waiting, RECOURSE_WEB_THREADS=threads)
    assert ("recourse.E004" in wrong) is not sound


@pytest.mark.parametrize(
    ("url", "sound"),
    [
        ("memory://", False),
        ("file:///tmp", False),
        ("redis://localhost/0", True),
        ("amqps://broker.example.org//", True),
        ("filesystem://", True),
    ],
)
def test_a_broker_that_loses_or_hides_messages_is_refused(url: str, sound: bool) -> None:
    assert ("recourse.E005" in found(CELERY_BROKER_URL=url)) is not sound


def test_the_file_system_broker_is_refused_where_several_hosts_are_likely() -> None:
    several = SOUND_IN_PRODUCTION | {"DATABASE_URL": "postgres://db.example.org/recourse"}
    assert list(found(**several)) == ["recourse.E005"]
    assert found(**several, CELERY_BROKER_URL="redis://redis.example.org") == {}


def test_an_encryption_key_of_the_wrong_form_is_refused() -> None:
    assert list(found(RECOURSE_ENCRYPTION_KEY="short")) == ["recourse.E009"]


VAULT = {
    "RECOURSE_KEYRING": "vault",
    "RECOURSE_VAULT_ADDR": "https://vault.example.org:8200",
    "RECOURSE_VAULT_TOKEN_FILE": "/run/vault/token",
}


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ({}, []),
        ({"RECOURSE_VAULT_ADDR": "http://127.0.0.1:8200"}, []),
        ({"RECOURSE_VAULT_ADDR": ""}, ["E013"]),
        ({"RECOURSE_VAULT_ADDR": "vault.example.org:8200"}, ["E013"]),
        ({"RECOURSE_VAULT_MOUNT": "/"}, ["E013"]),
        ({"RECOURSE_KEYRING": "local"}, ["E013"]),
        ({"RECOURSE_VAULT_TOKEN_FILE": ""}, ["E014"]),
        ({"RECOURSE_VAULT_TOKEN": "hvs.token"}, ["E014"]),
        ({"RECOURSE_VAULT_CA_FILE": "nowhere.pem"}, ["E015"]),
        ({"RECOURSE_KEYRING": "hsm"}, ["E001", "E013"]),
        ({"RECOURSE_VAULT_TIMEOUT_MS": "0"}, ["E001"]),
    ],
)
def test_a_keyring_in_vault_needs_an_address_and_one_token(values: dict[str, str], numbers: list[str]) -> None:
    wrong = found(**VAULT | values)
    assert list(wrong) == [f"recourse.{number}" for number in numbers]
    assert "hvs.token" not in str(wrong)


def test_in_production_vault_is_reached_by_tls_only() -> None:
    assert found(**SOUND_IN_PRODUCTION | VAULT) == {}
    plain = VAULT | {"RECOURSE_VAULT_ADDR": "http://vault.example.org:8200"}
    assert list(found(**SOUND_IN_PRODUCTION | plain)) == ["recourse.E013"]


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("SECRET_KEY", "short", "E010"),
        ("SECRET_KEY", "django-insecure-" + "x" * 50, "E010"),
        ("RECOURSE_DEBUG", "1", "E011"),
        ("RECOURSE_ALLOWED_HOSTS", "*", "E012"),
        ("RECOURSE_ALLOWED_HOSTS", "", "E012"),
    ],
)
def test_what_is_handy_in_development_is_refused_in_production(name: str, value: str, number: str) -> None:
    assert found(**{name: value}) == {}
    assert list(found(**SOUND_IN_PRODUCTION | {name: value})) == [f"recourse.{number}"]


@pytest.mark.django_db
def test_the_server_of_the_tests_is_supported_and_an_older_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_is_supported(databases=["default"]) == []
    connection.ensure_connection()
    monkeypatch.setattr("config.checks.OLDEST_SERVER", connection.connection.info.server_version + 1)
    assert [message.id for message in server_is_supported(databases=["default"])] == ["recourse.E008"]


def test_no_database_is_asked_unless_the_command_may_use_one() -> None:
    assert server_is_supported(databases=None) == []


def test_the_web_application_does_not_load_with_values_that_cannot_be_used(tmp_path: Path) -> None:
    environment = clean_environment(tmp_path) | {"RECOURSE_LEASE_SECONDS": "soon"}
    command = [sys.executable, "-c", "import config.wsgi"]
    result = subprocess.run(command, cwd=BASE_DIR, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "ImproperlyConfigured: RECOURSE_LEASE_SECONDS is 'soon'" in result.stderr


def test_the_checks_are_registered() -> None:
    names = {check.__name__ for check in checks.registry.registry.get_checks(include_deployment_checks=False)}
    assert {"environment_is_usable", "server_is_supported"} <= names


OIDC = {"RECOURSE_OIDC_ISSUER": "https://login.example.org/realms/main", "RECOURSE_OIDC_CLIENT_ID": "recourse"}


def test_an_issuer_with_a_client_is_enough_also_where_passwords_are_off() -> None:
    assert found(**OIDC) == {}
    assert found(**OIDC, RECOURSE_PASSWORD_LOGIN="0", RECOURSE_OIDC_CLIENT_SECRET="s") == {}
    environment = Environment.from_os(SOUND | OIDC | {"RECOURSE_OIDC_CLIENT_SECRET": "very secret"})
    assert environment.oidc is not None
    assert "very secret" not in repr(environment.oidc), "no debug page shows it"


@pytest.mark.parametrize(
    ("values", "number", "part"),
    [
        ({"RECOURSE_PASSWORD_LOGIN": "0"}, "E016", "nobody could log in"),
        ({"RECOURSE_PASSWORD_LOGIN": "False"}, "E016", "nobody could log in"),
        (
            {"RECOURSE_PASSWORD_LOGIN": "never"},
            "E001",
            "RECOURSE_PASSWORD_LOGIN is 'never'; it must be one of: 1, true",
        ),
        ({"RECOURSE_OIDC_CLIENT_ID": "recourse"}, "E001", "RECOURSE_OIDC_ISSUER is empty"),
        ({**OIDC, "RECOURSE_OIDC_ISSUER": "login.example.org"}, "E017", "is not an address"),
        ({**OIDC, "RECOURSE_OIDC_ISSUER": "https://login.example.org/?a=b"}, "E017", "is not an address"),
        ({**OIDC, "RECOURSE_OIDC_CLIENT_ID": ""}, "E018", "RECOURSE_OIDC_CLIENT_ID is empty"),
        ({**OIDC, "RECOURSE_OIDC_SCOPES": "profile"}, "E018", "lacks openid"),
        ({**OIDC, "RECOURSE_OIDC_MAKE_USERS": "2"}, "E001", "RECOURSE_OIDC_MAKE_USERS is '2'; it must be one of"),
        ({**OIDC, "RECOURSE_OIDC_ROLE_CLAIM": "groups"}, "E018", "need each other"),
        ({**OIDC, "RECOURSE_OIDC_ROLES": "ops=acme:operator"}, "E018", "need each other"),
        ({**OIDC, "RECOURSE_OIDC_ROLE_CLAIM": "groups", "RECOURSE_OIDC_ROLES": "ops=acme:king"}, "E001", "'ops=acme:k"),
        ({**OIDC, "RECOURSE_OIDC_CLIENT_SECRET_FILE": "/nowhere/secret"}, "E001", "names no file"),
        (
            {**SOUND_IN_PRODUCTION, **OIDC, "RECOURSE_OIDC_ISSUER": "http://login.example.org"},
            "E017",
            "begins with http",
        ),
    ],
)
def test_what_would_let_in_nobody_or_anybody_is_refused(values: dict[str, str], number: str, part: str) -> None:
    wrong = found(**values)
    assert part in wrong[f"recourse.{number}"]


def test_the_clients_secret_may_lie_in_a_file_and_not_in_two_places(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("of a file\n")
    values = SOUND | OIDC | {"RECOURSE_OIDC_CLIENT_SECRET_FILE": str(file)}
    environment = Environment.from_os(values)
    assert environment.oidc is not None
    assert environment.oidc.client_secret == "of a file"
    assert "both set" in str(found(**values, RECOURSE_OIDC_CLIENT_SECRET="another"))


SWITCHES = sorted(variable.name for variable in VARIABLES if variable.switch)


@pytest.mark.parametrize("name", [name for name in SWITCHES if BY_NAME[name].group == "console"])
def test_every_switch_takes_the_same_words_in_any_case(name: str) -> None:
    """RECOURSE_PASSWORD_LOGIN=false switches passwords off, as whoever writes it means."""

    def read(word: str) -> bool:
        found = Environment.from_os({**SOUND, **OIDC, name: word})
        assert found.problems == (), word
        if name == "RECOURSE_OIDC_MAKE_USERS":
            assert found.oidc is not None
            return found.oidc.makes_users
        return bool(getattr(found, name.removeprefix("RECOURSE_").lower()))

    assert [read(word) for word in ("1", "true", "True", "YES", "on", " on ")] == [True] * 6
    assert [read(word) for word in ("0", "false", "FALSE", "No", "off")] == [False] * 5
    assert read("") is (BY_NAME[name].default == "1")


def test_whatever_is_on_or_off_is_a_switch() -> None:
    assert not [variable.name for variable in VARIABLES if set(variable.choices) & {*ON, *OFF}]
    assert len(SWITCHES) == 5
