"""What the console itself keeps, beside the engine's tables: who is logged in, by what, and log-ins that failed or
serve no more."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow


class FailedLogIn(models.Model):
    """One wrong password. Of the name only a digest is kept: people type passwords into the wrong field."""

    account = models.BinaryField(max_length=32)
    address = models.CharField(max_length=64)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["address", "at"], name="failed_log_in_of_address"),
            models.Index(fields=["at"], name="failed_log_in_at"),
            models.Index(fields=["account", "at"], name="failed_log_in_of_account"),
        ]
        verbose_name = "failed log-in"


class UsedState(models.Model):
    """A state of a log-in with an issuer that was taken up: it serves nobody else. Kept while it could."""

    digest = models.BinaryField(max_length=32, unique=True)
    at = models.DateTimeField(db_default=RecourseNow(), db_index=True)


class Session(models.Model):
    """One browser's session, found by the SHA-256 of its cookie: whoever reads the table cannot log in with it.

    `data` is Django's, signed; `user` is whoever logged in, none before that. `seen_at` is true to the minute.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    digest = models.BinaryField(max_length=32, unique=True)
    data = models.TextField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="sessions")
    seen_at = models.DateTimeField(db_default=RecourseNow())
    expires_at = models.DateTimeField(db_index=True)


class Identity(models.Model):
    """That an account is somebody whom an OpenID Connect issuer knows: by its subject, which is never given anew."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    since = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["issuer", "subject"], name="identity_of_one_account"),
            models.UniqueConstraint(fields=["user", "issuer"], name="identity_one_per_issuer"),
        ]
        verbose_name_plural = "identities"
