"""What the console guarantees as it is set, and what it does not."""

from __future__ import annotations

from recourse.calls.base import Call, read
from recourse.calls.methods import Group, Sender_co, asks
from recourse.models import operations


class Guarantees(Group[Sender_co]):
    """What holds of this console and workspace now."""

    @asks
    def get(self) -> Call[operations.GuaranteesView]:
        """Every statement: promised, off, or not promised, and what it hangs on."""
        return read("v1/guarantees")
