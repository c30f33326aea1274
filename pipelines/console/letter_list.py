"""Dead letters: what the machine has given up on, as groups of one error and handler with their oldest, and one by one.

A group opens to its letters. One is acted on in its row, some by selecting them, all that match as a bulk operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse, QueryDict
from django.views.decorators.http import require_safe

from pipelines import queries
from pipelines.access import Actor
from pipelines.console import offers, overview, selection
from pipelines.console.screens import ScreenRequest, screen, show
from pipelines.filters import values
from pipelines.list_filters import DeadLetterFilter
from pipelines.models import Application, DeadLetter, Pipeline
from pipelines.paging import page_of, read_cut
from pipelines.sql import execute, planned
from pipelines.states import OPEN_DEAD_LETTER, DeadLetterReason, DeadLetterState

CAP = 1000
MOST_GROUPS = 50
LONGEST_CHOICE = 20


@dataclass(frozen=True, slots=True)
class Group:
    """Letters that wait for a person with one error of one handler: how many (above CAP: at least), the oldest's age.

    `filter` is what narrows the list to it, as a query string.
    """

    error_code: str
    handler: str
    count: int
    oldest: datetime
    filter: str


@dataclass(frozen=True, slots=True)
class Groups:
    """The largest groups; `is_cut`: there are more; `is_part`: they are of the newest CAP letters that match alone."""

    rows: Sequence[Group] = ()
    is_cut: bool = False
    is_part: bool = False


@require_safe
@screen
def dead_letter_list(request: ScreenRequest) -> HttpResponse:
    """Stages that the machine has given up on, newest first; without `status`, those that still wait for a person."""
    actor, names = request.visit.actor, DeadLetterFilter.names()
    matching = DeadLetterFilter.narrow(queries.dead_letters(actor), request.GET)
    states = values(request.GET, "status") or tuple(state for state in DeadLetterState if state in OPEN_DEAD_LETTER)
    cut = read_cut(request.GET)
    found = page_of(matching.filter(state__in=states), cut, ("opened_at", "id"))
    keys = overview.keys_of([letter.run_id for letter in found.rows])
    context = {
        "page": found,
        "letters": [(letter, keys.get(letter.run_id, ""), offers.for_letter(letter, actor)) for letter in found.rows],
        "groups": Groups() if cut.position else _groups(actor, request.GET, matching),
        "filters": names,
        "states": states,
        "choices": {"status": DeadLetterState.values, "reason": DeadLetterReason.values, **_places(actor)},
        "refusal": offers.recovery_refusal(actor),
        "selection": selection.of_letters(actor, request.GET, names),
        "is_narrow": bool(selection.filter_of(request.GET, names)),
    }
    return show(request, "runs/dead_letters.html", context)


def _groups(actor: Actor, params: QueryDict, matching: QuerySet[DeadLetter]) -> Groups:
    """None where the list is one group already, or is not of those that wait."""
    asked = QueryDict(selection.filter_of(params, DeadLetterFilter.names()))
    if "status" in asked or ("error_code" in asked and "handler" in asked):
        return Groups()
    if asked:
        newest = matching.filter(state__in=sorted(OPEN_DEAD_LETTER)).order_by("-opened_at", "-id")
        found = list(newest.values_list("error_code", "handler", "opened_at")[: CAP + 1])
        return _sorted(_counted(found[:CAP]), asked, is_part=len(found) > CAP)
    return _sorted(_all_groups(actor), asked)


def _all_groups(actor: Actor) -> list[tuple[str, str, int, datetime]]:
    """Every group of the workspace, each found from the one before it in the index of those that wait."""
    with transaction.atomic():
        # how many wait is not in the statistics; a guess of many would read the whole table
        execute("SET LOCAL enable_seqscan = off")
        return planned(
            """
            WITH RECURSIVE known AS (
                (SELECT error_code, handler FROM pipelines_deadletter WHERE workspace_id = %(workspace)s
                    AND state IN ('acknowledged', 'open') ORDER BY error_code, handler LIMIT 1)
                UNION ALL
                SELECT later.* FROM known CROSS JOIN LATERAL (SELECT d.error_code, d.handler FROM pipelines_deadletter d
                    WHERE d.workspace_id = %(workspace)s AND d.state IN ('acknowledged', 'open')
                    AND (d.error_code, d.handler) > (known.error_code, known.handler)
                    ORDER BY d.error_code, d.handler LIMIT 1) later
            )
            SELECT known.error_code, known.handler, few.count, few.oldest
            FROM (SELECT * FROM known LIMIT %(most)s) known CROSS JOIN LATERAL (
                SELECT count(*), min(opened_at) AS oldest FROM (SELECT d.opened_at FROM pipelines_deadletter d
                    WHERE d.workspace_id = %(workspace)s AND d.state IN ('acknowledged', 'open')
                    AND d.error_code = known.error_code AND d.handler = known.handler
                    ORDER BY d.opened_at LIMIT %(reach)s) oldest_first) few
            """,
            {"workspace": actor.workspace_id, "most": MOST_GROUPS + 1, "reach": CAP + 1},
        )


def _counted(found: Sequence[tuple[str, str, datetime]]) -> list[tuple[str, str, int, datetime]]:
    counts: dict[tuple[str, str], tuple[int, datetime]] = {}
    for code, handler, at in found:  # newest first: the last one is the oldest
        counts[code, handler] = (counts.get((code, handler), (0, at))[0] + 1, at)
    return [(code, handler, count, oldest) for (code, handler), (count, oldest) in counts.items()]


def _sorted(found: Sequence[tuple[str, str, int, datetime]], asked: QueryDict, *, is_part: bool = False) -> Groups:
    rows = sorted(found[:MOST_GROUPS], key=lambda one: (-one[2], one[3]))
    return Groups([Group(*one, filter=_within(asked, one)) for one in rows], len(found) > MOST_GROUPS, is_part)


def _within(asked: QueryDict, group: tuple[str, str, int, datetime]) -> str:
    narrower = asked.copy()
    for name, value in (("error_code", group[0]), ("handler", group[1])):
        if value:
            narrower.setlist(name, [value])
    return narrower.urlencode()


def _places(actor: Actor) -> dict[str, list[str]]:
    """The first pipelines and applications, to narrow the list by; others are named in the address."""
    rows: dict[str, Any] = {
        "pipeline": Pipeline.objects.filter(workspace_id=actor.workspace_id).order_by("slug").values_list("slug"),
        "application": Application.objects.filter(workspace_id=actor.workspace_id).order_by("name").values_list("name"),
    }
    return {name: [value for (value,) in found[:LONGEST_CHOICE]] for name, found in rows.items()}
