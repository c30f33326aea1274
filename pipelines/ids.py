"""Identifiers: UUID version 7, so that rows written together lie together in every index."""

import uuid

from uuid_utils.compat import uuid7


def new_id() -> uuid.UUID:
    """A fresh, time-ordered identifier."""
    return uuid7()
