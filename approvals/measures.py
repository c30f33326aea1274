"""What an operator watches of questions and messages, as Prometheus metrics: whether people decide, whether they hear.

Like the engine's (`pipelines/measures.py`): each number comes from an index and is counted no further than a bound.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from approvals.states import DeliveryState
from pipelines.measures import MOST, read
from pipelines.sql import planned

QUESTIONS = {"gate": "pipelines_gate", "operation": "approvals_approvalrequest"}


def people() -> Iterable[Metric]:
    """The metrics of approvals and notifications; none with the database away, which `recourse_engine_up` tells."""
    return read(_questions, _notices, _deliveries) or []


def _questions() -> Iterable[Metric]:
    count = GaugeMetricFamily("recourse_waiting_approvals", f"What waits for people, at most {MOST}.", labels=["type"])
    age = GaugeMetricFamily(
        "recourse_oldest_waiting_approval_seconds", "How long the oldest of them has waited.", labels=["type"]
    )
    for kind, table in QUESTIONS.items():
        ((waiting, seconds),) = planned(
            f"SELECT (SELECT count(*) FROM (SELECT FROM {table} WHERE state = 'open' LIMIT %s) waiting),"  # noqa: S608 - our own names
            " (SELECT extract(epoch FROM recourse_now() - min(oldest.opened_at))::float FROM pipelines_workspace w"
            f" CROSS JOIN LATERAL (SELECT o.opened_at FROM {table} o WHERE o.workspace_id = w.id AND o.state = 'open'"
            " ORDER BY o.opened_at, o.id LIMIT 1) oldest)",
            [MOST],
        )
        count.add_metric([kind], waiting)
        age.add_metric([kind], max(0.0, seconds or 0.0))
    return count, age


def _notices() -> Iterable[Metric]:
    count = GaugeMetricFamily("recourse_waiting_notices", f"Facts that nobody has been told of yet, at most {MOST}.")
    age = GaugeMetricFamily("recourse_oldest_waiting_notice_seconds", "How long the oldest of them has waited.")
    ((waiting, seconds),) = planned(
        "SELECT (SELECT count(*) FROM (SELECT FROM pipelines_notice LIMIT %s) waiting),"
        " (SELECT extract(epoch FROM recourse_now() - at)::float FROM pipelines_notice ORDER BY id LIMIT 1)",
        [MOST],
    )
    count.add_metric([], waiting)
    age.add_metric([], max(0.0, seconds or 0.0))
    return count, age


def _deliveries() -> Iterable[Metric]:
    """`pending` and `failed` by an index of their own each; what was sent is not counted."""
    count = GaugeMetricFamily("recourse_deliveries", f"Messages on their way, at most {MOST}.", labels=["state"])
    age = GaugeMetricFamily(
        "recourse_oldest_due_delivery_seconds", "How long the longest due of them has waited to be tried."
    )
    ((pending, failed, seconds),) = planned(
        "SELECT (SELECT count(*) FROM (SELECT FROM approvals_delivery WHERE state = 'pending' LIMIT %(most)s) pending),"
        " (SELECT count(*) FROM (SELECT FROM approvals_delivery WHERE state = 'failed' LIMIT %(most)s) failed),"
        " (SELECT extract(epoch FROM recourse_now() - min(first.due_at))::float FROM approvals_channel c"
        " CROSS JOIN LATERAL (SELECT d.due_at FROM approvals_delivery d WHERE d.channel_id = c.id"
        " AND d.state = 'pending' AND d.due_at <= recourse_now() ORDER BY d.due_at LIMIT 1) first)",
        {"most": MOST},
    )
    count.add_metric([DeliveryState.PENDING.value], pending)
    count.add_metric([DeliveryState.FAILED.value], failed)
    age.add_metric([], max(0.0, seconds or 0.0))
    return count, age
