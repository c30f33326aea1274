"""How screens write states, times, durations and links; the same words everywhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.http import HttpRequest, QueryDict
from django.urls import NoReverseMatch, reverse
from django.utils.dateparse import parse_datetime
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from pipelines import terminations, unserved
from pipelines.access import Actor
from pipelines.console import offers
from pipelines.filters import RUN_FILTERS
from pipelines.models import Termination

register = template.Library()

PIPS = 6
RUN_PARTS = ("runs", "stages", "attempts", "effects")  # addresses below the run list's that are of runs
WHOLE = ("workspace", "page_size", "seen", "top")  # of an address: what leaves out nothing of a list
WITHIN = {  # addresses beside a section's own that belong to it
    "console:audit": ("console:signing-keys",),
    "console:triggers": ("console:backfills", "console:blackouts"),
    "console:operations": ("console:bulk-list",),
}
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@register.filter
def word(value: Any) -> str:
    """A state or code of the model as people read it: `retry_scheduled` → `Retry scheduled`."""
    text = str(value or "").replace("_", " ")
    return text[:1].upper() + text[1:]


@register.filter(is_safe=True)  # texts that were joined are escaped already
def sentence(text: Any) -> str:
    """A detail as a sentence: a capital first, a full stop last."""
    told = str(text or "").strip()
    return f"{told[:1].upper()}{told[1:]}{'' if told.endswith(('.', '?', '!')) else '.'}" if told else ""


@register.filter
def first_line(text: Any) -> str:
    """The first line that says anything."""
    return next((line.strip() for line in str(text or "").splitlines() if line.strip()), "")


@register.filter
def why_not(offered: list[offers.Offer]) -> list[str]:
    """The reasons of the offers that are not possible."""
    return offers.explain(offered)


@register.filter
def shortened(text: Any, most: int = 20_000) -> str:
    """A text that may be long, as far as a page can bear it; it says where it was cut."""
    told = str(text)
    return told if len(told) <= most else f"{told[:most]}\n… {len(told) - most:,} more characters"


@register.filter
def as_json(value: Any) -> str:
    """A JSON value on one line."""
    return json.dumps(value, ensure_ascii=False)


@register.filter
def as_pretty_json(value: Any) -> str:
    """A JSON value on many lines, as people read it."""
    return json.dumps(value, ensure_ascii=False, indent=2)


@register.filter
def breakable(text: Any) -> SafeString:
    """A name of parts, such as a time zone's, that breaks between them where it does not fit."""
    return mark_safe("/<wbr>".join(conditional_escape(part) for part in str(text).split("/")))  # noqa: S308 - escaped


@register.filter
def told(value: Any) -> str:
    """The value of a setting in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


@register.filter
def effect_words(mode: str) -> str:
    """What an effect mode means for a repeat."""
    return {"none": "none", "idempotent": "idempotent: safe to repeat", "external": "outside: never repeated blindly"}[
        mode
    ]


@register.filter
def progress_words(progress: Any) -> str:
    """How far an attempt says it is."""
    share = f"{progress.percent:g} %" if progress.percent is not None else ""
    return f"{share} {progress.message}".strip()


@register.filter
def ended_words(termination: Termination) -> str:
    """How the processes of an attempt ended."""
    return terminations.sentence(termination.body)


@register.filter
def iso(moment: datetime) -> str:
    """A time as programs read it."""
    return _iso(moment)


@register.filter
def unlocalized(number: float) -> str:
    """A coordinate, with a point whatever the locale."""
    return f"{number:g}"


@register.filter
def capped(count: int, cap: int = 1000) -> str:
    """A count that was not counted to its end: `1,000+`."""
    return f"{cap:,}+" if count > cap else f"{count:,}"


@register.filter
def pips(have: int, need: int) -> str:
    """How many of a few, at a glance; nothing of many."""
    return "●" * have + "○" * (need - have) if need <= PIPS else ""


@register.filter
def duration(span: timedelta | float | None) -> str:
    """A length of time: `44s`, `4m 12s`, `2h 05m`, `3d 4h`; milliseconds below a second."""
    if span is None:
        return ""
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if seconds < 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    days, hours, minutes, rest = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


@register.simple_tag
def badge(state: Any, text: str = "") -> SafeString:
    """A state as glyph, word and hue; `text` says more than the state's own word."""
    return format_html('<span class="badge" data-status="{}">{}</span>', state, text or word(state))


@register.simple_tag
def ago(moment: datetime | None, now: datetime | None) -> SafeString:
    """A time relative to `now`, exact in `datetime` and title; the browser keeps it current."""
    if moment is None or now is None:
        return mark_safe("")
    seconds = (now - moment).total_seconds()
    text = _ahead(-seconds) if seconds <= -1 else _since(seconds)
    return format_html('<time datetime="{}" title="{}" data-ago>{}</time>', _iso(moment), _exact(moment), text)


@register.simple_tag
def at(moment: datetime | None, now: datetime | None = None) -> SafeString:
    """A time of day, with its date when that is not today's."""
    if moment is None:
        return mark_safe("")
    moment = moment.astimezone(UTC)
    same_day = now is not None and now.astimezone(UTC).date() == moment.date()
    text = f"{moment:%H:%M:%S}" if same_day else f"{moment:%Y-%m-%d %H:%M:%S}"
    return format_html('<time datetime="{}" title="{}">{}</time>', _iso(moment), _exact(moment), text)


@register.simple_tag
def between(start: datetime | None, end: datetime | None, now: datetime | None = None) -> SafeString:
    """How long something took, or has been going on: that the browser keeps current."""
    last = end or now
    if start is None or last is None:
        return mark_safe("")
    told = duration(last - start)
    return SafeString(told) if end else format_html('<span data-since="{}">{}</span>', _iso(start), told)


@register.simple_tag
def section(request: HttpRequest, name: str, label: str, keys: str, waiting: Any = None) -> SafeString:
    """A link of the top bar, marked where one is in it; with how much waits there, where somebody is asked."""
    address = _known(name)
    if not address:
        return mark_safe("")
    below = [_known(other) for other in WITHIN.get(name, ())]
    below += [f"{address}{part}/" for part in RUN_PARTS] if name == "console:runs" else [address]
    inside = request.path == address or request.path.startswith(tuple(one for one in below if one))
    return format_html(
        '<a href="{}" data-key="{}" data-key-label="go to {}"{}>{}{}</a>',
        address,
        keys,
        label.lower(),
        mark_safe(' aria-current="page"') if inside else "",
        label,
        waiting_count(waiting) if isinstance(waiting, int) else "",
    )


@register.simple_tag
def waiting_count(waiting: int) -> SafeString:
    """How much waits for who looks, as a part that asks for itself now and then; nothing is shown of none."""
    told = capped(waiting, 99)
    return format_html(
        '<span class="count" id="waiting" hx-get="{}?seen={}" hx-trigger="every 20s" hx-swap="outerHTML"'
        ' hx-target="this" data-live data-says="{}">{}</span>',
        reverse("console:waiting"),
        waiting,
        f"{told} {'waits' if waiting == 1 else 'wait'} for your approval" if waiting else "",
        told if waiting else "",
    )


@register.inclusion_tag("runs/_unserved.html")
def unserved_queues(actor: Actor) -> dict[str, Any]:
    """A warning of what waits and that no live worker takes; nothing where there is none."""
    return {"queues": unserved.queues(actor)}


@register.simple_tag
def kept_filters(params: QueryDict) -> SafeString:
    """The filters of the run list that a search from the same page keeps, as hidden fields."""
    kept = [(name, value) for name in RUN_FILTERS if name != "search" for value in params.getlist(name) if value]
    return format_html_join("", '<input type="hidden" name="{}" value="{}">', kept)


@register.simple_tag
def with_filter(params: QueryDict, name: str, value: Any) -> str:
    """The list's address with one more filter, or without it where it is set; always from the first page."""
    changed = params.copy()
    for gone in ("cursor", "seen", "top"):
        changed.pop(gone, None)
    chosen = changed.getlist(name)
    if str(value) in chosen:
        changed.setlist(name, [other for other in chosen if other != str(value)])
    else:
        changed.appendlist(name, str(value))
    return f"?{changed.urlencode()}" if changed.urlencode() else "."


@register.simple_tag
def without(params: QueryDict, *names: str) -> str:
    """The list's address without these filters, from the first page."""
    changed = params.copy()
    for name in ("cursor", "seen", "top", *names):
        changed.pop(name, None)
    return f"?{changed.urlencode()}" if changed.urlencode() else "."


@register.filter
def narrows(params: QueryDict) -> bool:
    """Whether the address asks for less than the whole list: a workspace's name is no filter, nor is a blank one."""
    return any(value for name, values in params.lists() if name not in WHOLE for value in values)


@register.simple_tag
def since_filter(params: QueryDict, moment: datetime) -> str:
    """The list's address with only runs created after a moment."""
    changed = params.copy()
    changed.pop("cursor", None)
    changed["created_after"] = _iso(moment.replace(microsecond=0))
    return f"?{changed.urlencode()}"


@register.simple_tag
def page_link(params: QueryDict, cursor: str) -> str:
    """The address of a neighbouring page of the same list."""
    changed = params.copy()
    for name in ("seen", "top"):
        changed.pop(name, None)
    changed["cursor"] = cursor
    return f"?{changed.urlencode()}"


@register.simple_tag
def live_address(params: QueryDict, top: datetime | None, token: str) -> str:
    """Where a list asks whether it changed: itself, held at its newest run, with what it shows now."""
    changed = params.copy()
    changed["seen"] = token
    if top is not None:
        changed["top"] = top.astimezone(UTC).isoformat()
    return f"?{changed.urlencode()}"


@register.filter
def shortened_moment(text: str) -> str:
    """A time of a filter as people read it; anything else as it is."""
    try:
        moment = parse_datetime(text) if len(text) > 16 and text[:4].isdecimal() else None
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment and moment.tzinfo else text
    except (ValueError, OverflowError):  # a day that is not, or the ends of time, where another filter's text looks so
        return text


@register.simple_tag
def theme_attributes(request: HttpRequest) -> SafeString:
    """What a person chose about the looks, from their cookies; anything unknown is the default."""
    theme, density = request.COOKIES.get("theme"), request.COOKIES.get("density")
    parts = [f' data-theme="{theme}"'] if theme in ("light", "dark") else []
    parts += [' data-density="comfortable"'] if density == "comfortable" else []
    return mark_safe("".join(parts))  # noqa: S308 - from a closed set


@register.simple_tag
def theme_button(request: HttpRequest) -> SafeString:
    """The button that changes the theme; without JavaScript it posts a form."""
    other = "light" if request.COOKIES.get("theme") == "dark" else "dark"
    return format_html(
        '<button class="btn quiet small" name="theme" value="{}" data-theme-toggle>{} theme</button>',
        other,
        word(other),
    )


@register.simple_tag
def density_button(request: HttpRequest) -> SafeString:
    """The button that changes the density."""
    other = "dense" if request.COOKIES.get("density") == "comfortable" else "comfortable"
    return format_html(
        '<button class="btn quiet small" name="density" value="{}" data-density-toggle>{} rows</button>',
        other,
        word(other),
    )


def _known(name: str) -> str:
    """The address of that name; blank where this console has none."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""


def _since(seconds: float) -> str:
    if seconds < 5:
        return "just now"
    size, unit = next(pair for pair in UNITS if seconds >= pair[0])
    return f"{int(seconds // size)} {unit} ago"


def _ahead(seconds: float) -> str:
    size, unit = next(pair for pair in UNITS if seconds >= pair[0])
    return f"in {int(seconds // size)} {unit}"


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _exact(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
