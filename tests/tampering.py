"""Ways to tamper with a checkpoint, as data: each is refused before anything is loaded (O25, O34, O36, F148, R44).

    scene = make_scene(start_run, hand)
    tampering.act(scene)

The rows are written as somebody with the database's password would: past the triggers that keep them as they are.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from django.db import transaction

from pipelines import keyring
from pipelines.models import Checkpoint, Release, Run, Stage
from pipelines.moves import Moves
from pipelines.sql import execute, query
from tests.cast import Hand, stages_of

COLUMNS = (
    "moment, stage, epoch, attempt, current_step_id, previous_step_id, payload, payload_digest, algorithm, key_id,"
    " signature"
)


@dataclass(frozen=True)
class Scene:
    """A run that failed at `second`, in its second epoch, with `first` completed; and one just like it to swap with."""

    run: Run
    other: Run

    @property
    def used(self) -> Checkpoint:
        """The checkpoint that a rerun from `second` would use: the newest."""
        return Checkpoint.objects.filter(run=self.run).order_by("-sequence")[0]

    def of_other(self) -> Checkpoint:
        return Checkpoint.objects.filter(run=self.other).order_by("-sequence")[0]

    def earlier(self, **wanted: Any) -> Checkpoint:
        return Checkpoint.objects.filter(run=self.run, **wanted).order_by("sequence")[0]

    def stage(self, name: str) -> Stage:
        return Stage.objects.get(run=self.run, name=name)


@dataclass(frozen=True)
class Tampering:
    name: str
    act: Callable[[Scene], None]
    verdict: str = "invalid"  # what the snapshot says afterwards; "valid" where only the kept outputs tell


def make_scene(start_run: Callable[..., Run], hand: Hand) -> Scene:
    return Scene(_story(start_run, hand), _story(start_run, hand))


def _story(start_run: Callable[..., Run], hand: Hand) -> Run:
    run = start_run("first", "second", "third")
    hand.report(hand.take(), output={"stage": "first"})
    _leave_and_fail(run, hand, {"page": 1})
    with transaction.atomic():
        moves = Moves.lock([run.id], actor="dana")
        again = next(stage for stage in moves.stages.values() if stage.name == "second")
        moves.stage(again, "retry", epoch=again.epoch + 1, checkpoint=None)
        moves.settle()
        moves.save()
    _leave_and_fail(run, hand, {"page": 2})
    run.refresh_from_db()
    assert (run.status, [stage.state for stage in stages_of(run)]) == ("failed", ["completed", "failed", "pending"])
    return run


def _leave_and_fail(run: Run, hand: Hand, state: Any) -> None:
    job = hand.take()
    for step in (0, 1):
        with transaction.atomic():
            moves = Moves.lock([run.id])
            moves.checkpoint(moves.stages[job.stage.id], job.attempt_id, {**state, "step": step})
            moves.save()
    hand.report(job, "failed", error_code="BUSINESS_REJECTED")


# how rows are changed


@contextmanager
def past_the_triggers() -> Any:
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = 'replica'")
        yield
        execute("SET LOCAL session_replication_role = 'origin'")


def forge(checkpoint: Checkpoint, **changes: Any) -> None:
    """Changes columns of a stored checkpoint."""
    with past_the_triggers():
        assert Checkpoint.objects.filter(id=checkpoint.id).update(**changes) == 1


def forge_payload(checkpoint: Checkpoint, *, with_digest: bool, **changes: Any) -> None:
    payload = json.dumps(json.loads(checkpoint.payload) | changes, sort_keys=True, separators=(",", ":"))
    digest = sha256(payload.encode()).hexdigest() if with_digest else checkpoint.payload_digest
    forge(checkpoint, payload=payload, payload_digest=digest)


def remove(**wanted: Any) -> None:
    with past_the_triggers():
        assert Checkpoint.objects.filter(**wanted).delete()[0]


def copy_over(source: Checkpoint, target: Checkpoint) -> None:
    """The target's row says all that the source's says, signature included; it keeps its id, run and place."""
    with past_the_triggers():
        execute(
            f"UPDATE pipelines_checkpoint SET ({COLUMNS}) = (SELECT {COLUMNS} FROM pipelines_checkpoint WHERE id = %s)"
            " WHERE id = %s",
            [source.id, target.id],
        )


# the ways


def payload_says_that_more_is_done(scene: Scene) -> None:
    done = json.loads(scene.used.payload)["done"]
    more = {"epoch": 2, "output": None, "stage": "second", "state": "skipped"}
    forge_payload(scene.used, with_digest=False, done=[*done, more])


def payload_and_its_digest(scene: Scene) -> None:
    done = json.loads(scene.used.payload)["done"]
    more = {"epoch": 2, "output": None, "stage": "second", "state": "skipped"}
    forge_payload(scene.used, with_digest=True, done=[*done, more])


def output_in_the_payload_is_another(scene: Scene) -> None:
    done = json.loads(scene.used.payload)["done"]
    forge_payload(scene.used, with_digest=True, done=[{**done[0], "output": "0" * 64}])


def digest_alone(scene: Scene) -> None:
    forge(scene.used, payload_digest="0" * 64)


def truncated_payload(scene: Scene) -> None:
    forge(scene.used, payload=scene.used.payload[: len(scene.used.payload) // 2])


def truncated_payload_with_its_digest(scene: Scene) -> None:
    half = scene.used.payload[: len(scene.used.payload) // 2]
    forge(scene.used, payload=half, payload_digest=sha256(half.encode()).hexdigest())


def payload_nested_without_end(scene: Scene) -> None:
    endless = "[" * 400 + "]" * 400
    forge(scene.used, payload=endless, payload_digest=sha256(endless.encode()).hexdigest())


def another_runs_checkpoint(scene: Scene) -> None:
    copy_over(scene.of_other(), scene.used)


def moved_to_this_run(scene: Scene) -> None:
    """The other run's row itself, hung on this run in place of its newest."""
    sequence, taken = scene.used.sequence, scene.of_other()
    remove(id=scene.used.id)
    forge(taken, run_id=scene.run.id, sequence=sequence)


def another_stage(scene: Scene) -> None:
    forge(scene.used, stage=scene.stage("first").id)


def stage_of_another_run(scene: Scene) -> None:
    forge(scene.used, stage=Stage.objects.get(run=scene.other, name="second").id)


def no_stage(scene: Scene) -> None:
    forge(scene.used, stage=None)


def older_epoch_in_place_of_the_newest(scene: Scene) -> None:
    copy_over(scene.earlier(moment="stage_end", stage=scene.stage("second").id, epoch=1), scene.used)


def epoch_set_back(scene: Scene) -> None:
    forge(scene.used, epoch=1)


def another_environment(scene: Scene) -> None:
    staging = query(
        "SELECT id FROM pipelines_environment WHERE workspace_id = %s AND slug = 'staging'", [scene.run.workspace_id]
    )
    with past_the_triggers():
        Run.objects.filter(id=scene.run.id).update(environment_id=staging[0][0])


def another_release(scene: Scene) -> None:
    columns = ", ".join(field.column for field in Release._meta.concrete_fields if not field.generated)
    with past_the_triggers():
        execute(
            f"INSERT INTO pipelines_release ({columns}) SELECT {columns} FROM (SELECT (r).* FROM (SELECT"
            " jsonb_populate_record(p, jsonb_build_object('id', %s::text, 'digest', repeat('1', 64))) AS r"
            " FROM pipelines_release p WHERE p.id = %s) one) forged",
            [str(forged := uuid.uuid4()), scene.run.release_id],
        )
        Run.objects.filter(id=scene.run.id).update(release_id=forged)


def unknown_algorithm(scene: Scene) -> None:
    forge(scene.used, algorithm="none")


def other_known_algorithm(scene: Scene) -> None:
    forge(scene.used, algorithm="hmac-sha256")


def unknown_key(scene: Scene) -> None:
    forge(scene.used, key_id="k0000000000000000")


def key_of_the_forger(scene: Scene) -> None:
    """Signed anew, and correctly, with a key that the keyring does not hold."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from pipelines.checkpoint_reading import message_of

    forge_payload(scene.used, with_digest=True, status="completed")
    signature = Ed25519PrivateKey.generate().sign(message_of(scene.used))
    forge(scene.used, signature=base64.b64encode(signature).decode())


def revoked_key(scene: Scene) -> None:
    found = keyring.read(scene.run.workspace_id)
    keyring.write(found, found.revoked(scene.used.key_id))


def no_envelope(scene: Scene) -> None:
    forge(scene.used, algorithm="", key_id="", signature="")


def no_signature(scene: Scene) -> None:
    forge(scene.used, signature="")


def envelope_of_an_earlier_one(scene: Scene) -> None:
    """A mixed envelope: a good signature by the same key, of another text."""
    earlier = scene.earlier(sequence=1)
    forge(scene.used, algorithm=earlier.algorithm, key_id=earlier.key_id, signature=earlier.signature)


def truncated_signature(scene: Scene) -> None:
    forge(scene.used, signature=scene.used.signature[:40])


def signature_with_a_bit_flipped(scene: Scene) -> None:
    raw = bytearray(base64.b64decode(scene.used.signature))
    raw[5] ^= 1
    forge(scene.used, signature=base64.b64encode(bytes(raw)).decode())


def signature_that_is_no_base64(scene: Scene) -> None:
    forge(scene.used, signature="*" * 88)


def older_one_played_again(scene: Scene) -> None:
    """A copy of an earlier one, added as the newest."""
    earlier, sequence = scene.earlier(moment="stage_end", epoch=1), scene.used.sequence + 1
    earlier.pk, earlier.sequence = uuid.uuid4(), sequence
    earlier.save(force_insert=True)


def one_added_without_signature(scene: Scene) -> None:
    added = scene.used
    done = [{"epoch": 1, "output": None, "stage": name, "state": "skipped"} for name in ("first", "second", "third")]
    added.payload = json.dumps(json.loads(added.payload) | {"done": done})
    added.payload_digest = sha256(added.payload.encode()).hexdigest()
    added.pk, added.sequence, added.signature = uuid.uuid4(), added.sequence + 1, ""
    added.save(force_insert=True)


def sequence_raised(scene: Scene) -> None:
    forge(scene.used, sequence=scene.used.sequence + 7)


def two_changed_places(scene: Scene) -> None:
    newest, before = scene.used, scene.earlier(sequence=scene.used.sequence - 1)
    forge(newest, sequence=1_000)
    forge(before, sequence=newest.sequence)
    forge(newest, sequence=before.sequence)


def newest_cut_off(scene: Scene) -> None:
    """All since the first stage ended are gone, and with them that the second was ever retried."""
    first_end = scene.earlier(moment="stage_end", stage=scene.stage("first").id)
    remove(run=scene.run, sequence__gte=first_end.sequence)


def one_removed_from_the_middle(scene: Scene) -> None:
    remove(run=scene.run, sequence=2)


def moment_is_another(scene: Scene) -> None:
    forge(scene.used, moment="skip")


def attempt_is_another(scene: Scene) -> None:
    forge(scene.used, attempt=uuid.uuid4())


def step_is_another(scene: Scene) -> None:
    forge(scene.used, current_step_id="third", previous_step_id="second")


def kept_output_altered(scene: Scene) -> None:
    with past_the_triggers():
        execute(
            'UPDATE pipelines_stageoutput SET body = \'{"stage":"forged"}\' WHERE stage_id = %s',
            [scene.stage("first").id],
        )


def kept_output_removed(scene: Scene) -> None:
    with past_the_triggers():
        execute("DELETE FROM pipelines_stageoutput WHERE stage_id = %s", [scene.stage("first").id])


def stage_row_says_otherwise(scene: Scene) -> None:
    """The stage's row claims another output than was signed."""
    with past_the_triggers():
        execute("UPDATE pipelines_stage SET output_digest = repeat('0', 64) WHERE id = %s", [scene.stage("first").id])


TAMPERINGS = [
    Tampering(act.__name__.replace("_", " "), act, verdict)
    for verdict, acts in {
        "invalid": [
            payload_says_that_more_is_done,
            payload_and_its_digest,
            output_in_the_payload_is_another,
            digest_alone,
            truncated_payload,
            truncated_payload_with_its_digest,
            payload_nested_without_end,
            another_runs_checkpoint,
            moved_to_this_run,
            another_stage,
            stage_of_another_run,
            no_stage,
            older_epoch_in_place_of_the_newest,
            epoch_set_back,
            another_environment,
            another_release,
            unknown_algorithm,
            other_known_algorithm,
            unknown_key,
            key_of_the_forger,
            no_envelope,
            no_signature,
            envelope_of_an_earlier_one,
            truncated_signature,
            signature_with_a_bit_flipped,
            signature_that_is_no_base64,
            older_one_played_again,
            one_added_without_signature,
            sequence_raised,
            two_changed_places,
            moment_is_another,
            attempt_is_another,
            step_is_another,
            newest_cut_off,
            one_removed_from_the_middle,
            stage_row_says_otherwise,
        ],
        "revoked_key": [revoked_key],
        "valid": [
            kept_output_altered,
            kept_output_removed,
        ],
    }.items()
    for act in acts
]

every_tampering = pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda one: one.name)
