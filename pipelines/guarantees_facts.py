"""What guarantees hang on, as it is set in this process and in one workspace now: a handful of bounded statements."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

from django.conf import settings
from recourse.adapters import matrix

from pipelines import store_role
from pipelines.guarantees import Facts
from pipelines.sql import query


def read(workspace_id: uuid.UUID) -> Facts:
    """The facts of a workspace. Tells of no secret and of no address."""
    names: dict[str, tuple[str, ...]] = {}
    for kind, found in query(
        "SELECT kind, array_agg(name ORDER BY name) FROM pipelines_policy"
        " WHERE workspace_id = %s AND kind IN ('retry', 'run_retry') AND status = 'active' GROUP BY kind",
        [workspace_id],
    ):
        names[kind] = tuple(found)
    ((on,),) = query("SELECT count(*) FROM pipelines_trigger WHERE workspace_id = %s AND enabled", [workspace_id])
    return Facts(
        broker=urlsplit(settings.CELERY_BROKER_URL).scheme.partition("+")[0],
        lease_seconds=settings.RECOURSE_LEASE_SECONDS,
        retention_days=settings.RECOURSE_RETENTION_DAYS,
        keyring=settings.RECOURSE_KEYRING,
        store_closed=store_role.why_closed(),
        store_tables=settings.RECOURSE_STORE_TABLES,
        run_retries=names.get("run_retry", ()),
        retries=names.get("retry", ()),
        triggers_on=on,
        merging=tuple(one.name for one in matrix.KINDS if one.upsert),
        passing_keys=tuple(one.name for one in matrix.KINDS if one.provider_key != matrix.NO_KEY),
    )
