"""Keeps some workers over HTTP alive, each in a process of its own: whoever is killed is replaced at once.

python -m tests.journeys.worker_farm COUNT CONCURRENCY
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

from recourse import Worker

HANDLERS = "tests.journeys.effect_handlers"


def main(count: int, concurrency: int) -> None:
    importlib.import_module(HANDLERS)
    signal.signal(signal.SIGTERM, _end)
    children: set[int] = set()
    try:
        while True:
            while len(children) < count:
                children.add(_fork(concurrency))
            children.discard(os.waitpid(-1, 0)[0])
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def _fork(concurrency: int) -> int:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # one at a time takes nothing up before the last result is confirmed: a death then hits exactly one stage
        Worker(concurrency=concurrency, wait_seconds=1, most_unconfirmed=1 if concurrency == 1 else 100).run()
        os._exit(0)
    return child


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
