"""States of a request for agreement and of a delivery, and their legal moves. A gate's are in `pipelines/states.py`."""

from django.db.models import TextChoices


class RequestState(TextChoices):
    OPEN = "open"  # left by decisions, its requester, its end in time, or a world in which its plan is another one
    APPROVED = "approved"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"  # silence never consents
    SUPERSEDED = "superseded"  # asked anew with the plan of the world as it is now


class RequestCause(TextChoices):
    APPROVAL = "approval"  # a rule, or a protected environment, asks for it
    REVIEW = "review"  # its verdict does


class DeliveryState(TextChoices):
    PENDING = "pending"  # left by the sender; tried again with growing pauses
    SENT = "sent"
    FAILED = "failed"  # given up after the last try


REQUEST_MOVES: dict[str, dict[RequestState, RequestState]] = {
    "approve": {RequestState.OPEN: RequestState.APPROVED},
    "reject": {RequestState.OPEN: RequestState.REJECTED},
    "withdraw": {RequestState.OPEN: RequestState.WITHDRAWN},
    "expire": {RequestState.OPEN: RequestState.EXPIRED},
    "supersede": {RequestState.OPEN: RequestState.SUPERSEDED},
}
DELIVERY_MOVES: dict[str, dict[DeliveryState, DeliveryState]] = {
    "take": {DeliveryState.PENDING: DeliveryState.SENT},
    "put_off": {DeliveryState.PENDING: DeliveryState.PENDING},
    "give_up": {DeliveryState.PENDING: DeliveryState.FAILED},
    "send_again": {DeliveryState.FAILED: DeliveryState.PENDING},
}
