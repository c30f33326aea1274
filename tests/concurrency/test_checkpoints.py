"""Checkpoints of one run from many sides at once: one row without a hole, and nothing from who lost the race."""

from __future__ import annotations

import json
from collections.abc import Callable

from pipelines import checkpoint_reading, sweeps
from pipelines.handler_checkpoints import leave_checkpoint
from pipelines.models import Checkpoint, Run
from pipelines.postures import Left
from pipelines.sql import execute
from pipelines.transitions import cancel_run
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew, refusals
from tests.pipelines.engine import stage

StartRun = Callable[..., Run]
NewHand = Callable[..., Hand]


def test_many_handlers_of_one_run_leave_one_row_without_a_hole(
    crew: Crew, start_run: StartRun, new_hand: NewHand
) -> None:
    """Model §2 Checkpoint: sequences rise by one; each is of its own stage, and each stage names its own newest."""
    names = [f"branch {number}" for number in range(8)]
    hands = [new_hand(f"hand-{number}") for number in range(8)]
    run = start_run("top", *({"name": name, "depends_on": ["top"]} for name in names))
    hands[0].report(hands[0].take())
    jobs = [hand.take() for hand in hands]
    for page in range(5):
        crew.at_once(
            *(
                lambda hand=hand, job=job, page=page: leave_checkpoint(
                    hand.holder, job.stage.id, job.attempt_id, Left({"page": page, "of": job.stage.name})
                )
                for hand, job in zip(hands, jobs, strict=True)
            )
        )
    rows = list(Checkpoint.objects.filter(run=run).select_related("run").order_by("sequence"))
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    assert set(checkpoint_reading.verify_all(rows)) == {"valid"}
    for name in names:
        left = checkpoint_reading.handler_state(run.id, name)
        assert left is not None
        assert left.state == {"page": 4, "of": name}


def test_what_is_left_beside_the_end_of_the_attempt_counts_or_is_refused(
    crew: Crew, start_run: StartRun, hand: Hand, people: dict[str, Person]
) -> None:
    """F01, F09: beside a lost lease or a cancel it is stored for whoever comes next, or refused; never in between."""
    for number in range(30):
        run = start_run("first")
        job = hand.take()
        if number % 2:
            execute(
                "UPDATE pipelines_attempt SET expires_at = recourse_now() + interval '2 ms' WHERE id = %s",
                [job.attempt_id],
            )
        answers = crew.at_once(
            lambda job=job: leave_checkpoint(hand.holder, job.stage.id, job.attempt_id, Left({"page": 1})),
            sweeps.expire_leases if number % 2 else lambda run=run: cancel_run(run.id, actor=people["admin"].actor),
        )
        kept = Checkpoint.objects.filter(run=run, moment="handler")
        if refusals(answers):
            assert refusals(answers) == ["stale_execution"]
            assert not kept.exists()
            assert stage(run, "first").checkpoint is None
        else:
            assert stage(run, "first").checkpoint == kept.get().id
            assert json.loads(kept.get().payload)["attempt"] == str(job.attempt_id)
        sequences = Checkpoint.objects.filter(run=run).order_by("sequence").values_list("sequence", flat=True)
        assert list(sequences) == list(range(1, len(sequences) + 1))
        if number % 2:
            cancel_run(run.id, actor=people["admin"].actor)
