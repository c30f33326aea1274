"""What is loaded into every process is what it needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from config.environment import BASE_DIR

LOADED = "import sys; print(sorted(sys.modules.keys() & {'rich', 'httpx', 'structlog'}))"
CONSOLE = "import django; django.setup(); import config.urls, httpx, pipelines.tasks, recovery.tasks"


@pytest.mark.parametrize(
    ("process", "loaded"),
    [(CONSOLE, "['httpx', 'structlog']"), ("import config.beat", "['structlog']")],
    ids=["web and workers", "beat"],
)
def test_no_process_loads_what_only_commands_draw_with(process: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{process}\n{LOADED}"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == loaded
