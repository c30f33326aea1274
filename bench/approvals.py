"""What agreement costs: a retry done at once against one that another person agrees to; and the inbox as it fills.

    python bench/approvals.py [--retries 300] [--waiting 50000] [--elsewhere 200000]

Both kinds of retry are made through the engine by one connection, in turns, so that other work on the machine slows
both alike. The inbox is read with few gates and with as many as asked for, in one workspace beside a larger one.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

import lab

FEW = 100
READS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retries", type=int, default=300)
    parser.add_argument("--waiting", type=int, default=50_000, help="gates open in the workspace that is read")
    parser.add_argument("--elsewhere", type=int, default=200_000, help="gates open in another one")
    options = parser.parse_args()
    with lab.engine("approvals"):
        agreement(options.retries)
        inbox(options.waiting, options.elsewhere)


def agreement(retries: int) -> None:
    """The same retry of the same skipped stage, in turns free and under a rule that asks for one approver."""
    from approvals.models import ApprovalRule
    from approvals.requests import decide_request
    from recovery.transitions import ask_retry, ask_skip, perform

    place, operator, approver = cast("agreement")
    rule = ApprovalRule.objects.create(workspace_id=place.workspace_id, name="two of us", kinds=["retry"])
    runs = [new_run(place) for _ in range(retries)]
    for run_id, stage_id in runs:
        perform(ask_skip(run_id, stage_id, reason="bench"), actor=operator)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number, (run_id, stage_id) in enumerate(runs):
        ruled = bool(number % 2)
        ApprovalRule.objects.filter(id=rule.id).update(enabled=ruled)
        begun = time.perf_counter()
        done = perform(ask_retry(run_id, stage_id, reason="bench"), actor=operator)
        if ruled:
            decide_request(done.operation_id, actor=approver, approved=True, reason="seen")
        times[ruled].append(time.perf_counter() - begun)
    free, agreed = (statistics.median(times[ruled]) * 1000 for ruled in (False, True))
    print(f"a retry: {free:.1f} ms; asked for, and agreed to by another: {agreed:.1f} ms: {agreed / free:.2f} times")


def inbox(waiting: int, elsewhere: int) -> None:
    """The newest page, the page of what one may decide, and the count on every page, with few and with many open."""
    from approvals.inbox import MINE, WAITING, count_mine, listed
    from pipelines.paging import Cut

    place, _, approver = cast("read")
    other, _, _ = cast("beside")
    reads: dict[str, Callable[[], Any]] = {
        "page of all that wait": lambda: listed(approver, WAITING, Cut(50)),
        "page of mine": lambda: listed(approver, MINE, Cut(50)),
        "count of mine": lambda: count_mine(approver, 99),
    }
    open_gates(place, FEW)
    few = {name: median_ms(read) for name, read in reads.items()}
    open_gates(place, waiting - FEW)
    open_gates(other, elsewhere)
    for name, read in reads.items():
        many = median_ms(read)
        print(f"{name}: {few[name]:.1f} ms with {FEW}, {many:.1f} ms with {waiting}: {many / few[name]:.2f} times")


def cast(slug: str) -> tuple[Any, Any, Any]:
    """A workspace with an operator and an approver; where its runs are made."""
    from django.contrib.auth import get_user_model

    from pipelines import catalog
    from pipelines.access import person
    from pipelines.creation import Place
    from pipelines.models import Application, Environment, Member

    workspace, _ = catalog.ensure_workspace(slug)
    application = Application.objects.create(workspace=workspace, name="bench")
    environment = Environment.objects.get(workspace=workspace, slug="development")
    people = []
    for role in ("operator", "approver"):
        user = get_user_model().objects.create_user(f"{slug}-{role}")
        Member.objects.create(workspace=workspace, user=user, role=role)
        people.append(person(user, workspace.id, "api"))
    return Place(workspace.id, application.id, environment.id, environment.slug), *people


def new_run(place: Any) -> tuple[uuid.UUID, uuid.UUID]:
    from pipelines.creation import Intent, create_run
    from pipelines.models import Stage

    stages = [{"name": "only", "handler": "bench.noop"}]
    run_id, _ = create_run(place, Intent("bench", stages=stages), key=str(uuid.uuid4()), actor="bench")
    return run_id, Stage.objects.get(run_id=run_id).id


def open_gates(place: Any, count: int) -> None:
    """Gates that wait, each of a run of its own, made in the database from one that the engine opened."""
    from pipelines.creation import Intent, create_run
    from pipelines.models import Gate
    from pipelines.sql import execute

    stages = [{"name": "only", "handler": "bench.noop", "approval": {"when": "before"}}]
    run_id, _ = create_run(place, Intent("gated", stages=stages), key=str(uuid.uuid4()), actor="bench")
    gate = Gate.objects.get(run_id=run_id)
    for table, key, renamed in (
        ("pipelines_run", run_id, {"id": "r", "created_at": "at"}),
        ("pipelines_stage", gate.stage_id, {"id": "s", "run_id": "r"}),
        ("pipelines_gate", gate.id, {"id": "g", "run_id": "r", "stage_id": "s", "opened_at": "at"}),
    ):
        names = {"r": "('1' || lpad(to_hex(n), 31, '0'))", "s": "('2' || lpad(to_hex(n), 31, '0'))"}
        names |= {"g": "('3' || lpad(to_hex(n), 31, '0'))"}
        values = {column: f"to_jsonb({names[of]}::uuid)" for column, of in renamed.items() if of in names}
        values |= {
            column: "to_jsonb(recourse_now() - n * interval '1 ms')" for column, of in renamed.items() if of == "at"
        }
        changes = ", ".join(f"'{column}', {value}" for column, value in values.items())
        execute(
            f"INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object({changes}))).*"
            f" FROM {table} t, generate_series(%s::int, %s::int) n WHERE t.id = %s",
            [_made[0], _made[0] + count - 2, key],
        )
    _made[0] += count
    execute("ANALYZE pipelines_run, pipelines_stage, pipelines_gate")


_made = [1]


def median_ms(read: Callable[[], Any]) -> float:
    times = []
    for _ in range(READS):
        begun = time.perf_counter()
        read()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
