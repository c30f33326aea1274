"""Health routes for supervisors, load balancers and Prometheus: they need no log-in and tell nothing secret."""

from __future__ import annotations

import os
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from config import metrics
from pipelines import artifact_places

log = structlog.get_logger("health")

BROKER_SECONDS = 2.0


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 as long as this process answers, whatever else is down."""
    return JsonResponse({"status": "alive"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when the database, its migrations and the broker are there; else 503, naming what is not and why.

    Without the storage of artifacts all but artifacts goes on: 200 too, but `degraded`.
    """
    checks = {name: _outcome(check) for name, check in CHECKS.items()}
    ready = all(outcome == "ok" for outcome in checks.values())
    checks |= {name: _outcome(check) for name, check in EXTRAS.items()}
    whole = all(outcome == "ok" for outcome in checks.values())
    if not whole:
        log.warning("degraded" if ready else "not ready", **checks)
    status = "not ready" if not ready else "ready" if whole else "degraded"
    return JsonResponse({"status": status, "checks": checks}, status=200 if ready else 503)


@require_safe
def metrics_text(request: HttpRequest) -> HttpResponse:
    """Everything that is counted, in Prometheus' text form."""
    return HttpResponse(metrics.render(), content_type=CONTENT_TYPE_LATEST)


class NotReadyError(Exception):
    """A part that the console needs is missing; the message is public."""


def _database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _migrations() -> None:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise NotReadyError(f"{len(missing)} not applied, the first is {missing[0][0]}")


def _broker() -> None:
    from config.celery import app

    url = settings.CELERY_BROKER_URL
    if url.startswith("filesystem:"):
        folder = settings.DATA_DIR / "broker" / "queue"
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise NotReadyError("its folder cannot be written")
        return
    with app.connection(url, connect_timeout=BROKER_SECONDS) as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_SECONDS)


CHECKS: dict[str, Callable[[], None]] = {"database": _database, "migrations": _migrations, "broker": _broker}
EXTRAS: dict[str, Callable[[], None]] = {"artifacts": artifact_places.probe}


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except NotReadyError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, the answer is "not ready"
        # The class alone: a driver's message may hold addresses and user names.
        return type(error).__name__
    return "ok"
