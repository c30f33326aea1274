"""What the console itself keeps, beside the engine's tables: failed log-ins, for as long as they count."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

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
        ]
        verbose_name = "failed log-in"
