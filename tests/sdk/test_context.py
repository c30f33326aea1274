"""What a handler can read, and what it can say."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from recourse import Job, StageContext, StageFailure, Stopped


def context(**wire: Any) -> StageContext:
    return StageContext(Job({"stageId": "s", "executionId": "e", "attempt": 1, "stageHandlerName": "Do"} | wire))


def test_a_handler_sees_its_attempt() -> None:
    ctx = context(
        stageName="validate",
        pipelineId="r",
        epoch=2,
        input='{"n": 1}',
        dependencies={"before": [1]},
        contextItems=[{"key": "customer", "value": "7", "isSensitive": True}],
        timeoutSeconds=60,
        effectMode="external",
        idempotencyKey="s:2",
        deadlineAt="2026-01-02T03:04:05Z",
    )
    assert (ctx.stage_id, ctx.stage_name, ctx.run_id) == ("s", "validate", "r")
    assert (ctx.execution_id, ctx.attempt, ctx.epoch) == ("e", 1, 2)
    assert ctx.input == '{"n": 1}'
    assert ctx.json() == {"n": 1}
    assert ctx.dependencies == {"before": [1]}
    assert dict(ctx.context) == {"customer": "7"}
    assert (ctx.timeout_seconds, ctx.effect_mode, ctx.idempotency_key) == (60, "external", "s:2")
    assert ctx.deadline == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_job_with_nothing_optional_has_defaults() -> None:
    ctx = context()
    assert (ctx.input, ctx.json(), ctx.dependencies, dict(ctx.context)) == (None, None, {}, {})
    assert (ctx.epoch, ctx.effect_mode, ctx.deadline, ctx.timeout_seconds) == (1, "idempotent", None, None)


def test_input_is_kept_byte_for_byte() -> None:
    """P16."""
    text = ' {"a" : 1.10,\n"a":2}\t'
    assert context(input=text).input == text


def test_input_that_is_not_json_fails_for_good() -> None:
    """P43."""
    with pytest.raises(StageFailure) as caught:
        context(input="{").json()
    assert (caught.value.code, caught.value.retryable) == ("VALIDATION_ERROR", False)


def test_set_context_is_seen_at_once_and_sent_once_by_key() -> None:
    """P89."""
    ctx = context(contextItems=[{"key": "a", "value": "old"}])
    ctx.context.set("a", "new")
    ctx.context.set("card", "4111", sensitive=True)
    assert ctx.context["a"] == "new"
    assert ctx.set_items == [{"key": "a", "value": "new"}, {"key": "card", "value": "4111", "isSensitive": True}]


def test_a_context_value_is_text() -> None:
    with pytest.raises(TypeError, match=r"json\.dumps"):
        context().context.set("n", 1)  # type: ignore[arg-type]


def test_an_unknown_level_and_a_percent_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="level"):
        context().log("loud", "x")
    for percent in (-1, 101):
        with pytest.raises(ValueError, match="percent"):
            context().progress(percent)
    for percent in (0, 100):
        context().progress(percent)


def test_any_field_can_be_logged() -> None:
    """A log line never fails the work that it tells of."""
    ctx = context()
    ctx.log("info", "odd", at=datetime(2026, 1, 1, tzinfo=UTC), nan=float("nan"), plain={"a": [1]}, bad="\ud800")
    fields = ctx.take_lines()[0]["fields"]
    assert fields == {"at": "2026-01-01 00:00:00+00:00", "nan": "nan", "plain": {"a": [1]}, "bad": "'\\ud800'"}


def test_what_is_said_is_cut_to_what_a_server_takes() -> None:
    """A success must not be refused for what was said on the way."""
    ctx = context()
    ctx.log("info", "x" * 100_000, big="y" * 100_000)
    line = ctx.take_lines()[0]
    assert len(line["message"]) <= 16_000
    assert list(line["fields"]) == ["shortened"]
    ctx.progress(1, "z" * 2_000)
    assert ctx.take_progress() == {"percent": 1, "message": "z" * 1_000}


def test_too_many_unsent_lines_leave_the_oldest_out_and_say_so() -> None:
    ctx = context()
    for number in range(12_000):
        ctx.log("info", str(number))
    lines = ctx.take_lines()
    assert len(lines) <= 5_001
    assert lines[-1]["message"] == "11999"
    assert lines[0]["message"] == f"{12_000 - len(lines) + 1} older lines could not be sent in time and were left out"
    ctx.log("info", "on")
    assert [line["message"] for line in ctx.take_lines()] == ["on"]


@pytest.mark.parametrize(("key", "value"), [("", "v"), ("k" * 256, "v"), ("k", "v" * 10_001)])
def test_context_that_a_server_refuses_is_refused_where_it_is_set(key: str, value: str) -> None:
    ctx = context()
    with pytest.raises(ValueError, match="context key"):
        ctx.context.set(key, value)
    assert ctx.set_items == []
    ctx.context.set("k" * 255, "v" * 10_000)


def test_lines_are_handed_out_once_and_come_back_in_order() -> None:
    ctx = context()
    ctx.log("info", "one")
    taken = ctx.take_lines()
    ctx.log("info", "two")
    ctx.put_lines_back(taken)
    assert [line["message"] for line in ctx.take_lines()] == ["one", "two"]
    assert ctx.take_lines() == []


def test_only_the_newest_progress_is_kept() -> None:
    ctx = context()
    ctx.progress(1)
    ctx.progress(2, "two")
    assert ctx.take_progress() == {"percent": 2, "message": "two"}
    assert ctx.take_progress() is None


def test_the_first_reason_to_stop_stays() -> None:
    ctx = context()
    ctx.raise_if_stopped()
    ctx.control.stop("cancelled")
    ctx.control.stop("lost")
    assert ctx.cancelled
    with pytest.raises(Stopped, match=r"^cancelled$"):
        ctx.raise_if_stopped()


def test_the_end_of_the_lease_stops_on_the_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """F03, both sides of the limit."""
    ctx = context()
    ctx.control.owned_until = 100.0
    monkeypatch.setattr("recourse.clock.now", lambda: 99.999)
    assert not ctx.cancelled
    monkeypatch.setattr("recourse.clock.now", lambda: 100.0)
    assert ctx.cancelled


def test_the_clock_counts_suspend_where_the_system_can() -> None:
    from recourse import clock

    assert abs(clock.now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1
