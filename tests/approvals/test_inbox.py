"""The inbox: what waits for people, what one may decide, what one asked for, and what was decided."""

from __future__ import annotations

from collections.abc import Callable

from approvals import inbox
from pipelines.access import Actor
from pipelines.models import Run
from pipelines.paging import Cut
from tests.cast import Person

StartRun = Callable[..., Run]
BEFORE = {"name": "scope", "approval": {"when": "before"}}


def test_a_gate_waits_for_people(start_run: StartRun, people: dict[str, Person], application_actor: Actor) -> None:
    """P84: it tells of its run and stage, and who asked for it."""
    run = start_run(BEFORE)
    approver = people["approver"].actor
    for view in (inbox.WAITING, inbox.MINE):
        (item,) = inbox.listed(approver, view, Cut()).rows
        assert (item.type, item.run_id, item.run_name, item.stage) == ("gate", run.id, "nightly", "scope")
        assert (item.requested_by, item.role, item.count, item.have) == ("billing", "approver", 1, 0)
        assert item.may_decide
        assert inbox.find(approver, item.id) == item
    for view in (inbox.ASKED, inbox.DECIDED):
        assert inbox.listed(approver, view, Cut()).rows == []
