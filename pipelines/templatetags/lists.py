"""How lists write their filters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from pipelines.models import Run

register = template.Library()

FILTER_WORDS = {"status": "state", "error_code": "error", "recovered_from": "source", "created_after": "time"}


@register.filter
def given(wanted: Any, name: str) -> Any:
    """The values that a filter has for a field."""
    return getattr(wanted, name)


@register.filter
def counted_without(groups: Mapping[str, Any]) -> list[str]:
    """Which groups of the rail are counted without which filters: `State, environment: counted whatever the search.`"""
    alike: dict[str, list[str]] = {}
    for group in groups.values():
        if group.without:
            alike.setdefault(_listed(group.without), []).append(_filter_word(group.field))
    return [f"{', '.join(fields).capitalize()}: counted whatever the {names}." for names, fields in alike.items()]


@register.filter
def tail(run_id: uuid.UUID) -> str:
    """The end of an id, where those of the same minute differ."""
    return f"…{str(run_id)[-6:]}"


@register.simple_tag
def run_mark(run: Run, key: str, most: int = 48) -> SafeString:
    """What tells a run from others of its name: its key, else the tick that it was made for, else the end of its id."""
    if key:
        told = key if len(key) <= most else f"{key[: most - 1]}…"
        return format_html('<span class="mono key" title="{}">{}</span>', key, told)
    if run.tick_at is not None:
        moment = run.tick_at.astimezone(UTC)
        title = f"Made for the tick of {moment:%Y-%m-%d %H:%M:%S} UTC"
        return format_html(
            '<time class="mono key" datetime="{}" title="{}">{}</time>',
            moment.isoformat(),
            title,
            f"{moment:%Y-%m-%d %H:%M}",
        )
    return format_html('<span class="mono key" title="Run {}">{}</span>', run.id, tail(run.id))


def _listed(names: Sequence[str]) -> str:
    words = list(dict.fromkeys(_filter_word(name) for name in names))
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _filter_word(name: str) -> str:
    return FILTER_WORDS.get(name, name.replace("_", " "))
