"""Workers and signing keys."""

from __future__ import annotations

from recourse.calls.base import Call, Some, given, page, segment, write
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists
from recourse.models import operations
from recourse.models.pages import Page


class Workers(Group[Sender_co]):
    """Who takes jobs."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        application: Some = None,
        handler: Some = None,
        status: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.WorkerView]]:
        """One page of workers and what they are at."""
        return page("v1/workers", next, application=application, handler=handler, status=status, page_size=page_size)

    iterate = iterates(list)


class SigningKeys(Group[Sender_co]):
    """The keys that sign checkpoints and the audit."""

    @lists
    def list(self) -> Call[Page[operations.SigningKeyView]]:
        """All keys, without their secrets."""
        return page("v1/signing-keys")

    iterate = iterates(list)

    @asks
    def rotate(
        self, reason: str | None = None, *, replaces: str | None = None, client_request_id: str | None = None
    ) -> Call[operations.ChangedKey]:
        """A new key signs from now on."""
        body = given(reason=reason, replaces=replaces)
        return write("v1/signing-keys/rotate", body, client_request_id)

    @asks
    def revoke(
        self, key_id: str, reason: str | None = None, *, client_request_id: str | None = None
    ) -> Call[operations.ChangedKey]:
        """What this key signed is trusted no more."""
        body = given(reason=reason)
        return write(f"v1/signing-keys/{segment(key_id)}/revoke", body, client_request_id)
