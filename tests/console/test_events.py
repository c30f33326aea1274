"""Every event that the engine writes has a sentence."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.console.events import SENTENCES, tell
from pipelines.sql import database_now
from pipelines.states import EFFECT_MOVES, GATE_MOVES, STAGE_MOVES, DeadLetterState, RunStatus

ENGINE = ("pipelines", "approvals", "recovery")
ROOT = Path(__file__).resolve().parents[2]


def test_every_move_and_every_fact_of_the_engine_has_a_sentence() -> None:
    """A new move without a sentence fails here instead of being shown by its bare name."""
    written = {f"stage.{action}" for action in STAGE_MOVES}
    written |= {f"gate.{action}" for action in GATE_MOVES} | {"gate.open"}
    written |= {f"effect.{action}" for action in EFFECT_MOVES} | {"effect.declare"}
    written |= {f"run.{status}" for status in RunStatus}
    written |= {f"dead_letter.{state}" for state in DeadLetterState}
    written |= _kinds_in_the_source()
    assert {"run.create", "run.reconciliation_list", "stage.input_changed"} <= written
    assert written - set(SENTENCES) == set()


@pytest.mark.django_db
def test_a_sentence_names_who_what_and_which_attempt() -> None:
    at = database_now()
    event = _event("stage.fail", data={"number": 3, "worker": "w-7", "error_code": "UNIQUE"}, reason="2 of 2 are used")
    told = tell(event, at, "publish")
    assert told.text == "publish failed with UNIQUE, attempt 3"
    assert told.reason == "2 of 2 are used"
    assert tell(_event("stage.skip", actor="dana"), at, "notify").text == "dana skipped notify"
    assert tell(_event("run.reconciliation_list", data=[{}, {}]), at).text.endswith("listed: 2 things")
    assert tell(_event("made.later"), at, "load").text == "made.later of load by The engine"


def _event(kind: str, *, actor: str = "", reason: str = "", data: Any = None) -> Any:
    return SimpleNamespace(kind=kind, to_state="", actor=actor, reason=reason, data=data)


def _kinds_in_the_source() -> set[str]:
    """The kinds named in calls of `event(…)` and in rows of `event_row(…)`, and in creation's first rows."""
    found = set()
    for path in [path for app in ENGINE for path in (ROOT / app).glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in ("event", "event_row"):
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                found |= {text for text in texts if "." in text and " " not in text}
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found |= {
                    value.value
                    for key, value in pairs
                    if isinstance(key, ast.Constant)
                    and key.value == "kind"
                    and isinstance(value, ast.Constant)
                    and isinstance(value.value, str)
                    and "." in value.value
                    and not value.value.startswith("recourse.")  # what is signed, and no event
                }
    return found


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
