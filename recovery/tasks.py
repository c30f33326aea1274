"""Celery tasks of recovery: thin shells. Every one may be lost, doubled or run side by side with itself."""

from __future__ import annotations

from celery import shared_task

from approvals import requests
from recovery import backfills, bulk_work, forks, run_retry_work


@shared_task(name="recovery.tasks.carry_on")
def carry_on() -> dict[str, int]:
    """Ends the requests that are over, makes the runs that were reserved and left, has operations follow the ends of
    their targets, and retries runs that a policy says are to be."""
    return {
        "expired": requests.expire_due(),
        "reserved": forks.carry_on_reserved(),
        "followed": forks.follow_targets(),
        "retried": run_retry_work.carry_on(),
    }


@shared_task(name="recovery.tasks.carry_on_backfills")
def carry_on_backfills() -> dict[str, int]:
    """Makes the runs of ticks that are still to be filled, ends what a cancel left held, and completes what is over."""
    return backfills.carry_on()


@shared_task(name="recovery.tasks.carry_on_bulks")
def carry_on_bulks() -> dict[str, int]:
    """Hints that running bulks have work, leaves alone what aborts left, verifies what ended, ends old drafts."""
    return bulk_work.carry_on()


@shared_task(name="recovery.tasks.work_bulks")
def work_bulks() -> int:
    """Takes turns at the bulks that run, for a short while."""
    return bulk_work.work()
