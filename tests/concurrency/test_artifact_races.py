"""Storing in the same instant: the same bytes, the same name, the same bytes as upkeep, on real connections."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from django.db import transaction

from pipelines import artifact_storing, artifact_upkeep, artifacts, leases, sweeps
from pipelines.artifacts import Given
from pipelines.errors import Refusal
from pipelines.jobs import Job
from pipelines.models import Artifact, ArtifactContent, Run
from pipelines.sql import execute
from tests.cast import Hand, Person
from tests.concurrency.crew import Crew
from tests.stored import Shelf

StartRun = Callable[..., Run]
ROUNDS = 12


def given(data: bytes, name: str = "report") -> Given:
    return Given(name, data, sha256(data).hexdigest())


def storing(hand: Hand, job: Job, what: Given) -> Callable[[], Any]:
    return lambda: artifact_storing.store(hand.holder, job.stage.id, job.attempt_id, what)


def test_the_same_bytes_from_many_attempts_are_kept_once(
    crew: Crew, start_run: StartRun, hand: Hand, shelf: Shelf
) -> None:
    """R14: eight runs store them at once; eight artifacts, one content."""
    for number in range(ROUNDS):
        for _ in range(8):
            start_run("report")
        jobs = hand.pull(8)
        told = crew.at_once(*(storing(hand, job, given(f"round {number}".encode())) for job in jobs))
        assert all(one.is_new for one in told)
        assert (Artifact.objects.count(), ArtifactContent.objects.count()) == (8 * (number + 1), number + 1)
    assert len(shelf.names()) == ROUNDS


def test_of_many_who_store_other_bytes_under_a_name_one_wins(
    crew: Crew, start_run: StartRun, hand: Hand, shelf: Shelf
) -> None:
    """R14: the others are refused, and nothing of theirs is kept under the name."""
    for _ in range(ROUNDS):
        run = start_run("report")
        job = hand.take()
        told = crew.at_once(*(storing(hand, job, given(bytes([number]))) for number in range(8)))
        won = [one for one in told if not isinstance(one, Refusal)]
        assert len(won) == 1
        assert {one.code for one in told if isinstance(one, Refusal)} == {"artifact_immutable"}
        assert Artifact.objects.get(run=run).digest == won[0].sha256


def test_of_many_who_lay_down_a_baseline_one_wins(crew: Crew, people: dict[str, Person], shelf: Shelf) -> None:
    actor = people["admin"].actor
    for number in range(ROUNDS):
        lay: list[Callable[[], Any]] = [
            lambda half=half, number=number: artifact_storing.add_baseline(
                actor, given(bytes([half, number]), f"prices {number}")
            )
            for half in (0, 1)
            for _ in range(4)
        ]
        told = crew.at_once(*lay)
        won = [one for one in told if not isinstance(one, Refusal)]
        assert len(won) == 4
        assert [one.is_new for one in won].count(True) == 1
        assert len({one.id for one in won}) == 1
        assert {one.code for one in told if isinstance(one, Refusal)} == {"artifact_immutable"}
    assert Artifact.objects.count() == ROUNDS


def test_storing_beside_the_end_of_the_lease_is_whole_or_not_at_all(
    crew: Crew, start_run: StartRun, hand: Hand
) -> None:
    for milliseconds in (0, 1, 2, 3, 5) * 3:
        run = start_run("report")
        job = hand.take()
        execute(
            "UPDATE pipelines_attempt SET expires_at = recourse_now() + make_interval(secs => %s) WHERE id = %s",
            [milliseconds / 1000, job.attempt_id],
        )
        answer, _ = crew.at_once(storing(hand, job, given(b"late")), sweeps.expire_leases)
        if isinstance(answer, Refusal):
            assert answer.code == "stale_execution"
            assert not Artifact.objects.filter(run=run).exists()
        else:
            assert Artifact.objects.get(run=run).id == answer.id
        while leases.claim(hand.holder, hand._queues, limit=1, acquire=True):
            pass


def test_upkeep_beside_who_stores_takes_nothing_that_is_needed(
    crew: Crew, people: dict[str, Person], shelf: Shelf, monkeypatch: Any
) -> None:
    """Even without any grace: what was stored can be loaded."""
    monkeypatch.setattr(artifact_upkeep, "GRACE", -artifact_upkeep.GRACE)
    actor = people["admin"].actor
    for number in range(ROUNDS):
        lay: list[Callable[[], Any]] = [
            lambda name=name: artifact_storing.add_baseline(actor, given(b"the same bytes", name))
            for name in (f"a {number}", f"b {number}", f"c {number}")
        ]
        crew.at_once(lay[0], artifact_upkeep.sweep, lay[1], artifact_upkeep.sweep, lay[2], artifact_upkeep.sweep)
        for artifact in Artifact.objects.all():
            assert artifacts.whole(artifact) == b"the same bytes"
        with_all_gone()
        artifact_upkeep.sweep()
        assert (ArtifactContent.objects.count(), shelf.names()) == (0, [])


def with_all_gone() -> None:
    """As retention would."""
    with transaction.atomic():
        execute("SET LOCAL recourse.retention = 'on'")
        execute("DELETE FROM pipelines_artifact")
