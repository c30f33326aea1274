"""Freezes declared, lifted and met at once: one row for one freeze, and nothing is handed out once one is declared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pipelines import blackout_rows
from pipelines.blackout_rows import Declared
from pipelines.models import AuditEvent, Blackout, Run
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew

StartRun = Callable[..., Run]


def test_the_same_freeze_declared_by_many_at_once_is_one(crew: Crew, people: dict[str, Person]) -> None:
    actor = people["release_manager"].actor
    declare = partial(blackout_rows.declare, actor=actor, reason="an incident")
    answers: list[Declared] = crew.at_once(*[declare] * 8)
    assert sum(answer.is_new for answer in answers) == 1
    assert {answer.row.id for answer in answers} == {Blackout.objects.get().id}
    assert AuditEvent.objects.filter(action="freeze.declare").count() == 8


def test_declaring_in_other_words_and_lifting_at_once_leave_at_most_one(
    crew: Crew, people: dict[str, Person], workspace: Any
) -> None:
    actor = people["release_manager"].actor
    acts = [partial(blackout_rows.declare, actor=actor, reason=f"incident {number}") for number in range(4)]
    crew.at_once(*acts, *[partial(blackout_rows.lift, actor=actor)] * 4)
    assert len(blackout_rows.freezes(workspace.id)) <= 1
    ended = list(Blackout.objects.filter(ends_at__isnull=False).order_by("starts_at"))
    assert all(row.starts_at <= row.ends_at for row in ended)  # type: ignore[operator]
    blackout_rows.lift(actor=actor)
    assert not blackout_rows.freezes(workspace.id)


def test_nothing_is_handed_out_after_a_freeze_is_declared_and_all_of_it_after_it_is_lifted(
    crew: Crew, people: dict[str, Person], start_run: StartRun, hand: Hand
) -> None:
    """Contract §4: claims that run while it is declared see it or not; those that begin afterwards do."""
    actor = people["release_manager"].actor
    runs = [start_run("first") for _ in range(24)]

    def freeze() -> list[Any]:
        blackout_rows.declare(actor=actor, reason="an incident")
        return hand.pull(24)

    *claimed, after = crew.at_once(*[partial(hand.pull, 3)] * 6, freeze)
    assert after == []
    assert hand.pull(24) == []
    blackout_rows.lift(actor=actor)
    taken = [job.run_id for jobs in claimed for job in jobs]
    taken += [job.run_id for job in hand.pull(24)]
    assert sorted(taken) == sorted(run.id for run in runs), "each once"
