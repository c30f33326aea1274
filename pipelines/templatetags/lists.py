"""How lists write their filters."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django import template

register = template.Library()

FILTER_WORDS = {"status": "state", "error_code": "error", "recovered_from": "source", "created_after": "time"}


@register.filter
def given(wanted: Any, name: str) -> Any:
    """The values that a filter has for a field."""
    return getattr(wanted, name)


@register.filter
def filter_names(names: Sequence[str]) -> str:
    """Names of filters in one line: `error, search or handler`."""
    words = list(dict.fromkeys(FILTER_WORDS.get(name, name.replace("_", " ")) for name in names))
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


@register.filter
def tail(run_id: uuid.UUID) -> str:
    """The end of an id, where those of the same minute differ."""
    return f"…{str(run_id)[-6:]}"
