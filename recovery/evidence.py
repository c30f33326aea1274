"""What outside systems say about effects: summaries, sealed by their digest, signed as stored, only ever added.

A summary is any JSON. When it is an object whose `outcome` is one of committed, absent, contradicted, that is what it
claims; without one, a clean sealed summary counts as seen and claims nothing. Serves O28, O44–O46, I7.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
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
from recovery.models import EffectEvidence
from recovery.states import Outcome


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


def add_evidence(
    run_id: uuid.UUID, effect_id: uuid.UUID, summary: Summary, *, actor: Actor, reason: str = ""
) -> tuple[EffectEvidence, bool]:
    """Adds a summary to an effect; the second value says whether it is new. The same from the same person is one.

    The effect's own state stays. Of any run, a cancelled one too.
    """
    with audited(actor, "effect.evidence", run=run_id, reason=reason, effect=str(effect_id)) as entry:
        lock_run(run_id, actor)  # a verdict that is under way sees all of it or nothing
        actor.require(RESOLVE)
        effect = effect_of(run_id, effect_id)
        evidence, is_new = keep(effect, summary, actor)
        entry.data |= {"evidence": str(evidence.id), "sealed": evidence.is_sealed, "clean": evidence.is_clean}
        if not is_new:
            entry.outcome = NO_OP
    return evidence, is_new


def keep(effect: Effect, summary: Summary, actor: Actor) -> tuple[EffectEvidence, bool]:
    """Stores and signs a summary, under the lock of the effect's run."""
    text = summary.text()
    told = {
        "effect": effect,
        "source": summary.source,
        "is_sealed": summary.is_sealed,
        "is_clean": summary.clean,
        "digest": sha256(text.encode()).hexdigest(),
        "user_id": actor.user_id,
    }
    known = EffectEvidence.objects.filter(**told).first()
    if known is not None:
        return known, False
    evidence = EffectEvidence(id=new_id(), summary=text, **told)
    envelope = signing.sign(actor.workspace_id, message(evidence))
    evidence.algorithm, evidence.key_id = envelope.algorithm, envelope.key_id
    evidence.signature = envelope.signature
    evidence.save(force_insert=True)
    return evidence, True


def message(evidence: EffectEvidence) -> bytes:
    """The bytes that the console signs: what it is of, what it says, and what was said of it."""
    return rfc8785.dumps(
        {
            "clean": evidence.is_clean,
            "digest": evidence.digest,
            "effect": str(evidence.effect_id),
            "evidence": str(evidence.id),
            "sealed": evidence.is_sealed,
            "source": evidence.source,
        }
    )


def is_trusted(evidence: EffectEvidence, workspace_id: uuid.UUID) -> bool:
    """Whether the row is what was stored: its text has its digest, and the console's signature holds now."""
    if sha256(evidence.summary.encode()).hexdigest() != evidence.digest:
        return False
    envelope = signing.Envelope(evidence.algorithm, evidence.key_id, evidence.signature)
    return signing.verify(workspace_id, envelope, message(evidence)) == signing.Verdict.VALID


def has_clean_seal(evidence: EffectEvidence, workspace_id: uuid.UUID) -> bool:
    """Whether it counts as the clean sealed summary that a committed effect needs (O44)."""
    return evidence.is_sealed and evidence.is_clean and is_trusted(evidence, workspace_id)


def claim(summary: str) -> str | None:
    """The outcome that a stored summary claims; None when it names none."""
    said = json.loads(summary)
    found = said.get("outcome") if isinstance(said, Mapping) else None
    return found if isinstance(found, str) and found in Outcome.values else None


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


def _wrong(field: str, message: str) -> Refusal:
    return Refusal("validation_error", f"{field}: {message}", errors={field: [message]})
