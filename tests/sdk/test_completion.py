"""Shell completion: the scripts are made from the parser, and bash is asked what it would complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recourse import cli

from tests.sdk.test_every_command import LEAVES

ASK = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
_shtab_recourse
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert cli.main(["completion", "bash"]) == 0
    path = tmp_path / "recourse.bash"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("recourse", "exec"), {"execution"}),
        (("recourse", "execution", "re"), {"resume", "rerun", "replay"}),
        (("recourse", "dead-letter", ""), {"list", "acknowledge", "redrive", "discard"}),
        (("recourse", "execution", "rerun", "--from"), {"--from-step-id"}),
        (("recourse", "backfill", "list", "--status", "comp"), {"completed", "completed_with_failures"}),
        (("recourse", "watch", "--no-"), {"--no-color"}),
        (("recourse", "completion", ""), {"bash", "zsh", "tcsh"}),
        (("recourse", "worker", "run", "--hand"), {"--handlers"}),
        (("recourse", "worker", "run", "--log-level", ""), {"debug", "info", "warning", "error"}),
        (("recourse", "worker", "run", "--js"), set()),
    ],
)
def test_bash_completes_commands_options_and_values(script: Path, words: tuple[str, ...], offered: set[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    asked = ASK.format(script=script, words=quoted)
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    found = {line.strip() for line in done.stdout.splitlines() if line.strip()}
    assert offered <= found
    if words[-1]:
        assert found == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_every_command_is_known_to_every_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    told = capsys.readouterr().out
    missing = [name for name in LEAVES if not all(word in told for word in name.split())]
    assert not missing
    assert sys.prefix not in told, "a script names no path of this machine"


def test_an_unknown_shell_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "bsh"])
    assert ended.value.code == 2
    assert "did you mean bash?" in capsys.readouterr().err


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install 'recourse[cli]'" in capsys.readouterr().err
