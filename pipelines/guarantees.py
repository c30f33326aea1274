"""What is guaranteed and what is not, from what is really switched on: facts in, statements out. Pure.

A statement is promised, off (it could be switched on, and says how), or not promised. Nothing here promises that what a
handler does outside happens once and no more (N5): no console could. Which stages may be repeated is
`repeating.judge`. The screen, `/v1/guarantees`, the command line and the document tell these words and no others.
Serves N1–N13, N28.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Standing(StrEnum):
    PROMISED = "promised"
    OFF = "off"
    NOT_PROMISED = "not_promised"


HEADINGS = {
    Standing.PROMISED: "Guaranteed",
    Standing.OFF: "Not switched on",
    Standing.NOT_PROMISED: "Not guaranteed",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What statements hang on. `broker`: `filesystem`, or the scheme of its address. `store_closed`: why, blank where
    it can be used. Policies are the active ones of the workspace, by name; `retries` those of kind retry."""

    broker: str
    lease_seconds: int
    retention_days: int
    keyring: str  # local | vault
    store_closed: str
    store_tables: int
    run_retries: tuple[str, ...]
    retries: tuple[str, ...]
    triggers_on: int
    merging: tuple[str, ...]  # kinds of connectors that merge on a key
    passing_keys: tuple[str, ...]  # kinds that can hand a provider's idempotency key on


@dataclass(frozen=True, slots=True)
class Statement:
    """`because`: the facts that it hangs on, in words; blank where it holds whatever is set. `see`: topics of help."""

    key: str
    standing: Standing
    title: str
    text: str
    because: str = ""
    see: tuple[str, ...] = ()


# a console as it is installed, with nothing switched on: what the document shows
AS_INSTALLED = Facts(
    broker="filesystem",
    lease_seconds=60,
    retention_days=0,
    keyring="local",
    store_closed="",
    store_tables=100,
    run_retries=(),
    retries=(),
    triggers_on=0,
    merging=("PostgreSQL", "MySQL, MariaDB", "SQL Server", "NetSuite", "HTTP API", "Files", "Workspace store"),
    passing_keys=("HTTP API",),
)


def statements(facts: Facts) -> list[Statement]:
    """All of them, those of one standing together, in the order in which they are told."""
    found = [*_records(facts), *_handing_out(facts), *_repeating(facts), *_building_on(facts), *_never(facts)]
    return sorted(found, key=lambda one: list(Standing).index(one.standing))


def _records(facts: Facts) -> Iterator[Statement]:
    kept = (
        f"until {_many(facts.retention_days, 'day')} after its end, and longer while something of it is open"
        if facts.retention_days
        else "for good: nothing removes it"
    )
    yield Statement(
        "failures_are_recorded",
        Standing.PROMISED,
        "A failed run is recorded with its whole traceback",
        "Each attempt keeps its error, its traceback to the last line, and its log. An ended attempt is never changed,"
        f" and the run is kept {kept}.",
        f"RECOURSE_RETENTION_DAYS is {facts.retention_days}",
        ("observability",),
    )
    yield Statement(
        "one_run_per_key",
        Standing.PROMISED,
        "One key makes one run",
        "However often and however many at once ask with the same key, for as long as the run is kept. A run that was"
        " answered with 200 or 201 is stored.",
        see=("api",),
    )
    where = "in the console's database" if facts.keyring == "local" else "in Vault"
    yield Statement(
        "signed_checkpoints",
        Standing.PROMISED,
        "A checkpoint is believed only while its signature holds",
        "What a run goes on from is held against its signature first; where that fails, nothing is loaded and no run is"
        f" made. The keys are kept {where}.",
        f"RECOURSE_KEYRING is {facts.keyring}",
        ("signing",),
    )
    yield Statement(
        "given_up_on",
        Standing.PROMISED,
        "What the machine gives up on is listed",
        "A stage that is not tried any more, for its error or since its retries or recoveries are used up, leaves a"
        " dead letter, which stays open until somebody or something settles it.",
        see=("observability", "retries"),
    )


def _handing_out(facts: Facts) -> Iterator[Statement]:
    yield Statement(
        "one_owner",
        Standing.PROMISED,
        "One attempt at most moves a stage on",
        "Who works on a stage holds its lease, and only the holder's result counts. A worker that dies is noticed"
        f" once its lease has run out, {_many(facts.lease_seconds, 'second')} after it was last renewed; the stage goes"
        " on by itself where that is safe as declared, else once a person has said what happened outside.",
        f"RECOURSE_LEASE_SECONDS is {facts.lease_seconds}",
        ("scheduling",),
    )
    how = (
        f"{_many(facts.triggers_on, 'trigger')} of this workspace on"
        if facts.triggers_on
        else "no trigger of this workspace is switched on"
    )
    yield Statement(
        "ticks",
        Standing.PROMISED if facts.triggers_on else Standing.OFF,
        "Every tick has one run at most, or says why it has none",
        "Ticks stand in a ledger: whoever records or fills beside, and whatever dies when, none is lost and none has"
        " two runs by the schedule."
        + (
            ""
            if facts.triggers_on
            else " Here it has nothing to do: runs begin when applications or people start them."
        ),
        how,
        ("scheduling",),
    )
    yield Statement(
        "children_are_awaited",
        Standing.PROMISED,
        "A stage waits for other runs without holding a worker",
        "It asks at growing intervals for a few seconds, and then gives its worker and its slot back until they have"
        " ended. A stage and a key make one run. A child that failed is a final"
        " answer: waiting does not start it again.",
        see=("pipelines",),
    )


def _repeating(facts: Facts) -> Iterator[Statement]:
    on = bool(facts.run_retries)
    yield Statement(
        "run_retry",
        Standing.PROMISED if on else Standing.OFF,
        "Failed runs are retried by themselves" if on else "No failed run is retried by itself",
        (
            "As often and as far apart as the policy that rules the run says, once for each number, and never where an"
            " effect needs a person's word first. A person can call it off."
            if on
            else "It stays failed until a person or a program starts it again. A policy of kind run retry switches it"
            " on, for the pipelines and environments that it names."
        ),
        f"active policies of kind run retry: {_names(facts.run_retries)}",
        ("retries",),
    )
    yield Statement(
        "stage_retry",
        Standing.PROMISED,
        "A stage is tried again only where a rule says so",
        "Its own options say how often and how far apart, or a policy that outranks them; with neither it is not tried"
        " again. Each decision is kept with its reason, and can be computed once more from its row.",
        f"active policies of kind retry: {_names(facts.retries)}",
        ("retries",),
    )
    yield Statement(
        "resume",
        Standing.PROMISED,
        "A retry goes on at the stage that failed",
        "Stages before it stay done, with their outputs. Within a stage it goes on from the newest state that its"
        " handler left, and from the stage's beginning where that left none.",
        see=("retries",),
    )
    yield Statement(
        "external_asks",
        Standing.PROMISED,
        "What says that it acts outside is not repeated blindly",
        "A stage of effect mode external whose worker was lost or ran out of time waits for a person. Only one that"
        " tells each effect before it happens, and had told of none, goes back to the queue.",
        see=("pipelines",),
    )


def _building_on(facts: Facts) -> Iterator[Statement]:
    yield Statement(
        "throttled_calls",
        Standing.PROMISED,
        "An adapter waits for a busy system within one call",
        "429, and 503 with a Retry-After, are waited for a bounded number of times, longer each time, as long as the"
        " connector allows. It is one call and one attempt; when it gives up, the attempt fails.",
        "of handlers that use the adapters of the library",
        ("connectors",),
    )
    yield Statement(
        "merging_writes",
        Standing.PROMISED,
        "An upsert done twice is the same as done once",
        f"Adapters merge on a key: {'; '.join(facts.merging)}. An insert is not an upsert: where it is repeated from"
        " the top, rows may be there twice.",
        "of handlers that use the adapters of the library, with op upsert",
        ("connectors",),
    )
    yield Statement(
        "provider_keys",
        Standing.NOT_PROMISED,
        "That the same key is the same act everywhere",
        f"A provider's idempotency key is handed on by: {_names(facts.passing_keys)}, where the connector names the"
        " provider's header. All others send none, and what a provider does with a key is the provider's.",
        see=("connectors",),
    )
    if facts.store_closed or not facts.store_tables:
        why = facts.store_closed or "RECOURSE_STORE_TABLES is 0"
        yield Statement(
            "store",
            Standing.OFF,
            "Handlers have no workspace store",
            "Whatever they ask of it is refused. `manage.py check` says how it is opened."
            if facts.store_closed
            else "It takes no table. A greater RECOURSE_STORE_TABLES switches it on.",
            why,
            ("workspace",),
        )
    else:
        yield Statement(
            "store",
            Standing.PROMISED,
            "Rows of the workspace store outlive the run that wrote them",
            "A write is stored when it is answered, also where its run fails afterwards. The same row again changes"
            " nothing. Rows are worked on as a database role that reaches nothing else of the console.",
            f"the role is there, RECOURSE_STORE_TABLES is {facts.store_tables}",
            ("workspace",),
        )


def _never(facts: Facts) -> Iterator[Statement]:
    yield Statement(
        "exactly_once",
        Standing.NOT_PROMISED,
        "Exactly once",
        "Stages are handed out at least once: a worker may die after its work and before its result, and between an act"
        " outside and its record there is always a moment. What converges when it is done again is safe; nothing else"
        " is made so by the console.",
        see=("scheduling", "pipelines"),
    )
    yield Statement(
        "effects_are_told",
        Standing.NOT_PROMISED,
        "That every effect is known",
        "Only what a handler or an adapter tells is known. A handler that acts without telling can be repeated without"
        " a question.",
        see=("pipelines",),
    )
    yield Statement(
        "outside_stops",
        Standing.NOT_PROMISED,
        "That a cancel stops work outside",
        "It stops ours, at once, and lists what may still go on elsewhere.",
        see=("observability",),
    )
    yield Statement(
        "order",
        Standing.NOT_PROMISED,
        "Order between runs, and the very second",
        "The oldest ready stage of a queue goes first, but workers pass each other; a tick begins once the scheduler"
        " looks, each second while it lives.",
        see=("scheduling",),
    )
    if facts.broker == "filesystem":
        yield Statement(
            "hints",
            Standing.NOT_PROMISED,
            "That workers on other hosts hear of work",
            "The broker is files on this host: the console's own workers must run here. Its messages are hints; what"
            " they miss a sweep finds within a second or so. Workers that ask over HTTP need no broker.",
            "CELERY_BROKER_URL is empty",
            ("scheduling",),
        )
    else:
        yield Statement(
            "hints",
            Standing.NOT_PROMISED,
            "That a message of the broker arrives",
            "Messages are hints and may be lost, doubled or late without harm: what they miss a sweep finds within a"
            " second or so.",
            f"the broker is {facts.broker}",
            ("scheduling",),
        )
    yield Statement(
        "connectors_are_elsewhere",
        Standing.NOT_PROMISED,
        "That the console knows your connectors",
        "Their file is beside the workers. What adapters wrote is told as effects of runs, and from those the"
        " checklists say what was seen.",
        see=("connectors", "constraints"),
    )


def as_markdown(facts: Facts = AS_INSTALLED) -> str:
    """The part of `docs/explain/guarantees.md` that is made of this: a console as installed, and what changes it."""
    lines: list[str] = []
    told = statements(facts)
    for standing, heading in HEADINGS.items():
        lines += ["", f"### {heading}", ""]
        lines += [_line(one) for one in told if one.standing == standing]
    lines += ["", "### Otherwise, once it is set otherwise", ""]
    known = {(one.title, one.text) for one in told}
    for other in variants(facts):
        lines += [_line(one) for one in statements(other) if (one.title, one.text) not in known]
    return "\n".join(lines).strip()


def variants(facts: Facts) -> list[Facts]:
    """The same console with one thing set otherwise, each in turn."""
    return [
        replace(facts, retention_days=90),
        replace(facts, keyring="vault"),
        replace(facts, triggers_on=3),
        replace(facts, run_retries=("patient",)),
        replace(facts, store_closed="There is no database role recourse_store: the workspace store is closed."),
        replace(facts, store_tables=0),
        replace(facts, broker="redis"),
    ]


def _line(one: Statement) -> str:
    because = f" ({one.because})" if one.because else ""
    return f"- **{one.title}.** {one.text}{because}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _many(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


if __name__ == "__main__":
    sys.stdout.write(f"{as_markdown()}\n")
