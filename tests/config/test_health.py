from __future__ import annotations

import pytest
from django.core.management import call_command
from django.test import Client
from prometheus_client.core import GaugeMetricFamily

from config import health, metrics
from config.security import POLICY


@pytest.mark.django_db
def test_a_console_with_all_its_parts_is_ready(client: Client) -> None:
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (
        200,
        {"status": "ready", "checks": {"database": "ok", "migrations": "ok", "broker": "ok", "artifacts": "ok"}},
    )


def test_alive_asks_nothing_of_the_database(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}


@pytest.mark.django_db(transaction=True)
def test_a_migration_that_is_missing_is_named(client: Client) -> None:
    call_command("migrate", "admin", "0002", verbosity=0)
    try:
        response = client.get("/readyz")
    finally:
        call_command("migrate", "admin", verbosity=0)
    assert response.status_code == 503
    assert response.json()["checks"] == {
        "database": "ok",
        "migrations": "1 not applied, the first is admin.0003_logentry_add_action_flag_choices",
        "broker": "ok",
        "artifacts": "ok",
    }
    assert client.get("/readyz").status_code == 200


@pytest.mark.django_db
def test_a_broker_that_does_not_answer_is_named_without_its_address(client: Client, monkeypatch, settings) -> None:
    settings.CELERY_BROKER_URL = "redis://user:secret@127.0.0.1:1/0"
    monkeypatch.setattr(health, "BROKER_SECONDS", 0.2)
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["checks"] == {
        "database": "ok",
        "migrations": "ok",
        "broker": "OperationalError",
        "artifacts": "ok",
    }
    assert b"secret" not in response.content


@pytest.mark.parametrize(
    "fixture",
    [pytest.param("redis_url", marks=pytest.mark.redis), pytest.param("rabbitmq_url", marks=pytest.mark.rabbitmq)],
)
def test_real_brokers_are_found_ready(fixture: str, request, settings) -> None:
    settings.CELERY_BROKER_URL = request.getfixturevalue(fixture)
    assert health._outcome(health._broker) == "ok"


@pytest.mark.django_db
def test_requests_are_counted_by_route_and_never_by_path(client: Client) -> None:
    client.get("/healthz")
    client.get("/no/such/page/of-ours")
    text = client.get("/metrics").content.decode()
    assert 'recourse_http_requests_total{method="GET",route="healthz",status="200"}' in text
    assert 'route="(none)",status="404"' in text
    assert "of-ours" not in text
    assert "process_resident_memory_bytes" in text


def test_other_parts_add_what_they_count(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_sources", [])

    def source() -> list[GaugeMetricFamily]:
        family = GaugeMetricFamily("recourse_stages", "Stages by state.", labels=["state"])
        family.add_metric(["ready"], 3)
        return [family]

    metrics.add_source(source)
    metrics.add_source(source)
    assert client.get("/metrics").content.decode().count('recourse_stages{state="ready"} 3.0') == 1


def test_every_answer_forbids_scripts_from_elsewhere(client: Client) -> None:
    response = client.get("/healthz")
    assert response.headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.django_db
def test_a_request_that_asks_wrongly_leaves_no_line_in_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy application that is refused often must not bury what an operator has to read."""
    assert client.get("/no/such/page").status_code == 404
    assert client.post("/pipelines/idempotent").status_code == 401
    assert caplog.records == []
