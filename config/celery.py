"""The Celery application of the worker processes, and of everybody who sends them tasks."""

from __future__ import annotations

import os
import warnings

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import task_prerun

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.conf import settings
from django.db import close_old_connections

from config.celery_settings import configuration

# Celery warns root of pickled messages; only JSON is accepted here.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("recourse")
app.conf.update(configuration(settings.CELERY_BROKER_URL, settings.DATA_DIR))
# A connection outlives its task; `close_old_connections` replaces one that has died or grown old.
app.conf.CELERY_DB_REUSE_MAX = 1_000_000
app.autodiscover_tasks()


@task_prerun.connect
def forget_dead_connections(**_: object) -> None:
    close_old_connections()
