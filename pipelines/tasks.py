"""Celery tasks: thin shells. Every one may be lost, doubled or run side by side with itself."""

from __future__ import annotations

import threading
from typing import Any

from billiard import Event
from celery import current_app, shared_task
from celery.signals import worker_process_init, worker_process_shutdown, worker_shutting_down
from django.conf import settings
from recourse import default_registry

from pipelines import artifact_upkeep, audit_chain, dispatch, executor, ledger, queue_statistics, sweeps
from pipelines.retention import remove_older_than


class _Process:
    """What belongs to this process: the flag its children share, and an executor for each thread that runs tasks."""

    def __init__(self) -> None:
        self.stopping: Any = Event()
        self._threads = threading.local()
        self._opened: list[executor.Executor] = []

    def executor(self) -> executor.Executor:
        if not hasattr(self._threads, "executor"):
            scope = executor.Scope.load(settings.RECOURSE_HANDLERS, default_registry)
            self._threads.executor = executor.Executor(scope)
            self._opened.append(self._threads.executor)
        return self._threads.executor

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


_process = _Process()


@shared_task(name="pipelines.tasks.sweep")
def sweep() -> dict[str, int]:
    """What time alone does, once; and a hint where one was lost."""
    queue_statistics.follow()
    done = sweeps.sweep()
    executor.hint_overdue()
    return done


@shared_task(name="pipelines.tasks.run_schedules")
def run_schedules() -> dict[str, int]:
    """Records every tick that has come, and makes the runs of those that are due."""
    return {"recorded": ledger.record(), "decided": dispatch.dispatch_due()}


@shared_task(name="pipelines.tasks.seal_audit")
def seal_audit() -> int:
    """Seals the audit events that wait; returns how many."""
    return audit_chain.seal()


@shared_task(name="pipelines.tasks.retention")
def retention() -> int:
    """Removes runs that are older than the operator said; nothing when they said nothing."""
    return remove_older_than(settings.RECOURSE_RETENTION_DAYS)


@shared_task(name="pipelines.tasks.sweep_artifacts")
def sweep_artifacts() -> int:
    """Takes away bytes that no artifact refers to; returns how many."""
    return artifact_upkeep.sweep()


@shared_task(name="pipelines.tasks.execute_ready")
def execute_ready() -> int:
    """Runs ready stages of this console's handlers until none is left."""
    return _process.executor().drain(_process.stopping)


@worker_process_init.connect
def open_executor(**_: object) -> None:
    """In each process that takes hints: its session is there before the first one, so that others send them."""
    if settings.RECOURSE_HANDLERS and "recourse.handlers" in current_app.amqp.queues.consume_from:
        _process.executor()


@worker_shutting_down.connect
def stop_claiming(**_: object) -> None:
    """In the main process: its children share the flag since they were forked, and see it."""
    _process.stopping.set()


@worker_process_shutdown.connect
def close_executor(**_: object) -> None:
    _process.close()
