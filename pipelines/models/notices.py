"""Facts that somebody may want to be told of, waiting to be taken up."""

from __future__ import annotations

from django.db import models

from pipelines.models.base import RecourseNow, closed_set
from pipelines.states import NoticeKind


class Notice(models.Model):
    """Something needs a person, or was decided by one: written in the transaction that makes it true, taken up once.

    `subject` is the gate, the dead letter or the operation; `data` what a sentence needs and the rows may not tell any
    more.
    """

    id = models.BigAutoField(primary_key=True)
    workspace = models.UUIDField()
    kind = models.CharField(max_length=40, choices=NoticeKind.choices)
    run = models.UUIDField(null=True)
    stage = models.UUIDField(null=True)
    subject = models.UUIDField(null=True)
    data = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=RecourseNow())

    class Meta:
        constraints = [closed_set("kind", NoticeKind, "notice_kind_known")]
