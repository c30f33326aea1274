"""What a bulk operation is called, and how its targets were chosen, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.console.acts import listed
from recovery.bulk_plans import counted
from recovery.bulk_targets import CHECKPOINT, FAILED_STAGE
from recovery.models import BulkOperation
from recovery.plans import AND_DOWNSTREAM
from recovery.states import OperationKind

Json = Mapping[str, Any]
DANGEROUS = frozenset({OperationKind.CANCEL, OperationKind.DISCARD})
FILTER_WORDS = {"status": "state", "error_code": "error"}


def verb(kind: str) -> str:
    """The verb as a sentence begins with it."""
    return kind.capitalize()


def title(bulk: BulkOperation, plan: Json | None) -> str:
    """The bulk as a sentence: `Redrive 500 dead letters of charge-card in payments`."""
    told = f"{verb(bulk.kind)} {counted(bulk.kind, bulk.total)}"
    if not plan:
        return told
    handlers = bulk.chosen.get("filter", {}).get("handler", [])
    pipelines = [one["pipeline"] for one in plan["by_pipeline"]]
    of = listed(handlers, 2) if handlers else pipelines[0] if len(pipelines) == 1 and pipelines[0] else ""
    told += f" of {of}" if of else ""
    places = [one["environment"] for one in plan["by_environment"]]
    return f"{told} in {places[0]}" if len(places) == 1 else told


def choices(kind: str, chosen: Json) -> str:
    """What was chosen for every target; blank where the verb takes nothing."""
    told = []
    if chosen.get("scope"):
        told.append("the stage and what follows it" if chosen["scope"] == AND_DOWNSTREAM else "only the stage")
    if chosen.get("until"):
        told.append(f"until {chosen['until'][:16].replace('T', ' ')} UTC")
    if start := chosen.get("from"):
        known = {CHECKPOINT: "from the newest checkpoint", FAILED_STAGE: "from the first failed stage"}
        told.append(known.get(start, f"from {start}"))
    if kind == OperationKind.REPLAY:
        told.append("the input is marked as frozen" if chosen.get("freeze_release") else "the input is not frozen")
    if chosen.get("environment"):
        told.append(f"in {chosen['environment']}")
    return "; ".join(told)


def chosen(bulk: BulkOperation) -> Sequence[tuple[str, str]]:
    """How its targets were chosen: (word, values) of the filter; nothing of those that were chosen by hand."""
    found = bulk.chosen.get("filter", {})
    return [(FILTER_WORDS.get(name, name.replace("_", " ")), listed(_many(value), 5)) for name, value in found.items()]


def _many(value: Any) -> Sequence[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]
