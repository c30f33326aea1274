"""The charts in the explanation of the state machines are the tables, no more and no less."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from approvals.states import DELIVERY_MOVES, REQUEST_MOVES
from pipelines.states import (
    ATTEMPT_MOVES,
    DEAD_LETTER_MOVES,
    EFFECT_MOVES,
    GATE_MOVES,
    RUN_NO_OPS,
    RUN_VERBS,
    STAGE_MOVES,
    TICK_MOVES,
    RunStatus,
)
from recovery.carriers import FOLLOWS
from recovery.states import BACKFILL_MOVES, BULK_MOVES, OPERATION_MOVES, RUN_RETRY_MOVES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explain" / "state-machines.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title}"
    return found.group(1)


@pytest.mark.parametrize(
    ("title", "moves"),
    [
        ("Stage", STAGE_MOVES),
        ("Attempt", ATTEMPT_MOVES),
        ("Effect", EFFECT_MOVES),
        ("Gate", GATE_MOVES),
        ("Dead letter", DEAD_LETTER_MOVES),
        ("Operation", OPERATION_MOVES),
        ("Request", REQUEST_MOVES),
        ("Tick", TICK_MOVES),
        ("Backfill", BACKFILL_MOVES),
        ("Bulk", BULK_MOVES),
        ("Run retry", RUN_RETRY_MOVES),
        ("Delivery", DELIVERY_MOVES),
    ],
)
def test_each_chart_is_its_table(title: str, moves: Mapping[str, Mapping[str, str]]) -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+): (.+)$", section(title), re.MULTILINE)
    drawn = {(action, origin, to) for origin, to, actions in arrows for action in actions.split(", ")}
    assert drawn == {(action, str(origin), str(to)) for action, table in moves.items() for origin, to in table.items()}


def test_operations_follow_their_requests_as_it_is_written() -> None:
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \|$", section("Request"), re.MULTILINE)
    told = {}
    for actions, follows in rows:
        for action in re.findall(r"`(\w+)`", actions):
            told[action] = action if follows == "the same" else re.findall(r"`(\w+)`", follows)[0]
    assert told == {"approve": "allow", **FOLLOWS}


def test_the_table_of_run_statuses_names_each_one() -> None:
    named = set(re.findall(r"^\| `(\w+)`", section("Run"), re.MULTILINE))
    assert named == set(RunStatus.values)


def test_the_table_of_verbs_is_what_the_code_takes() -> None:
    for verb in ("pause", "resume"):
        (taken,) = re.findall(rf"^\| {verb} \| (.+?) \|", section("Run"), re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", taken)) == RUN_VERBS[verb]
    ((left_out, nothing),) = re.findall(r"^\| cancel \| all but (.+?) \| (.+?) \|", section("Run"), re.MULTILINE)
    assert set(RunStatus) - set(re.findall(r"`(\w+)`", left_out)) == RUN_VERBS["cancel"]
    assert set(re.findall(r"`(\w+)`", nothing)) == RUN_NO_OPS["cancel"]
