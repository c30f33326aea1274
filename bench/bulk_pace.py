"""Whether bulks keep their pace at full size, by the clock, with the worker processes and the clock that `up` starts.

    python bench/bulk_pace.py [--redriven 10000] [--letters 100000] [--fine 4000]

Redrives `--redriven` dead letters at 100 a second, and fails where that takes 5 % more or less than it should. Then
takes `--letters` dead letters by filter at 200 a second with a stop rule of 5 %: after `--fine` of them all are denied.
Fails where the bulk is not halted within a second of the denial that broke the rule, or goes on elsewhere than where it
stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import timedelta
from typing import Any

import lab
from bulk import REASON, analyze, cast, copy, fail, workers

LATE, HALTED_WITHIN = 0.05, 1.0
SECOND = timedelta(seconds=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redriven", type=int, default=10_000)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--fine", type=int, default=4_000)
    options = parser.parse_args()
    with lab.engine("bulk_pace"):
        actor, place = cast()
        failed = 0
        fail(place, 1)
        copy(options.redriven - 1)
        with workers():
            failed += paced(actor, options.redriven)
        fail(place, 1)  # and with it all that were redriven
        copy(options.letters - options.redriven - 1)
        refuse_after(options.fine)
        with workers():
            failed += halted(actor)
    return failed


def paced(actor: Any, count: int) -> int:
    """F53: a hundred a second; 1 when it took more than 5 % more or less."""
    bulk = started(actor, rate=100)
    until(bulk, lambda: bulk.state != "running")
    times = [(at - bulk.let_go_at) / SECOND for at in decided(bulk)]
    ahead = max(number - 1 - at * 100 for number, at in enumerate(times, 1))
    lag = max(at - number / 100 for number, at in enumerate(times, 1))
    print(
        f"redrive: {len(times):,} at 100 a second took {times[-1]:.2f} s ({bulk.state}); at most {ahead:.1f} targets"
        f" ahead of its pace, {lag:.2f} s behind it"
    )
    wanted = count / 100
    return len(times) != count or abs(times[-1] - wanted) > LATE * wanted or ahead > 1


def halted(actor: Any) -> int:
    """F165: the rule is broken by the refusal that makes more than 5 % of the newest thousand."""
    begun = time.perf_counter()
    bulk = started(actor, rate=200, stop_ratio=0.05)
    print(f"letters: {bulk.total:,} by filter, answered in {time.perf_counter() - begun:.2f} s")
    until(bulk, lambda: bulk.state != "running")
    first = taken(bulk)
    denied = [at for _, (state, at) in sorted(first.items()) if state == "denied"]
    broke = denied[50]  # the fifty-first of a thousand
    late = (max(at for _, at in first.values()) - broke) / SECOND
    in_order = sorted(first) == list(range(1, len(first) + 1))
    print(
        f"{bulk.state} after {len(first):,}, {len(denied)} of them refused; the last {late:.2f} s after the rule broke"
    )
    from recovery import bulks

    bulks.resume(bulk.id, actor=actor, reason=REASON)
    bulk.refresh_from_db()
    until(bulk, lambda: bulk.state != "running")
    second = taken(bulk)
    goes_on = {one: second[one] for one in first} == first and sorted(second) == list(range(1, len(second) + 1))
    print(f"resumed: {len(second) - len(first):,} more, the next one first: {'yes' if goes_on else 'NO'}")
    bulks.abort(bulk.id, actor=actor, reason=REASON)
    return bulk.state != "halted" or not in_order or not goes_on or late > HALTED_WITHIN


def started(actor: Any, **how: Any) -> Any:
    from recovery import bulks
    from recovery.bulks import Selection, Wish
    from recovery.states import OperationKind

    letters = Selection(letters={"error_code": ["BUSINESS_REJECTED"]})
    return bulks.create(Wish(OperationKind.REDRIVE, letters, reason=REASON, **how), actor=actor).bulk


def until(bulk: Any, is_so: Any) -> None:
    while not is_so():
        time.sleep(0.2)
        bulk.refresh_from_db()
    time.sleep(2)  # what was under way ends


def decided(bulk: Any) -> list[Any]:
    return list(
        bulk.items.exclude(state="pending").order_by("decided_at", "position").values_list("decided_at", flat=True)
    )


def taken(bulk: Any) -> dict[int, tuple[str, Any]]:
    rows = bulk.items.exclude(state="pending").values_list("position", "state", "decided_at")
    return {position: (state, at) for position, state, at in rows}


def refuse_after(fine: int) -> None:
    """Of all letters but the newest so many, a committed effect may repeat outside: each is denied, nobody is asked."""
    from pipelines.ids import new_id
    from pipelines.models import DeadLetter, Effect

    letters = DeadLetter.objects.filter(state="open").order_by("-opened_at", "-id").values_list("run_id", "stage_id")
    Effect.objects.bulk_create(
        (
            Effect(
                run_id=run,
                stage_id=stage,
                attempt=new_id(),
                epoch=1,
                effect_class="external_http",
                step_id="one",
                key=str(run),
                state="committed",
            )
            for run, stage in letters[fine:].iterator(chunk_size=5_000)
        ),
        batch_size=5_000,
    )
    analyze()


if __name__ == "__main__":
    sys.exit(main())
