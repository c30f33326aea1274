"""What a fresh clone promises before anything runs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib

import pytest

from config.environment import BASE_DIR, VARIABLES
from config.reference import PATH, page


def test_the_settings_page_is_what_the_code_says() -> None:
    assert PATH.read_text() == page(), "write it anew: python -m config.reference"
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-s3.lock", "requirements-dev.lock"])
def test_lock_files_pin_by_hash_and_name_no_place(name: str) -> None:
    text = (BASE_DIR / name).read_text()
    pinned = re.findall(r"^[a-z0-9.-]+(?:\[[a-z0-9,-]+\])?==\S+", text, flags=re.MULTILINE)
    requirements = re.split(r"\n(?=[a-z])", text)[1:]
    assert len(pinned) == len(requirements) > 20
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    for place in ("http:", "https:", "file:", "--index-url", "--find-links", " @ ", "/work/", "/home/", "/tmp/"):
        assert place not in text


def test_every_package_that_is_asked_for_has_its_reason_and_is_locked() -> None:
    project = tomllib.loads((BASE_DIR / "pyproject.toml").read_text())
    reasons = (BASE_DIR / "docs" / "reference" / "dependencies.md").read_text()
    for group, lock in (
        (project["project"]["dependencies"], "requirements.lock"),
        (project["project"]["optional-dependencies"]["s3"], "requirements-s3.lock"),
        (project["dependency-groups"]["dev"], "requirements-dev.lock"),
    ):
        locked = (BASE_DIR / lock).read_text()
        for requirement in group:
            name = re.match(r"[a-z0-9-]+", requirement).group()
            assert re.search(rf"^{name}(\[.*\])?==", locked, flags=re.MULTILINE), f"{name} is not in {lock}: make lock"
            if lock == "requirements.lock":
                assert f"| {name}" in reasons, f"docs/reference/dependencies.md does not say why {name}"


def test_every_import_of_the_running_console_comes_from_a_locked_package() -> None:
    """The extra's packages are imported by the one module that is loaded only where the extra is wanted."""
    runtime, with_s3 = (_locked_in(lock) for lock in ("requirements.lock", "requirements-s3.lock"))
    providers = importlib.metadata.packages_distributions()
    missing = set()
    for folder in ("config", "pipelines", "approvals", "recovery", "samples", "sdk/recourse"):
        for file in (BASE_DIR / folder).rglob("*.py"):
            locked = with_s3 if file.name == "artifact_bucket.py" else runtime
            for name in _imported(ast.parse(file.read_text())):
                if name in providers and name not in OUR_OWN and not _from(locked, providers[name]):
                    missing.add(f"{name} in {file.relative_to(BASE_DIR)}")
    assert not missing


OUR_OWN = {"config", "pipelines", "approvals", "recovery", "samples", "recourse", "tests", "bench"}


def _imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _locked_in(lock: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+)==", (BASE_DIR / lock).read_text(), flags=re.MULTILINE))


def _from(locked: set[str], distributions: list[str]) -> bool:
    return any(re.sub(r"[-_.]+", "-", name).lower() in locked for name in distributions)


def test_the_sdk_asks_for_nothing_that_the_console_has_not_locked() -> None:
    sdk = tomllib.loads((BASE_DIR / "sdk" / "pyproject.toml").read_text())
    locked = (BASE_DIR / "requirements.lock").read_text()
    for requirement in sdk["project"]["dependencies"]:
        name = re.match(r"[a-z0-9-]+", requirement).group()
        assert f"\n{name}==" in locked, name
