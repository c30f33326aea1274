"""The sample services and handlers, piece by piece: what they answer, what they refuse, what they do once."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from recourse import Job, default_registry, execution

from samples import fx_daily, places, validate_invoice
from samples.local_http import Faults, Request, ask, serve
from samples.publish_service import PublishService
from samples.rates_service import RatesService

QUIET = {"nothing": 0.0}


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RECOURSE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def rates() -> RatesService:
    return RatesService(Faults("quiet", QUIET))


def get(service: Any, path: str) -> Any:
    return service.answer(Request("GET", path, {}, b""))


def put(service: PublishService, day: str, key: str | None, content: Any = "rates") -> Any:
    headers = {} if key is None else {"idempotency-key": key}
    return service.answer(Request("PUT", f"/published/{day}", headers, json.dumps(content).encode()))


def test_a_day_comes_with_the_day_of_publication_before_it(rates: RatesService) -> None:
    answer = get(rates, "/rates/2026-05-29")
    assert answer.status == 200
    assert answer.body["base"] == "EUR"
    assert answer.body["rates"]["USD"] == 1.1644
    assert "CYP" not in answer.body["rates"], "a currency that is gone has no rate"
    assert answer.body["previous"]["date"] == "2026-05-28"
    # Monday's day before is Friday.
    assert get(rates, "/rates/2026-06-01").body["previous"]["date"] == "2026-05-29"
    assert get(rates, "/rates/1999-01-04").body["previous"] is None


@pytest.mark.parametrize("day", ["2026-05-30", "2026-05-31", "2025-12-25", "2099-01-01"])
def test_weekends_holidays_and_the_future_are_missing_days(rates: RatesService, day: str) -> None:
    answer = get(rates, f"/rates/{day}")
    assert (answer.status, answer.body["code"]) == (404, "no_rates_published")


@pytest.mark.parametrize(("path", "status"), [("/rates/soon", 400), ("/rates/2026-13-01", 400), ("/other", 404)])
def test_what_is_no_day_is_refused(rates: RatesService, path: str, status: int) -> None:
    assert get(rates, path).status == status


def test_faults_are_the_same_after_every_start_and_leave_most_requests_alone() -> None:
    def drawn() -> list[str | None]:
        faults = Faults("rates", {"rate_limited": 0.12, "unavailable": 0.06})
        return [faults.next() for _ in range(1000)]

    first = drawn()
    assert first == drawn()
    assert 80 < first.count("rate_limited") < 160
    assert 30 < first.count("unavailable") < 90
    assert Faults("other", QUIET).next() is None


def test_the_rates_service_says_429_with_retry_after_and_503() -> None:
    limited = get(RatesService(Faults("all", {"rate_limited": 1.0})), "/rates/2026-05-29")
    assert (limited.status, limited.headers["retry-after"]) == (429, "1")
    assert get(RatesService(Faults("all", {"unavailable": 1.0})), "/rates/2026-05-29").status == 503


def test_a_publication_is_taken_once_for_its_key() -> None:
    service = PublishService(Faults("quiet", QUIET))
    first, again = put(service, "2026-05-29", "k1"), put(service, "2026-05-29", "k1")
    assert (first.status, first.body) == (201, {"date": "2026-05-29", "revision": 1, "replayed": False})
    assert (again.status, again.body) == (200, {"date": "2026-05-29", "revision": 1, "replayed": True})
    other = put(service, "2026-05-29", "k1", "other rates")
    assert (other.status, other.body["code"]) == (409, "key_reused")
    assert put(service, "2026-05-28", "k1").status == 409, "the key stands for its day, too"
    assert get(service, "/published/2026-05-29").body == "rates"
    assert get(service, "/published/2026-05-28").status == 404

    assert put(service, "2026-05-29", "k2", "mended rates").body["revision"] == 2
    # A late repeat of the first request gets its own answer and does not bring the old rates back.
    assert put(service, "2026-05-29", "k1").body["revision"] == 1
    assert get(PublishService(Faults("quiet", QUIET)), "/published/2026-05-29").body == "mended rates"
    assert get(service, "/published").body == {"days": [{"date": "2026-05-29", "revision": 2}]}


def test_an_answer_that_got_lost_is_found_again_by_the_key() -> None:
    lost = put(PublishService(Faults("all", {"answer_lost": 1.0})), "2026-05-29", "k1")
    assert lost.status == 503
    assert put(PublishService(Faults("quiet", QUIET)), "2026-05-29", "k1").body["replayed"] is True


def test_an_unavailable_service_has_taken_nothing() -> None:
    service = PublishService(Faults("all", {"unavailable": 1.0}))
    assert put(service, "2026-05-29", "k1").status == 503
    assert get(service, "/published").body == {"days": []}


def test_a_publication_without_a_key_or_a_day_is_refused() -> None:
    service = PublishService(Faults("quiet", QUIET))
    assert put(service, "2026-05-29", None).body["code"] == "key_missing"
    assert put(service, "someday", "k1").status == 400
    assert get(service, "/published").body == {"days": []}


def test_many_requests_with_one_key_at_once_make_one_publication() -> None:
    service = PublishService(Faults("quiet", QUIET))
    barrier, answers = threading.Barrier(12), []

    def send() -> None:
        barrier.wait()
        answers.append(put(service, "2026-05-29", "k1").status)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 11 + [201]
    assert get(service, "/published").body["days"] == [{"date": "2026-05-29", "revision": 1}]


def job(handler: str, *, input: Any = None, dependencies: dict[str, Any] | None = None) -> Job:  # noqa: A002
    return Job(
        {
            "stageId": "6f1b0c55-1c07-4a39-9a11-3f3b0d8a0001",
            "executionId": "6f1b0c55-1c07-4a39-9a11-3f3b0d8a0002",
            "pipelineId": "6f1b0c55-1c07-4a39-9a11-3f3b0d8a0003",
            "stageHandlerName": handler,
            "attempt": 1,
            "epoch": 1,
            "idempotencyKey": "stage-key",
            "input": None if input is None else json.dumps(input),
            "dependencies": dependencies or {},
            "contextItems": [],
            "effectMode": "idempotent",
        }
    )


def run(handler: str, **given: Any) -> dict[str, Any]:
    return execution.run(job(handler, **given), default_registry).body


@pytest.fixture
def running() -> Iterator[Any]:
    """Starts a service with the faults it is given."""
    servers: list[ThreadingHTTPServer] = []

    def start(kind: type[RatesService] | type[PublishService], **shares: float) -> None:
        name = {RatesService: "rates", PublishService: "publish"}[kind]
        server = serve(name, kind(Faults("test", shares)).answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("shares", "day", "code", "retryable"),
    [
        ({"rate_limited": 1.0}, "2026-05-29", "RATE_LIMIT_EXCEEDED", None),
        ({"unavailable": 1.0}, "2026-05-29", "UPSTREAM_ERROR", None),
        ({}, "2026-05-30", "MISSING_REQUIRED_DATA", False),
        ({}, "soon", "VALIDATION_ERROR", None),
        ({}, None, "VALIDATION_ERROR", None),
    ],
)
def test_fetch_says_by_its_code_whether_trying_again_can_help(
    running: Any, shares: dict[str, float], day: str | None, code: str, retryable: bool | None
) -> None:
    running(RatesService, **shares)
    body = run("fx.fetch", input={"date": day})
    assert (body["status"], body["errorCode"], body.get("retryable")) == ("failed", code, retryable)


def test_a_service_that_is_not_there_is_worth_another_try() -> None:
    assert run("fx.fetch", input={"date": "2026-05-29"})["errorCode"] == "TRANSPORT_UNAVAILABLE"
    places.write(places.address_file("rates"), "127.0.0.1:1")
    assert run("fx.fetch", input={"date": "2026-05-29"})["errorCode"] == "TRANSPORT_UNAVAILABLE"


def test_a_day_goes_the_whole_way_and_twice_makes_no_difference(running: Any) -> None:
    running(RatesService)
    running(PublishService)
    fetched = run("fx.fetch", input={"date": "2026-05-29"})["output"]
    checked = run("fx.validate", dependencies={"fetch": fetched})
    assert checked["status"] == "succeeded"
    assert checked["output"]["currencies"] == len(fetched["rates"])
    for turn in (1, 2):
        given = {"fetch": fetched, "validate": checked["output"]}
        assert run("fx.store", dependencies=given)["output"] == {"date": "2026-05-29", "writes": turn}
        sent = run("fx.publish", dependencies={"fetch": fetched})
        assert sent["output"] == {"date": "2026-05-29", "revision": 1, "replayed": turn == 2}
    with closing(sqlite3.connect(fx_daily.database_file())) as connection:
        ((day, rates),) = connection.execute("SELECT day, rates FROM rate_day").fetchall()
    assert day == "2026-05-29"
    assert json.loads(rates) == fetched["rates"]
    published = {name: fetched[name] for name in ("date", "base", "rates")}
    assert ask("publish", "GET", "/published/2026-05-29") == (200, published)


GOOD = {"USD": 1.1, "JPY": 180.0, "GBP": 0.85, "CHF": 0.93}


@pytest.mark.parametrize(
    ("rates", "code", "part"),
    [
        ({**GOOD, "USD": 1.1 * 1.11}, "VALIDATION_ERROR", "USD moved by +11.0%"),
        ({**GOOD, "USD": 1.1 * 0.89}, "VALIDATION_ERROR", "USD moved by -11.0%"),
        ({**GOOD, "usd": 1.1}, "VALIDATION_ERROR", "'usd' is no currency code"),
        ({**GOOD, "SEK": -1}, "VALIDATION_ERROR", "SEK has the rate -1"),
        ({**GOOD, "SEK": "11"}, "VALIDATION_ERROR", "SEK has the rate '11'"),
        ({**GOOD, "SEK": float("inf")}, "VALIDATION_ERROR", "SEK has the rate inf"),
        ({"USD": 1.1, "GBP": 0.85}, "MISSING_REQUIRED_DATA", "no rate for CHF, JPY"),
    ],
)
def test_validate_refuses_a_day_that_cannot_be_right(rates: dict[str, Any], code: str, part: str) -> None:
    fetched = {"date": "2026-05-29", "base": "EUR", "rates": rates, "previous": {"date": "2026-05-28", "rates": GOOD}}
    body = run("fx.validate", dependencies={"fetch": fetched})
    assert (body["status"], body["errorCode"]) == ("failed", code)
    assert part in body["errorMessage"]


def test_validate_takes_a_change_at_the_limit_and_a_day_without_a_day_before() -> None:
    fetched = {"date": "2026-05-29", "base": "EUR", "rates": {**GOOD, "USD": 1.1 * 1.0999}, "previous": None}
    assert run("fx.validate", dependencies={"fetch": fetched})["status"] == "succeeded"
    fetched["previous"] = {"date": "2026-05-28", "rates": GOOD}
    assert run("fx.validate", dependencies={"fetch": fetched})["status"] == "succeeded"


def test_a_day_whose_fetch_was_skipped_comes_to_its_end_and_stores_and_publishes_nothing(running: Any) -> None:
    running(PublishService)
    for handler in ("fx.validate", "fx.store", "fx.publish"):
        body = run(handler, dependencies={"fetch": None})
        assert (body["status"], body["output"]) == ("succeeded", {"fixing": False})
    assert not fx_daily.database_file().exists()
    assert ask("publish", "GET", "/published/2026-04-03")[0] == 404


def test_an_invoice_is_validated_by_its_id_or_as_it_comes() -> None:
    handler = validate_invoice.HANDLER
    for given in ({"invoiceId": "invoice-42"}, {"invoiceId": "invoice-40"}):
        assert run(handler, input=given)["output"]["valid"] is True
    bad = run(handler, input={"invoiceId": "invoice-41"})
    assert (bad["errorCode"], bad["retryable"]) == ("VALIDATION_ERROR", False)
    assert bad["errorMessage"] == (
        "'EURO' is no currency code; due on 2026-04-11, before it was issued on 2026-05-11; "
        "the lines come to 1260.00, not to 1250.00"
    )
    assert run(handler, input={"invoiceId": "invoice-1"})["errorCode"] == "MISSING_REQUIRED_DATA"
    whole = {
        "number": "1",
        "currency": "SEK",
        "issued": "2026-05-29",
        "due": "2026-05-29",
        "lines": [{"quantity": 3, "price": "0.10"}],
        "total": "0.30",
    }
    assert run(handler, input={"invoice": whole})["output"]["total"] == "0.30"
    for wrong, part in [
        ({"due": "soon"}, "not both dates"),
        ({"total": "0.31"}, "not to 0.31"),
        ({"lines": [{"quantity": "many", "price": "1"}]}, "as numbers"),
        ({"lines": []}, "lines is missing"),
        ({"currency": 5}, "no currency code"),
    ]:
        body = run(handler, input={"invoice": whole | wrong})
        assert body["errorCode"] == "VALIDATION_ERROR", wrong
        assert part in body["errorMessage"]
    assert run(handler, input=[1])["errorCode"] == "VALIDATION_ERROR"


def test_a_service_keeps_its_port_when_it_starts_again_unless_somebody_else_has_it(running: Any) -> None:
    first = serve("publish", PublishService().answer)
    address = places.address_file("publish").read_text()
    first.server_close()
    running(PublishService)
    assert places.address_file("publish").read_text() == address
    running(PublishService)
    assert places.address_file("publish").read_text() != address
    assert ask("publish", "GET", "/published") == (200, {"days": []})


def test_a_key_file_is_readable_by_its_owner_alone() -> None:
    file = places.key_file("fx")
    places.write(file, "rk_secret", mode=0o600)
    places.write(file, "rk_other", mode=0o600)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == "rk_other\n"
    assert [path.name for path in file.parent.iterdir()] == ["fx.key"], "no draft stays behind"
