"""`recourse execution …`: one run or many of them, as the operations API has them (O11–O14, O17)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from recourse.telling import (
    line_of_run_retry,
    lines_of_fork,
    lines_of_preview,
    lines_of_remains,
    lines_of_run,
    lines_of_snapshot,
)
from recourse.terminal.asking import add_plan_options, planned
from recourse.terminal.choosing import RUN_HELP, run_id
from recourse.terminal.exits import DONE, WAITS
from recourse.terminal.output import Answer, Column, Output, short_time, time_of, words, words_of
from recourse.terminal.pages import LISTS, add_filters, add_list_options, chosen, read_page
from recourse.terminal.parsing import command, group, moment

ID = "0197f3a2-5c1e-7d55-8a44-6f1c2b9d7e10"
STATUSES = ("queued", "running", "waiting", "pausing", "paused", "blocked", "completed", "failed", "cancelled")


def done_of(run: Answer) -> str:
    progress = run.get("progress") or {}
    return f"{progress['done']}/{progress['stages']}" if progress else ""


RUNS = (
    Column("run", "execution_id", whole=True),
    Column("status", words_of("status"), whole=True, is_status=True),
    Column("name", "name", rank=1),
    Column("done", done_of, rank=3, whole=True),
    Column("pipeline", "pipeline", rank=4),
    Column("environment", "environment", rank=2),
    Column("created", time_of("created_at"), rank=2, whole=True),
    Column("failure", lambda run: (run.get("failure") or {}).get("code"), rank=3, whole=True),
)
STAGES = (
    Column("stage", "name"),
    Column("status", words_of("status"), whole=True, is_status=True),
    Column("attempt", "attempt", rank=2, whole=True),
    Column("epoch", "epoch", rank=3, whole=True),
    Column("error", "error_code", rank=1, whole=True),
    Column("finished", time_of("finished_at"), rank=4, whole=True),
    Column("id", "stage_id", rank=5, whole=True),
)
CHILDREN = (
    Column("child", "execution_id", whole=True),
    Column("status", words_of("status"), whole=True, is_status=True),
    Column("of stage", "stage", rank=1),
    Column("key", "key", rank=2),
    Column("if this run ends", "on_parent_end", rank=3),
)


def add_commands(topics: Any) -> None:
    """Adds `execution`."""
    verbs = group(
        topics,
        "execution",
        "one run or many: the operations API calls a run an execution",
        "Looks at runs and steers them. RUN is a run's id, or key:IDEMPOTENCY_KEY with the application's"
        " RECOURSE_API_KEY.\n\nAt a terminal, what cannot be undone shows its plan and asks; --yes asks nothing.",
        [
            "recourse execution list --status failed --created-after 24h",
            f"recourse execution snapshot {ID}",
            f"recourse execution rerun {ID} --from-step-id classify_ticket --dry-run",
        ],
    )
    _add_looks(verbs)
    _add_verbs(verbs)


def _add_looks(verbs: Any) -> None:
    listed = command(
        verbs,
        "list",
        "list runs, newest first",
        _list,
        description=f"Lists runs, newest first.\n\n{LISTS}",
        examples=[
            "recourse execution list",
            "recourse execution list --status failed --status blocked --environment production",
            "recourse execution list --search 'acme invoice' --created-after 2d --all --json",
        ],
    )
    add_filters(
        listed,
        {
            "status": {"choices": STATUSES, "metavar": "STATUS", "help": ", ".join(STATUSES)},
            "pipeline": {"metavar": "SLUG"},
            "environment": {"metavar": "SLUG"},
            "application": {"metavar": "NAME"},
            "handler": {"metavar": "NAME", "help": "of any of its stages"},
            "error_code": {"metavar": "CODE"},
            "search": {"metavar": "WORDS", "help": "of its name, keywords and context"},
            "created_after": {"type": moment, "metavar": "TIME", "help": "with its offset, or 2h for two hours ago"},
            "created_before": {"type": moment, "metavar": "TIME", "help": "as --created-after"},
            "recovered_from": {"metavar": "RUN", "help": "forks of this run"},
            "parent_id": {"metavar": "RUN", "help": "runs that stages of this run started"},
        },
    )
    add_list_options(listed)
    _of_run(
        command(
            verbs,
            "show",
            "tell a run, its stages with their ids, the runs that they started, and why it does not move",
            _show,
            description="Tells a run, its stages with their ids, the runs that they started (the newest of many), and"
            " why it does not move. With --json: {execution, stages, children, blockers}. In sentences:"
            " recourse status RUN.",
            examples=[f"recourse execution show {ID}", "recourse execution show key:invoice-2026-05 --json"],
        )
    )
    _of_run(
        command(
            verbs,
            "snapshot",
            "tell where the run stands by its newest checkpoint",
            _snapshot,
            examples=[f"recourse execution snapshot {ID}", f"recourse execution snapshot {ID} --json"],
        )
    )


def _add_verbs(verbs: Any) -> None:
    pause = command(
        verbs,
        "pause",
        "stop handing out further work; what runs may finish",
        _steer("pause", _signal),
        examples=[
            f"recourse execution pause {ID} --reason 'the bank moves'",
            f"recourse execution pause {ID} --until 2026-06-01T08:00:00Z",
        ],
    )
    pause.add_argument("--until", type=moment, metavar="TIME", help="when the engine resumes it by itself")
    resume = command(
        verbs,
        "resume",
        "let a paused run go on",
        _steer("resume", _signal),
        examples=[f"recourse execution resume {ID}"],
    )
    cancel = command(
        verbs,
        "cancel",
        "end the run for good",
        _steer("cancel", _cancelled),
        examples=[f"recourse execution cancel {ID} --reason 'withdrawn'", f"recourse execution cancel {ID} --dry-run"],
    )
    rerun = command(
        verbs,
        "rerun",
        "fork a new run that runs one step and all that follows from it again",
        _steer("rerun", lines_of_fork),
        examples=[
            f"recourse execution rerun {ID} --dry-run",
            f"recourse execution rerun {ID} --from-step-id classify_ticket --reason 'the model is back'",
        ],
    )
    rerun.add_argument(
        "--from-step-id", metavar="STAGE", help="where to begin (else where the newest checkpoint stands)"
    )
    replay = command(
        verbs,
        "replay",
        "fork a new run from the beginning",
        _steer("replay", lines_of_fork),
        examples=[
            f"recourse execution replay {ID} --freeze-release",
            f"recourse execution replay {ID} --dry-run --json",
        ],
    )
    replay.add_argument("--freeze-release", action="store_true", default=None, help="note a frozen-input hint")
    for fork in (rerun, replay):
        fork.add_argument("--environment", metavar="SLUG", help="only the source's own is taken")
        fork.add_argument("--flow-slug", metavar="SLUG", help="only the source's own is taken")
        fork.add_argument("--override-reason", metavar="TEXT", help="start it although a blackout holds; kept with it")
    stop = command(
        verbs,
        "stop-retry",
        "call off that a failed run retries itself by a policy; it stays failed",
        _stop_retry,
        examples=[f"recourse execution stop-retry {ID} --reason 'the file is wrong'"],
    )
    _of_run(stop)
    stop.add_argument("--reason", metavar="TEXT", help="kept with the act, for whoever looks later")
    stop.add_argument("--client-request-id", metavar="UUID", help="a lowercase UUID that makes repeating safe")
    own = {
        pause: ("until", "reason"),
        resume: ("reason",),
        cancel: ("reason",),
        rerun: ("from_step_id", "environment", "flow_slug", "override_reason", "reason"),
        replay: ("freeze_release", "environment", "flow_slug", "override_reason", "reason"),
    }
    for verb, fields in own.items():
        _of_run(verb)
        # pausing and resuming undo each other: nobody is asked
        add_plan_options(verb, asks=verb not in (pause, resume))
        verb.set_defaults(fields=fields, yes=verb in (pause, resume))


def _of_run(verb: Any) -> None:
    verb.add_argument("run", metavar="RUN", help=RUN_HELP)


def _list(client: Any, options: argparse.Namespace) -> int:
    options.out.page(read_page(options, client.executions.list, **chosen(options)), RUNS, "no runs")
    return DONE


def _show(client: Any, options: argparse.Namespace) -> int:
    run, out = run_id(client, options.run), options.out
    told = {
        "execution": client.executions.get(run),
        "stages": client.executions.stages(run)["results"],
        "children": client.executions.children(run)["results"],
        "blockers": client.executions.blockers(run)["results"],
    }
    if out.is_json:
        out.document(told)
        return DONE
    out.lines([*lines_of_run(told["execution"]), ""])
    out.table(STAGES, told["stages"], "no stages")
    if told["children"]:
        out.lines([""])
        out.table(CHILDREN, told["children"])
    if told["blockers"]:
        out.lines(["", *lines_of_blockers(told["blockers"])])
    return DONE


def lines_of_blockers(blockers: Sequence[Answer]) -> list[str]:
    return [
        f"{one.get('stage') or 'run'}: {one['cause']}"
        + (f" (looks again at {short_time(one['next_look'])})" if one.get("next_look") else "")
        for one in blockers
    ]


def _snapshot(client: Any, options: argparse.Namespace) -> int:
    answer = client.executions.snapshot(run_id(client, options.run))
    options.out.say(answer, lines_of_snapshot(answer))
    return DONE


def _steer(name: str, tell: Callable[[Answer], list[str]]) -> Callable[[Any, argparse.Namespace], int]:
    """A verb on one run, through its plan."""

    def act(client: Any, options: argparse.Namespace) -> int:
        run = run_id(client, options.run)
        said = {field: getattr(options, field) for field in options.fields}
        verb = getattr(client.executions, name)
        return told(options, planned(options, lambda **how: verb(run, **said, **how)), tell)

    return act


def _stop_retry(client: Any, options: argparse.Namespace) -> int:
    run = run_id(client, options.run)
    answer = client.executions.stop_run_retry(run, options.reason, client_request_id=options.client_request_id)
    options.out.say(answer, [f"{run}: {line_of_run_retry(answer)}"])
    return DONE


def told(options: argparse.Namespace, answer: Answer, tell: Callable[[Answer], Sequence[str]]) -> int:
    """Says what a verb answered, or its plan, and what that means as an exit code."""
    out: Output = options.out
    waits = not options.dry_run and answer.get("status") in ("awaiting_approval", "review_required", "open")
    if options.dry_run:
        out.say(answer, lines_of_preview(answer))
    elif answer.get("status") == "awaiting_approval" and "have" not in answer:
        out.say(answer, [f"operation {answer['operation_id']} waits for an approval; nothing was changed yet"])
    else:
        out.say(answer, tell(answer))
    return WAITS if waits else DONE


def _signal(answer: Answer) -> list[str]:
    return [f"{answer['execution_id']}: {words(answer['status'])}"]


def _cancelled(answer: Answer) -> list[str]:
    return [f"{answer['execution_id']}: {answer['status']}", *lines_of_remains(answer)]
