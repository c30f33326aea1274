"""Keeps libraries from loading rich for nothing; imported before them.

Where it is installed structlog loads it for tracebacks that are not shown here, and httpx, with pygments, for a command
line of its own: megabytes in each process. The commands that draw with it import it themselves.
"""

from __future__ import annotations

import sys
from types import ModuleType

sys.modules.setdefault("httpx._main", ModuleType("httpx._main"))  # without a `main`, httpx has one that says so

is_free = not sys.modules.keys() & {"rich", "structlog"}
if is_free:
    sys.modules["rich"] = None  # type: ignore[assignment]

import structlog  # noqa: E402

if is_free:
    del sys.modules["rich"]

__all__ = ["structlog"]
