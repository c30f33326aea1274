"""The tables, one module per concept: fields, constraints, indexes; no flow."""

from recovery.models.backfills import Backfill, BackfillOrder, BackfillTick, Reprocess
from recovery.models.bulks import BulkItem, BulkOperation
from recovery.models.operations import EffectEvidence, Operation, Reconciliation
from recovery.models.run_retries import RunRetry

__all__ = [
    "Backfill",
    "BackfillOrder",
    "BackfillTick",
    "BulkItem",
    "BulkOperation",
    "EffectEvidence",
    "Operation",
    "Reconciliation",
    "Reprocess",
    "RunRetry",
]
