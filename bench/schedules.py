"""What it takes to go through the ticks of schedules, against cronsim on the same expressions in the same run.

    python bench/schedules.py [--ticks 1000000] [--rival 100000]

No database and no Django settings: `pipelines/schedules.py` is pure. Processor time counts, not the clock on the wall.
Memory is what the process grew by while it went through all ticks of one expression.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import lab
import psutil
from cronsim import CronSim

sys.path[:0] = [str(lab.ROOT)]

from pipelines.schedules import Schedule  # noqa: E402
from pipelines.zones import zone  # noqa: E402

START = datetime(1970, 1, 1, tzinfo=UTC)
EXPRESSIONS = (
    ("* * * * *", "Europe/Berlin"),
    ("0 * * * *", "America/New_York"),
    ("0-59 9 * * *", "Europe/Berlin"),
    ("*/5 9-17 * * mon-fri", "America/New_York"),
)
RARE = ("0 0 29 2 */7", "Europe/Berlin")  # a 29 February that is a Sunday


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=1_000_000)
    parser.add_argument("--rival", type=int, default=100_000, help="ticks of cronsim's, which takes longer")
    options = parser.parse_args()
    process = psutil.Process()
    for cron, timezone in EXPRESSIONS:
        schedule = Schedule.read(cron, timezone)
        schedule.next(10_000, START)  # what is read once is read
        before = process.memory_info().rss
        ours, last = spent(lambda schedule=schedule: schedule.after(START), options.ticks)
        grown = (process.memory_info().rss - before) / 2**20
        backward, _ = spent(lambda schedule=schedule, last=last: schedule.before(last.at), options.ticks)
        rival, _ = spent(
            lambda cron=cron, timezone=timezone: CronSim(cron, START.astimezone(zone(timezone))), options.rival
        )
        ratio = (rival / options.rival) / (ours / options.ticks)
        print(
            f"{cron:21} {timezone:17} until {last.at:%Y}: {ours:.2f} s, backward {backward:.2f} s, {grown:+.1f} MiB, "
            f"{ours / options.ticks * 1e6:.2f} us a tick; cronsim {rival / options.rival * 1e6:.2f}: {ratio:.1f} times"
        )
    rare = Schedule.read(*RARE)
    begun = time.process_time()
    (found,) = rare.next(1, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=2400))
    print(f"{RARE[0]:21} {RARE[1]:17} next is {found.local:%Y-%m-%d}: {(time.process_time() - begun) * 1e3:.1f} ms")


def spent(ticks: Callable[[], Iterator[Any]], count: int) -> tuple[float, Any]:
    """Seconds of the processor, and the last tick."""
    begun, last = time.process_time(), None
    for last in islice(ticks(), count):  # noqa: B007
        pass
    return time.process_time() - begun, last


if __name__ == "__main__":
    main()
