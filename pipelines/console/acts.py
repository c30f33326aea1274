"""Acts of people on screens: the consequences first, a reason, then the verb; a refusal shows the new truth.

One way for all of them, as a page or as a dialog. The screen only words what will happen; the verb decides, checks the
right again, and writes the audit event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpResponse

from pipelines.console.screens import LONGEST_REASON, ScreenRequest, go_on, record_refused_act, show, typed
from pipelines.errors import Refusal

NAMED = 8  # of many names in one line
LONGEST_NAME = 60  # characters of a name in a title or on a button


@dataclass(frozen=True, slots=True)
class Step:
    """One line of consequences: a state for its glyph, a word, and what it means here.

    `is_new`: it was not there when the act was looked at before. `names` is what the text counts, where it names only
    the first of them.
    """

    status: str
    word: str
    text: str
    is_new: bool = False
    names: tuple[str, ...] = field(default=(), compare=False)


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """Names in one line; of many the first, and how many more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def short(name: str, most: int = LONGEST_NAME) -> str:
    """A name as titles and buttons hold it, however long it is."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def stages_in_words(count: int) -> str:
    return f"{count} {'stage' if count == 1 else 'stages'}"


@dataclass(frozen=True, slots=True)
class Act:
    """What a person with the capability `needs` is about to do.

    `fields` is a template with more questions, `answers` what they said already. Of a planned act, `shown` is what the
    form carries of its plan, `moved` that it is another one than before, `gone` what is no longer in it; one that is
    not possible has no plan and no button. `facts` are what to know before deciding, as (term, text); `first` is what
    must be settled before, as (text, address).
    """

    title: str
    needs: str
    steps: Sequence[Step]
    button: str
    back: str
    warning: str = ""
    danger: bool = False
    reason_required: bool = False
    fields: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    facts: Sequence[tuple[str, str]] = ()
    first: Sequence[tuple[str, str]] = ()
    help: str = ""
    shown: str = ""
    digest: str = ""
    moved: bool = False
    gone: Sequence[Step] = ()
    is_possible: bool = True


def perform(request: ScreenRequest, act: Act, carry_out: Callable[[str], str]) -> HttpResponse:
    """Shows the act, or with POST carries it out and goes where `carry_out(reason)` says.

    A refusal is shown on the act itself, with what was typed still there; a missing right and 404 are pages.
    """
    request.visit.actor.require(act.needs)
    reason = typed(request.POST, "reason")
    if request.method != "POST":
        return ask(request, act, reason)
    try:
        answer_of(act, reason)
        return go_on(request, carry_out(reason))
    except Refusal as refusal:
        if refusal.status in (403, 404):
            raise
        return ask(request, act, reason, refusal)


def answer_of(act: Act, reason: str) -> None:
    """Refuses a reason that is missing or too long."""
    if act.reason_required and not reason:
        raise missing("reason", "a reason is needed; it goes to the audit log with your name")
    check_length(reason)


def check_length(reason: str) -> None:
    """Refuses a reason that is too long."""
    if len(reason) > LONGEST_REASON:
        raise missing("reason", f"at most {LONGEST_REASON} characters")


def missing(name: str, message: str) -> Refusal:
    """An answer that is missing or cannot be used."""
    return Refusal("validation_error", message, errors={name: [message]})


def ask(request: ScreenRequest, act: Act, reason: str, refusal: Refusal | None = None) -> HttpResponse:
    """The act as a form, with why it was refused."""
    if refusal is not None:
        record_refused_act(request, refusal)
    context = {"act": act, "reason": reason, "refusal": refusal, "here": request.path}
    status = refusal.status if refusal else 200
    return show(request, "console/act.html", context, part="console/_act.html", status=status)
