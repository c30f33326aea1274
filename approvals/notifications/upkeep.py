"""What admins do with channels and deliveries: try a channel out, send again what was given up; and what cannot work.

Each act is audited, without addresses, secrets or what was sent.
"""

from __future__ import annotations

import uuid

from django.conf import settings

from approvals.models import Channel, ChannelKind, Delivery, NotificationRule
from approvals.notifications import mail
from approvals.notifications.notices import INBOX, link
from approvals.states import DELIVERY_MOVES, DeliveryState
from pipelines.access import ADMINISTER, Actor
from pipelines.audit import NO_OP, audited
from pipelines.errors import Refusal
from pipelines.ids import new_id
from pipelines.sql import database_now, execute

TEST = "test"  # the kind of a message that tells nothing


def send_test(channel_id: uuid.UUID, *, actor: Actor) -> uuid.UUID:
    """Has a test message sent to a channel, by itself; the id of its delivery, whose log tells what came of it."""
    with audited(actor, "channel.test", id=str(channel_id)) as entry:
        actor.require(ADMINISTER)
        found = Channel.objects.filter(id=channel_id, workspace_id=actor.workspace_id).select_related("workspace")
        channel = found.select_for_update(no_key=True, of=("self",)).first()
        if channel is None:
            raise Refusal("not_found", "there is no such channel")
        entry.data["name"] = channel.name
        if not channel.enabled:
            raise Refusal("validation_error", f"the channel {channel.name} is turned off: nothing is sent to it")
        slug = channel.workspace.slug
        sentence = f"This is a test of the channel {channel.name}, sent by {actor.name}"
        delivery = Delivery(
            id=new_id(),
            workspace_id=actor.workspace_id,
            channel=channel,
            subject=f"{slug}: a test message",
            body=[
                {
                    "kind": TEST,
                    "sentence": sentence,
                    "link": link(INBOX, slug),
                    "workspace": slug,
                    "at": database_now().isoformat(),
                }
            ],
        )
        delivery.save(force_insert=True)
    return delivery.id


def send_again(delivery_id: uuid.UUID, *, actor: Actor) -> bool:
    """Has a delivery that was given up tried once more, or as often as it had left; others stay as they are.

    Says whether it was. Its id stays, so a receiver that has it after all knows it again.
    """
    with audited(actor, "delivery.send_again", id=str(delivery_id)) as entry:
        actor.require(ADMINISTER)
        found = Delivery.objects.filter(id=delivery_id, workspace_id=actor.workspace_id).select_related("channel")
        delivery = found.first()
        if delivery is None:
            raise Refusal("not_found", "there is no such delivery")
        entry.data["name"] = delivery.channel.name
        if not delivery.channel.enabled:
            raise Refusal("validation_error", f"the channel {delivery.channel.name} is turned off")
        again = execute(
            "UPDATE approvals_delivery SET state = %s, due_at = recourse_now(), held_until = NULL, closed_at = NULL"
            " WHERE id = %s AND state = %s",
            [DELIVERY_MOVES["send_again"][DeliveryState.FAILED], delivery_id, DeliveryState.FAILED],
        )
        if not again:
            entry.outcome = NO_OP
    return bool(again)


def channel_warnings(channel: Channel) -> list[str]:
    """What keeps messages of a channel from being of use, though it may be kept."""
    found = []
    if not channel.enabled:
        found.append("It is turned off: nothing is sent to it.")
    if channel.kind == ChannelKind.EMAIL:
        if not settings.EMAIL_HOST:
            found.append("No mail server is set: RECOURSE_EMAIL_URL is empty, so every try will fail.")
        if not mail.recipients(Delivery(workspace_id=channel.workspace_id, channel=channel)):
            found.append("None of its recipients has an e-mail address.")
    if not settings.RECOURSE_PUBLIC_URL:
        found.append("RECOURSE_PUBLIC_URL is not set: links in messages are paths, which lead nowhere by themselves.")
    return found


def rule_warnings(rule: NotificationRule) -> list[str]:
    """What keeps a rule from telling anybody."""
    found = [] if rule.enabled else ["It is turned off: it tells nobody."]
    return [*found, *(f"Its channel {rule.channel.name}: {told}" for told in channel_warnings(rule.channel))]
