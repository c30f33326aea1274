"""What an operator watches of the engine, as Prometheus metrics: cheap enough to be asked for every few seconds.

Every number comes from an index and is counted no further than a bound, so that a backlog or a long history costs no
more than a quiet day: a value at its bound means "at least". How long the oldest stage has been ready has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db import InterfaceError, OperationalError, transaction
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pipelines.models import ReconciliationKind
from pipelines.models.runs import NO_THROTTLE
from pipelines.sql import EACH_QUEUE, execute, planned
from pipelines.states import DeadLetterState, RunStatus

MOST = 10_000
MOST_READY = 1_000  # of one queue
MOST_RUNS = 1_000  # of one status in one application and environment
MOST_QUEUES = 200
MOST_TRIGGERS = 200
MOST_TICKS = 300  # of one trigger
LONGEST_MILLISECONDS = 2_000


def engine() -> Iterable[Metric]:
    """The engine's metrics. With the database away or too slow they say just that: `recourse_engine_up` 0."""
    up = GaugeMetricFamily("recourse_engine_up", "1 when the numbers of the engine could be read.")
    told = read(
        _ready_stages, _running_attempts, _expired_leases, _dead_letters, _left_outside, _runs, _ticks, _overdue
    )
    up.add_metric([], 0 if told is None else 1)
    return [up, *(told or [])]


def read(*sources: Callable[[], Iterable[Metric]]) -> list[Metric] | None:
    """What they tell, in one short transaction; None with the database away or too slow."""
    try:
        with transaction.atomic():
            execute(f"SET LOCAL statement_timeout = {LONGEST_MILLISECONDS}")
            return [family for source in sources for family in source()]
    except (InterfaceError, OperationalError):
        return None


def _ready_stages() -> Iterable[Metric]:
    """Walks the queue's index from one queue to the next, and each of its open lines no further than the bound."""
    count = GaugeMetricFamily(
        "recourse_ready_stages", f"Stages that a worker may pull now, at most {MOST_READY} a queue.", labels=["handler"]
    )
    age = GaugeMetricFamily(
        "recourse_oldest_ready_stage_seconds", "How long the oldest of them has been ready.", labels=["handler"]
    )
    for handler, ready, seconds in planned(
        f"""
        WITH RECURSIVE {EACH_QUEUE},
        walked AS MATERIALIZED (SELECT * FROM queue LIMIT %(queues)s), closed AS MATERIALIZED (
            SELECT e.id FROM pipelines_environment e WHERE e.id IN (SELECT environment_id FROM walked)
                AND recourse_blackout(e.workspace_id, e.id, NULL, recourse_now()) IS NOT NULL
        )
        SELECT walked.handler, sum(least(head.ready, %(most)s))::bigint,
            extract(epoch FROM recourse_now() - min(head.oldest))::float
        FROM walked CROSS JOIN LATERAL (
            SELECT count(*) AS ready, min(due.available_at) AS oldest FROM (
                SELECT one.available_at
                FROM (VALUES (false, false), (false, true), (true, false), (true, true)) line(is_background, is_start)
                CROSS JOIN LATERAL (
                    SELECT q.available_at FROM pipelines_queueentry q
                    WHERE q.application_id = walked.application_id AND q.environment_id = walked.environment_id
                        AND q.handler = walked.handler AND q.throttle = %(no_throttle)s
                        AND q.is_background = line.is_background
                        AND q.is_start = line.is_start AND q.available_at <= recourse_now()
                    ORDER BY q.available_at, q.stage_id LIMIT %(most)s
                ) one
                WHERE NOT (line.is_start AND walked.environment_id IN (SELECT id FROM closed))
                UNION ALL
                -- what waits for a policy, as far as that lets it go
                SELECT one.available_at FROM recourse_let_through(ARRAY[walked.application_id],
                    ARRAY[walked.environment_id], ARRAY[walked.handler], ARRAY(SELECT id FROM closed), %(most)s, 1) one
            ) due
        ) head
        WHERE head.ready > 0 GROUP BY walked.handler
        """,  # noqa: S608 - our own text
        {"queues": MOST_QUEUES, "most": MOST_READY, "no_throttle": NO_THROTTLE},
    ):
        count.add_metric([handler], ready)
        age.add_metric([handler], max(0.0, seconds))
    return count, age


def _running_attempts() -> Iterable[Metric]:
    family = GaugeMetricFamily(
        "recourse_running_attempts", f"Attempts handed out or under way, at most {MOST}.", labels=["status"]
    )
    counts: dict[str, int] = dict(
        planned(
            "SELECT state, count(*) FROM (SELECT state FROM pipelines_attempt"
            " WHERE state IN ('dispatched', 'running') LIMIT %s) active GROUP BY state",
            [MOST],
        )
    )
    for state in ("dispatched", "running"):
        family.add_metric([state], counts.get(state, 0))
    return [family]


def _expired_leases() -> Iterable[Metric]:
    rows = planned(
        "SELECT count(*) FROM (SELECT FROM pipelines_attempt WHERE state IN ('dispatched', 'running')"
        " AND expires_at <= recourse_now() LIMIT %s) expired",
        [MOST],
    )
    family = GaugeMetricFamily("recourse_expired_leases", "Leases that ran out and that no sweep has met yet.")
    family.add_metric([], rows[0][0])
    return [family]


def _dead_letters() -> Iterable[Metric]:
    family = GaugeMetricFamily(
        "recourse_dead_letters", f"Dead letters that wait for a person, at most {MOST}.", labels=["status"]
    )
    counts: dict[str, int] = dict(
        planned(
            "SELECT state, count(*) FROM (SELECT state FROM pipelines_deadletter"
            " WHERE state IN ('open', 'acknowledged') LIMIT %s) waiting GROUP BY state",
            [MOST],
        )
    )
    for state in (DeadLetterState.OPEN, DeadLetterState.ACKNOWLEDGED):
        family.add_metric([state.value], counts.get(state.value, 0))
    return [family]


def _left_outside() -> Iterable[Metric]:
    """What ended runs left outside and nobody has settled (R37)."""
    family = GaugeMetricFamily(
        "recourse_reconciliation_items",
        f"What may still go on outside after runs were ended, and is not settled, at most {MOST}.",
        labels=["kind"],
    )
    counts: dict[str, int] = dict(
        planned(
            "SELECT kind, count(*) FROM (SELECT kind FROM pipelines_reconciliationitem WHERE resolved_at IS NULL"
            " LIMIT %s) still GROUP BY kind",
            [MOST],
        )
    )
    for kind in ReconciliationKind.values:
        family.add_metric([kind], counts.get(kind, 0))
    return [family]


def _runs() -> Iterable[Metric]:
    family = GaugeMetricFamily(
        "recourse_runs", f"Runs, at most {MOST_RUNS} of each application and environment.", labels=["status"]
    )
    counts: dict[str, int] = dict(
        planned(
            "SELECT v.status, sum(part.counted)::bigint FROM unnest(%(statuses)s::text[]) v(status)"
            " CROSS JOIN pipelines_application a JOIN pipelines_environment e ON e.workspace_id = a.workspace_id"
            " CROSS JOIN LATERAL (SELECT count(*) AS counted FROM (SELECT FROM pipelines_run r"
            " WHERE r.application_id = a.id AND r.environment_id = e.id AND r.status = v.status"
            " LIMIT %(most)s) capped) part GROUP BY v.status",
            {"statuses": RunStatus.values, "most": MOST_RUNS},
        )
    )
    for status in RunStatus.values:
        family.add_metric([status], counts.get(status, 0))
    return [family]


def _ticks() -> Iterable[Metric]:
    """What became of each trigger's ticks: a missed one is `skipped`, for a reason, or `failed` (F106)."""
    family = GaugeMetricFamily(
        "recourse_ticks",
        f"Ticks of the last day as the ledger has them, the newest {MOST_TICKS} of each of {MOST_TRIGGERS} triggers.",
        labels=["trigger", "name", "status", "reason"],
    )
    # the triggers whose next tick is the nearest, or has been due the longest
    for trigger, name, state, reason, count in planned(
        """
        SELECT g.id::text, g.name, k.state, k.reason, count(*)::bigint
        FROM (SELECT * FROM pipelines_trigger WHERE next_at IS NOT NULL ORDER BY next_at, id LIMIT %(triggers)s) g
        CROSS JOIN LATERAL (
            SELECT k.state, k.reason FROM pipelines_tick k
            WHERE k.trigger_id = g.id AND k.at > recourse_now() - interval '1 day' ORDER BY k.at DESC LIMIT %(most)s
        ) k
        GROUP BY g.id, g.name, k.state, k.reason ORDER BY g.id, k.state, k.reason
        """,
        {"triggers": MOST_TRIGGERS, "most": MOST_TICKS},
    ):
        family.add_metric([trigger, name, state, reason], count)
    return [family]


def _overdue() -> Iterable[Metric]:
    """How late the scheduler is with each trigger: 0 while it keeps up."""
    family = GaugeMetricFamily(
        "recourse_trigger_overdue_seconds",
        "How long the oldest tick has been due that has no row in the ledger, or no run yet though it should.",
        labels=["trigger", "name"],
    )
    for trigger, name, seconds in planned(
        """
        SELECT g.id::text, g.name, greatest(0, extract(epoch FROM recourse_now() - least(g.next_at, k.start_at)))::float
        FROM (SELECT * FROM pipelines_trigger WHERE next_at IS NOT NULL ORDER BY next_at, id LIMIT %(triggers)s) g
        LEFT JOIN (
            SELECT trigger_id, min(start_at) AS start_at FROM (
                SELECT trigger_id, start_at FROM pipelines_tick
                WHERE state = 'due' AND start_at <= recourse_now() ORDER BY start_at, id LIMIT %(most)s
            ) oldest GROUP BY trigger_id
        ) k ON k.trigger_id = g.id
        ORDER BY g.id
        """,
        {"triggers": MOST_TRIGGERS, "most": MOST},
    ):
        family.add_metric([trigger, name], seconds)
    return [family]
