"""What may come from the environment: RECOURSE_URL, RECOURSE_API_KEY (or PIPELOGIQ_API_KEY), RECOURSE_TOKEN."""

from __future__ import annotations

import os

from recourse.errors import ConfigurationError

DEFAULT_URL = "http://localhost:8000"


def base_url(given: str | None) -> str:
    """The console's address. Raises ConfigurationError for one that cannot be asked."""
    url = given or os.environ.get("RECOURSE_URL") or DEFAULT_URL
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} is not a whole address: RECOURSE_URL is such as {DEFAULT_URL}")
    return url


def has_api_key(given: str | None) -> bool:
    return bool(given or os.environ.get("RECOURSE_API_KEY") or os.environ.get("PIPELOGIQ_API_KEY"))


def api_key(given: str | None) -> str:
    """The application's key (P10). Raises ConfigurationError when there is none."""
    key = given or os.environ.get("RECOURSE_API_KEY") or os.environ.get("PIPELOGIQ_API_KEY")
    if not key:
        raise ConfigurationError(
            "no API key: give api_key=..., or set RECOURSE_API_KEY (manage.py issue_key makes one)"
        )
    return key


def token(given: str | None) -> str | None:
    """A person's bearer token."""
    return given or os.environ.get("RECOURSE_TOKEN") or None
