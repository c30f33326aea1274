"""Decides, before Django reads its settings, which PostgreSQL the test session uses.

With DATABASE_URL: that server. Without: an embedded one in a temporary directory, started for the session by the
process that began it (the workers of a parallel run find it through RECOURSE_DATA) and gone with it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from config import embedded


def _begin() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    data_dir = Path(tempfile.mkdtemp(prefix="recourse-tests-"))
    os.environ["RECOURSE_DATA"] = str(data_dir)
    # Registered first, so run last: after the server has stopped.
    atexit.register(shutil.rmtree, data_dir, ignore_errors=True)
    if not os.environ.get("DATABASE_URL"):
        attachment = embedded.attach(data_dir, throwaway=True)
        atexit.register(attachment.release)


_begin()
