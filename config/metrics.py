"""Prometheus metrics: request counters here, and a place where other parts add what they can count.

Web processes share their counters through files in a directory that `up` names in PROMETHEUS_MULTIPROC_DIR, so that it
does not matter which of them answers `/metrics`. Without that directory a process reports itself alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REQUESTS = Counter("recourse_http_requests_total", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "recourse_http_request_seconds", "Time until a request was answered.", ["method", "route"], buckets=BUCKETS
)

Source = Callable[[], Iterable[Metric]]
_sources: list[Source] = []


def add_source(source: Source) -> None:
    """Have `source` asked for metric families at every scrape. Adding it twice is a no-op."""
    if source not in _sources:
        _sources.append(source)


def render() -> bytes:
    """All metrics in Prometheus' text form."""
    registry = CollectorRegistry()
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(_Own())
    ProcessCollector(registry=registry)
    registry.register(_Sources())
    return generate_latest(registry)


class RequestMetricsMiddleware:
    """Counts and times requests by method, route and status. Never by path: ids would make endless series."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        response = self.get_response(request)
        match = request.resolver_match
        route = (match.route or "/") if match else "(none)"
        method = request.method if request.method in _METHODS else "other"
        REQUESTS.labels(method, route, response.status_code).inc()
        SECONDS.labels(method, route).observe(time.perf_counter() - started)
        return response


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class _Own(Collector):
    def collect(self) -> Iterable[Metric]:
        yield from REQUESTS.collect()
        yield from SECONDS.collect()


class _Sources(Collector):
    def collect(self) -> Iterable[Metric]:
        for source in _sources:
            yield from source()
