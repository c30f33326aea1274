"""What the pages about approvals say of rules and gates is what the code takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from approvals import gates
from approvals.rules import DECIDING_ROLES, DEFAULT_EXPIRY, in_words
from approvals.rules_api import DEFAULTS, RuleRequest
from config.environment import BASE_DIR
from pipelines.api.serializers import MOST_APPROVERS, Gated
from pipelines.definitions import DefinedStage
from pipelines.errors import STATUS
from recovery.agreements import RULED
from recovery.states import BACKFILL, BULK, OperationKind

HOWTO = (BASE_DIR / "docs/howto/approvals.md").read_text()
EXPLAINED = (BASE_DIR / "docs/explain/approvals.md").read_text()


def table(heading: str) -> dict[str, list[str]]:
    """The first table below a heading: the words in code of its first column → the other cells."""
    below = HOWTO.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in below.splitlines() if line.startswith("| `")]
    return {word: [cell.strip() for cell in rest] for first, *rest in rows for word in code(first)}


def code(text: str) -> Iterator[str]:
    yield from re.findall(r"`([^`]+)`", text)


def example(opening: str) -> str:
    return HOWTO[HOWTO.index(opening) :]


def test_the_fields_of_a_rule_are_those_that_are_told() -> None:
    told = table("A rule for operations")
    assert set(told) == set(RuleRequest().fields) - {"name", "enabled"}
    assert list(code(told["kinds"][0])) == list(gates.kinds()) == [*(kind.value for kind in RULED), BACKFILL, BULK]
    assert told["expires_in"][1] == in_words(DEFAULT_EXPIRY) == in_words(DEFAULTS["expires_in"])  # type: ignore[arg-type]
    assert told["count"][1] == str(DEFAULTS["count"])


def test_the_fields_of_a_gate_are_those_that_are_told() -> None:
    told = table("A gate in a pipeline")
    assert set(told) == set(Gated().fields)
    assert list(code(told["approver_role"][0])) == list(DECIDING_ROLES)
    assert f"1 to {MOST_APPROVERS}" in told["count"][0]


def test_the_examples_are_taken() -> None:
    stage, _ = json.JSONDecoder().raw_decode(example('{"name": "ship"'))
    assert DefinedStage.clean(stage)["approval"]["count"] == 2
    rule, _ = json.JSONDecoder().raw_decode(example('{"name": "big reruns"'))
    assert RuleRequest.clean(rule)["at_least"] == 10


def test_every_code_that_is_told_is_one() -> None:
    assert set(table("Decide")) <= set(STATUS)


def test_what_waits_for_nobody_is_told() -> None:
    free = {kind.value for kind in OperationKind} - set(gates.kinds())
    assert free == {"pause", "resume", "acknowledge", "reconcile"}
    assert "Pausing, resuming, acknowledging and reconciling wait for nobody" in EXPLAINED
