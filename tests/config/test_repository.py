"""What a fresh clone promises before anything runs."""

from __future__ import annotations

import re
import tomllib

import pytest

from config.environment import BASE_DIR, VARIABLES
from config.reference import PATH, page


def test_the_settings_page_is_what_the_code_says() -> None:
    assert PATH.read_text() == page(), "write it anew: python -m config.reference"
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
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
        (project["dependency-groups"]["dev"], "requirements-dev.lock"),
    ):
        locked = (BASE_DIR / lock).read_text()
        for requirement in group:
            name = re.match(r"[a-z0-9-]+", requirement).group()
            assert re.search(rf"^{name}(\[.*\])?==", locked, flags=re.MULTILINE), f"{name} is not in {lock}: make lock"
            if lock == "requirements.lock":
                assert f"| {name}" in reasons, f"docs/reference/dependencies.md does not say why {name}"


def test_the_sdk_asks_for_nothing_that_the_console_has_not_locked() -> None:
    sdk = tomllib.loads((BASE_DIR / "sdk" / "pyproject.toml").read_text())
    locked = (BASE_DIR / "requirements.lock").read_text()
    for requirement in sdk["project"]["dependencies"]:
        name = re.match(r"[a-z0-9-]+", requirement).group()
        assert f"\n{name}==" in locked, name
