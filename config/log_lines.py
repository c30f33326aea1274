"""Log lines of all libraries alike: one readable line per event for people, or JSON for collectors."""

from __future__ import annotations

import logging
import logging.config
import sys
from typing import Any

from config.without_rich import structlog


def configure(*, level: str, form: str) -> None:
    """Send every logger's lines to standard error in one form (`text` or `json`). Safe to call again."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso" if form == "json" else "%H:%M:%S", utc=form == "json"),
    ]
    renderer: Any
    if form == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"handlers": ["stderr"], "level": level},
            "loggers": {
                # One line for each task of each second says nothing; failures are logged louder than this.
                "celery.worker.strategy": {"level": "WARNING"},
                "celery.app.trace": {"level": "WARNING"},
                "celery.beat": {"level": "WARNING"},
                # What was asked wrongly is told to who asked; only our own faults are for the operator.
                "django.request": {"level": "ERROR"},
                # It tells each header of an answer, and an answer may repeat a webhook's address.
                "httpcore": {"level": "INFO"},
                # It warns that a file system broker has no host name.
                "kombu.connection": {"level": "ERROR"},
            },
        }
    )
