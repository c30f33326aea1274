"""The workspace store, as people and applications look into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recourse.calls.base import Call, Planned, Some, given, page, planned, read, segment
from recourse.calls.methods import Group, Sender_co, asks, iterates, lists, plans
from recourse.models import operations
from recourse.models.pages import Page


class Store(Group[Sender_co]):
    """Tables of rows that handlers keep beside their runs."""

    @lists
    def list(
        self,
        *,
        next: str | None = None,
        name: Some = None,
        application: Some = None,
        environment: Some = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.StoreTableView]]:
        """One page of tables, by name."""
        return page(
            "v1/store/tables",
            next,
            name=name,
            application=application,
            environment=environment,
            page_size=page_size,
        )

    iterate = iterates(list)

    @asks
    def get(self, table_id: str) -> Call[operations.StoreTableView]:
        """A table, and what it holds now."""
        return read(f"v1/store/tables/{segment(table_id)}")

    @lists
    def rows(
        self,
        table_id: str,
        *,
        next: str | None = None,
        where: Mapping[str, Any] | None = None,
        page_size: int | None = None,
    ) -> Call[Page[operations.StoreRowView]]:
        """One page of rows, in the order in which they were first written; `where`: those whose columns hold this."""
        wanted = json.dumps(where) if where else None
        return page(f"v1/store/tables/{segment(table_id)}/rows", next, where=wanted, page_size=page_size)

    iterate_rows = iterates(rows)

    @plans
    def remove(
        self,
        table_id: str,
        *,
        where: Mapping[str, Any] | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        plan_digest: str | None = None,
        client_request_id: str | None = None,
    ) -> Planned[operations.StoreRemoved, operations.StoreRemoved]:
        """Removes the rows whose columns hold what `where` says; without it the table. What was looked at with a dry
        run is removed by its `plan_digest`, or `PlanChanged` is raised. What is gone is gone: where the first answer
        was lost, rows are none the second time, and a table is `NotFound`.
        """
        path = f"v1/store/tables/{segment(table_id)}/remove"
        return planned(path, given(where=where, reason=reason), dry_run, plan_digest, client_request_id)
