"""The Celery application of beat, which only sends: no Django, no tasks, a third of the memory."""

from __future__ import annotations

from celery import Celery

from config import log_lines
from config.celery_settings import configuration
from config.environment import Environment

_environment = Environment.from_os()
log_lines.configure(level=_environment.log_level, form=_environment.log_format)

app = Celery("recourse", fixups=[])
app.conf.update(configuration(_environment.broker_url, _environment.data_dir))
