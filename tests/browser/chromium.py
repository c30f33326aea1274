"""Which Chromium there is, and how it is started: for tests and for who takes pictures."""

from __future__ import annotations

import shutil

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
REASON = "no Chromium on this machine: apt-get install chromium"
# No sandbox, because root has none; the rest keeps Chromium from work of its own: pages are drawn by the processor,
# nothing is fetched but what a test asks for.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
