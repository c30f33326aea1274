"""Passwords cannot be guessed fast, and nobody is locked out by somebody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.backends import ModelBackend
from django.test import Client

from config.log_in_limit import PER_ADDRESS, PER_NAME, TOO_MANY, WINDOW_SECONDS
from config.models import FailedLogIn
from tests.cast import Person

pytestmark = pytest.mark.django_db

FORMS = ("/console/login/", "/admin/login/")
HERE, THERE = "192.0.2.1", "192.0.2.2"


def log_in(name: str, password: str, *, path: str = "/console/login/", address: str = HERE, **more: str) -> Any:
    return Client().post(path, {"username": name, "password": password}, REMOTE_ADDR=address, **more)


def got_in(answer: Any) -> bool:
    return answer.status_code == 302 and "sessionid" in answer.cookies


@pytest.fixture
def superuser(django_user_model: Any) -> Any:
    return django_user_model.objects.create_superuser("root", password="secret")


@pytest.mark.parametrize("path", FORMS)
def test_after_too_many_failures_even_the_right_password_waits(path: str, superuser: Any, clock: Any) -> None:
    """And it waits no longer than the window."""
    for _ in range(PER_NAME):
        assert TOO_MANY not in log_in("root", "wrong", path=path).content.decode()
    refused = log_in("root", "secret", path=path)
    assert not got_in(refused)
    assert TOO_MANY in refused.content.decode()
    clock.advance(WINDOW_SECONDS + 1)
    assert got_in(log_in("root", "secret", path=path))


def test_the_refusal_is_told_as_one_that_passes(people: dict[str, Person]) -> None:
    for _ in range(PER_NAME):
        assert log_in("viewer-acme", "wrong").status_code == 200
    refused = log_in("viewer-acme", "secret")
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) == WINDOW_SECONDS


def test_failures_on_one_form_count_on_the_other(superuser: Any) -> None:
    for number in range(PER_NAME):
        log_in("root", "wrong", path=FORMS[number % 2])
    assert [got_in(log_in("root", "secret", path=path)) for path in FORMS] == [False, False]


def test_above_the_limit_no_password_is_looked_at(superuser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing is what makes guessing dear; for the console too."""
    for _ in range(PER_NAME):
        log_in("root", "wrong")
    looked: list[Any] = []
    monkeypatch.setattr(ModelBackend, "authenticate", lambda *args, **_: looked.append(args))
    log_in("root", "secret")
    assert looked == []
    assert FailedLogIn.objects.count() == PER_NAME, "what was not tried does not make the wait longer"


def test_nobody_is_locked_out_from_elsewhere_or_under_another_name(people: dict[str, Person]) -> None:
    for _ in range(PER_NAME):
        log_in("viewer-acme", "wrong")
    assert got_in(log_in("viewer-acme", "secret", address=THERE))
    assert got_in(log_in("operator-acme", "secret"))


def test_one_address_cannot_try_one_password_on_everybody(people: dict[str, Person]) -> None:
    for number in range(PER_ADDRESS):
        log_in(f"name-{number}", "password1")
    assert log_in("viewer-acme", "secret").status_code == 429
    assert got_in(log_in("viewer-acme", "secret", address=THERE))


def test_who_got_in_begins_anew(people: dict[str, Person]) -> None:
    for _ in range(3):
        for _ in range(PER_NAME - 1):
            log_in("viewer-acme", "wrong")
        assert got_in(log_in("viewer-acme", "secret"))


def test_what_is_kept_of_a_failure_names_nobody_and_is_soon_gone(clock: Any) -> None:
    """A password typed into the field of the name is nowhere in the table."""
    log_in("my-secret-password", "")
    log_in("my-secret-password", "x")
    kept = FailedLogIn.objects.values_list()
    assert len(kept) == 1
    assert "my-secret-password" not in str([bytes(cell) if isinstance(cell, memoryview) else cell for cell in kept[0]])
    clock.advance(WINDOW_SECONDS + 1)
    log_in("other", "x")
    assert FailedLogIn.objects.count() == 1


@pytest.mark.parametrize(("trusted", "let_in"), [(True, True), (False, False)])
def test_only_a_trusted_proxy_says_where_a_request_comes_from(
    trusted: bool, let_in: bool, people: dict[str, Person], settings: Any
) -> None:
    """Else a header would make every try come from somewhere else."""
    settings.RECOURSE_TRUST_PROXY = trusted
    for _ in range(PER_NAME):
        log_in("viewer-acme", "wrong", HTTP_X_FORWARDED_FOR=f"1.1.1.1, {HERE}")
    assert got_in(log_in("viewer-acme", "secret", HTTP_X_FORWARDED_FOR=f"{HERE}, {THERE}")) is let_in
