"""Every state has a hue, a glyph and enough contrast, in both themes: read from the style sheet and computed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from django.db.models import TextChoices

from approvals.states import RequestState
from pipelines import audit, states
from pipelines.signing import Verdict
from recovery.screens.calendars import WORST_FIRST
from recovery.states import (
    BackfillState,
    BackfillTickState,
    BulkItemState,
    BulkState,
    Disposition,
    OperationState,
    Outcome,
)

STATIC = Path(__file__).resolve().parents[2] / "static/recourse"
CSS = "".join((STATIC / name).read_text() for name in ("tokens.css", "console.css", "admin.css"))
ENUMS: list[type[TextChoices]] = [
    states.RunStatus,
    states.StageState,
    states.AttemptState,
    states.GateState,
    states.DeadLetterState,
    states.SessionState,
    states.ReleaseStatus,
    states.EffectState,
    states.TickState,
    RequestState,
    OperationState,
    BackfillState,
    BulkState,
    BulkItemState,
    BackfillTickState,
    Disposition,
    Outcome,
]
EVERY_STATE = sorted(
    {value for enum in ENUMS for value in enum.values}
    | {str(verdict) for verdict in Verdict}
    | {*WORST_FIRST}
    | {audit.ALLOWED, audit.NO_OP, audit.DENIED, audit.FAILED}
)
THEMES = ("light", "dark")
TEXT, CONTROL = 4.5, 3.0  # WCAG 2.2: text, and what is not text

Colour = tuple[float, float, float]


def test_every_state_has_its_own_hue_and_glyph() -> None:
    """Colour is never alone: glyph, word and hue."""
    for state in EVERY_STATE:
        assert len(_knobs(state)["glyph"]) == 1, state


@pytest.mark.parametrize("theme", THEMES)
def test_every_badge_can_be_read(theme: str) -> None:
    for state in EVERY_STATE:
        fg, tint, solid = (_state_colour(name, state, theme) for name in ("s-fg", "s-tint", "s-solid"))
        assert _contrast(fg, tint) >= TEXT, state
        for ground in ("canvas", "surface", "sunken", "selected"):
            assert _contrast(solid, _token(ground, theme)) >= CONTROL, (state, ground)


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read_on_every_ground(theme: str) -> None:
    for ink in ("ink", "ink-2", "ink-3", "brand", "danger"):
        for ground in ("canvas", "surface", "raised", "sunken", "selected"):
            assert _contrast(_token(ink, theme), _token(ground, theme)) >= TEXT, (ink, ground)


@pytest.mark.parametrize("theme", THEMES)
def test_a_note_in_a_states_colour_can_be_read(theme: str) -> None:
    for state in EVERY_STATE:
        assert _contrast(_token("ink", theme), _state_colour("s-tint", state, theme)) >= TEXT, state


@pytest.mark.parametrize("theme", THEMES)
def test_controls_stand_out(theme: str) -> None:
    for ground in ("surface", "raised", "canvas"):
        assert _contrast(_token("control", theme), _token(ground, theme)) >= CONTROL
    assert _contrast(_token("on-brand", theme), _token("brand", theme)) >= TEXT
    assert _contrast(_token("on-brand", theme), _token("alarm", theme)) >= TEXT


def test_states_that_look_alike_differ_in_their_glyph() -> None:
    """Two states of one enum share hue and glyph only where the word alone tells them apart."""
    for enum in (states.RunStatus, states.StageState):
        looks = [(knobs["h"], knobs["glyph"]) for knobs in (_knobs(value) for value in enum.values)]
        alike = {look for look in looks if looks.count(look) > 1}
        assert alike <= {("285", "‖")}, enum


def test_the_sheet_has_no_colour_outside_its_tokens_layer_but_the_few_named() -> None:
    layers = CSS.split("@layer base {")[1]
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(", CSS) == []
    assert len(re.findall(r"oklch\(", layers)) <= 5


def _knobs(state: str) -> dict[str, str]:
    found = re.search(rf'\[data-status="{state}"\] \{{ --h: ([\d.]+); --k: ([\d.]+); --glyph: "(.)"; \}}', CSS)
    assert found, f"{state} has no line in the style sheet"
    return dict(zip(("h", "k", "glyph"), found.groups(), strict=True))


def _state_colour(name: str, state: str, theme: str) -> Colour:
    knobs = _knobs(state)
    text = re.search(rf"--{name}: (light-dark\(.*\));", CSS)
    assert text
    formula = re.sub(r"calc\(([\d.]+) \* var\(--k\)\)", lambda match: str(float(match[1]) * float(knobs["k"])), text[1])
    return _read(formula.replace("var(--h)", knobs["h"]), theme)


def _token(name: str, theme: str) -> Colour:
    text = re.search(rf"^\s*--{name}: (light-dark\(.*?\)\));", CSS, flags=re.M)
    assert text, name
    return _read(text[1], theme)


def _read(text: str, theme: str) -> Colour:
    """One side of `light-dark(oklch(L% C H), oklch(L% C H))` as linear sRGB."""
    sides = re.findall(r"oklch\(([\d.]+)%\s+([\d.]+)\s+([\d.]+)\)", text)
    assert len(sides) == 2, text
    lightness, chroma, hue = map(float, sides[THEMES.index(theme)])
    return _linear(lightness / 100, chroma, math.radians(hue))


def _linear(lightness: float, chroma: float, hue: float) -> Colour:
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    # what a screen cannot show is cut off, as browsers do
    red, green, blue = (min(max(part, 0.0), 1.0) for part in (red, green, blue))
    return red, green, blue


def _contrast(one: Colour, other: Colour) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    red, green, blue = colour
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
