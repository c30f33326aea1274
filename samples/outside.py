"""The outside world of the samples in one process: the rates service and the publish service, each on its own port."""

from __future__ import annotations

import threading

from samples.local_http import serve
from samples.publish_service import PublishService
from samples.rates_service import RatesService


def main() -> None:
    """Serve both until the process is told to end; nothing needs an orderly goodbye."""
    rates = serve("rates", RatesService().answer)
    threading.Thread(target=rates.serve_forever, name="rates", daemon=True).start()
    serve("publish", PublishService().answer).serve_forever()


if __name__ == "__main__":
    main()
