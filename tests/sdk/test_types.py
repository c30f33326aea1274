"""Type checkers know what both clients take and answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_strict_type_checker_knows_what_both_clients_take_and_answer(tmp_path: Path) -> None:
    """O11: answers, plans, items of lists, and what is misspelt; through one definition of each method."""
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path)]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "tests/sdk/typed_use.py"],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": "sdk"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
