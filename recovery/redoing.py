"""Whether a backfill may do a tick once more that has had a run: judged by all that any run of the tick did outside.

As a replay is: every effect of every run of the tick, of whatever was forked from those, and of the runs that their
stages started, must be cleared, and no stage that the new run would do outside may have acted there unseen: what was
started is started anew, since the new run knows nothing of it. What is not cleared is withheld; its way is a
replay, which people can look at one by one. So is a tick of which a run goes on elsewhere, as a fork, and one whose
run was removed while the release acts outside: nobody can say any more what that run did. Asked when it is planned and
again, under the runs' locks, when the tick is claimed. Set-based: ten thousand ticks take a few statements. Serves
O26–O28, O42–O48, F108, I11.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pipelines.sql import planned
from pipelines.states import TERMINAL_RUN
from recovery import world
from recovery.dispositions import EffectFact, Reason, judge, undeclared
from recovery.states import Disposition

UNFINISHED = "execution_state_invalid"
REVIEW = Disposition.OPERATOR_REVIEW_REQUIRED.value


class Withheld(NamedTuple):
    """Why a tick is not done once more: a code that a replay would be refused with, a sentence, and the run it is
    about."""

    code: str
    text: str
    run: str


def withheld(
    workspace_id: uuid.UUID,
    trigger_id: uuid.UUID,
    instants: Sequence[datetime],
    definition: Mapping[str, Any],
    *,
    lock: bool = False,
) -> dict[datetime, Withheld]:
    """Which of these ticks, all with an ended or removed run, must not be done again by a run of this definition.

    With `lock` the runs that ended are locked until the end of the transaction: nothing more is told of them.
    """
    if not instants:
        return {}
    found = {at: Withheld(REVIEW, _GONE, run) for at, run in _gone(trigger_id, instants, definition)}
    runs = _runs(trigger_id, instants)
    if lock:
        runs = _locked(trigger_id, instants, runs)
    effects = world.effects_of_runs([row.run for row in runs], workspace_id)
    unseen = _acted_unseen(runs, definition)
    facts: dict[datetime, list[EffectFact]] = defaultdict(list)
    reasons: dict[datetime, list[Reason]] = defaultdict(list)
    about: dict[datetime, dict[str, uuid.UUID]] = defaultdict(dict)  # which run has which effect; under blank: unseen
    for row in runs:
        if row.status not in TERMINAL_RUN:
            found[row.at] = Withheld(UNFINISHED, f"a run of it is {row.status}", str(row.run))
        if told := effects.get(row.run):
            facts[row.at] += told
            about[row.at] |= {one.effect_id: row.run for one in told}
        if row.run in unseen:
            reasons[row.at] += unseen[row.run]
            about[row.at][""] = row.run
    for at in {*facts, *reasons} - set(found):
        verdict = judge(facts[at], reasons[at])
        if not verdict.lets_go_on:
            worst = verdict.reasons[0]
            found[at] = Withheld(verdict.disposition.value, worst.text, str(about[at][worst.effect_id]))
    return found


_GONE = "its run was removed, and what it did outside is not known any more"


class _Row(NamedTuple):
    at: datetime
    run: uuid.UUID
    status: str
    is_child: bool  # started by a run of the tick, or for such a one: by another release


def _runs(trigger_id: uuid.UUID, instants: Sequence[datetime]) -> list[_Row]:
    """Every run of these ticks, superseded ones too, all that was forked from them, and all that any of these started,
    forks of forks and children of children too."""
    rows = planned(
        "WITH RECURSIVE family AS ("
        " SELECT tick_at AS at, id, status, false AS is_child FROM pipelines_run"
        " WHERE trigger_id = %s AND tick_at = ANY(%s::timestamptz[])"
        " UNION SELECT f.at, r.id, r.status, f.is_child OR one.is_child FROM family f CROSS JOIN LATERAL ("
        " SELECT id, false AS is_child FROM pipelines_run WHERE recovered_from_id = f.id"
        " UNION ALL SELECT started_id, true FROM pipelines_childrun WHERE parent_id = f.id) one"
        " JOIN pipelines_run r ON r.id = one.id)"
        " SELECT at, id, status, is_child FROM family ORDER BY at, id",
        [trigger_id, list(instants)],
    )
    return [_Row(at.astimezone(UTC), *told) for at, *told in rows]


def _locked(trigger_id: uuid.UUID, instants: Sequence[datetime], runs: list[_Row]) -> list[_Row]:
    """The runs as they stand once those that ended are locked. One that goes on is not waited for: it is withheld."""
    held: set[uuid.UUID] = set()
    while ended := {row.run for row in runs if row.status in TERMINAL_RUN} - held:
        planned("SELECT 1 FROM pipelines_run WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", [list(ended)])
        held |= ended
        runs = _runs(trigger_id, instants)  # a statement of its own: later than whatever the locks were waited for
    return runs


def _gone(
    trigger_id: uuid.UUID, instants: Sequence[datetime], definition: Mapping[str, Any]
) -> Iterator[tuple[datetime, str]]:
    """The ticks whose run was removed, where the release has stages that act outside."""
    outside = any(
        stage.get("effect_mode") == "external" or stage.get("effect_protocol") == "intent"
        for stage in definition["stages"]
    )
    if outside:
        for at, run in planned(
            "SELECT k.at, k.run FROM pipelines_tick k WHERE k.trigger_id = %s AND k.at = ANY(%s::timestamptz[])"
            " AND k.run IS NOT NULL AND NOT EXISTS (SELECT FROM pipelines_run r WHERE r.id = k.run)",
            [trigger_id, list(instants)],
        ):
            yield at.astimezone(UTC), str(run)


def _acted_unseen(runs: Sequence[_Row], definition: Mapping[str, Any]) -> dict[uuid.UUID, list[Reason]]:
    """By run: its stages that acted outside without saying what, and would act there again (O26). Of a child all count:
    what its pipeline will be then is not known."""
    outside = [stage["name"] for stage in definition["stages"] if stage.get("effect_mode") == "external"]
    own = [row.run for row in runs if not row.is_child] if outside else []
    started = [row.run for row in runs if row.is_child]
    found: dict[uuid.UUID, list[Reason]] = defaultdict(list)
    if own or started:
        for run, name in planned(
            "SELECT run_id, name FROM pipelines_stage WHERE (run_id = ANY(%s) AND name = ANY(%s::text[])"
            " OR run_id = ANY(%s)) AND effect_mode = 'external'"
            " AND effect_protocol = 'none' AND attempt_number > 0 ORDER BY run_id, position",
            [own, outside, started],
        ):
            found[run].append(undeclared(name))
    return found
