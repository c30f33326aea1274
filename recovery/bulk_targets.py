"""Which targets a bulk has: chosen by ids or by a filter, and frozen, in one statement whatever their number.

They stand in the order of the list that they were chosen from. Whoever chooses by a filter gets what the list shows
with it: the very same code finds both (F154). Serves F39, F41, F55, F161, F164.
"""

# ruff: noqa: S608 - statements are put together from this module's own pieces; values are always parameters
from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.utils.datastructures import MultiValueDict

from pipelines import listing, queries
from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.filters import PAGING, RunFilter
from pipelines.list_filters import DeadLetterFilter
from pipelines.models import DeadLetter, Environment
from pipelines.sql import database_now, execute, in_one, planned, query
from pipelines.states import OPEN_DEAD_LETTER, DeadLetterReason, RunStatus
from recovery.models import BulkOperation
from recovery.plans import AND_DOWNSTREAM, STAGE_ONLY, digest_of
from recovery.states import OperationKind

KINDS = (
    OperationKind.RETRY,
    OperationKind.SKIP,
    OperationKind.CANCEL,
    OperationKind.PAUSE,
    OperationKind.RESUME,
    OperationKind.REDRIVE,
    OperationKind.DISCARD,
    OperationKind.RERUN,
    OperationKind.REPLAY,
)
MOST_TARGETS = 100_000
OF_LETTERS = frozenset({OperationKind.REDRIVE, OperationKind.DISCARD})
OF_STAGES = frozenset({OperationKind.RETRY, OperationKind.SKIP})
OF_FORKS = frozenset({OperationKind.RERUN, OperationKind.REPLAY})
# where a rerun starts; anything else is a stage's name
FAILED_STAGE, CHECKPOINT = "failed_stage", "checkpoint"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is acted on: exactly one of the four. `ids` are runs, of a redrive or discard dead letters.

    `runs` and `letters` are all that the run list, or the list of dead letters, shows with that filter; `letters` in
    the parameters of its address.
    """

    ids: tuple[uuid.UUID, ...] = ()
    stage_ids: tuple[uuid.UUID, ...] = ()
    runs: RunFilter | None = None
    letters: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """A verb, on what, and how fast. `choices` is what the verb takes, the same for every target:

    retry `scope`; pause `until`; rerun `from` and `environment`; replay `freeze_release` and `environment`.
    """

    kind: OperationKind
    selection: Selection
    choices: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    override_reason: str = ""
    rate: int = 20
    canary: int = 0
    stop_ratio: float | None = None


def chosen_in(selection: Selection) -> dict[str, Any]:
    """How the targets were chosen, as JSON that is kept: `ids` with their number, or `filter` with its words."""
    if selection.runs is not None:
        told = {name: _told(value) for name, value in asdict(selection.runs).items() if value and name != "wide"}
        return {"how": "filter", "of": "runs", "filter": told}
    if selection.letters is not None:
        given = {name: [text for text in values if text.strip()] for name, values in selection.letters.items()}
        told = {name: values for name, values in given.items() if values and name not in PAGING}
        return {"how": "filter", "of": "dead_letters", "filter": told}
    what, ids = ("stages", selection.stage_ids) if selection.stage_ids else ("targets", selection.ids)
    return {"how": "ids", "of": what, "count": len(dict.fromkeys(ids))}


def fingerprint(wish: Wish) -> str:
    """What makes two requests the same: all of it but the reason."""
    selection = wish.selection
    told = chosen_in(selection)
    told["ids"] = sorted({str(one) for one in (*selection.ids, *selection.stage_ids)})
    how = [wish.rate, wish.canary, wish.stop_ratio, wish.override_reason]
    return digest_of([wish.kind.value, told, dict(wish.choices), how])


def check_selection(wish: Wish) -> None:
    """Refuses what names nothing, more than one thing, or what its verb does not act on (`validation_error`)."""
    given = [name for name in ("ids", "stage_ids", "runs", "letters") if getattr(wish.selection, name) is not None]
    given = [name for name in given if getattr(wish.selection, name) != ()]
    takes = {"ids", "letters"} if wish.kind in OF_LETTERS else {"ids", "runs"}
    takes |= {"stage_ids"} if wish.kind in OF_STAGES else set()
    match given:
        case []:
            raise _wrong("filter", "nothing is chosen: name what is to be acted on, or a filter that narrows the list")
        case [only] if only not in takes:
            raise _wrong("filter", f"{wish.kind} does not act on these")
        case ["runs" | "letters"] if not _narrows(chosen_in(wish.selection)):
            raise _wrong("filter", "an empty filter would take everything: narrow it by something")
        case ["letters"]:
            _letters(DeadLetter.objects.none(), wish.selection.letters or {})  # before anything of it is kept
        case [_]:
            return
        case _:
            raise _wrong("filter", "choose by ids or by a filter, not by both")


def _narrows(chosen: Mapping[str, Any]) -> bool:
    """Whether the filter leaves anything out: every word of a closed set is as good as none, and so is a future end."""
    all_words = _EVERY[chosen["of"]]
    for name, values in chosen["filter"].items():
        if name in all_words:
            narrows = not all_words[name] <= set(values)
        elif name == "created_before":
            narrows = datetime.fromisoformat(values) < database_now()
        else:
            narrows = True
        if narrows:
            return True
    return False


# by list: the filters over closed sets, with all that a target of it may be
_EVERY: Mapping[str, Mapping[str, frozenset[str]]] = {
    "runs": {"status": frozenset(RunStatus.values)},
    "dead_letters": {"status": frozenset(OPEN_DEAD_LETTER), "reason": frozenset(DeadLetterReason.values)},
}


def freeze(bulk: BulkOperation, selection: Selection, *, actor: Actor) -> None:
    """Writes the targets, in their list's order, each once; sets `total` and the digest of all of them in `chosen`.

    Refused: an id that the actor may not know of (`not_found`, naming none), more than `MOST_TARGETS`
    (`bulk_too_many_targets`).
    """
    kind = OperationKind(bulk.kind)
    if selection.letters is not None:
        written = _freeze_letters(bulk, selection.letters, actor)
    elif kind in OF_LETTERS:
        written = _freeze_letter_ids(bulk, selection.ids, actor)
    elif selection.stage_ids:
        written = _freeze_stage_ids(bulk, selection.stage_ids, actor)
    else:
        written = _freeze_runs(bulk, kind, _runs(selection, actor))
    if written > MOST_TARGETS:
        raise _too_many()
    bulk.total = written
    bulk.chosen = {**bulk.chosen, "targets": targets_digest(bulk.id)}


def refreeze(bulk: BulkOperation) -> None:
    """The same runs, with where a rerun starts in each found anew, as its choices say by now."""
    rows = query("SELECT run FROM recovery_bulkitem WHERE bulk_id = %s ORDER BY position", [bulk.id])
    execute("DELETE FROM recovery_bulkitem WHERE bulk_id = %s", [bulk.id])
    bulk.total = _freeze_runs(bulk, OperationKind(bulk.kind), in_one(run_id for (run_id,) in rows))
    bulk.chosen = {**bulk.chosen, "targets": targets_digest(bulk.id)}


def targets_digest(bulk_id: uuid.UUID) -> str:
    ((found,),) = query(
        "SELECT encode(sha256(convert_to(coalesce(string_agg(concat_ws('/', run, stage, dead_letter), ','"
        " ORDER BY position), ''), 'utf8')), 'hex') FROM recovery_bulkitem WHERE bulk_id = %s",
        [bulk_id],
    )
    return str(found)


def _runs(selection: Selection, actor: Actor) -> str:
    """The runs in their list's order, as one `uuid[]` in text."""
    if selection.runs is not None:
        count, ids = listing.ids_in_one(actor, selection.runs, MOST_TARGETS)
        if count > MOST_TARGETS:
            raise _too_many()
        return ids
    wanted = list(dict.fromkeys(selection.ids))
    if len(wanted) > MOST_TARGETS:
        raise _too_many()
    rows = query(
        "SELECT id FROM pipelines_run WHERE id = ANY(%s) AND workspace_id = %s ORDER BY created_at DESC, id DESC",
        [wanted, actor.workspace_id],
    )
    if len(rows) != len(wanted):
        raise Refusal("not_found", "not all of these runs are there; nothing was done")
    return in_one(run_id for (run_id,) in rows)


_WHOLE_RUN = "SELECT %s, t.n, t.id, NULL::uuid, 'pending', '', NULL::timestamptz FROM {runs}"
# a run without the stage is a target all the same, with nothing to do, so that whoever looks finds it told (F39)
_OF_STAGE = """
    SELECT %s, row_number() OVER (ORDER BY t.n, s.position), t.id, s.id,
        CASE WHEN s.id IS NULL THEN 'skipped' ELSE 'pending' END,
        CASE WHEN s.id IS NULL THEN 'not_applicable' ELSE '' END,
        CASE WHEN s.id IS NULL THEN recourse_now() END
    FROM {runs} LEFT JOIN {stages} s ON {matches}
"""
# run by run, by the index of their stages: a join would read every stage that there is
_FAILED = """LATERAL (
    SELECT f.id, f.position FROM pipelines_stage f WHERE f.run_id = t.id AND f.state = 'failed'
    ORDER BY f.position OFFSET 0
)"""
_FIRST_FAILED = """(
    SELECT DISTINCT ON (f.run_id) f.id, f.run_id, f.position FROM pipelines_stage f
    WHERE f.run_id = ANY(%s::uuid[]) AND f.state = 'failed' ORDER BY f.run_id, f.position
)"""


def _freeze_runs(bulk: BulkOperation, kind: OperationKind, runs: str) -> int:
    start = bulk.choices.get("from")
    template, stages, matches, more = _WHOLE_RUN, "", "", []
    if kind in OF_STAGES:
        template, stages, matches = _OF_STAGE, _FAILED, "true"
    elif kind == OperationKind.RERUN and start == FAILED_STAGE:
        template, stages, matches, more = _OF_STAGE, _FIRST_FAILED, "s.run_id = t.id", [runs]
    elif kind == OperationKind.RERUN and start != CHECKPOINT:
        template, stages, matches, more = _OF_STAGE, "pipelines_stage", "s.run_id = t.id AND s.name = %s", [start]
    every = "unnest(%s::uuid[]) WITH ORDINALITY AS t(id, n)"
    select = template.format(runs=every, stages=stages, matches=matches)
    return _written(
        f"INSERT INTO recovery_bulkitem (bulk_id, position, run, stage, state, code, decided_at) {select}",
        [bulk.id, runs, *more],
    )


def _freeze_stage_ids(bulk: BulkOperation, ids: Sequence[uuid.UUID], actor: Actor) -> int:
    wanted = list(dict.fromkeys(ids))
    written = execute(
        "INSERT INTO recovery_bulkitem (bulk_id, position, run, stage, state)"
        " SELECT %s, row_number() OVER (ORDER BY s.run_created_at DESC, s.run_id DESC, s.position), s.run_id, s.id,"
        " 'pending' FROM pipelines_stage s JOIN pipelines_run r ON r.id = s.run_id"
        " WHERE s.id = ANY(%s) AND r.workspace_id = %s",
        [bulk.id, wanted, actor.workspace_id],
    )
    if written != len(wanted):
        raise Refusal("not_found", "not all of these stages are there; nothing was done")
    return written


def _freeze_letter_ids(bulk: BulkOperation, ids: Sequence[uuid.UUID], actor: Actor) -> int:
    wanted = list(dict.fromkeys(ids))
    rows = queries.dead_letters(actor).filter(id__in=wanted)
    written = _insert_letters(bulk, rows)
    if written != len(wanted):
        raise Refusal("not_found", "not all of these dead letters are there; nothing was done")
    return written


def _freeze_letters(bulk: BulkOperation, params: Mapping[str, Sequence[str]], actor: Actor) -> int:
    """Those that the list shows with this filter and that still wait for somebody."""
    rows = _letters(queries.dead_letters(actor), params)
    return _insert_letters(bulk, rows.filter(state__in=sorted(OPEN_DEAD_LETTER)))


def _letters(rows: QuerySet[DeadLetter], params: Mapping[str, Sequence[str]]) -> QuerySet[DeadLetter]:
    """Those that the filter leaves; refused where it cannot be meant."""
    given: MultiValueDict[str, str] = MultiValueDict({name: list(values) for name, values in params.items()})
    return DeadLetterFilter.narrow(rows, given)


def _insert_letters(bulk: BulkOperation, rows: Any) -> int:
    newest = rows.order_by("-opened_at", "-id").values_list("id", "run_id", "stage_id", "opened_at")
    select, params = newest[: MOST_TARGETS + 1].query.sql_with_params()
    return _written(
        "INSERT INTO recovery_bulkitem (bulk_id, position, run, stage, dead_letter, state)"
        " SELECT %s, row_number() OVER (ORDER BY t.opened_at DESC, t.id DESC), t.run_id, t.stage_id, t.id, 'pending'"
        f" FROM ({select}) AS t(id, run_id, stage_id, opened_at)",
        [bulk.id, *params],
    )


def _written(insert: str, params: Sequence[Any]) -> int:
    """Runs the statement as it is best planned for so many, and says how many rows it wrote."""
    return int(planned(f"WITH written AS ({insert} RETURNING 1) SELECT count(*) FROM written", params)[0][0])


def _too_many() -> Refusal:
    detail = f"at least {MOST_TARGETS + 1:,} match, and one bulk takes at most {MOST_TARGETS:,}: narrow the filter"
    return Refusal("bulk_too_many_targets", detail, extra={"most": MOST_TARGETS, "at_least": MOST_TARGETS + 1})


def _wrong(name: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{name}: {message}", errors={name: [message]})


def _told(value: Any) -> Any:
    return [str(one) for one in value] if isinstance(value, tuple) else value.isoformat()


def read_choices(kind: OperationKind, given: Mapping[str, Any], *, actor: Actor) -> dict[str, Any]:
    """What the verb takes, with its defaults, as JSON; refused by name: what it does not take, and what it cannot be.

    `environment_unknown` for one that the workspace has not.
    """
    known = _CHOICES.get(kind, {})
    told = {name: value for name, value in given.items() if value not in (None, "")}
    if strange := sorted(set(told) - set(known)):
        raise Refusal(
            "validation_error",
            f"{', '.join(strange)}: not a choice of {kind}",
            errors={name: [f"not a choice of {kind}"] for name in strange},
        )
    choices = {**known, **told}
    if "scope" in known and choices["scope"] not in (STAGE_ONLY, AND_DOWNSTREAM):
        raise _wrong("scope", f"must be {STAGE_ONLY} or {AND_DOWNSTREAM}")
    if (until := choices.get("until")) is not None:
        until = datetime.fromisoformat(until) if isinstance(until, str) else until
        if until <= database_now():
            raise _wrong("until", "must lie ahead")
        choices["until"] = until.isoformat()
    environment = choices.get("environment")
    if (
        environment is not None
        and not Environment.objects.filter(workspace_id=actor.workspace_id, slug=environment).exists()
    ):
        message = f"no environment is called {environment!r}"
        raise Refusal("environment_unknown", message, errors={"environment": [message]})
    return choices


_CHOICES: Mapping[OperationKind, Mapping[str, Any]] = {
    OperationKind.RETRY: {"scope": STAGE_ONLY},
    OperationKind.PAUSE: {"until": None},
    OperationKind.RERUN: {"from": CHECKPOINT, "environment": None},
    OperationKind.REPLAY: {"freeze_release": False, "environment": None},
}
