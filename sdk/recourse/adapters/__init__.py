"""Adapters: outside systems as handlers use them, bounded and written down. `ctx.adapters.NAME` is a connector's.

    invoices = await ctx.adapters.netsuite.read({"collection": "invoices", "updated_after": "2026-01-31"})
    await ctx.adapters.postgres.write(rows, op="upsert")

A worker without `recourse.authoring` makes them of its context: `Adapters(ctx).postgres`, in async handlers.
"""

from recourse.adapters.base import Adapter, Capabilities, RowLimits, Written
from recourse.adapters.connectors import Adapters

__all__ = ["Adapter", "Adapters", "Capabilities", "RowLimits", "Written"]
