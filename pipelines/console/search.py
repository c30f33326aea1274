"""An id in the search leads to its page: of a run also its beginning, as it is read out or cut off in a log.

Whoever has pages of their own says how ids lead there: `also`. What somebody may not see leads nowhere, as an id of
nothing does; it is then looked for like any other word.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.urls import reverse

from pipelines import queries
from pipelines.access import Actor
from pipelines.models import Attempt, Effect, Run, Stage

Leads = Callable[[Actor, uuid.UUID], str | None]
# eight digits of the first block at least: fewer are numbers that people look for
BEGINNING = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{0,4}){0,3}(?:-[0-9a-f]{0,12})?")
DIGITS = 32

_others: list[Leads] = []


def also(leads: Leads) -> None:
    """Registers who knows pages of further ids."""
    _others.append(leads)


def page_of(actor: Actor, text: str) -> str | None:
    """The address of what the text names, where it is the id of something that the actor may see."""
    told = text.strip().lower()
    try:
        return _by_id(actor, uuid.UUID(told))
    except ValueError:
        return _by_beginning(actor, told) if BEGINNING.fullmatch(told) else None


def _by_id(actor: Actor, found: uuid.UUID) -> str | None:
    if _runs(actor).filter(id=found).exists():
        return reverse("console:run", args=[found])
    place = Stage.objects.filter(id=found, run__in=_runs(actor)).values_list("run_id", "position").first()
    place = place or queries.dead_letters(actor).filter(id=found).values_list("run_id", "stage__position").first()
    if place:
        return f"{reverse('console:run', args=[place[0]])}?{urlencode({'stage': place[1]})}"
    if Attempt.objects.filter(id=found, run__in=_runs(actor)).exists():
        return reverse("console:attempt", args=[found])
    if Effect.objects.filter(id=found, run__in=_runs(actor)).exists():
        return reverse("console:effect", args=[found])
    return next((address for address in (leads(actor, found) for leads in _others) if address), None)


def _by_beginning(actor: Actor, told: str) -> str | None:
    digits = told.replace("-", "")
    low, high = (uuid.UUID(digits.ljust(DIGITS, filling)) for filling in ("0", "f"))
    found = list(_runs(actor).filter(id__gte=low, id__lte=high).values_list("id", flat=True)[:2])
    return reverse("console:run", args=[found[0]]) if len(found) == 1 else None


def _runs(actor: Actor) -> QuerySet[Run]:
    return queries.visible_runs(actor)
