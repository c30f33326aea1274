"""Settings of the web server, for `up` and for a deployment of one's own: `gunicorn -c python:config.web_server`.

Threads, because a waiting pull keeps one busy for up to half a minute without using the processor.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
from typing import Any

from prometheus_client import multiprocess

from config.environment import Environment

os.environ.setdefault("RECOURSE_PROCESS", "web")
_environment = Environment.from_os()

_listener = os.environ.get("RECOURSE_LISTEN_FD")
bind = f"fd://{_listener}" if _listener else f"{_environment.host}:8000"
workers = _environment.web_processes
worker_class = "config.web_worker.Worker"
threads = _environment.web_threads
# Loaded once and shared by all processes: the application starts no thread and opens no connection when it is imported.
preload_app = True
keepalive = 75
timeout = 60
# A waiting pull is cut off by a stop; its worker asks again.
graceful_timeout = 3
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - for heartbeats, not for data
# What a proxy says of a request is believed by Django, where RECOURSE_TRUST_PROXY asks for it, and by nobody else.
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
accesslog = None
loglevel = "warning"
control_socket_disable = True


def on_starting(server: Any) -> None:
    """Have the server's own lines come out like all others."""
    logger = logging.getLogger("gunicorn.error")
    logger.handlers.clear()
    logger.propagate = True


def when_ready(server: Any) -> None:
    # What was loaded so far is never collected: the pages stay shared with the processes that are forked next.
    gc.collect()
    gc.freeze()


def post_worker_init(worker: Any) -> None:
    """Waiting pulls are answered as soon as the process is told to end; the server then waits for them to finish."""
    from pipelines.listen import listener

    listener.close_on(signal.SIGTERM)


def child_exit(server: Any, worker: Any) -> None:
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
