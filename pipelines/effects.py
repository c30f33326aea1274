"""What attempts did, or were about to do, outside their run's own state: intent before the act, outcome after.

Same attempt, class, step and key is one effect; it only moves forward, and told again it is the same answer. An effect
whose outcome was not told when its attempt ended becomes unknown (`Moves.save`). What a handler does without telling
is not known here, and nothing here promises that an effect happens once. Serves O42, O44, O48, P75, R3–R6, F62.

    moves.effects.tell(stage, attempt, [Told("external_http", "declared", key="invoice-42")])
    moves.effects.are_open(attempt)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.sql import execute, query, recordset
from pipelines.states import COMMITTED_EFFECT, EFFECT_MOVES, OPEN_EFFECT, EffectClass, EffectState

if TYPE_CHECKING:
    from pipelines.moves import AttemptRow, Moves, StageRow

MOST_EFFECTS = 200  # in one request or result
NOT_TOLD = "its attempt ended before the outcome was told"
# What a worker may say, and the event when it is the first word on an effect.
FIRST_WORD = {
    EffectState.DECLARED: "declare",
    EffectState.COMMITTED: "commit",
    EffectState.ABSENT: "deny",
    EffectState.UNKNOWN: "doubt",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker says of one effect. A step that is left out is the stage itself; `detail` is any JSON."""

    effect_class: str
    state: str  # declared | committed | absent | unknown
    step_id: str = ""
    key: str = ""
    external_ref: str = ""
    request_hash: str = ""
    detail: Any = None

    def identity(self, stage: str) -> Identity:
        """Which effect it speaks of, told by an attempt of that stage."""
        return Identity(self.effect_class, self.step_id or stage, self.key)

    def as_wire(self) -> dict[str, Any]:
        """In the words in which it was told; what was left out stays out."""
        told = {
            "class": self.effect_class,
            "stepId": self.step_id,
            "idempotencyKey": self.key,
            "state": self.state,
            "externalRef": self.external_ref,
            "requestHash": self.request_hash,
            "detail": self.detail,
        }
        return {name: value for name, value in told.items() if value not in ("", None)}


class Identity(NamedTuple):
    """What makes two words of one attempt speak of the same effect."""

    effect_class: str
    step_id: str
    key: str


@dataclass(frozen=True, slots=True)
class Noted:
    """An effect as it stands."""

    id: uuid.UUID
    identity: Identity
    state: EffectState
    external_ref: str
    request_hash: str
    detail: Any = None  # only what was told in this transaction

    @property
    def is_outside(self) -> bool:
        return self.identity.effect_class != EffectClass.INTERNAL_STATE


@dataclass(frozen=True, slots=True)
class Earlier:
    """How an earlier attempt of the same epoch left the same effect: a committed one first, then one whose outcome
    nobody knows, then the newest.
    """

    attempt: int
    state: str
    external_ref: str


def check(told: Sequence[Told]) -> None:
    """Refuses what can be neither stored nor judged later: `effect_class_unknown`, `effect_key_required` (O42, O48)."""
    for index, one in enumerate(told):
        if one.effect_class not in EffectClass.values:
            message = f"{one.effect_class!r} is none of: {', '.join(EffectClass.values)}"
            raise _refusal("effect_class_unknown", f"effects[{index}].class", message)
        outside = one.effect_class != EffectClass.INTERNAL_STATE
        if outside and one.state == EffectState.COMMITTED and not one.key:
            message = f"a committed effect of class {one.effect_class} needs the key that the outside system got"
            raise _refusal("effect_key_required", f"effects[{index}].idempotencyKey", message)


class Book:
    """The effects of the attempts that a transaction holds: read in one statement when first asked for, written at
    its end."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._unread: set[uuid.UUID] = set()
        self._known: dict[uuid.UUID, dict[Identity, Noted]] = {}
        self._new: list[dict[str, Any]] = []
        self._changed: dict[uuid.UUID, Noted] = {}

    def watch(self, attempts: Iterable[AttemptRow]) -> None:
        """The caller locked these attempts and may ask for their effects."""
        self._unread.update(attempt.id for attempt in attempts if attempt.id not in self._known)

    def of(self, attempt: AttemptRow) -> dict[Identity, Noted]:
        """The effects of a watched attempt, with what was told since."""
        if attempt.id not in self._known:
            self._read()
        return self._known[attempt.id]

    def are_open(self, attempt: AttemptRow) -> bool:
        """Whether the outcome of an effect outside the run's own state is not known."""
        return any(one.is_outside and one.state in OPEN_EFFECT for one in self.of(attempt).values())

    def were_begun(self, attempt: AttemptRow) -> bool:
        """Whether any effect outside the run's own state was told of, whatever came of it."""
        return any(one.is_outside for one in self.of(attempt).values())

    def tell(self, stage: StageRow, attempt: AttemptRow, told: Sequence[Told]) -> list[Noted]:
        """Notes what is told, in order, all or nothing, each change with its event (I5). The caller has checked it.

        Refused with `stage_state_invalid`, naming the effect: going back, and another request under the same key.
        """
        known = dict(self.of(attempt))
        answers, steps = [], []
        for index, one in enumerate(told):
            identity = one.identity(stage.name)
            before = known.get(identity)
            after = _first(identity, one) if before is None else _next(before, one, index)
            if after != before:
                known[identity] = after
                steps.append((before, after))
            answers.append(after)
        self._known[attempt.id] = known
        for before, after in steps:
            self._note(stage, attempt, before, after)
        return answers

    def save(self) -> None:
        """Writes what was told, in at most two statements."""
        if self._new:
            rows = [row | _columns(self._changed.pop(row["id"])) for row in self._new]
            execute(
                "INSERT INTO pipelines_effect (id, run_id, stage_id, attempt, epoch, effect_class, step_id, key, state,"
                " external_ref, request_hash, detail, declared_at, settled_at)"
                " SELECT id, run_id, stage_id, attempt, epoch, effect_class, step_id, key, state, external_ref,"
                " request_hash, detail, %s, CASE WHEN state <> ALL(%s) THEN %s::timestamptz END"
                " FROM json_to_recordset(%s::json) AS r(id uuid, run_id uuid, stage_id uuid, attempt uuid, epoch int,"
                " effect_class text, step_id text, key text, state text, external_ref text, request_hash text,"
                " detail jsonb)",
                [self._moves.now, sorted(OPEN_EFFECT), self._moves.now, recordset(rows)],
            )
        if self._changed:
            rows = [{"id": one.id, **_columns(one)} for one in self._changed.values()]
            execute(
                "UPDATE pipelines_effect e SET state = r.state, external_ref = r.external_ref,"
                " request_hash = r.request_hash, detail = coalesce(r.detail, e.detail),"
                " settled_at = CASE WHEN e.state = r.state THEN e.settled_at WHEN r.state <> ALL(%s) THEN %s END"
                " FROM json_to_recordset(%s::json) AS r(id uuid, state text, external_ref text, request_hash text,"
                " detail jsonb) WHERE e.id = r.id",
                [sorted(OPEN_EFFECT), self._moves.now, recordset(rows)],
            )
        self._new, self._changed = [], {}

    def _read(self) -> None:
        self._known.update({attempt_id: {} for attempt_id in self._unread})
        rows = query(
            "SELECT attempt, id, effect_class, step_id, key, state, external_ref, request_hash"
            " FROM pipelines_effect WHERE attempt = ANY(%s)",
            [list(self._unread)],
        )
        self._unread.clear()
        for attempt_id, effect_id, effect_class, step_id, key, state, external_ref, request_hash in rows:
            identity = Identity(effect_class, step_id, key)
            noted = Noted(effect_id, identity, EffectState(state), external_ref, request_hash)
            self._known[attempt_id][identity] = noted

    def _note(self, stage: StageRow, attempt: AttemptRow, before: Noted | None, after: Noted) -> None:
        self._changed[after.id] = after
        if before is None:
            self._new.append(
                {
                    "id": after.id,
                    "run_id": stage.run_id,
                    "stage_id": stage.id,
                    "attempt": attempt.id,
                    "epoch": attempt.epoch,
                    **after.identity._asdict(),
                }
            )
        if before is not None and before.state == after.state:
            return  # what was left out before; no change of state that an event would tell
        action = FIRST_WORD[after.state] if before is None else _ACTIONS[before.state, after.state]
        self._moves.event(
            f"effect.{action}",
            stage.run_id,
            stage.id,
            attempt.id,
            before.state if before else "",
            after.state,
            data=event_data(after.id, after.identity) | {"number": attempt.number},
        )


def earlier(stage: StageRow, attempt: AttemptRow, identities: Iterable[Identity]) -> dict[Identity, Earlier]:
    """How earlier attempts of the epoch left these, so that the handler can leave out what is done or may be."""
    wanted = [identity._asdict() for identity in set(identities)]
    if not wanted or attempt.number == 1:
        return {}
    rows = query(
        "SELECT DISTINCT ON (w.effect_class, w.step_id, w.key) w.effect_class, w.step_id, w.key, a.number, e.state,"
        " e.external_ref FROM json_to_recordset(%s::json) AS w(effect_class text, step_id text, key text)"
        " JOIN pipelines_effect e ON e.effect_class = w.effect_class AND e.step_id = w.step_id AND e.key = w.key"
        " JOIN pipelines_attempt a ON a.id = e.attempt"
        " WHERE e.stage_id = %s AND e.epoch = %s AND e.attempt <> %s AND e.state <> 'declared'"
        " ORDER BY w.effect_class, w.step_id, w.key, e.state = ANY(%s) DESC, e.state = 'unknown' DESC, a.number DESC",
        [recordset(wanted), stage.id, attempt.epoch, attempt.id, sorted(COMMITTED_EFFECT)],
    )
    return {Identity(*row[:3]): Earlier(*row[3:]) for row in rows}


def event_data(effect_id: uuid.UUID, identity: Identity) -> dict[str, Any]:
    """How an event names its effect."""
    effect_class, step_id, key = identity
    return {"effect": str(effect_id), "class": effect_class, "step": step_id, "key": key}


_ACTIONS = {(origin, to): action for action, moves in EFFECT_MOVES.items() for origin, to in moves.items()}


def _first(identity: Identity, told: Told) -> Noted:
    state = EffectState(told.state)
    return Noted(new_id(), identity, state, told.external_ref, told.request_hash, told.detail)


def _next(before: Noted, told: Told, index: int) -> Noted:
    name = f"the effect {before.identity.effect_class} of {before.identity.step_id}"
    if told.request_hash and before.request_hash and told.request_hash != before.request_hash:
        message = f"{name} was declared for another request; another request needs a key of its own"
        raise _refusal("stage_state_invalid", f"effects[{index}].requestHash", message, before)
    if told.state == before.state:
        return replace(
            before,
            external_ref=before.external_ref or told.external_ref,
            request_hash=before.request_hash or told.request_hash,
        )
    if (before.state, told.state) not in _ACTIONS:
        message = f"{name} is {before.state} and only moves forward; it cannot become {told.state}"
        raise _refusal("stage_state_invalid", f"effects[{index}].state", message, before)
    return replace(
        before,
        state=EffectState(told.state),
        external_ref=told.external_ref or before.external_ref,
        request_hash=told.request_hash or before.request_hash,
        detail=told.detail if told.detail is not None else before.detail,
    )


def _columns(noted: Noted) -> dict[str, Any]:
    return {
        "state": noted.state,
        "external_ref": noted.external_ref,
        "request_hash": noted.request_hash,
        "detail": noted.detail,
    }


def _refusal(code: str, field: str, message: str, noted: Noted | None = None) -> Refusal:
    extra = {"effectId": str(noted.id)} if noted else {}
    return Refusal(code, f"{field}: {message}", errors={field: [message]}, extra=extra)
