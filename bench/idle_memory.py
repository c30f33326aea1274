"""What does a console that has nothing to do cost: memory, processor time, and how long until it is ready?

Starts `up` with the samples in a temporary directory, lets it settle, and prints every process with its proportional
set size (pages shared by several processes count once in the sum) and its processor time. Linux only.

    python bench/idle_memory.py [--settle 20] [--watch 20] [--no-samples] [--most 700]

Exit code 1 when the sum is above `--most` megabytes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

BASE_DIR = Path(__file__).resolve().parent.parent
PORT = 8971


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settle", type=float, default=20)
    parser.add_argument("--watch", type=float, default=20)
    parser.add_argument("--no-samples", action="store_true")
    parser.add_argument("--most", type=float, default=700)
    options = parser.parse_args()
    # Ended from outside, it still stops what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory) / "data"
        for label in ("first", "second"):
            with started(data_dir, samples=not options.no_samples) as (server, seconds):
                print(f"ready after {seconds:.1f} s ({label} start)")
                if label == "second":
                    time.sleep(options.settle)
                    total = report(server.pid, options.watch)
    return 0 if total <= options.most else 1


@contextmanager
def started(data_dir: Path, *, samples: bool) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """An `up` that has said that it is ready, and the seconds it took; stopped afterwards."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "CELERY_BROKER_URL")
    }
    command = [sys.executable, str(BASE_DIR / "manage.py"), "up", "--data", str(data_dir), "--port", str(PORT)]
    before = time.monotonic()
    arguments = [] if samples else ["--no-samples"]
    server = subprocess.Popen([*command, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        if not any(line.startswith("ready ") for line in server.stdout):
            raise SystemExit(f"`up` ended with {server.wait()} before it was ready")
        yield server, time.monotonic() - before
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        server.stdout.close()


def report(pid: int, seconds: float) -> float:
    """Print one line per process and the sums: the megabytes in all."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    before = {process.pid: process.cpu_times() for process in family}
    time.sleep(seconds)
    rows = []
    for process in family:
        try:
            now, then = process.cpu_times(), before[process.pid]
            busy = (now.user + now.system - then.user - then.system) / seconds * 100
            rows.append((process.memory_full_info().pss / 1e6, busy, name(process)))
        except psutil.NoSuchProcess:
            continue
    print(f"{'PSS MB':>8}{'CPU %':>8}  process")
    for megabytes, busy, what in rows:
        print(f"{megabytes:8.1f}{busy:8.1f}  {what}")
    total = sum(row[0] for row in rows)
    print(f"{total:8.1f}{sum(row[1] for row in rows):8.1f}  all")
    return total


def name(process: psutil.Process) -> str:
    """The telling part of a command line."""
    words = [Path(word).name for word in process.cmdline()[1:]] or [process.name()]
    return f"{process.name()} {' '.join(word for word in words if not word.startswith('-'))}"[:90]


if __name__ == "__main__":
    sys.exit(main())
