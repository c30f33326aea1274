"""Whatever a link answers, in whatever order: the act follows an acknowledged intent and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from recourse import Job, StageContext, StageFailure, Stopped
from recourse.control import Control
from recourse.errors import api_error
from recourse.repeating import Unavailable

LEASE_SECONDS = 10.0
ANSWERS = st.sampled_from(["stored", "stored unheard", "away", "stale", "refused", "cancelled meanwhile"])


class Scripted:
    """A link that answers as written, then well; each try takes some seconds of the lease."""

    def __init__(self, script: list[tuple[str, float]], control: Control) -> None:
        self.script = script
        self.control = control
        self.now = 0.0
        self.stored: list[str] = []
        self.offered: list[str] = []
        self.heard: list[str] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def write(self, what: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        state = body["effects"][0]["state"]
        self.offered.append(state)
        answer, seconds = self.script.pop(0) if self.script else ("stored", 0.0)
        self.now += seconds
        if answer == "cancelled meanwhile":
            self.control.stop("cancelled")
        if answer in ("stale", "refused"):
            raise api_error(409, {"code": "stale_execution" if answer == "stale" else "stage_state_invalid"})
        if answer != "away":
            self.stored.append(state)
        if answer in ("away", "stored unheard"):
            raise Unavailable("no answer")
        self.heard.append(state)
        return {"effects": [{"effectId": "1", "state": state}]}


@given(
    st.lists(st.tuples(ANSWERS, st.floats(0, 6)), max_size=8),
    st.sampled_from([None, RuntimeError("in the body"), ConnectionRefusedError("in the body")]),
)
def test_the_act_happens_exactly_when_its_intent_was_acknowledged(
    script: list[tuple[str, float]], error: Exception | None
) -> None:
    """R5, P58: never before, never for an attempt that is lost or cancelled by then; and every act is told of."""
    control = Control()
    control.owned_until = LEASE_SECONDS
    link = Scripted(script, control)
    job = Job({"stageId": "s", "executionId": "e", "attempt": 1, "stageHandlerName": "H", "idempotencyKey": "s:1"})
    ctx = StageContext(job, control, link)
    acted_at: list[tuple[float, str | None]] = []
    raised: Exception | None = None
    with (
        mock.patch("recourse.clock.now", link.clock),
        mock.patch("recourse.links.time.sleep", link.sleep),
    ):
        try:
            with ctx.effect("external_http", step="charge"):
                acted_at.append((link.now, control.stopped_because))
                if error is not None:
                    raise error
        except (Stopped, StageFailure, RuntimeError, ConnectionRefusedError) as one:
            raised = one
        stopped_because = control.stopped_because

    assert link.offered[0] == "declared"
    if acted_at:
        ((when, why_not),) = acted_at
        assert "declared" in link.heard
        assert why_not is None
        assert when < LEASE_SECONDS
        wanted = "committed" if error is None else "absent" if isinstance(error, ConnectionRefusedError) else "unknown"
        assert link.offered[-1] == wanted
        assert (raised is error) if error is not None else (raised is None) == (wanted in link.heard)
    else:
        assert isinstance(raised, Stopped | StageFailure)
        assert set(link.offered) <= {"declared", "absent"}
        assert ("absent" in link.offered) == ("declared" in link.heard)
    if isinstance(raised, Stopped):
        assert stopped_because is not None, "a handler that is stopped must not count as failed"
    if "declared" not in link.stored:
        assert not acted_at
