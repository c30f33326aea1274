"""Screens of checkpoints: the list of a run's, one with its verdict, and what differs between any two.

What a checkpoint says is shown whatever its verdict, beside it: nothing here believes it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from pipelines import queries, signing
from pipelines.checkpoint_reading import shown, verify, verify_all
from pipelines.console import drawing
from pipelines.console.differences import Change, compare
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.errors import Refusal
from pipelines.models import Checkpoint, CheckpointEvidence, Run, Stage
from pipelines.paging import page_of, read_cut
from pipelines.signing import Verdict

PER_PANEL = 5  # on the run page
EVIDENCE_SHOWN = 50
PLACES_SHOWN = 500
TICKS_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Line:
    """A checkpoint in a list: its stage's name, the signature's verdict now, and whether a newer one was written.

    `unchecked`: it counts as invalid only because the keyring cannot be read now.
    """

    checkpoint: Checkpoint
    stage: str
    verdict: str
    superseded: bool
    unchecked: bool = False


@dataclass(frozen=True, slots=True)
class Recent:
    """The newest checkpoints of a run, for its page; `newest` carries a verdict, which the others are not asked for."""

    newest: Line | None
    sequences: tuple[int, ...]
    total: int


def recent(run: Run, names: dict[uuid.UUID, str]) -> Recent:
    """What the run page says of checkpoints."""
    rows = list(Checkpoint.objects.filter(run=run).select_related("run").order_by("-sequence")[:PER_PANEL])
    if not rows:
        return Recent(None, (), 0)
    verdict = verify(rows[0])
    unchecked = _cannot_check(run, [verdict])
    newest = Line(rows[0], _named(rows[0], names), verdict.value, superseded=False, unchecked=unchecked)
    return Recent(newest, tuple(row.sequence for row in rows), rows[0].sequence)


def ticks(run: Run, axis: drawing.Axis) -> dict[uuid.UUID, list[drawing.Tick]]:
    """The newest checkpoints as ticks on the rows of their stages, by stage."""
    found: dict[uuid.UUID, list[drawing.Tick]] = {}
    rows = Checkpoint.objects.filter(run=run).order_by("-sequence")
    for stage, sequence, moment, at in rows.values_list("stage", "sequence", "moment", "recorded_at")[:TICKS_SHOWN]:
        title = f"checkpoint {sequence}, {moment.replace('_', ' ')}, {at:%H:%M:%S}"
        if stage is not None:
            found.setdefault(stage, []).append(drawing.Tick(axis.place(at), title))
    return found


@require_safe
@screen
def checkpoint_list(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """A run's checkpoints, newest first, each verified now; any two can be compared."""
    run = queries.run_detail(request.visit.actor, run_id)
    rows = Checkpoint.objects.filter(run=run).select_related("run")
    page = page_of(rows, read_cut(request.GET, (int,)), ("sequence",))
    return show(request, "runs/checkpoints.html", {"run": run, "page": page, "lines": _lines(run, page.rows)})


@require_safe
@screen
def checkpoint_page(request: ScreenRequest, run_id: uuid.UUID, sequence: int) -> HttpResponse:
    """One checkpoint: fields, identity, verdict, payload, evidence, and its neighbours to compare it with."""
    run = queries.run_detail(request.visit.actor, run_id)
    checkpoint = _find(run, sequence)
    (line,) = _lines(run, [checkpoint])
    evidence = list(CheckpointEvidence.objects.filter(checkpoint=checkpoint).order_by("-id")[: EVIDENCE_SHOWN + 1])
    payload = shown(checkpoint)
    context = {
        "run": run,
        "line": line,
        "payload": json.dumps(payload, ensure_ascii=False, indent=2) if payload is not None else checkpoint.payload,
        "is_json": payload is not None,
        "evidence": evidence[:EVIDENCE_SHOWN],
        "more_evidence": len(evidence) > EVIDENCE_SHOWN,
        "newest": _newest(run),
    }
    return show(request, "runs/checkpoint.html", context)


@require_safe
@screen
def checkpoint_changes(request: ScreenRequest, run_id: uuid.UUID) -> HttpResponse:
    """What differs between two checkpoints of a run, the earlier one first whichever way round they were named."""
    run = queries.run_detail(request.visit.actor, run_id)
    earlier, later = sorted(_sequence(request, name) for name in ("one", "other"))
    lines = _lines(run, [_find(run, earlier), _find(run, later)])
    changes = compare(*(_told(line) for line in lines))
    differing = [change for change in changes if change.kind != "same"]
    same = changes[len(differing) :]
    context = {
        "run": run,
        "earlier": lines[0],
        "later": lines[1],
        "before": f"checkpoint {earlier}",
        "after": f"checkpoint {later}",
        "changes": differing[:PLACES_SHOWN],
        "same": same[:PLACES_SHOWN],
        "left_out": _beyond(differing) + _beyond(same),
        "newest": _newest(run),
    }
    return show(request, "runs/checkpoint_changes.html", context)


def _told(line: Line) -> dict[str, Any]:
    """All of a checkpoint that can differ."""
    checkpoint, payload = line.checkpoint, shown(line.checkpoint)
    told = payload if isinstance(payload, dict) else {"payload": checkpoint.payload}
    return {
        "sequence": checkpoint.sequence,
        "verdict": line.verdict,
        "stage": line.stage,
        "epoch": checkpoint.epoch,
        "key_id": checkpoint.key_id,
        "payload_digest": checkpoint.payload_digest,
        **told,
    }


def _lines(run: Run, checkpoints: Sequence[Checkpoint]) -> list[Line]:
    names = dict(Stage.objects.filter(run=run).values_list("id", "name"))
    newest = _newest(run)
    verdicts = verify_all(checkpoints)
    unchecked = _cannot_check(run, verdicts)
    return [
        Line(one, _named(one, names), verdict.value, one.sequence < newest, unchecked and verdict == Verdict.INVALID)
        for one, verdict in zip(checkpoints, verdicts, strict=True)
    ]


def _cannot_check(run: Run, verdicts: Sequence[Verdict]) -> bool:
    return Verdict.INVALID in verdicts and not signing.can_check(run.workspace_id)


def _named(checkpoint: Checkpoint, names: dict[uuid.UUID, str]) -> str:
    return names.get(checkpoint.stage, "") if checkpoint.stage else ""


def _newest(run: Run) -> int:
    newest = Checkpoint.objects.filter(run=run).order_by("-sequence").values_list("sequence", flat=True).first()
    return newest or 0


def _find(run: Run, sequence: int) -> Checkpoint:
    found = Checkpoint.objects.filter(run=run, sequence=sequence).select_related("run").first()
    if found is None:
        raise Refusal("checkpoint_not_found", f"the run has no checkpoint {sequence}")
    return found


def _sequence(request: ScreenRequest, name: str) -> int:
    text = request.GET.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        message = "choose two checkpoints by their numbers"
        raise Refusal("validation_error", message, errors={name: [message]})
    return int(text)


def _beyond(changes: Sequence[Change]) -> int:
    return max(len(changes) - PLACES_SHOWN, 0)
