"""What the worker's command line refuses before it takes anything: in one line, with status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from recourse.worker.__main__ import main

PIPELINE = "async def run(ctx):\n    return {}\n"


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOURSE_API_KEY", "rk_none")
    monkeypatch.delenv("RECOURSE_CONNECTORS", raising=False)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1, "one line, and no traceback"
    return told


def test_what_a_file_imports_and_is_not_there_is_told_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wants_more.py"
    file.write_text(f"import nothing_like_that\n{PIPELINE}")
    told = refused(capsys, "--handlers", str(file))
    assert f"{file}: No module named 'nothing_like_that'" in told


@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot be read: No such file or directory"), ("crm = [", "is no TOML")]
)
def test_connectors_that_every_attempt_would_fail_by_are_told_at_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    said: str,
) -> None:
    """N12: a file of connectors that cannot be read is final for an attempt."""
    handlers, file = tmp_path / "quiet_one.py", tmp_path / "connectors.toml"
    handlers.write_text(PIPELINE)
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("RECOURSE_CONNECTORS", str(file))
    told = refused(capsys, "--handlers", str(handlers))
    assert "RECOURSE_CONNECTORS" in told
    assert said in told


def test_a_mistyped_option_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--concurency", "3"])
    assert ended.value.code == 2
    assert "there is no option --concurency; did you mean --concurrency?" in capsys.readouterr().err
