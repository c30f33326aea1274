"""Celery's settings: which broker, which queues, what happens every second. Without Django, so that beat stays small.

Durability is the database's: a task is a nudge that may be lost or doubled without harm. Tasks are acknowledged after
they ran, one at a time, and nobody waits for a result.

Queues: `recourse.clock` for what time alone does (a process of its own, so that no handler can hold it up),
`recourse.notices` for notifications (under `up` the clock's process serves it: sending happens on threads of its own),
`recourse.handlers` for hints that stages are ready for the console's own handlers, `recourse` for all else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from config import filesystem_broker

SWEEP_SECONDS = 1.0
SEAL_SECONDS = 0.5
RETENTION_SECONDS = 3600.0
ARTIFACTS_SECONDS = 6 * 3600.0  # lists all that lies in a storage
POLL_SECONDS = 0.02


def configuration(broker_url: str, data_dir: Path) -> dict[str, Any]:
    """Celery's settings for one broker address; the file system broker keeps its files in `data_dir`/broker."""
    return {
        "broker_url": broker_url,
        "broker_transport_options": _transport_options(broker_url, data_dir),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_default_queue": "recourse",
        "task_routes": {
            "pipelines.tasks.sweep": {"queue": "recourse.clock"},
            "pipelines.tasks.run_schedules": {"queue": "recourse.clock"},
            "pipelines.tasks.seal_audit": {"queue": "recourse.clock"},
            "recovery.tasks.carry_on": {"queue": "recourse.clock"},
            "recovery.tasks.carry_on_backfills": {"queue": "recourse.clock"},
            "recovery.tasks.carry_on_bulks": {"queue": "recourse.clock"},
            "approvals.tasks.*": {"queue": "recourse.notices"},
            "pipelines.tasks.execute*": {"queue": "recourse.handlers"},
        },
        "timezone": "UTC",
        "beat_schedule_filename": str(data_dir / "beat-schedule"),
        "beat_max_loop_interval": 1,
        "beat_schedule": {
            # A sweep that waited longer than this is superseded by the next: workers that were away find a few, not a
            # thousand.
            "sweep": {"task": "pipelines.tasks.sweep", "schedule": SWEEP_SECONDS, "options": {"expires": 5}},
            "schedules": {
                "task": "pipelines.tasks.run_schedules",
                "schedule": SWEEP_SECONDS,
                "options": {"expires": 5},
            },
            "seal-audit": {
                "task": "pipelines.tasks.seal_audit",
                "schedule": SEAL_SECONDS,
                "options": {"expires": 5},
            },
            "recoveries": {
                "task": "recovery.tasks.carry_on",
                "schedule": SWEEP_SECONDS,
                "options": {"expires": 5},
            },
            "backfills": {
                "task": "recovery.tasks.carry_on_backfills",
                "schedule": SWEEP_SECONDS,
                "options": {"expires": 5},
            },
            "bulks": {
                "task": "recovery.tasks.carry_on_bulks",
                "schedule": SWEEP_SECONDS,
                "options": {"expires": 5},
            },
            "notifications": {
                "task": "approvals.tasks.tell",
                "schedule": SWEEP_SECONDS,
                "options": {"expires": 5},
            },
            "delivery-log": {
                "task": "approvals.tasks.forget_deliveries",
                "schedule": RETENTION_SECONDS,
                "options": {"expires": RETENTION_SECONDS},
            },
            "retention": {
                "task": "pipelines.tasks.retention",
                "schedule": RETENTION_SECONDS,
                "options": {"expires": RETENTION_SECONDS},
            },
            "artifacts": {
                "task": "pipelines.tasks.sweep_artifacts",
                "schedule": ARTIFACTS_SECONDS,
                "options": {"expires": RETENTION_SECONDS},
            },
        },
    }


def _transport_options(broker_url: str, data_dir: Path) -> dict[str, Any]:
    if not broker_url.startswith("filesystem:"):
        return {}
    filesystem_broker.install()
    queue = data_dir / "broker" / "queue"
    control = data_dir / "broker" / "control"
    for folder in (queue, control):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return {
        "data_folder_in": str(queue),
        "data_folder_out": str(queue),
        "control_folder": str(control),
        "polling_interval": POLL_SECONDS,
    }
