"""What outside systems say about effects: summaries, sealed by their digest, signed as stored, only ever added.

A summary is any JSON; what it claims, `sealing.claim` reads. Serves O28, O44–O46, I7.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import rfc8785

from pipelines import signing
from pipelines.access import RESOLVE, Actor
from pipelines.audit import NO_OP, audited
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.models import Effect, LateEvidence
from pipelines.transitions import lock_run
from recovery import sealing
from recovery.models import EffectEvidence


@dataclass(frozen=True, slots=True)
class Summary:
    """What was sent. Sealed is what came with the SHA-256 of its RFC 8785 form, and was not said to be unsealed."""

    summary: Any
    source: str
    clean: bool
    sealed: bool | None = None
    digest: str | None = None

    @property
    def is_sealed(self) -> bool:
        return self.digest is not None and self.sealed is not False

    def text(self) -> str:
        """Its canonical form. Refused: what has none, and a digest that is not its own."""
        try:
            text = rfc8785.dumps(self.summary).decode()
        except (rfc8785.CanonicalizationError, UnicodeError) as error:
            raise _wrong("summary", f"it has no canonical form: {error}") from error
        if self.digest is not None and self.digest.lower() != sha256(text.encode()).hexdigest():
            raise _wrong("digest", "is not the SHA-256 of the summary's RFC 8785 form")
        return text

    def as_json(self) -> dict[str, Any]:
        """As it is kept beside an operation, with the digest of its own."""
        text = self.text()
        return {
            "summary": json.loads(text),
            "source": self.source,
            "sealed": self.is_sealed,
            "clean": self.clean,
            "digest": sha256(text.encode()).hexdigest(),
        }


def add_evidence(
    run_id: uuid.UUID, effect_id: uuid.UUID, summary: Summary, *, actor: Actor, reason: str = "", key: str = ""
) -> tuple[EffectEvidence, bool]:
    """Adds a summary to an effect; the second value says whether it is new. The same from the same person is one, for
    as long as it is trusted; another under the same `key` is refused with `recovery_idempotency_conflict`.

    The effect's own state stays. Of any run, a cancelled one too.
    """
    with audited(actor, "effect.evidence", run=run_id, reason=reason, effect=str(effect_id)) as entry:
        lock_run(run_id, actor)  # a verdict that is under way sees all of it or nothing
        actor.require(RESOLVE)
        effect = effect_of(run_id, effect_id)
        evidence, is_new = keep(effect, summary, actor, key)
        entry.data |= {"evidence": str(evidence.id), "sealed": evidence.is_sealed, "clean": evidence.is_clean}
        if not is_new:
            entry.outcome = NO_OP
    return evidence, is_new


def keep(effect: Effect, summary: Summary, actor: Actor, key: str = "") -> tuple[EffectEvidence, bool]:
    """Stores and signs a summary, under the lock of the effect's run. The id of one with a key comes from the key."""
    text = summary.text()
    told = {
        "effect": effect,
        "source": summary.source,
        "is_sealed": summary.is_sealed,
        "is_clean": summary.clean,
        "digest": sha256(text.encode()).hexdigest(),
        "user_id": actor.user_id,
    }
    by_key = uuid.uuid5(effect.id, f"{actor.user_id} {key}") if key else None
    taken = by_key is not None and EffectEvidence.objects.filter(id=by_key).exists()
    same = list(EffectEvidence.objects.filter(**told))
    if taken and by_key not in {one.id for one in same}:
        raise Refusal("recovery_idempotency_conflict", "this key was already used for another summary")
    for known, is_trusted in zip(same, are_trusted(actor.workspace_id, same), strict=True):
        if is_trusted:
            return known, False
    evidence = EffectEvidence(id=new_id() if taken else by_key or new_id(), summary=text, **told)
    envelope = signing.sign(actor.workspace_id, _message(evidence))
    if same and not envelope.signature:
        return same[0], False  # the keyring is away: another copy would be worth no more
    evidence.algorithm, evidence.key_id = envelope.algorithm, envelope.key_id
    evidence.signature = envelope.signature
    evidence.save(force_insert=True)
    return evidence, True


def are_trusted(workspace_id: uuid.UUID, summaries: Sequence[EffectEvidence]) -> list[bool]:
    """Which of these rows are what was stored: the text has its digest, and the console's signature holds now."""
    asked = [
        (workspace_id, signing.Envelope(one.algorithm, one.key_id, one.signature), _message(one)) for one in summaries
    ]
    verdicts = signing.verify_all(asked)
    return [
        verdict == signing.Verdict.VALID and sha256(one.summary.encode()).hexdigest() == one.digest
        for one, verdict in zip(summaries, verdicts, strict=True)
    ]


def effect_of(run_id: uuid.UUID, effect_id: uuid.UUID) -> Effect:
    """The effect of that run, as it is under the caller's lock; any other id is 404."""
    effect = Effect.objects.filter(id=effect_id, run_id=run_id).select_related("stage").first()
    if effect is None:
        raise Refusal("not_found", "the run has no such effect")
    return effect


def late_results(stage_id: uuid.UUID, attempt_id: uuid.UUID | None = None) -> list[LateEvidence]:
    """What came too late from the stage's attempts, or from one of them, newest first: it may tell what happened."""
    late = LateEvidence.objects.filter(attempt__stage_id=stage_id).select_related("attempt")
    if attempt_id is not None:
        late = late.filter(attempt_id=attempt_id)
    return list(late.order_by("-id")[:50])


def _message(evidence: EffectEvidence) -> bytes:
    return sealing.message(
        evidence.effect_id,
        evidence.source,
        evidence.digest,
        is_sealed=evidence.is_sealed,
        is_clean=evidence.is_clean,
    )


def _wrong(field: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{field}: {message}", errors={field: [message]})
