"""What a type checker tells the authors of pipelines: nothing where all is well, and where what they wrote is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
SDK = HERE.parent.parent / "sdk"
HEAD = "from recourse.authoring import Context, Retries, pipeline, stage\n"


@pytest.fixture
def mypy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the settings of somebody who is strict, and knows nothing of this repository."""
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\ncache_dir = {tmp_path / 'cache'}\n")
    monkeypatch.setenv("MYPYPATH", str(SDK))
    return tmp_path


def told_of(mypy: Path, file: Path) -> list[str]:
    words = [str(file), "--config-file", str(mypy / "mypy.ini"), "--python-executable", sys.executable]
    out, err, _ = api.run(words)
    assert not err, err
    return [line for line in out.splitlines() if str(file.name) in line or "error" in line]


def test_a_pipeline_is_typed_from_end_to_end(mypy: Path) -> None:
    """N14–N18: context, parameters, lines, effects, adapters, store and child runs, under `mypy --strict`."""
    assert told_of(mypy, HERE / "authored_example.py") == []


def test_what_is_wrong_is_found_before_anything_runs(mypy: Path) -> None:
    file = mypy / "wrong.py"
    lines = [
        "@stage\ndef plain(ctx: Context) -> int: return 1",
        "@stage(effects='some')\nasync def a(ctx: Context) -> None: ...",
        "@stage(needs=[1])\nasync def b(ctx: Context) -> None: ...",
        "@stage(retries=Retries(every=1))\nasync def c(ctx: Context) -> None: ...",
        "@stage\nasync def d(ctx: Context) -> None: ctx.logger.info()",
        "@stage\nasync def e(ctx: Context) -> None: await ctx.effect('mail')",
        "pipeline('x', stages=[print])",
    ]
    file.write_text(HEAD + "\n".join(lines) + "\n")
    text = file.read_text().splitlines()
    wrong = {int(line.split(":")[1]) for line in told_of(mypy, file) if ": error:" in line}
    starts = [text.index(one.splitlines()[0]) + 1 for one in lines[:4]]
    ends = [text.index(one.splitlines()[-1]) + 1 for one in lines[4:]]
    for at, one in enumerate(lines):
        near = {starts[at], starts[at] + 1} if at < len(starts) else {ends[at - len(starts)]}
        assert near & wrong, f"nothing is told of: {one}"
