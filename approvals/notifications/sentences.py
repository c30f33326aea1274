"""Notice → sentence: what needs somebody, or was decided, as it is told in mails, chats and webhooks. Pure.

Names are cut to a length and freed of line breaks; nothing else of a run is told: no outputs, context values, error
texts or reasons, as a message leaves the console. Times are told as such and not as "in 3 hours", since a message may
be gathered, or tried again, for long. Serves O4 beside `pipelines/console/events.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipelines.states import NoticeKind

LONGEST_NAME = 80
LONGEST_SUBJECT = 200
NAMED = 3  # of a group, the rest is counted

GATE, REQUEST = "gate", "request"
DENIED, ENDED_WITH_RUN = "decided.denied", "expired.with_run"  # what a notice's kind alone does not tell


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a notice as it is told. `what` says which of the two was decided, or ends: a gate or a request.

    `asked_by` are the people who asked for the operation, or started the run of the gate; `have` of `count` approvals
    are there. A request that nobody decided was either over in time, or with its run; one that nobody rejected was
    denied by the rules for what may be done again. `cause` and `code` are why a stage was given up. Anything may be
    missing.
    """

    kind: str
    run: str = ""
    environment: str = ""
    stage: str = ""
    what: str = GATE
    operation: str = ""
    asked_by: Sequence[str] = ()
    decided_by: str = ""
    approved: bool = False
    ended_with_run: bool = False
    role: str = ""
    count: int = 1
    have: int | None = None
    expires_at: datetime | None = None
    moment: str = ""
    cause: str = ""
    code: str = ""


SENTENCES: dict[str, str] = {
    NoticeKind.GATE_OPENED: "Somebody must decide about {where}{moment}{terms}",
    NoticeKind.APPROVAL_ASKED: "{asker} asks for agreement to {act}{terms}",
    NoticeKind.REVIEW_ASKED: "{asker} asks to {act}, and somebody must look at the evidence first{terms}",
    NoticeKind.DECIDED: "{decider} {decided} {thing}{votes}",
    DENIED: "{thing} was denied: what is known by now forbids it",
    NoticeKind.EXPIRING: "Nobody has decided about {thing} yet: it expires {end}",
    NoticeKind.EXPIRED: "Nobody decided about {thing} in time: it expired",
    ENDED_WITH_RUN: "Nobody decided about {thing} before its run was over",
    NoticeKind.DEAD_LETTER: "{where} became a dead letter{cause}{code}",
    NoticeKind.RUN_BLOCKED: "{run} is blocked: somebody must act",
}

# an operation's kind → what it would do
ACTS: dict[str, str] = {
    "cancel": "cancel {run}",
    "retry": "retry {where}",
    "skip": "skip {where}",
    "rerun": "rerun {run}{since}",
    "replay": "replay {run}{since}",
    "redrive": "redrive the dead letter of {where}",
    "discard": "discard the dead letter of {where}",
    "backfill": "backfill {run}",
    "bulk": "do the {run}",
}

# how many of a kind, in a subject: one, and more; in the order in which they are told
COUNTS: dict[str, tuple[str, str]] = {
    NoticeKind.EXPIRING: ("question is about to expire", "questions are about to expire"),
    NoticeKind.REVIEW_ASKED: ("review is asked for", "reviews are asked for"),
    NoticeKind.APPROVAL_ASKED: ("request waits for agreement", "requests wait for agreement"),
    NoticeKind.GATE_OPENED: ("gate waits for a decision", "gates wait for a decision"),
    NoticeKind.DEAD_LETTER: ("dead letter", "dead letters"),
    NoticeKind.RUN_BLOCKED: ("run is blocked", "runs are blocked"),
    NoticeKind.EXPIRED: ("question expired", "questions expired"),
    NoticeKind.DECIDED: ("decision", "decisions"),
}

ROLES: dict[str, tuple[str, str]] = {
    "approver": ("approver", "approvers"),
    "release_manager": ("release manager", "release managers"),
    "admin": ("admin", "admins"),
}


def tell(facts: Facts) -> str:
    """The notice as one sentence without a full stop; a kind that has none is told by its name."""
    run = f"{name(facts.run) or 'a run'}{_in(facts.environment)}"
    where = f"{name(facts.stage)} of {run}" if facts.stage else run
    asker = _people(facts.asked_by)
    since = f" from {name(facts.stage)}" if facts.stage else ""
    if facts.operation in ACTS:
        act = ACTS[facts.operation].format(run=run, where=where, since=since)
    else:
        act = f"{_plain(facts.operation) or 'do something with'} {where}"
    return SENTENCES.get(_sort(facts), "{kind}: {where}").format(
        kind=_plain(facts.kind),
        run=run,
        where=where,
        asker=asker or "Somebody",
        act=act,
        thing=f"{asker or 'somebody'}'s request to {act}" if facts.what == REQUEST else where,
        decider=name(facts.decided_by) or "Somebody",
        decided="approved" if facts.approved else "rejected",
        votes=_votes(facts),
        moment={"before": " before it starts", "after": " after its work"}.get(facts.moment, ""),
        terms=_terms(facts),
        end=_time(facts.expires_at) if facts.expires_at else "soon",
        cause=f": {_plain(facts.cause)}" if facts.cause else "",
        code=f" ({name(facts.code)})" if facts.code else "",
    )


def tell_group(kind: str, run: str, environment: str, stages: Sequence[str], count: int) -> str:
    """Several notices of one kind about one run; `stages` are the first of those that are meant."""
    named = [name(stage) for stage in stages if stage][:NAMED]
    rest = count - len(named)
    listed = ", ".join(named) + (f" and {rest:,} more" if named and rest > 0 else "")
    about = f"{how_many(kind, count)} in {name(run) or 'a run'}{_in(environment)}"
    return f"{about}: {listed}" if listed else about


def how_many(kind: str, count: int) -> str:
    one, more = COUNTS.get(kind, (_plain(kind), _plain(kind)))
    return f"{count:,} {one if count == 1 else more}"


def subject(workspace: str, counts: Mapping[str, int]) -> str:
    """What a message with so many of each kind is about: "acme: 12 gates wait for a decision, 3 dead letters"."""
    ordered = [*(kind for kind in COUNTS if kind in counts), *sorted(kind for kind in counts if kind not in COUNTS)]
    told = ", ".join(how_many(kind, counts[kind]) for kind in ordered)
    return cut(f"{name(workspace)}: {told}", LONGEST_SUBJECT)


def name(text: str) -> str:
    """A name on one line, as far as a message can bear it."""
    return cut(" ".join("".join(one if one.isprintable() else " " for one in text).split()), LONGEST_NAME)


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _sort(facts: Facts) -> str:
    if facts.kind == NoticeKind.DECIDED and facts.what == REQUEST and not (facts.approved or facts.decided_by):
        return DENIED
    return ENDED_WITH_RUN if facts.kind == NoticeKind.EXPIRED and facts.ended_with_run else facts.kind


def _terms(facts: Facts) -> str:
    one, more = ROLES.get(facts.role, ROLES["approver"])
    terms = [f"{facts.count} {one if facts.count == 1 else more}"]
    if facts.kind == NoticeKind.GATE_OPENED and facts.asked_by:
        terms.append(f"started by {_people(facts.asked_by)}")
    if facts.expires_at:
        terms.append(f"expires {_time(facts.expires_at)}")
    return f" ({', '.join(terms)})"


def _votes(facts: Facts) -> str:
    if not facts.approved or facts.have is None or facts.count < 2:
        return ""
    return f" ({facts.have} of {facts.count} approvals)"


def _people(names: Sequence[str]) -> str:
    shown = [name(one) for one in names[:NAMED]]
    if len(names) > NAMED:
        shown.append(f"{len(names) - NAMED} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def _time(moment: datetime) -> str:
    told = moment.astimezone(UTC)
    return f"{told.day} {told:%b %Y, %H:%M} UTC"


def _in(environment: str) -> str:
    return f" in {name(environment)}" if environment else ""


def _plain(word: str) -> str:
    return name(word.replace("_", " "))
