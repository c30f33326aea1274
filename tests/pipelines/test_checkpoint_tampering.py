"""What somebody with the database's password may try on a checkpoint: each way is noticed before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines import checkpoint_reading
from pipelines.errors import Refusal
from pipelines.models import Run
from tests.cast import Hand
from tests.tampering import Scene, Tampering, every_tampering, make_scene


@pytest.fixture
def scene(start_run: Callable[..., Run], hand: Hand) -> Scene:
    return make_scene(start_run, hand)


def test_what_nobody_touched_covers_the_failed_stages_dependencies(scene: Scene) -> None:
    """O25: the control of the tests below."""
    covering = checkpoint_reading.newest_covering(scene.run.id, ["first"])

    assert covering.checkpoint == scene.used
    assert {name: (done.state, done.epoch) for name, done in covering.done.items()} == {"first": ("completed", 1)}
    assert covering.done["first"].output_id == scene.stage("first").output_id
    assert checkpoint_reading.verify(scene.used) == "valid"


@every_tampering
def test_a_tampered_checkpoint_covers_nothing(scene: Scene, tampering: Tampering) -> None:
    """O25, O34, O36, F148, F149, R44: refused with one code, and no older checkpoint is used instead."""
    tampering.act(scene)

    with pytest.raises(Refusal) as refusal:
        checkpoint_reading.newest_covering(scene.run.id, ["first"])

    assert refusal.value.code == "checkpoint_integrity_invalid"
    found = checkpoint_reading.snapshot(scene.run.id)
    assert found is not None
    assert found[1] == tampering.verdict
