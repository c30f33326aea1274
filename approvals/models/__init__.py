"""The tables: who must agree and who did, and who is told. Gates themselves are the engine's (`pipelines/models`)."""

from approvals.models.notifications import (
    Channel,
    ChannelKind,
    Delivery,
    DeliveryTry,
    Message,
    NotificationRule,
)
from approvals.models.requests import ApprovalRequest, RequestDecision
from approvals.models.rules import ApprovalRule, Counted

__all__ = [
    "ApprovalRequest",
    "ApprovalRule",
    "Channel",
    "ChannelKind",
    "Counted",
    "Delivery",
    "DeliveryTry",
    "Message",
    "NotificationRule",
    "RequestDecision",
]
