"""What an operator watches of runs that retry themselves, as Prometheus metrics; like the engine's
(`pipelines/measures.py`), from indexes and counted no further than a bound."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pipelines.measures import MOST, read
from pipelines.sql import planned
from recovery.states import RunRetryState


def run_retries() -> Iterable[Metric]:
    """Those that are due, and what became of the others in the last day; none with the database away."""
    return read(_run_retries) or []


def _run_retries() -> Iterable[Metric]:
    count = GaugeMetricFamily(
        "recourse_run_retries",
        f"Runs that failed under a policy for whole runs: to be retried, or dealt with in a day, at most {MOST} each.",
        labels=["status"],
    )
    for state in RunRetryState.values:
        since = "" if state == RunRetryState.DUE else " AND ended_at > recourse_now() - interval '1 day'"
        ((found,),) = planned(
            f"SELECT count(*) FROM (SELECT FROM recovery_runretry WHERE state = '{state}'{since} LIMIT %s) found",  # noqa: S608 - our own words
            [MOST],
        )
        count.add_metric([state], found)
    overdue = GaugeMetricFamily(
        "recourse_run_retry_overdue_seconds", "How long the longest due of them has waited to be carried out."
    )
    ((seconds,),) = planned(
        "SELECT extract(epoch FROM recourse_now() - min(due_at))::float FROM recovery_runretry WHERE state = 'due'", []
    )
    overdue.add_metric([], max(0.0, seconds or 0.0))
    return count, overdue
