"""Reads the environment variables once and turns them into typed settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BASE_DIR = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Environment:
    """What the operator set, with defaults filled in. Seconds are whole seconds."""

    base_dir: Path
    data_dir: Path
    debug: bool
    secret_key: str
    allowed_hosts: list[str]
    database: dict[str, Any]
    lease_seconds: int
    renew_seconds: int
    visibility_seconds: int
    waiting_pulls: int
    handlers: list[str]

    @classmethod
    def from_os(cls, values: Mapping[str, str] = os.environ) -> Environment:
        data_dir = Path(values.get("RECOURSE_DATA", BASE_DIR / "var")).absolute()
        lease = int(values.get("RECOURSE_LEASE_SECONDS", "60"))
        return cls(
            base_dir=BASE_DIR,
            data_dir=data_dir,
            debug=values.get("RECOURSE_DEBUG", "") == "1",
            secret_key=values.get("SECRET_KEY", "insecure-development-key"),
            allowed_hosts=_words(values.get("RECOURSE_ALLOWED_HOSTS", "*")),
            database=_database(values.get("DATABASE_URL", "")),
            lease_seconds=lease,
            renew_seconds=int(values.get("RECOURSE_RENEW_SECONDS", str(max(1, lease // 3)))),
            visibility_seconds=int(values.get("RECOURSE_VISIBILITY_SECONDS", "30")),
            waiting_pulls=int(values.get("RECOURSE_WAITING_PULLS", "8")),
            handlers=_words(values.get("RECOURSE_HANDLERS", "")),
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": parts.port or "",
        "OPTIONS": {"pool": {"min_size": 0, "max_size": 32}},
    }
