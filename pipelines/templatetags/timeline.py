"""The drawings of the run page as SVG: geometry from `console.drawing`, written in one go, for a page has hundreds.

No style of its own: states are hues by `data-status`, everything else a class.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from django import template
from django.urls import reverse
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from pipelines.console.drawing import Axis, Knot, Mark
from pipelines.console.run_page import RunLook, StageLine
from pipelines.filters import LONGEST_VALUE, MOST_WORDS

register = template.Library()

HEIGHT = 28  # units of a row
LANE = 14  # pixels
CHARACTER, GAP = 1.9, 2.0  # of a time on the axis, and between two: per cent of an axis of 340 pixels


@register.filter
def grouped(number: int) -> str:
    """A whole number as people read it: `12,345`."""
    return f"{number:,}"


@register.simple_tag
def whole_link(kind: str, item: uuid.UUID, text: str, most: int = 20_000) -> SafeString:
    """The way to the whole of a text that was cut."""
    if len(text) <= most:
        return mark_safe("")
    return format_html(
        '<p class="hint"><a href="{}">The whole text</a></p>', reverse("console:whole", args=[kind, item])
    )


@register.simple_tag
def search_link(words: str, text: str, most: int) -> SafeString:
    """A text that leads to the runs in which its words are found, where a search can hold them."""
    told = text if len(text) <= most else f"{text[: most - 1]}…"
    if len(words) > LONGEST_VALUE or not 0 < len(words.split()) <= MOST_WORDS // 2:
        return format_html("{}", told)
    return format_html(
        '<a href="{}?{}" title="Runs with {}">{}</a>', reverse("console:runs"), urlencode({"search": words}), told, told
    )


@register.simple_tag
def graph_room(look: RunLook) -> SafeString:
    """What keeps the column of the graph as wide as its lanes."""
    return mark_safe(f'<svg width="{look.lanes * LANE}" height="1" aria-hidden="true"></svg>')  # noqa: S308 - a number


@register.simple_tag
def row_drawing(look: RunLook, line: StageLine) -> SafeString:
    """The bars and ticks of a row, on the run's axis."""
    drawn = []
    for bar in line.bars:
        y, height = (11, 6) if bar.gap else (7, 14)
        kind = f"bar{' gap' if bar.gap else ''}{' faded' if bar.faded else ''}"
        drawn.append(
            f'<rect class="{kind}" data-status="{bar.status}" x="{bar.x:.10g}" y="{y}" height="{height}"'
            f' width="{bar.width:.10g}"{" data-grows" if bar.grows else ""}><title>{escape(bar.title)}</title></rect>'
        )
    for tick in line.ticks:
        top, bottom = (0, HEIGHT) if tick.epoch else (4, HEIGHT - 4)
        drawn.append(
            f'<line class="tick{" epoch" if tick.epoch else ""}" x1="{tick.x:.10g}" y1="{top}" x2="{tick.x:.10g}"'
            f' y2="{bottom}"><title>{escape(tick.title)}</title></line>'
        )
    return _svg(look.axis, f"Time line of {_named(line)}", '<use href="#marks"/>' + "".join(drawn))


@register.simple_tag
def pauses_drawing(look: RunLook) -> SafeString:
    """The times in which the run as a whole was held or paused."""
    drawn = "".join(
        f'<rect class="bar gap" data-status="{bar.status}" x="{bar.x:.10g}" y="9" height="10" width="{bar.width:.10g}"'
        f"{' data-grows' if bar.grows else ''}><title>{escape(bar.title)}</title></rect>"
        for bar in look.pauses
    )
    return _svg(look.axis, "When the run was held or paused", f'<use href="#marks"/>{drawn}')


@register.simple_tag
def axis_drawing(look: RunLook) -> SafeString:
    """The marks once, as lines that every row shows, and with their times; where now is, while the run is live."""
    lines = "".join(
        f'<line class="grid" x1="{mark.x:.10g}" y1="0" x2="{mark.x:.10g}" y2="{HEIGHT}"/>' for mark in look.marks
    )
    bands = "".join(
        f'<rect class="band" data-status="{bar.status}" x="{bar.x:.10g}" y="0" height="{HEIGHT}"'
        f' width="{bar.width:.10g}"{" data-grows" if bar.grows else ""}/>'
        for bar in look.pauses
    )
    now = look.axis.place(look.now)
    here = f'<line class="now" data-now x1="{now:.10g}" y1="0" x2="{now:.10g}" y2="{HEIGHT}"/>' if look.live else ""
    shared = f'<svg class="marks" aria-hidden="true"><defs><g id="marks">{bands}{lines}{here}</g></defs></svg>'
    times = "".join(labels(look.marks))
    return mark_safe(f'{shared}<svg class="times" aria-hidden="true">{times}</svg>')  # noqa: S308 - numbers


@register.simple_tag
def graph_drawing(look: RunLook, line: StageLine) -> SafeString:
    """A row of the graph: lanes as lines, the stage as a dot of its state."""
    knot = line.knot
    drawn = [_way(lane, "0", lane, "100%") for lane in knot.passes]
    drawn += [_way(lane, "0", knot.lane, "50%") for lane in knot.enters]
    drawn += [_way(knot.lane, "50%", knot.leaves, "100%")] if knot.leaves is not None else []
    drawn.append(_dot(line, knot))
    told = f"after {', '.join(line.needs)}" if line.needs else "it comes first"
    return mark_safe(  # noqa: S308 - numbers, and what is escaped
        f'<svg class="ways" width="{look.lanes * LANE}" height="100%" role="img" aria-label="{escape(told)}">'
        f"{''.join(drawn)}</svg>"
    )


def _dot(line: StageLine, knot: Knot) -> str:
    radius = 6 if line.is_folded else 4
    return f'<circle class="knot" data-status="{line.mood}" cx="{_middle(knot.lane)}" cy="50%" r="{radius}"/>'


def _way(one: int, top: str, other: int, bottom: str) -> str:
    return f'<line class="way" x1="{_middle(one)}" y1="{top}" x2="{_middle(other)}" y2="{bottom}"/>'


def _middle(lane: int) -> int:
    return lane * LANE + LANE // 2


def labels(marks: Sequence[Mark]) -> Iterator[str]:
    """The times of those marks that have room for theirs, even on a narrow screen; the outermost stay within it."""
    taken = -GAP
    for mark in marks:
        width = len(mark.label) * CHARACTER
        begins = min(max(mark.share - width / 2, 0.0), 100.0 - width)
        if begins < taken + GAP:
            continue
        taken = begins + width
        side, x = ("start", begins) if begins == 0 else ("end", taken) if taken == 100 else ("middle", mark.share)
        yield f'<text class="{side}" x="{x:g}%" y="11">{mark.label}</text>'


def _named(line: StageLine) -> str:
    if line.is_folded:
        return f"{len(line.stages)} stages"
    tries = line.stage.attempt_number
    return f"{line.stage.name}: {tries} {'attempt' if tries == 1 else 'attempts'}"


def _svg(axis: Axis, label: str, drawn: str) -> SafeString:
    return mark_safe(  # noqa: S308 - numbers, and what is escaped
        f'<svg class="time" viewBox="0 0 {axis.span:.10g} {HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(label)}">{drawn}</svg>'
    )
