"""The Celery application: which broker, which tasks, what happens every second.

Durability is the database's: a task is a nudge that may be lost or doubled without harm. Tasks are acknowledged after
they ran, one at a time, and nobody waits for a result.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import task_prerun

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.conf import settings
from django.db import close_old_connections

SWEEP_SECONDS = 1.0

# Celery warns root of pickled messages; only JSON is accepted here.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("recourse")


def configuration(broker_url: str, data_dir: os.PathLike[str]) -> dict[str, Any]:
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
        "task_routes": {"pipelines.tasks.execute*": {"queue": "recourse.handlers"}},
        "timezone": "UTC",
        "beat_schedule_filename": os.path.join(data_dir, "beat-schedule"),
        "beat_max_loop_interval": 1,
        "beat_schedule": {
            # A sweep that waited longer than its period is superseded by the next: workers that were away find one, not
            # a thousand.
            "sweep": {"task": "pipelines.tasks.sweep", "schedule": SWEEP_SECONDS, "options": {"expires": 5}},
        },
    }


def _transport_options(broker_url: str, data_dir: os.PathLike[str]) -> dict[str, Any]:
    if not broker_url.startswith("filesystem:"):
        return {}
    queue = os.path.join(data_dir, "broker", "queue")
    control = os.path.join(data_dir, "broker", "control")
    for folder in (queue, control):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return {
        "data_folder_in": queue,
        "data_folder_out": queue,
        "control_folder": control,
        "polling_interval": 0.1,
    }


app.conf.update(configuration(settings.CELERY_BROKER_URL, settings.DATA_DIR))
# A connection outlives its task; `close_old_connections` replaces one that has died or grown old.
app.conf.CELERY_DB_REUSE_MAX = 1_000_000
app.autodiscover_tasks()


@task_prerun.connect
def forget_dead_connections(**_: object) -> None:
    close_old_connections()
