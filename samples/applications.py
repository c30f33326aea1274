"""The sample applications' own process: the HTTP worker of `billing`, and the feeder of `fx`.

Needs RECOURSE_URL and the key files that `samples.up.seed` made.
"""

from __future__ import annotations

import logging
import sys
import threading

from recourse import ApiError, OutcomeUnknown, SyncClient, Worker

from samples import places, validate_invoice
from samples.feeder import feed

log = logging.getLogger("samples")


def main() -> None:
    """Work until SIGTERM or SIGINT, then end in order."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    stopping = threading.Event()
    feeding = threading.Thread(target=_create_runs, args=(stopping,), name="feeder", daemon=True)
    feeding.start()
    try:
        Worker(api_key=_key("billing"), name="invoices", concurrency=2, drain_seconds=5).run()
    finally:
        stopping.set()


def _create_runs(stopping: threading.Event) -> None:
    with SyncClient(api_key=_key("billing")) as billing:
        for invoice in ("invoice-40", "invoice-41"):
            _validate(billing, invoice)
    with SyncClient(api_key=_key("fx")) as fx:
        feed(fx, stopping)


def _validate(client: SyncClient, invoice: str) -> None:
    stage = {
        "stageName": "validate",
        "stageHandlerName": validate_invoice.HANDLER,
        "input": f'{{"invoiceId":"{invoice}"}}',
    }
    try:
        client.runs.create(idempotency_key=f"{invoice}:validate:v1", name="validate-invoice", stages=[stage])
    except (OutcomeUnknown, ApiError) as error:
        log.warning("no run for %s: %s", invoice, error)


def _key(application: str) -> str:
    return places.key_file(application).read_text().strip()


if __name__ == "__main__":
    main()
