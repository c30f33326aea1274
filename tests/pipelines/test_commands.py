"""`issue_key`, `issue_token`, `release_definition` (contract §1)."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from pipelines import keys
from pipelines.models import (
    ApiKey,
    Application,
    AuditEvent,
    Environment,
    Member,
    PersonalToken,
    Pipeline,
    Release,
    Workspace,
)
from tests.cast import Api, Person

pytestmark = pytest.mark.django_db
DEFINITION = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "h"}]}


def run(*arguments: str) -> str:
    """What the command prints on standard output."""
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def refused(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return caught.value


def ladder(slug: str) -> list[tuple[str, int, bool]]:
    rungs = Environment.objects.filter(workspace__slug=slug).order_by("rank")
    return list(rungs.values_list("slug", "rank", "protected"))


def test_a_key_comes_with_everything_that_is_missing() -> None:
    printed = run("issue_key", "--workspace", "acme", "--application", "billing")
    assert printed.endswith("\n")
    secret = printed.strip()
    assert secret.split() == [secret], "the key alone"
    holder = keys.find_key(secret)
    assert holder is not None
    assert (holder.application_name, holder.environment_slug, holder.scope) == ("billing", "development", "application")
    assert ladder("acme") == [("development", 1, False), ("staging", 2, False), ("production", 3, True)]
    assert Api({"X-API-Key": secret}).get("/v1/executions").status_code == 200


def test_only_its_digest_is_stored() -> None:
    secret = run("issue_key", "--workspace", "acme", "--application", "billing").strip()
    row = ApiKey.objects.values().get()
    assert secret not in str(row)
    assert secret.startswith(row["prefix"])
    assert secret not in str(list(AuditEvent.objects.values()))


def test_a_second_key_uses_what_is_there() -> None:
    for _ in range(2):
        run("issue_key", "--workspace", "acme", "--application", "billing", "--environment", "production")
    assert (Workspace.objects.count(), Application.objects.count(), ApiKey.objects.count()) == (1, 1, 2)
    assert set(ApiKey.objects.values_list("environment__slug", flat=True)) == {"production"}


def test_another_environment_is_put_on_top_unprotected() -> None:
    run("issue_key", "--workspace", "acme", "--application", "billing", "--environment", "demo")
    assert ladder("acme")[-1] == ("demo", 4, False)


def test_a_runtime_key_reads_nothing_here() -> None:
    secret = run("issue_key", "--workspace", "acme", "--application", "billing", "--scope", "runtime").strip()
    assert Api({"X-API-Key": secret}).get("/v1/executions").status_code == 403


@pytest.mark.parametrize(
    "arguments",
    [
        ["issue_key", "--workspace", "acme"],
        ["issue_key", "--workspace", "not a slug", "--application", "billing"],
        ["issue_key", "--workspace", "acme", "--application", " "],
        ["issue_key", "--workspace", "acme", "--application", "billing", "--scope", "everything"],
        ["issue_token", "--user", "dana", "--workspace", "acme", "--role", "king"],
        ["issue_token", "--user", "da na", "--workspace", "acme", "--role", "viewer"],
        ["release_definition", "nowhere.json", "--workspace", "acme", "--environment", "staging", "--by", "dana"],
    ],
)
def test_a_command_line_that_is_wrong_leaves_nothing_behind(arguments: list[str]) -> None:
    refused(*arguments)
    assert not Workspace.objects.exists()
    assert not get_user_model().objects.exists()


def test_a_token_makes_the_person_a_member_in_that_one_role() -> None:
    first = run("issue_token", "--user", "dana", "--workspace", "acme", "--role", "viewer").strip()
    second = run("issue_token", "--user", "dana", "--workspace", "acme", "--role", "operator").strip()
    assert first != second
    member = Member.objects.get()
    assert (member.user.get_username(), member.role) == ("dana", "operator")
    assert not member.user.has_usable_password()
    for secret in (first, second):
        found = keys.find_person(secret)
        assert found is not None
        assert found[3] == "operator", "the role is looked up, not kept in the token"
    assert first not in str(list(PersonalToken.objects.values()))
    channels = AuditEvent.objects.values_list("action", "channel").distinct()
    made = {("workspace.save", "command"), ("member.save", "command"), ("token.issue", "command")}
    assert set(channels) == made


def test_an_inactive_user_gets_no_token() -> None:
    get_user_model().objects.create_user("dana", is_active=False)
    error = refused("issue_token", "--user", "dana", "--workspace", "acme", "--role", "viewer")
    assert error.returncode == 2
    assert "not active" in str(error)
    assert not Workspace.objects.exists()


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "nightly.json"
    path.write_text(json.dumps(DEFINITION))
    return path


def release(path: Path, *more: str, by: str = "release_manager-acme") -> tuple[str, ...]:
    return ("release_definition", str(path), "--workspace", "acme", "--environment", "staging", "--by", by, *more)


def test_a_definition_is_registered_and_put_in_force(definition: Path, people: dict[str, Person]) -> None:
    printed = run(*release(definition, "--activate"))
    found = Release.objects.get()
    assert printed.split() == [str(found.id), "active", found.digest]
    assert (found.environment.slug, found.pipeline.slug, found.pipeline.name) == ("staging", "nightly", "Nightly")
    event = AuditEvent.objects.get(action="release.register")
    assert (event.actor, event.channel) == ("release_manager-acme", "command")
    assert run(*release(definition)).split()[0] == str(found.id), "again: the same release"


def test_toml_will_do(tmp_path: Path, people: dict[str, Person]) -> None:
    path = tmp_path / "nightly.toml"
    path.write_text('slug = "nightly"\nname = "Nightly"\n[[stages]]\nname = "a"\nhandler = "h"\n')
    assert run(*release(path)).split()[1] == "draft"


def test_who_may_not_release_is_refused(definition: Path, people: dict[str, Person]) -> None:
    """Model §5: exit code 2, and nothing is made."""
    for by in ("operator-acme", "nobody"):
        error = refused(*release(definition, by=by))
        assert error.returncode == 2
        assert by in str(error) or "needs one of" in str(error)
    assert not Pipeline.objects.exists()
    told = AuditEvent.objects.order_by("at").values_list("action", "outcome", "channel", "on_behalf_of")
    denied = ("release.register", "denied", "command")
    assert list(told) == [(*denied, ""), (*denied, "nobody")], "whoever has the shell said a name that is no member's"


def test_what_is_wrong_with_a_definition_is_said_line_by_line(tmp_path: Path, people: dict[str, Person]) -> None:
    path = tmp_path / "broken.json"
    stages = [{"name": "a", "handler": ""}, {"name": "b", "handler": "h", "effect_mode": "odd"}]
    path.write_text(json.dumps(DEFINITION | {"stages": stages}))
    error = refused(*release(path))
    assert error.returncode == 2
    assert [line.partition(":")[0] for line in str(error).splitlines()] == [
        "stages[0].handler",
        "stages[1].effect_mode",
    ]
    assert not Release.objects.exists()


@pytest.mark.parametrize("name", ["broken.json", "broken.toml"])
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(
    name: str, tmp_path: Path, people: dict[str, Person]
) -> None:
    path = tmp_path / name
    path.write_text("{")
    error = refused(*release(path))
    assert error.returncode == 2
    assert str(error).startswith(f"the file cannot be read as {path.suffix[1:].upper()}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize("days", ["0", "-1", "soon", "1.5"])
def test_a_number_of_days_that_removes_nothing_is_no_answer_to_a_person(days: str) -> None:
    error = refused("retention", "--days", days)
    assert "must be a whole number of at least 1" in str(error)


def test_an_unknown_workspace_is_not_made_by_a_release(definition: Path) -> None:
    error = refused("release_definition", str(definition), "--workspace", "acme", "--environment", "x", "--by", "dana")
    assert error.returncode == 2
    assert not Workspace.objects.exists()


def test_an_environment_of_a_release_is_made_on_top(definition: Path, people: dict[str, Person]) -> None:
    run("release_definition", str(definition), "--workspace", "acme", "--environment", "demo", "--by", "admin-acme")
    assert ladder("acme")[-1] == ("demo", 4, False)


@pytest.mark.parametrize("command", ["issue_key", "issue_token", "release_definition", "retention"])
def test_each_command_explains_itself(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command(command, "--help")
    assert ended.value.code == 0
    assert "--data DIR" in capsys.readouterr().out
