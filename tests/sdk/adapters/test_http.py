"""The HTTP adapter against a real server: what is waited for, what is sent once, and what its effects say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from recourse import StageFailure, Stopped
from recourse import clock as sdk_clock

from tests.sdk.adapters.conftest import Connect
from tests.sdk.adapters.provider import Died, Epoch, Provider, reply

BUSY = reply(429)


def fails(work: Any) -> StageFailure:
    with pytest.raises(StageFailure) as failed:
        asyncio.run(work)
    return failed.value


def test_a_busy_provider_is_waited_for_within_one_call(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """N7, N8: 429, 429, 200 is one call, and no effect, for it is a read."""
    provider.script = [BUSY, reply(503), reply(200, [{"id": 1}])]
    assert asyncio.run(crm().read({"path": "/invoices", "since": "2031-01-01"})) == [{"id": 1}]
    assert [one.path for one in provider.asked] == ["/api/invoices?since=2031-01-01"] * 3
    assert {one.headers["authorization"] for one in provider.asked} == {"Bearer sesame"}
    assert epoch.effects == []


def test_four_times_busy_is_an_error_that_another_attempt_may_get_through(crm: Connect, provider: Provider) -> None:
    """N7: bounded; nobody is asked a fifth time."""
    provider.script = [BUSY] * 4
    failed = fails(crm().read({"path": "/invoices"}))
    assert (failed.code, failed.retryable) == ("RATE_LIMIT_EXCEEDED", True)
    assert "after 4 tries" in failed.message
    assert len(provider.asked) == 4


@pytest.mark.parametrize("method", ["post", "put"])
def test_a_write_that_was_turned_down_is_sent_again_and_is_one_effect(
    crm: Connect, provider: Provider, epoch: Epoch, method: str
) -> None:
    """N7: 429 says that nothing was done, so that a POST without a key may be sent again too."""
    provider.script = [BUSY, reply(503, retry_after="0"), reply(201, {"id": "i-1"})]
    answer = asyncio.run(getattr(crm(), method)("/invoices", json={"amount": 2}))
    assert (answer.status, answer.reference) == (201, "i-1")
    assert len(provider.asked) == 3
    (effect,) = epoch.effects
    assert (effect["class"], effect["state"], effect["externalRef"]) == ("external_http", "committed", "i-1")
    assert effect["detail"] == {"connector": "crm", "act": method.upper(), "path": "/invoices", "status": 201}


def test_a_write_that_stays_turned_down_is_absent(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """So that the stage may be tried again by its policy, without a person."""
    provider.answer = lambda _: BUSY
    assert fails(crm().post("/invoices", json={})).code == "RATE_LIMIT_EXCEEDED"
    assert epoch.states == ["absent"]


@pytest.mark.parametrize("unclear", [None, reply(500), reply(502), reply(503), reply(504), reply(408)])
def test_a_write_without_a_key_is_never_repeated_once_it_may_have_been_done(
    crm: Connect, provider: Provider, epoch: Epoch, unclear: Any
) -> None:
    """N10, N11: neither within the call nor by a later attempt; its effect stays unknown."""
    provider.script = [unclear]
    failed = fails(crm().post("/invoices", json={"amount": 2}))
    assert (failed.retryable, "not sent again" in failed.message) == (False, True)
    assert provider.methods == ["POST"]
    assert epoch.states == ["unknown"]
    assert fails(crm().post("/invoices", json={"amount": 2})).code == "OUTCOME_UNKNOWN"
    assert provider.methods == ["POST"]
    assert epoch.states == ["unknown", "unknown"]


def test_a_time_out_is_an_unknown_outcome(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    provider.script = [lambda _: provider.let_go.wait(30) and reply(200)]
    failed = fails(crm(timeout=0.2).post("/invoices", json={}))
    assert (failed.code, failed.retryable) == ("TIMEOUT", False)
    assert (epoch.states, provider.methods) == (["unknown"], ["POST"])


def test_a_put_is_repeated_after_an_unknown_outcome(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """N19: it comes to the same."""
    provider.script = [None, reply(502), reply(200, {})]
    asyncio.run(crm().put("/invoices/1", json={"amount": 2}))
    assert (provider.methods, epoch.states) == (["PUT"] * 3, ["committed"])


def test_a_put_that_may_have_been_done_stays_unknown_though_later_tries_were_refused(
    crm: Connect, provider: Provider, epoch: Epoch
) -> None:
    provider.script = [None, reply(409)]
    assert fails(crm().put("/invoices/1", json={})).code == "UPSTREAM_REFUSED"
    assert epoch.states == ["unknown"]


def test_the_key_reaches_a_provider_that_knows_one_and_makes_a_write_repeatable(
    crm: Connect, provider: Provider, epoch: Epoch
) -> None:
    """N10: the effect's own key, the same in each try; the capabilities say so."""
    provider.script = [None, BUSY, reply(201, {"id": 7})]
    adapter = crm(idempotency_header="Idempotency-Key")
    assert adapter.capabilities.provider_key == "passed on as Idempotency-Key"
    asyncio.run(adapter.post("/invoices", json={"amount": 2}))
    (key,) = {one.headers["Idempotency-Key"] for one in provider.asked}
    assert key == epoch.effects[0]["idempotencyKey"]
    assert (len(provider.asked), epoch.states) == (3, ["committed"])


def test_the_same_act_of_a_later_attempt_has_the_same_key(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """N10: whatever that attempt did before it; another act has another."""
    provider.answer = lambda _: BUSY
    for bodies in ([1, 2], [2]):
        adapter = crm(idempotency_header="Idempotency-Key", retries=0)
        for body in bodies:
            fails(adapter.post("/invoices", json=body))
    first, second, again = (one.headers["Idempotency-Key"] for one in provider.asked)
    assert first != second == again


def test_a_key_is_short_and_plain_whatever_the_step_is_called(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """It goes out as a header; what is named is the same act whatever its body says."""
    for number in range(2):
        adapter = crm(idempotency_header="Idempotency-Key", retries=0)
        provider.script = [BUSY]
        fails(adapter.post("/charges", json={"at": number}, step="Größe 42: " + "x" * 200))
    (key,) = {one.headers["Idempotency-Key"] for one in provider.asked}
    assert key.isascii()
    assert len(key) < 64
    assert {one["idempotencyKey"] for one in epoch.effects} == {key}


def test_a_provider_without_a_key_gets_none(crm: Connect, provider: Provider) -> None:
    """N11"""
    adapter = crm()
    asyncio.run(adapter.post("/invoices", json={}))
    assert not {name.lower() for name in provider.asked[0].headers} & {"idempotency-key", "x-idempotency-key"}
    assert adapter.capabilities.provider_key == "no: none is sent"


def test_what_an_earlier_attempt_has_done_is_not_sent_again(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """N21: the attempt died after the act was done, before anything else."""
    provider.answer = lambda _: reply(201, {"id": "i-1"})
    asyncio.run(crm().post("/invoices", json={"amount": 2}))
    answer = asyncio.run(crm().post("/invoices", json={"amount": 2}))
    assert (answer.already, answer.reference, provider.methods) == (True, "i-1", ["POST"])
    asyncio.run(crm().post("/invoices", json={"amount": 3}))
    assert len(provider.asked) == 2


def test_a_crash_between_act_and_outcome_converges_behind_a_guard(
    crm: Connect, provider: Provider, epoch: Epoch
) -> None:
    """N21, N23: reads first; what is found there is not done again, what is not is."""
    booked: list[Any] = []

    def answer(asked: Any) -> Any:
        if asked.method == "POST":
            booked.append(asked.json())
        return reply(200, booked)

    provider.answer = answer

    async def charge(adapter: Any) -> Any:
        async def is_there() -> bool:
            return {"order": 1} in await adapter.read({"path": "/charges"})

        return await adapter.post("/charges", json={"order": 1}, guard=is_there)

    dying = epoch.attempt()
    dying.link.dies_at = "committed"  # type: ignore[attr-defined]
    with pytest.raises(Died):
        asyncio.run(charge(crm(dying)))
    epoch.lose()
    answered = asyncio.run(charge(crm()))
    assert (answered.already, booked) == (True, [{"order": 1}])
    assert epoch.states == ["unknown", "committed"]
    booked.clear()
    asyncio.run(charge(crm()))
    assert (booked, epoch.states[-1]) == ([], "committed"), "the second attempt has found it done"


def test_a_guard_that_finds_nothing_lets_an_unknown_act_be_done(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """N23"""
    provider.script = [None]
    fails(crm().post("/charges", json={}))

    async def nothing() -> bool:
        return False

    adapter = crm()
    asyncio.run(adapter.post("/charges", json={}, guard=nothing))
    assert (provider.methods, epoch.states) == (["POST", "POST"], ["unknown", "committed"])


@pytest.mark.parametrize("asked", ["61", "99999999999999999", "Fri, 06 May 2107 07:08:09 GMT"])
def test_who_asks_for_a_longer_wait_than_the_cap_is_believed_at_once(
    crm: Connect, provider: Provider, asked: str
) -> None:
    """N7: the failure says when it may be tried again, and another attempt may."""
    provider.script = [reply(429, retry_after=asked)]
    began = time.monotonic()
    failed = fails(crm().read({"path": "/invoices"}))
    assert time.monotonic() - began < 30
    assert (failed.code, failed.retryable, len(provider.asked)) == ("RATE_LIMIT_EXCEEDED", True, 1)
    assert "longer than this connector waits (60 s)" in failed.message
    assert "again from 2" in failed.message or "no day that there is" in failed.message


def test_a_wait_that_the_stages_time_out_would_end_is_not_begun(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    provider.script = [reply(429, retry_after="30")]
    stage = epoch.attempt()
    stage.control.times_out_at = sdk_clock.now() + 20
    assert "the stage's time-out comes first" in fails(crm(stage).read({"path": "/invoices"})).message


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_cancel_reaches_a_wait(crm: Connect, provider: Provider, epoch: Epoch, method: str) -> None:
    """What was turned down before it is absent."""
    stage = epoch.attempt()

    def turn_down(_: Any) -> Any:
        threading.Timer(0.05, stage.control.stop, ["cancelled"]).start()
        return reply(429, retry_after="50")

    provider.script = [turn_down]
    with pytest.raises(Stopped):
        asyncio.run(crm(stage).request(method, "/invoices"))
    assert len(provider.asked) == 1
    assert epoch.states == ([] if method == "GET" else ["absent"])


def test_a_cancel_cuts_off_a_read_that_hangs(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    stage = epoch.attempt()

    def hang(_: Any) -> Any:
        stage.control.stop("cancelled")
        return provider.let_go.wait(30) and None

    provider.script = [hang]
    with pytest.raises(Stopped):
        asyncio.run(crm(stage).read({"path": "/invoices"}))


def test_nothing_is_sent_by_an_attempt_that_is_to_stop(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    stage = epoch.attempt()
    stage.control.stop("cancelled")
    for work in (crm(stage).read({"path": "/a"}), crm(stage).post("/a", json={})):
        with pytest.raises(Stopped):
            asyncio.run(work)
    assert (provider.asked, epoch.effects) == ([], [])


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_a_refusal_is_told_and_leaves_the_effect_absent(
    crm: Connect, provider: Provider, epoch: Epoch, status: int
) -> None:
    provider.script = [reply(status, b"no such\x00 account")]
    failed = fails(crm().post("/invoices", json={}))
    assert (failed.code, failed.retryable) == ("UPSTREAM_REFUSED", False)
    assert f"crm answered {status}: no such\\x00 account" in failed.message
    assert (epoch.states, len(provider.asked)) == (["absent"], 1)


def test_who_may_not_is_told_so_without_the_token(crm: Connect, provider: Provider) -> None:
    provider.script = [reply(401, {"error": "token"})]
    failed = fails(crm().read({"path": "/invoices"}))
    assert (failed.code, "sesame" in failed.message) == ("PERMISSION_DENIED", False)


def test_a_provider_that_is_not_there_was_sent_nothing(crm: Connect, epoch: Epoch) -> None:
    failed = fails(crm(url="http://127.0.0.1:9", retries=1).post("/invoices", json={}))
    assert (failed.code, failed.retryable) == ("TRANSPORT_UNAVAILABLE", True)
    assert epoch.states == ["absent"]


def test_an_answer_beyond_the_bound_is_not_read_to_its_end(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """Both sides of it; a write that was answered so is done all the same."""
    provider.answer = lambda _: reply(200, b"[" + b" " * 998 + b"]")
    assert asyncio.run(crm(max_bytes=1_000).read({"path": "/a"})) == []
    assert fails(crm(max_bytes=999).read({"path": "/a"})).code == "RESPONSE_TOO_LARGE"
    assert fails(crm(max_bytes=999).post("/a", json={})).code == "RESPONSE_TOO_LARGE"
    assert epoch.states == ["committed"]


def test_redirects_are_followed_on_the_same_host_alone(crm: Connect, provider: Provider, epoch: Epoch) -> None:
    """Credentials go to nobody else, and a write is not sent on."""
    other = Provider()
    try:
        provider.script = [reply(302, location="/api/b"), reply(200, [1])]
        assert asyncio.run(crm().get("/a")).json() == [1]
        provider.script = [reply(302, location=f"{other.url}/api/b")]
        assert "another host" in fails(crm().get("/a")).message
        provider.answer = lambda _: reply(301, location="/api/a")
        assert "more than 3 times" in fails(crm().get("/a")).message
        provider.script = [reply(307, location="/api/b"), reply(303, location="/api/b")]
        assert "not sent after it" in fails(crm().post("/a", json=1)).message
        assert "not sent again" in fails(crm().post("/a", json=2)).message
        assert epoch.states == ["absent", "unknown"]
    finally:
        other.close()
    assert other.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "//elsewhere/a",
        "http://elsewhere/a",
        "/a/../../b",
        "/%2e%2e/b",
        "/%252e%252e/b",
        "/a?b=1",
        "/a#b",
        "a b",
        "\\\\a",
    ],
)
def test_a_path_leads_nowhere_but_below_the_connector(crm: Connect, provider: Provider, path: str) -> None:
    failed = fails(crm().get(path))
    assert (failed.code, provider.asked) == ("VALIDATION_ERROR", [])


@pytest.mark.parametrize("name", ["Authorization", "host", "Content-Length", "idempotency-key"])
def test_headers_of_the_connector_are_not_the_handlers_to_set(crm: Connect, provider: Provider, name: str) -> None:
    adapter = crm(idempotency_header="Idempotency-Key")
    failed = fails(adapter.request("GET", "/a", headers={name: "mine"}))
    assert (name in failed.message, provider.asked) == (True, [])


def test_rows_are_a_request_and_an_effect_each_and_checked_before_the_first(
    crm: Connect, provider: Provider, epoch: Epoch
) -> None:
    """N23, N26"""
    adapter = crm(max_rows=2)
    rows = [{"id": "a/b", "amount": 1}, {"id": "c", "amount": 2}]
    assert asyncio.run(adapter.write(rows, "upsert", path="/invoices", key="id")).rows == 2
    assert [(one.method, one.path) for one in provider.asked] == [
        ("PUT", "/api/invoices/a%2Fb"),
        ("PUT", "/api/invoices/c"),
    ]
    assert epoch.states == ["committed", "committed"]
    assert fails(adapter.write([*rows, {"id": "d", "amount": 3}], path="/invoices")).code == "ROW_LIMIT_EXCEEDED"
    assert len(provider.asked) == 2


def test_a_recipient_that_is_not_the_connectors_gets_nothing(
    provider: Provider, configure: Callable[[str], Any]
) -> None:
    """R40: where the job names whom it goes to; the effect says to whom it went."""
    from recourse.adapters import Adapters

    configure(
        f'[crm]\nkind = "http"\nurl = "{provider.url}"\n'
        '[crm.recipient]\norganisation = "Model House"\nservice = "large"\n'
    )
    house = {"position": 0, "organisation": "Model House", "service": "large", "billing": "", "retention": ""}
    for recipient, allowed in ((house, True), (house | {"billing": "prepaid"}, False), (None, True)):
        epoch = Epoch(recipient)
        work = Adapters(epoch.attempt()).crm.post("/ask", json={})
        if allowed:
            asyncio.run(work)
            assert epoch.effects[0]["detail"]["recipient"]["organisation"] == "Model House"
        else:
            assert fails(work).code == "RECIPIENT_NOT_ALLOWED"
            assert epoch.effects == []
    assert len(provider.asked) == 2
