"""Commands without Python: the worker's options and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from recourse import Command, ConfigurationError, Registry
from recourse.command_files import register

GOOD = """
[commands.Shrink]
run = ["convert", "-", "-resize", "50%"]
memory_bytes = 536870912
processes = 20
env = { QUALITY = "80" }
pass_env = ["REGION"]
pause_seconds = 30

[commands."two words"]
run = ["true"]
"""


def registered(tmp_path: Path, options: list[str], text: str | None = None) -> Registry:
    registry = Registry()
    files = []
    if text is not None:
        (tmp_path / "commands.toml").write_text(text)
        files = [str(tmp_path / "commands.toml")]
    register(registry, options, files, None)
    return registry


def test_options_and_a_file_register_their_handlers(tmp_path: Path) -> None:
    registry = registered(tmp_path, ["Count=wc -l 'my file'"], GOOD)
    assert registry.names == ["Count", "Shrink", "two words"]
    count, shrink = (registry.find(name).function for name in ("Count", "Shrink"))
    assert isinstance(count, Command)
    assert isinstance(shrink, Command)
    assert count.args == ["wc", "-l", "my file"]
    assert shrink.args == ["convert", "-", "-resize", "50%"]
    assert (shrink.limits.memory_bytes, shrink.limits.processes, shrink.pause_seconds) == (536870912, 20, 30)


@pytest.mark.parametrize("option", ["Count", "Count=", "=wc", "Count=wc 'open"])
def test_an_option_that_is_none_is_refused_with_what_it_should_be(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigurationError, match="--command"):
        registered(tmp_path, [option])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "tables"),
        ("[commands]\n", "tables"),
        ("other = 1\n[commands.A]\nrun = ['a']", "tables"),
        ("[commands.A]\n", "commands.A: it needs run"),
        ("[commands.A]\nrun = 'a b'", "commands.A: it needs run"),
        ("[commands.A]\nrun = ['a', 1]", "commands.A: .*text"),
        ("[commands.A]\nrun = ['a']\nmemory = 1", "commands.A: memory is none of"),
        ("[commands.A]\nrun = ['a']\nprocesses = 0", "commands.A: processes"),
        ("[commands.A]\nrun = ['a']\nenv = 'x'", "commands.A: env"),
        ("[commands.A]\nrun = ['a']\npass_env = ['RECOURSE_API_KEY']", "never passed on"),
        ("[commands", "commands.toml"),
    ],
)
def test_a_file_that_is_wrong_is_refused_at_the_place(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        registered(tmp_path, [], text)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        register(Registry(), [], ["/no/such/file"], None)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        registered(tmp_path, ["Count=wc", "Count=cat"])
    with pytest.raises(ConfigurationError, match="already"):
        registered(tmp_path, ["Shrink=cat"], GOOD)
