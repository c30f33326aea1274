"""Runs that a handler starts and waits for, without a console: what is asked, how often, and how an attempt parks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from recourse import Job, Registry, StageContext, StageFailure, execution
from recourse import children as sdk
from recourse.children import ChildRun, Runs
from recourse.errors import Parked, Stopped, api_error
from recourse.links import Recorder
from recourse.repeating import Unavailable

RUN = str(uuid.UUID(int=7))


class Console:
    """Answers as the console does, with one status after the other; the last one stays."""

    def __init__(self, *statuses: str, **told: Any) -> None:
        self.statuses, self.told = list(statuses), told
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.refuse: Exception | None = None

    def write(self, what: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((what, body))
        if self.refuse is not None:
            refused, self.refuse = self.refuse, None
            raise refused
        if what == "runs":
            return {"created": True, "run": self._run(RUN, "queued")}
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return {"runs": [self._run(run_id, status) for run_id in body["runs"]]}

    def load(self, artifact_id: str) -> Mapping[str, Any]:
        raise AssertionError(artifact_id)

    def _run(self, run_id: str, status: str) -> dict[str, Any]:
        return {"runId": run_id, "startedRunId": run_id, "key": "day", "name": "n", "status": status, **self.told}


class Time:
    """The local clock; sleeping moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 1000.0, []
        monkeypatch.setattr(sdk.clock, "now", lambda: self.now)
        monkeypatch.setattr(sdk.asyncio, "sleep", self.sleep)

    slept: list[float]

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def context(link: Any = None) -> StageContext:
    ids = {"stageId": str(uuid.UUID(int=1)), "executionId": str(uuid.UUID(int=2)), "attempt": 1}
    return StageContext(Job({**ids, "stageHandlerName": "H", "requestDigest": "0" * 64}), link=link)


def ran(link: Any, function: Any, ctx: StageContext | None = None) -> execution.Report:
    registry = Registry()
    registry.add("H", function)
    ctx = ctx or context(link)
    return execution.run(ctx.job, registry, context=ctx)


def test_the_looks_at_a_child_come_further_and_further_apart_until_the_attempt_parks(time: Time) -> None:
    """N9: a wait loop that does not spin; after some seconds no worker is held any more."""
    console = Console("running")

    async def handler(ctx: StageContext) -> None:
        runs = Runs(ctx)
        await runs.wait(await runs.start("import", key="day"))

    report = ran(console, handler)
    assert (report.outcome, report.body["status"], report.body["awaitsRuns"]) == ("waiting", "waiting", [RUN])
    assert "output" not in report.body
    waits = time.slept[:-1]  # the last is cut to the end of the patience
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]
    assert sum(time.slept) == pytest.approx(sdk.PARK_AFTER_SECONDS)
    assert len(time.slept) < 12


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_however_a_child_ends_is_an_answer(time: Time, status: str) -> None:
    """N9: no retry of a failed child: it is looked at, and nothing is started again."""
    console = Console("running", status, outputs={"load": 3}, failure={"code": "X", "message": "no"})
    seen: list[ChildRun] = []

    async def handler(ctx: StageContext) -> str:
        runs = Runs(ctx)
        seen.append(await runs.wait(await runs.start("import", input={"day": 1})))
        return seen[0].status

    assert ran(console, handler).body["output"] == status
    assert [what for what, _ in console.asked] == ["runs", "runs/look", "runs/look"]
    assert (seen[0].succeeded, seen[0].output, str(seen[0].failure)) == (status == "completed", 3, "X: no")


def test_what_is_said_of_a_child_goes_out_as_said(time: Time) -> None:
    console = Console("completed")
    asyncio.run(
        Runs(context(console)).start("import", input={"a": 1}, key="k", on_parent_end="leave", follow="original")
    )
    asyncio.run(Runs(context(console)).start(name="n", stages=[{"stageName": "s", "stageHandlerName": "H"}]))
    (_, first), (_, second) = console.asked
    ids = {"executionId": str(uuid.UUID(int=2))}
    assert first == {
        **ids,
        "key": "k",
        "pipeline": "import",
        "input": {"a": 1},
        "onParentEnd": "leave",
        "follow": "original",
    }
    stages = [{"stageName": "s", "stageHandlerName": "H"}]
    assert second == {**ids, "key": "n", "name": "n", "stages": stages, "onParentEnd": "cancel", "follow": "fork"}
    with pytest.raises(ValueError, match="name a pipeline"):
        asyncio.run(Runs(context(console)).start(key="k"))


def test_a_start_without_an_answer_is_repeated_with_the_same_key(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """F129: the outcome is unknown, the key is not."""
    monkeypatch.setattr("recourse.links._wait", lambda control, seconds: None)
    console = Console("completed")
    console.refuse = Unavailable("cut")
    child = asyncio.run(Runs(context(console)).start("import"))
    assert child.run_id == RUN
    assert console.asked[0] == console.asked[1]


def test_a_refusal_fails_the_stage_and_a_lost_attempt_stops_it(time: Time) -> None:
    console = Console("completed")
    for code, status, raised in (("budget_exhausted", 409, StageFailure), ("stale_execution", 409, Stopped)):
        console.refuse = api_error(status, {"code": code, "detail": "no"})
        with pytest.raises(raised):
            asyncio.run(Runs(context(console)).start("import"))
    console.refuse = api_error(409, {"code": "idempotency_conflict", "detail": "another request"})

    async def handler(ctx: StageContext) -> None:
        await Runs(ctx).start("import")

    report = ran(console, handler)
    assert (report.body["errorCode"], report.body["retryable"]) == ("RUN_REFUSED", False)


def test_a_handler_that_catches_every_exception_parks_all_the_same(time: Time) -> None:
    async def handler(ctx: StageContext) -> str:
        try:
            await Runs(ctx).wait(RUN)
        except Exception:  # noqa: BLE001
            return "swallowed"
        return "done"

    assert ran(Console("running"), handler).outcome == "waiting"


def test_several_are_waited_for_together(time: Time) -> None:
    """One after the other in one call, in tasks of one group, or gathered."""
    ids = [str(uuid.UUID(int=number)) for number in (7, 8)]

    async def at_once(ctx: StageContext) -> None:
        await Runs(ctx).wait_all(ids)

    async def grouped(ctx: StageContext) -> None:
        async with asyncio.TaskGroup() as group:
            for run_id in ids:
                group.create_task(Runs(ctx).wait(run_id))

    async def gathered(ctx: StageContext) -> None:
        await asyncio.gather(*(Runs(ctx).wait(run_id) for run_id in ids))

    assert ran(Console("running"), at_once).body["awaitsRuns"] == ids
    assert set(ran(Console("running"), grouped).body["awaitsRuns"]) <= set(ids)
    assert ran(Console("running"), grouped).outcome == "waiting"
    assert ran(Console("running"), gathered).outcome == "waiting"


def test_a_failure_beside_a_wait_is_a_failure(time: Time) -> None:
    async def fails() -> None:
        raise RuntimeError("broken")

    async def handler(ctx: StageContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Runs(ctx).wait(RUN))
            group.create_task(fails())

    assert ran(Console("running"), handler).outcome == "failed"


def test_a_pausing_run_is_parked_at_the_next_look(time: Time) -> None:
    ctx = context(Console("running"))
    ctx.control.pause_requested = True

    async def handler(ctx: StageContext) -> None:
        await Runs(ctx).wait(RUN)

    assert ran(None, handler, ctx).outcome == "waiting"
    assert time.slept == []


def test_logs_and_context_items_of_a_parked_attempt_are_sent(time: Time) -> None:
    async def handler(ctx: StageContext) -> None:
        ctx.log("info", "waiting for the import")
        ctx.context.set("import", RUN)
        await Runs(ctx).wait(RUN)

    body = ran(Console("running"), handler).body
    assert body["contextItems"] == [{"key": "import", "value": RUN}]
    assert body["logs"][0]["message"] == "waiting for the import"


def test_a_handler_can_be_tried_without_a_console(time: Time) -> None:
    async def handler(ctx: StageContext) -> str:
        runs = Runs(ctx)
        child, same = await runs.start("import"), await runs.start("import")
        assert child.run_id == same.run_id
        return (await runs.wait(child)).status

    ctx = context()
    assert ran(None, handler, ctx).body["output"] == "completed"
    assert isinstance(ctx.link, Recorder)
    assert [what for what, _ in ctx.link.written] == ["runs", "runs", "runs/look"]


def test_a_child_with_several_last_stages_has_no_single_output() -> None:
    child = ChildRun(RUN, RUN, "k", "n", "completed", outputs={"a": 1, "b": 2})
    with pytest.raises(ValueError, match="a, b"):
        _ = child.output
    assert Parked([RUN, RUN]).run_ids == [RUN]
