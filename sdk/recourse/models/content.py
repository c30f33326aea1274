"""Bytes, as both APIs give them out."""

from __future__ import annotations

from typing import TypedDict


class Content(TypedDict):
    """`sha256` was compared with the bytes that arrived."""

    content: bytes
    sha256: str
    mediaType: str
