"""The handler of the application `billing`: validates an invoice, given whole or by the id of one in invoices.json.

It runs in an HTTP worker of its own: RECOURSE_API_KEY=... python -m recourse.worker --handlers samples.validate_invoice
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any

from recourse import StageContext, StageFailure, handler

HANDLER = "ValidateInvoiceHandler"


@handler(HANDLER)
def validate_invoice(ctx: StageContext) -> dict[str, Any]:
    """Input {"invoiceId": …} or {"invoice": {…}}. All that is wrong is said at once, and is final: VALIDATION_ERROR."""
    invoice = _invoice(ctx.json())
    faults = list(_faults(invoice))
    if faults:
        raise StageFailure("VALIDATION_ERROR", "; ".join(faults), retryable=False)
    ctx.log("info", "valid", number=invoice["number"], total=invoice["total"])
    return {"valid": True, "number": invoice["number"], "total": invoice["total"], "currency": invoice["currency"]}


def _invoice(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise StageFailure("VALIDATION_ERROR", 'the input must be like {"invoiceId": "invoice-42"}', retryable=False)
    if isinstance(given.get("invoice"), dict):
        return given["invoice"]
    known = json.loads(Path(__file__).with_name("invoices.json").read_text())
    invoice = known.get(str(given.get("invoiceId")))
    if invoice is None:
        raise StageFailure("MISSING_REQUIRED_DATA", f"there is no invoice {given.get('invoiceId')!r}", retryable=False)
    return invoice


def _faults(invoice: dict[str, Any]) -> Iterator[str]:
    for name in ("number", "currency", "issued", "due", "lines", "total"):
        if not invoice.get(name):
            yield f"{name} is missing"
    currency = invoice.get("currency")
    if currency and not (
        isinstance(currency, str) and len(currency) == 3 and currency.isalpha() and currency.isupper()
    ):
        yield f"{currency!r} is no currency code"
    yield from _date_faults(invoice.get("issued"), invoice.get("due"))
    yield from _sum_faults(invoice.get("lines") or [], invoice.get("total"))


def _date_faults(issued: Any, due: Any) -> Iterator[str]:
    try:
        if issued and due and date.fromisoformat(due) < date.fromisoformat(issued):
            yield f"due on {due}, before it was issued on {issued}"
    except (TypeError, ValueError):
        yield f"{issued!r} and {due!r} are not both dates"


def _sum_faults(lines: Any, total: Any) -> Iterator[str]:
    try:
        due = sum((Decimal(str(line["quantity"])) * Decimal(str(line["price"])) for line in lines), Decimal(0))
        if lines and total and due != Decimal(str(total)):
            yield f"the lines come to {due}, not to {total}"
    except (TypeError, KeyError, DecimalException):
        yield "a line needs quantity and price, as numbers"
