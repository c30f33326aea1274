"""What the tests of bulks begin with: runs that failed, wishes, and work that is done without a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from pipelines.access import Actor
from pipelines.errors import Refusal
from pipelines.models import DeadLetter, Run
from recovery import bulk_work, bulks
from recovery.models import BulkItem, BulkOperation
from recovery.states import OperationKind
from tests.cast import Hand
from tests.clock import Clock

K = OperationKind
REASON = "the upstream is back"


def failing(start_run: Callable[..., Run], hand: Hand, count: int, *stages: Any, **more: Any) -> list[Run]:
    """Runs whose first stage has failed for good, each with its dead letter."""
    runs = [start_run(*(stages or ("first",)), **more) for _ in range(count)]
    for _ in runs:
        fail(hand)
    return runs


def of(kind: OperationKind, targets: Iterable[Any], **more: Any) -> bulks.Wish:
    """A wish for these runs or dead letters, as fast as may be."""
    ids = tuple(getattr(one, "id", one) for one in targets)
    return bulks.Wish(kind, bulks.Selection(ids=ids), **{"reason": REASON, "rate": bulks.FASTEST, **more})


def fail(hand: Hand) -> None:
    """The next job fails for good."""
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", retryable=False)


def refused(code: str, act: Callable[[], Any]) -> Refusal:
    """Why the act is refused, which has to be with this code."""
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == code, caught.value.detail
    return caught.value


def letters_of(runs: Sequence[Run]) -> list[DeadLetter]:
    return list(DeadLetter.objects.filter(run__in=runs).order_by("-opened_at", "-id"))


def begun(wish: bulks.Wish, actor: Actor) -> BulkOperation:
    """A bulk that runs."""
    found = bulks.create(wish, actor=actor).bulk
    assert found.state == "running", found.state
    return found


def work_through(bulk: BulkOperation, clock: Clock, *, turns: int = 10_000) -> BulkOperation:
    """Lets it go on until it does not run any more, a second at a time."""
    for _ in range(turns):
        bulk.refresh_from_db()
        if bulk.state != "running":
            return bulk
        clock.advance(1)
        bulk_work.step(bulk.id)
    return bulk


def outcomes(bulk: BulkOperation) -> list[tuple[str, str]]:
    """State and code of every target, in their order."""
    return list(BulkItem.objects.filter(bulk=bulk).order_by("position").values_list("state", "code"))


def item_of(bulk: BulkOperation, run_id: uuid.UUID) -> BulkItem:
    return BulkItem.objects.get(bulk=bulk, run=run_id)


def counted(bulk: BulkOperation) -> dict[str, int]:
    """The counts of a bulk, which always add up (F152)."""
    told = bulks.progress(bulk).as_json()
    assert told["total"] == bulk.total == sum(told[name] for name in ("pending", "done", "failed", "skipped", "denied"))
    return {name: told[name] for name in ("pending", "done", "failed", "skipped", "denied") if told[name]}
