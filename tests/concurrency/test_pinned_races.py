"""Many claimers while the text of a release is edited beneath them (R16)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pipelines.models import Attempt, QueueEntry, Run
from tests.cast import Hand
from tests.concurrency.crew import Crew
from tests.pipelines.test_pinned import edit

StartRun = Callable[..., Run]
PATIENCE_SECONDS = 60


def test_no_claim_that_begins_after_the_edit_gets_anything_of_it(
    crew: Crew, start_run: StartRun, new_hand: Callable[..., Hand]
) -> None:
    """R16: six claimers, forty runs on the release that is edited and forty on another; the others all end."""
    doomed = {start_run("first", "second").id for _ in range(40)}
    run = Run.objects.get(id=next(iter(doomed)))
    others = {start_run({"name": "first", "handler": "Else"}, name="another").id for _ in range(40)}
    edited, begun = threading.Event(), threading.Event()
    wrong: list[Any] = []

    def claim(hand: Hand) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while QueueEntry.objects.exists():
            assert time.monotonic() < give_up_at, "it comes to no end"
            is_after = edited.is_set()
            for job in hand.pull(2):
                if is_after and job.run_id in doomed:
                    wrong.append(job.stage.id)
                hand.report(job, output=1)
            begun.set()

    def change() -> None:
        assert begun.wait(PATIENCE_SECONDS)
        edit(run)
        edited.set()

    hands = [new_hand(f"hand-{number}", "Handler", "Else") for number in range(6)]
    crew.at_once(change, *(partial(claim, hand) for hand in hands))
    assert wrong == []
    stopped = Run.objects.filter(id__in=doomed, status="blocked")
    assert stopped.exists()
    assert all(one.changed for one in stopped)
    assert Run.objects.filter(id__in=others, status="completed").count() == 40
    assert not Attempt.objects.filter(run_id__in=doomed, state__in=["dispatched", "running"]).exists()
