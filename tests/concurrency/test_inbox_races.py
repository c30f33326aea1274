"""The inbox is read while others decide what stands in it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from approvals import inbox
from approvals.inbox import DECIDED, MINE, WAITING
from approvals.transitions import decide_gate
from pipelines.access import Actor
from pipelines.models import Gate, Run
from pipelines.paging import Cut, read_cut
from tests.cast import Person
from tests.concurrency.crew import Crew

StartRun = Callable[..., Run]
GATED = {"name": "scope", "approval": {"when": "before"}}
SIZE = 3


def walked(actor: Actor, view: str) -> list[inbox.Item]:
    """All pages of a list, one after the other."""
    page = inbox.listed(actor, view, Cut(SIZE))
    found = list(page.rows)
    while page.next is not None:
        page = inbox.listed(actor, view, read_cut({"cursor": page.next, "page_size": str(SIZE)}))
        found += page.rows
    return found


def test_a_list_is_whole_while_others_decide(crew: Crew, start_run: StartRun, people: dict[str, Person]) -> None:
    """P84: nothing is told twice, nothing closed is shown as waiting, and what nobody touches is never left out."""
    approver, admin = people["approver"].actor, people["admin"].actor
    kept: set[uuid.UUID] = set()
    for _ in range(8):
        gates = [Gate.objects.get(run=start_run(GATED)) for _ in range(12)]
        kept |= {gate.id for gate in gates[::3]}
        going = [gate for gate in gates if gate.id not in kept]

        def deciding(some: list[Gate], approved: bool) -> Callable[[], None]:
            return lambda: [decide_gate(g.stage_id, actor=admin, approved=approved, reason="r") for g in some] and None

        found = crew.at_once(
            deciding(going[::2], True),
            deciding(going[1::2], False),
            lambda: walked(approver, WAITING),
            lambda: walked(approver, MINE),
            lambda: walked(approver, DECIDED),
            lambda: inbox.count_mine(approver, 500),
        )
        for items in found[2:5]:
            assert len({item.id for item in items}) == len(items)
        for items in found[2:4]:
            assert kept <= {item.id for item in items}
            assert all(item.is_open and item.may_decide for item in items)
        assert not any(item.is_open for item in found[4])
        assert len(kept) <= found[5] <= len(kept) + len(going)
        assert {item.id for item in walked(approver, MINE)} == kept
        assert {gate.id for gate in going} <= {item.id for item in walked(approver, DECIDED)}
