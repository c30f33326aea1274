"""Takes deliveries to their channels: at least once, each try written down, tried again with growing pauses.

A sender claims what is due by holding it for a while, sends with no transaction open, and writes what came of it. Who
dies in between has sent, or has not: the hold ends, and another sends again under the same delivery id, by which a
receiver knows a repetition. Two never hold one delivery, and a channel's deliveries are sent two at a time, so that a
receiver that hangs holds two senders for some seconds and nobody else's messages.

A try that is not taken is followed by another after `PAUSES`, give or take a fifth, and not before a receiver's
Retry-After: eleven tries in about a day, then it is given up. What comes due for a channel that is turned off is given
up at once: nobody wants last week's questions when it is turned on again.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from secrets import SystemRandom

import structlog
from django.db import transaction

from approvals.models import ChannelKind, Delivery
from approvals.notifications import mail, slack, webhooks
from approvals.notifications.addresses import NotTaken
from approvals.states import DELIVERY_MOVES, DeliveryState
from pipelines.sql import execute, query

log = structlog.get_logger(__name__)

PAUSES = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 28_800)  # seconds, after each failed try
SPREAD = 0.2
HOLD_SECONDS = 120
PER_CHANNEL = 2
KEPT_DAYS = 30
BATCH = 500
LONGEST_ANSWER = 500

# sends, and says what was answered; raises NotTaken
SENDERS: dict[str, Callable[[Delivery], str]] = {
    ChannelKind.EMAIL: mail.send,
    ChannelKind.SLACK: slack.send,
    ChannelKind.WEBHOOK: webhooks.send,
}
_random = SystemRandom()


@dataclass(frozen=True, slots=True)
class Claim:
    """A delivery that is ours to send until `held_until`."""

    id: uuid.UUID
    held_until: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a try. `wait`: seconds that the receiver asked for."""

    succeeded: bool
    answer: str
    is_last: bool = False
    wait: int = 0


def claim(limit: int) -> list[Claim]:
    """Holds up to so many of the deliveries that are due, of the channels with the fewest on their way first.

    A channel that another claims from at this moment is passed over.
    """
    if limit < 1:
        return []
    with transaction.atomic():
        channels = query(
            "SELECT c.id FROM approvals_channel c CROSS JOIN LATERAL (SELECT d.due_at FROM approvals_delivery d"
            " WHERE d.channel_id = c.id AND d.state = 'pending' AND d.due_at <= recourse_now()"
            " AND (d.held_until IS NULL OR d.held_until <= recourse_now()) ORDER BY d.due_at LIMIT 1) first"
            " CROSS JOIN LATERAL (SELECT count(*) AS held FROM approvals_delivery d"
            " WHERE d.channel_id = c.id AND d.held_until > recourse_now()) way"
            " WHERE way.held < %s ORDER BY way.held, first.due_at LIMIT %s FOR NO KEY UPDATE OF c SKIP LOCKED",
            [PER_CHANNEL, limit],
        )
        if not channels:
            return []
        # after the lock: its snapshot sees what the last claimer holds
        rows = query(
            "WITH places AS MATERIALIZED (SELECT c.id, (SELECT count(*) FROM approvals_delivery h"
            " WHERE h.channel_id = c.id AND h.held_until > recourse_now()) AS held FROM unnest(%(channels)s) AS c(id)),"
            " due AS MATERIALIZED (SELECT d.id FROM places p CROSS JOIN LATERAL (SELECT first.id, first.due_at,"
            " p.held + row_number() OVER (ORDER BY first.due_at) AS place"
            " FROM (SELECT d.id, d.due_at FROM approvals_delivery d"
            " WHERE d.channel_id = p.id AND d.state = 'pending' AND d.due_at <= recourse_now()"
            " AND (d.held_until IS NULL OR d.held_until <= recourse_now()) ORDER BY d.due_at LIMIT %(most)s) first) d"
            " WHERE d.place <= %(most)s ORDER BY d.place, d.due_at, d.id LIMIT %(limit)s)"
            " UPDATE approvals_delivery d SET held_until = recourse_now() + make_interval(secs => %(hold)s) FROM due"
            " WHERE d.id = due.id AND d.state = 'pending' AND (d.held_until IS NULL OR d.held_until <= recourse_now())"
            " RETURNING d.id, d.held_until",
            {"channels": [row[0] for row in channels], "most": PER_CHANNEL, "limit": limit, "hold": HOLD_SECONDS},
        )
    return [Claim(*row) for row in rows]


def deliver(mine: Claim) -> None:
    """Sends one delivery that is held, and writes down what came of it."""
    delivery = Delivery.objects.select_related("channel", "workspace").filter(id=mine.id).first()
    if delivery is None:
        return
    began = time.monotonic()
    outcome = _sent(delivery)
    _write(delivery, mine, outcome, int((time.monotonic() - began) * 1000))


def forget_old(days: int = KEPT_DAYS, limit: int = BATCH) -> int:
    """Removes deliveries that ended so many days ago, with their log and messages; returns how many."""
    total = 0
    while True:
        with transaction.atomic():
            execute("SET LOCAL recourse.retention = 'on'")
            rows = query(
                "SELECT id FROM approvals_delivery WHERE closed_at < recourse_now() - make_interval(days => %s)"
                " ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED",
                [days, limit],
            )
            Delivery.objects.filter(id__in=[row[0] for row in rows]).delete()
        total += len(rows)
        if len(rows) < limit:
            return total


def _sent(delivery: Delivery) -> Outcome:
    if not delivery.channel.enabled:
        return Outcome(succeeded=False, answer="the channel is turned off", is_last=True)
    try:
        return Outcome(succeeded=True, answer=SENDERS[delivery.channel.kind](delivery))
    except NotTaken as refusal:
        return Outcome(succeeded=False, answer=str(refusal), wait=refusal.wait)
    except Exception as error:  # noqa: BLE001 - logged without its text, which may hold the address; it stops no other
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__
        log.error("delivery.fault", delivery=str(delivery.id), error=kind, at=f"{place.filename}:{place.lineno}")
        return Outcome(succeeded=False, answer=f"a fault of the console ({kind}): see its log")


def _write(delivery: Delivery, mine: Claim, outcome: Outcome, milliseconds: int) -> None:
    """Only who still holds it may say that it failed; that it was taken counts whoever says so."""
    action, pause = _next(delivery.tries, outcome)
    state = DELIVERY_MOVES[action][DeliveryState.PENDING]
    with transaction.atomic():
        rows = query(
            "UPDATE approvals_delivery SET tries = tries + 1, held_until = NULL, state = %(state)s::text,"
            " due_at = recourse_now() + make_interval(secs => %(pause)s),"
            " closed_at = CASE WHEN %(state)s::text <> 'pending' THEN recourse_now() END"
            " WHERE id = %(id)s AND state = 'pending' AND (%(taken)s OR held_until = %(held)s) RETURNING tries",
            {
                "state": state,
                "pause": pause,
                "id": mine.id,
                "taken": outcome.succeeded,
                "held": mine.held_until,
            },
        )
        if rows:
            execute(
                "INSERT INTO approvals_deliverytry (delivery_id, number, succeeded, answer, milliseconds, at)"
                " VALUES (%s, %s, %s, %s, %s, recourse_now())",
                [mine.id, rows[0][0], outcome.succeeded, outcome.answer[:LONGEST_ANSWER], milliseconds],
            )
    if state == DeliveryState.FAILED and rows:
        log.warning("delivery.given_up", delivery=str(mine.id), channel=str(delivery.channel_id), why=outcome.answer)


def _next(tries: int, outcome: Outcome) -> tuple[str, float]:
    """The move after a try that followed so many others, and the seconds until the next one."""
    if outcome.succeeded:
        return "take", 0.0
    if outcome.is_last or tries >= len(PAUSES):
        return "give_up", 0.0
    pause = PAUSES[tries] * _random.uniform(1 - SPREAD, 1 + SPREAD)
    return "put_off", max(pause, float(outcome.wait))
