"""Celery tasks: thin shells. Every one may be lost, doubled or run side by side with itself."""

from __future__ import annotations

from typing import Any

from billiard import Event
from celery import shared_task
from celery.signals import worker_init, worker_process_init, worker_process_shutdown, worker_shutting_down
from django.conf import settings
from recourse import default_registry

from pipelines import executor, sweeps

_stopping: Any = None
_executor: executor.Executor | None = None


@shared_task(name="pipelines.tasks.sweep")
def sweep() -> dict[str, int]:
    """What time alone does, once; and a hint where one was lost."""
    done = sweeps.sweep()
    executor.hint_overdue()
    return done


@shared_task(name="pipelines.tasks.execute_ready")
def execute_ready() -> int:
    """Runs ready stages of this console's handlers until none is left."""
    return _this_process().drain(_stopping)


@worker_init.connect
def prepare(**_: object) -> None:
    """In the worker's main process, before it forks: what its children share."""
    global _stopping
    _stopping = Event()


@worker_process_init.connect
def open_executor(**_: object) -> None:
    """In each child: its session is there before the first hint, so that others know which handlers have an executor."""
    if settings.RECOURSE_HANDLERS:
        _this_process()


@worker_shutting_down.connect
def stop_claiming(**_: object) -> None:
    if _stopping is not None:
        _stopping.set()


@worker_process_shutdown.connect
def close_executor(**_: object) -> None:
    if _executor is not None:
        _executor.close()


def _this_process() -> executor.Executor:
    global _executor, _stopping
    if _stopping is None:
        _stopping = Event()
    if _executor is None:
        _executor = executor.Executor(executor.Scope.load(settings.RECOURSE_HANDLERS, default_registry))
    return _executor
