"""What the documents name is there: links, files, modules, commands, settings. No file names a place of one machine."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import get_commands
from recourse import commands

from config.environment import BASE_DIR, BY_NAME

KNOWN = {*BY_NAME, *commands.ABOUT, commands.ERROR_MARK.strip()}  # settings, and what commands are told or say
FENCE = re.compile(r"^(```+).*?^\1$", flags=re.MULTILINE | re.DOTALL)
SUFFIXES = "py|md|html|css|js|json|toml|lock|txt"
NO_MODULES = {"recourse.clock_shift", "recourse.notices"}  # a setting of the database, a queue
FOLDERS = "approvals|bench|config|docs|pipelines|recovery|samples|sdk|static|templates|tests"


def tracked_files() -> list[Path]:
    """All files of the project: those that git knows, and new ones that it would not ignore."""
    command = ["git", "-C", str(BASE_DIR), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git working copy")
    paths = (BASE_DIR / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def documents() -> list[Path]:
    found = [BASE_DIR / "README.md", *BASE_DIR.glob("docs/**/*.md"), *BASE_DIR.glob("bench/**/*.md")]
    return sorted([*found, *BASE_DIR.glob("sdk/**/*.md"), *BASE_DIR.glob("samples/**/*.md")])


@pytest.fixture(params=documents(), ids=lambda path: str(path.relative_to(BASE_DIR)))
def document(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    prose = FENCE.sub("", document.read_text())
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        page = (document.parent / path) if path else document
        if not page.exists() or (anchor and anchor not in anchors(page)):
            dead.append(target)
    assert not dead


def test_every_module_of_approvals_has_its_home_on_the_map() -> None:
    told = (BASE_DIR / "docs" / "explain" / "where-things-live.md").read_text()
    parts = {path.name: path.parts for path in (BASE_DIR / "approvals").rglob("*.py")}
    code = {name for name, folders in parts.items() if not {"migrations", "models"} & set(folders)}
    assert not code - {"__init__.py", "apps.py"} - set(re.findall(r"\w+\.py", told))


def test_every_decision_bears_its_number_and_stands_in_their_list() -> None:
    folder = BASE_DIR / "docs" / "adr"
    listed = (folder / "README.md").read_text().splitlines()
    for decision in sorted(folder.glob("0*.md")):
        number, title = decision.name[:4], decision.read_text().splitlines()[0]
        assert title.startswith(f"# {number}: ")
        assert f"- [{number}]({decision.name}) {title.removeprefix(f'# {number}: ')}" in listed


def anchors(page: Path) -> set[str]:
    """The fragments under which a page's headings can be reached."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_and_module_that_a_document_names_exists(document: Path) -> None:
    """A file without its folder is looked for everywhere, unless the page tells the reader to make it."""
    text = document.read_text()
    names = {path.name for path in tracked_files()}
    missing = [name for name in files_named(text) if not there(name, names)]
    missing += [name for name in modules_named(text) if not importable(name)]
    assert not missing


def files_named(text: str) -> Iterator[str]:
    """Paths in commands and in code: `pipelines/moves.py`, `tests/pipelines/`, `jobs.py`."""
    own = set(re.findall(r"^`([\w.]+)`[^\n]*:$", text, flags=re.MULTILINE))
    yield from re.findall(rf"(?<![\w/.@-])(?:{FOLDERS})/[\w./-]*\w/?", text)
    for code in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(rf"[\w./-]+\.(?:{SUFFIXES})", code) and code not in own:
            yield code


def there(name: str, names: set[str]) -> bool:
    if "/" not in name:
        return name in names
    # A page about one app may leave its folder out: `models/history.py`.
    return (BASE_DIR / name).exists() or any(BASE_DIR.glob(f"*/{name}"))


def modules_named(text: str) -> Iterator[str]:
    packages = "approvals|bench|config|pipelines|recourse|recovery|samples"
    yield from re.findall(rf"python -m ((?:{packages}|tests)[\w.]*)", text)
    yield from set(re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text)) - NO_MODULES
    for module, names in re.findall(rf"^from ((?:{packages})[\w.]*) import ([\w, ]+)$", text, flags=re.MULTILINE):
        yield from (f"{module}.{name}" for name in names.split(", "))


def importable(name: str) -> bool:
    """Whether `name` is a module, or something that a module holds."""
    holder, _, attribute = name.rpartition(".")
    if not holder:
        return importlib.util.find_spec(name) is not None
    if not importable(holder):
        return False
    module = importlib.import_module(holder)
    return hasattr(module, attribute) or (hasattr(module, "__path__") and importlib.util.find_spec(name) is not None)


def test_every_command_and_setting_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    targets = set(re.findall(r"^([a-z]+):", (BASE_DIR / "Makefile").read_text(), flags=re.MULTILINE))
    missing = {f"make {name}" for name in re.findall(r"(?:`|^ *)make ([a-z]+)(?=`|$| ARGS)", text, flags=re.MULTILINE)}
    missing -= {f"make {target}" for target in targets}
    missing |= set(re.findall(r"manage\.py ([a-z_]+)", text)) - set(get_commands())
    missing |= {name for name in re.findall(r"\bRECOURSE_[A-Z_]+\b", text) if name not in KNOWN}
    assert not missing


def test_no_file_names_a_place_of_one_machine_or_a_package_index() -> None:
    """A clone works wherever it lies, and gets its packages from wherever its machine is told to."""
    homes = [rf"(?<![\w.*~-])/{folder}/[a-z]" for folder in ("work", "home", "root", "opt", "Users", "mnt")]
    indexes = [re.escape(".".join(parts)) for parts in PACKAGE_INDEXES]
    forbidden = re.compile("|".join([*homes, *indexes]), flags=re.IGNORECASE)
    found = [
        f"{path.relative_to(BASE_DIR)}: {match.group()}"
        for path in tracked_files()
        for match in forbidden.finditer(path.read_text(errors="replace"))
    ]
    assert not found


# In pieces, for this file is read too.
PACKAGE_INDEXES = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("jsdelivr", "net"),
    ("unpkg", "com"),
    ("cdnjs", "com"),
    ("docker", "io"),
    ("golang", "org"),
]
