"""Celery tasks of notifications: thin shells. Every one may be lost, doubled or run side by side with itself.

Their queue is `recourse.notices`. What they do in the worker's own thread is the database's work, in short
transactions; whatever waits for a network is done by `Senders`.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from celery import shared_task
from celery.signals import worker_process_shutdown, worker_shutdown
from django.db import InterfaceError, OperationalError

from approvals.notifications import deliveries, digests, expiring, notices
from approvals.notifications.senders import Senders

log = structlog.get_logger(__name__)
CLOSE_SECONDS = 5.0

senders = Senders()

# in this order: what is warned of is taken up at once, and what is due is sent at once
STEPS: dict[str, Callable[[], int]] = {
    "warned": expiring.warn_expiring,
    "taken_up": notices.take_up,
    "digests": digests.close_digests,
    "begun": senders.go,
}


@shared_task(name="approvals.tasks.tell")
def tell() -> dict[str, int]:
    """From what happened to messages on their way; one step that cannot be done holds up no other."""
    return {name: _done(name, step) for name, step in STEPS.items()}


@shared_task(name="approvals.tasks.forget_deliveries")
def forget_deliveries() -> int:
    """Removes the log of what was sent long ago."""
    return deliveries.forget_old()


@worker_shutdown.connect
@worker_process_shutdown.connect
def close_senders(**_: object) -> None:
    senders.close(CLOSE_SECONDS)


def _done(name: str, step: Callable[[], int]) -> int:
    try:
        return step()
    except (InterfaceError, OperationalError):
        raise
    except Exception:
        log.exception("notices.step_failed", step=name)
        return 0
