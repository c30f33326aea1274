"""What a handler leaves for its stage's next attempt: its state, and its word on its effects (the recovery posture).

A posture tells effects in `side_effects`, each with `committed: true` or not, or in `committed_side_effects`, which all
are; both say the same. Committed ones are effects of the attempt like any that it tells of, and so is the intent to one
outside that names its key; the others stay in the checkpoint. Serves O42, O47, O48, R4.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import rfc8785

from pipelines.effects import Told
from pipelines.errors import Refusal
from pipelines.moves import AttemptRow, Moves, StageRow
from pipelines.states import EffectClass, EffectState

LARGEST_STATE = 256 * 1024  # bytes of canonical JSON
MOST_SIDE_EFFECTS = 200

# An entry: {effect_class, committed?, step_id?, key?, external_ref?, request_hash?}
SideEffect = Mapping[str, Any]
Posture = Mapping[str, Sequence[SideEffect]]


@dataclass(frozen=True, slots=True)
class Left:
    """A handler's state (any JSON but null) and posture, as they came in. `spell` gives the sender's name of a field,
    `at` where in the request all this stands; both only for what a refusal says."""

    state: Any
    posture: Posture | None = None
    spell: Callable[[str], str] = str
    at: str = ""

    def check(self) -> Checked:
        """What may be kept. Refused: a state that is too large (`payload_too_large`) or has no canonical form, and
        entries that say too little: `effect_class_unknown`, `effect_key_required`."""
        self._check_state()
        entries = self._entries()
        committed = [(where, one) for where, one in entries if one["committed"]]
        intents = [one for _, one in entries if not one["committed"] and _is_intent(one)]
        return Checked(
            posture=None if self.posture is None else {"side_effects": _merged(one for _, one in entries)},
            told=[_told(one, EffectState.COMMITTED) for _, one in committed],
            paths=[where for where, _ in committed],
            intents=[_told(one, EffectState.DECLARED) for one in intents],
        )

    def _check_state(self) -> None:
        field = self.at + self.spell("state")
        try:
            size = len(rfc8785.dumps(self.state))
            orjson.dumps({"state": self.state})  # what is nested too deep for it could not be handed on
        except (ValueError, TypeError, RecursionError) as error:
            message = f"has no canonical form: {error}"
            raise Refusal("validation_error", f"{field}: {message}", errors={field: [message]}) from error
        if size > LARGEST_STATE:
            message = f"has {size} bytes as canonical JSON, the limit is {LARGEST_STATE}"
            raise Refusal("payload_too_large", f"{field}: {message}", errors={field: [message]})

    def _entries(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for name in ("side_effects", "committed_side_effects"):
            for index, entry in enumerate((self.posture or {}).get(name, ())):
                where = f"{self.at}{self.spell('recovery_posture')}.{self.spell(name)}[{index}]"
                found.append((where, self._entry(entry, where, is_committed=name == "committed_side_effects")))
        return found

    def _entry(self, entry: SideEffect, where: str, *, is_committed: bool) -> dict[str, Any]:
        effect_class = entry.get("effect_class", "")
        committed = entry.get("committed", is_committed)
        if effect_class not in EffectClass.values:
            known = ", ".join(EffectClass.values)
            said = f"{effect_class!r} is none of them" if effect_class else "it is missing"
            raise _refusal("effect_class_unknown", f"{where}.class", f"must be one of: {known}; {said}")
        if committed is not True and is_committed:
            raise _refusal("validation_error", f"{where}.committed", "what stands here is committed; leave it out")
        if committed and effect_class != EffectClass.INTERNAL_STATE:
            for name, wire in (("step_id", "step_id"), ("key", "idempotency_key")):
                if not entry.get(name):
                    message = f"a committed effect of class {effect_class} needs its {wire}"
                    raise _refusal("effect_key_required", f"{where}.{self.spell(wire)}", message)
        told = {"class": effect_class, "committed": committed, "step_id": entry.get("step_id")}
        told |= {"idempotency_key": entry.get("key")}
        told |= {name: entry.get(name) for name in ("external_ref", "request_hash")}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Checked:
    """A posture as checkpoints keep it, its committed effects, each with its place in the request, and its intents."""

    posture: dict[str, Any] | None
    told: list[Told]
    paths: list[str]
    intents: list[Told]


def leave(moves: Moves, stage: StageRow, attempt: AttemptRow, left: Left, effects: Sequence[Told] = ()) -> uuid.UUID:
    """Keeps what a running attempt leaves, and tells its committed effects after `effects`: all of it or nothing.

    An intent in the posture is noted unless the attempt has told of that effect: it never takes an outcome back.

    The id of the checkpoint that `moves.save` will write. Refused as `Left.check`, and `stage_state_invalid` for an
    effect that would go back.
    """
    checked = left.check()
    try:
        moves.effects.tell(stage, attempt, [*effects, *checked.told])
    except Refusal as refusal:
        raise _placed(refusal, len(effects), checked.paths) from refusal
    known = moves.effects.of(attempt)
    moves.effects.tell(stage, attempt, [one for one in checked.intents if one.identity(stage.name) not in known])
    return moves.checkpoint(stage, attempt.id, left.state, checked.posture)


def _is_intent(entry: Mapping[str, Any]) -> bool:
    return entry["class"] != EffectClass.INTERNAL_STATE and bool(entry.get("idempotency_key"))


def _told(entry: Mapping[str, Any], state: str) -> Told:
    return Told(
        entry["class"],
        state,
        step_id=entry.get("step_id", ""),
        key=entry.get("idempotency_key", ""),
        external_ref=entry.get("external_ref", ""),
        request_hash=entry.get("request_hash", ""),
    )


def _merged(entries: Any) -> list[dict[str, Any]]:
    """Each effect once, in the order told; committed once is committed."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in entries:
        identity = (one["class"], one.get("step_id"), one.get("idempotency_key"))
        before = found.get(identity, {})
        found[identity] = {**before, **one, "committed": one["committed"] or before.get("committed", False)}
    return list(found.values())


def _placed(refusal: Refusal, first: int, paths: Sequence[str]) -> Refusal:
    """A refusal of the effect with some number, told by where it stands in the posture."""
    (field, messages) = next(iter(refusal.errors.items()))
    index, _, name = field.removeprefix("effects[").partition("]")
    if int(index) < first:
        return refusal
    path = paths[int(index) - first] + name
    return Refusal(refusal.code, f"{path}: {messages[0]}", errors={path: messages}, extra=refusal.extra)


def _refusal(code: str, field: str, message: str) -> Refusal:
    return Refusal(code, f"{field}: {message}", errors={field: [message]})
