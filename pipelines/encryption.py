"""The console's own key, RECOURSE_ENCRYPTION_KEY, for what is kept secret at rest."""

from __future__ import annotations

from functools import lru_cache

from cryptography.fernet import Fernet
from django.conf import settings


def fernet() -> Fernet:
    return _of(settings.RECOURSE_ENCRYPTION_KEY)


@lru_cache(maxsize=1)
def _of(key: str) -> Fernet:
    return Fernet(key)
