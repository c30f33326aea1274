"""The tables of the workspace store, as the console keeps account of them. Their rows lie in `recourse_store`."""

from __future__ import annotations

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from pipelines.ids import new_id
from pipelines.models.base import RecourseNow
from pipelines.models.definitions import Application, Environment, Workspace


class StoreTable(models.Model):
    """A table of handlers' own rows, of one application in one environment (N12, N18).

    `rows` and `bytes` are written with the rows themselves, under this row's lock. Retention leaves it alone: the run
    that wrote last may be gone. With it go its rows.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    workspace = models.ForeignKey(Workspace, models.CASCADE, related_name="+", db_index=False)
    application = models.ForeignKey(Application, models.PROTECT, related_name="+", db_index=False)
    environment = models.ForeignKey(Environment, models.PROTECT, related_name="+")
    name = models.CharField(max_length=100)
    key = ArrayField(models.TextField(), default=list, help_text="the key columns; none: the whole row is the key")
    rows = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0, help_text="of the rows as compact JSON")
    created_at = models.DateTimeField(db_default=RecourseNow())
    written_at = models.DateTimeField(null=True)
    written_by_run = models.UUIDField(null=True, help_text="which may have been removed since")
    written_by_attempt = models.UUIDField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["application", "environment", "name"], name="store_table_named_once"),
            models.CheckConstraint(condition=Q(rows__gte=0, bytes__gte=0), name="store_table_counts"),
        ]
        indexes = [models.Index(fields=["workspace", "name", "id"], name="store_table_by_name")]
        triggers = [
            pgtrigger.Trigger(
                name="store_table_takes_its_rows",
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                func="DELETE FROM recourse_store.rows WHERE table_id = OLD.id; RETURN NULL;",
            ),
            pgtrigger.Trigger(
                name="store_table_takes_all_rows",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Truncate,
                func="TRUNCATE recourse_store.rows; RETURN NULL;",
            ),
        ]

    def __str__(self) -> str:
        return self.name
