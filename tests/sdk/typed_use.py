"""What a type checker knows of both clients: `test_types.py` has it checked with `mypy --strict`. Nothing runs this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

from recourse import Client, SyncClient
from recourse.models import Page
from recourse.models.application import Creation, Jobs
from recourse.models.content import Content
from recourse.models.operations import (
    BlackoutItem,
    DecisionAnswer,
    ForkAnswer,
    GatePreview,
    ListedExecution,
    PlanView,
    RequestPreview,
    Signal,
    StageVerbAnswerOrAskedAnswer,
)


def without_a_loop(client: SyncClient) -> None:
    assert_type(client.executions.pause("r"), Signal)
    assert_type(client.executions.pause.plan("r", "to look"), PlanView)
    assert_type(client.executions.list(status=["failed", "blocked"], page_size=5), Page[ListedExecution])
    for run in client.executions.iterate(status="failed"):
        assert_type(run, ListedExecution)
        assert_type(run["status"], str)  # open: a newer console may know more words
        fork = client.executions.rerun(run["execution_id"], from_step_id="send")
        assert_type(fork, ForkAnswer)
    for page in client.executions.list.iterate().pages(3):
        assert_type(page["results"], list[ListedExecution])
    done = client.stages.retry("s", reason="again", scope="stage_and_downstream")
    assert_type(done, StageVerbAnswerOrAskedAnswer)
    assert_type(done["status"], str)
    assert_type(client.approvals.decide("a", True), DecisionAnswer)
    assert_type(client.approvals.decide.plan("a", True), GatePreview | RequestPreview)
    assert_type(client.runs.create(idempotency_key="k", pipeline="nightly")["created"], bool)
    assert_type(client.artifacts.content("x"), Content)
    assert_type(client.work.pull(session="s"), Jobs)


async def with_a_loop(client: Client) -> None:
    assert_type(await client.executions.pause("r"), Signal)
    assert_type(await client.executions.pause.plan("r"), PlanView)
    assert_type(await client.runs.create(idempotency_key="k", name="n", stages=[]), Creation)
    async for run in client.executions.iterate(search="order 42"):
        assert_type(run, ListedExecution)
    async for page in client.blackouts.iterate(is_freeze=False).pages():
        assert_type(page, Page[BlackoutItem])


def what_is_wrong(client: SyncClient, tell: Callable[[Any], None]) -> None:
    # each of these lines is an error: strict checkers warn about an ignore that is not needed
    client.executions.pause()  # type: ignore[call-arg]
    client.executions.pause("r", becuase="typo")  # type: ignore[call-arg]
    client.executions.list(state="failed")  # type: ignore[call-arg]
    client.stages.reconcile("s", outcome="done", note="n")  # type: ignore[arg-type]
    tell(client.executions.get("r")["stauts"])  # type: ignore[misc]
    tell(client.workers.list.plan())  # type: ignore[attr-defined]
    client.executions.remove("r")  # type: ignore[attr-defined]
