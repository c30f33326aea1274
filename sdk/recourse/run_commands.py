"""What the command line does with one run: tell its account, retry, go on, cancel, carry imports out and in.

Everything that is told comes from the console; nothing needs to be remembered by whoever asks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from recourse.errors import StaleRequest
from recourse.telling import lines_of_account, lines_of_plan, lines_of_remains, lines_of_standstill
from recourse.terminal.asking import add_yes, agree, is_asked, reason_of
from recourse.terminal.choosing import RUN_HELP, run_id
from recourse.terminal.executions import ID
from recourse.terminal.exits import DONE, STANDS_STILL, WAITS, Refused
from recourse.terminal.output import words
from recourse.terminal.parsing import command

if TYPE_CHECKING:
    from recourse.client import SyncClient

Answer = Mapping[str, Any]
MOST_BYTES = 16 * 1024 * 1024  # of an answer file
GOES_ON = frozenset({"completed", "queued", "running"})


def add_commands(topics: Any) -> None:
    """Adds `status`, `retry`, `run`, `cancel`, `export` and `import` to the parser."""

    def add(name: str, text: str, act: Callable[..., int], *examples: str) -> Any:
        made = command(topics, name, text, act, examples=examples)
        made.add_argument("run", metavar="RUN", help=RUN_HELP)
        return made

    add(
        "status",
        "explain every stage and every outcome of a run",
        _status,
        f"recourse status {ID}",
        "recourse status key:invoice-2026-05",
    )
    retry = add(
        "retry",
        "run a failed stage again, in the same run",
        _retry,
        f"recourse retry {ID} --stage correctness --reason 'line 9 is mended'",
        f"recourse retry {ID} --stage correctness --yes",
    )
    go_on = add(
        "run",
        "let a run go on where it may, and say why it does not where it may not",
        _run,
        f"recourse run {ID}",
    )
    cancel = add(
        "cancel",
        "end a run for good, and list what may still go on outside",
        _cancel,
        f"recourse cancel {ID} --reason 'the batch was withdrawn'",
    )
    export = add(
        "export",
        "write the request whose answer a stage awaits into a file",
        _export,
        f"recourse export {ID} --stage correctness -o request.json",
    )
    take = add(
        "import",
        "bring in an answer that was made elsewhere",
        _import,
        f"recourse import {ID} --stage correctness answer.json",
    )
    for one in (retry, export, take):
        one.add_argument("--stage", required=True, metavar="NAME", help="the stage's name")
    for one in (retry, go_on, cancel, take):
        one.add_argument("--reason", metavar="TEXT", help="kept with the act, for whoever looks later")
        one.add_argument("--by", metavar="NAME", help="who you are: refused unless the token is theirs")
    for one in (retry, cancel, take):
        add_yes(one)
    retry.add_argument("--acknowledge-effects", action="store_true", default=None, help="the outside was looked at")
    export.add_argument("-o", "--output", metavar="FILE", help="else to the standard output")
    take.add_argument("file", metavar="FILE", help="the answer as JSON; - for the standard input")


def _status(client: SyncClient, options: argparse.Namespace) -> int:
    account = client.executions.account(run_id(client, options.run))
    options.out.say(account, lines_of_account(account))
    return DONE


def _retry(client: SyncClient, options: argparse.Namespace) -> int:
    account = _known(client, options)
    stage = _stage_of(account, options.stage)
    reason = reason_of(options, "why is it retried? ")
    wanted = {"reason": reason, "acknowledge_effects": options.acknowledge_effects}
    plan = client.stages.retry(stage["stage_id"], dry_run=True, **wanted)
    _show(options, lines_of_plan(plan))
    agree(options)
    done = client.stages.retry(stage["stage_id"], plan_digest=plan["plan_digest"], **wanted)
    if done["status"] == "awaiting_approval":
        options.out.say(done, [f"operation {done['operation_id']} waits for an approval; nothing was changed yet"])
        return WAITS
    options.out.say(done, [f"{options.stage}: epoch {done.get('epoch')}, {words(done['stage_status'])}"])
    return DONE


def _run(client: SyncClient, options: argparse.Namespace) -> int:
    account = _known(client, options)
    run, lines = str(account["execution_id"]), []
    if account["is_paused"]:
        client.executions.resume(run, options.reason)
        lines.append(f"{run}: resumed")
        account = client.executions.account(run)
    options.out.say(account, [*lines, *lines_of_standstill(account)])
    return DONE if _moves(account) else STANDS_STILL


def _moves(account: Answer) -> bool:
    """Whether it ended well, or goes on by itself: of one that waits, nobody need act on any of its stages."""
    if account["status"] == "waiting":
        return not any(stage["next"] for stage in account["stages"])
    return account["status"] in GOES_ON and not account["is_paused"]


def _cancel(client: SyncClient, options: argparse.Namespace) -> int:
    run, digest = str(_known(client, options)["execution_id"]), None
    if is_asked(options):
        plan = client.executions.cancel(run, options.reason, dry_run=True)
        _show(options, lines_of_plan(plan))
        agree(options)
        digest = plan["plan_digest"]
    done = client.executions.cancel(run, options.reason, plan_digest=digest)
    if done["status"] == "awaiting_approval":
        options.out.say(done, [f"operation {done['operation_id']} waits for an approval; nothing was changed yet"])
        return WAITS
    lines = [f"{run}: cancelled; nothing more of it begins, and later answers are refused"]
    options.out.say(done, [*lines, *lines_of_remains(done)])
    return DONE


def _export(client: SyncClient, options: argparse.Namespace) -> int:
    stage = _stage_of(client.executions.account(run_id(client, options.run)), options.stage)
    request = client.stages.import_request(stage["stage_id"], as_person=True)
    text = json.dumps(request, indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
        return DONE
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{options.output} cannot be written: {error.strerror}") from error
    until = f", until {request['answer_by']}" if request.get("answer_by") else ""
    lines = [f"{options.output}: the request for {request['stage']}, attempt {request['attempt']}{until}"]
    lines.append(f"its answer carries request_digest {request['request_digest']}")
    options.out.say(request, lines)
    return DONE


def _import(client: SyncClient, options: argparse.Namespace) -> int:
    answer = read_answer(options.file)
    stage = _stage_of(_known(client, options), options.stage)
    try:
        plan = client.stages.import_file(stage["stage_id"], answer, reason=options.reason, dry_run=True)
    except StaleRequest:
        # a look leaves nothing behind; handed in, what is refused is kept as evidence
        client.stages.import_file(stage["stage_id"], answer, reason=options.reason)
        raise
    _show(options, [f"taking it makes {options.stage} {words(plan['stage_status'])}; nothing was changed yet"])
    agree(options)
    done = client.stages.import_file(stage["stage_id"], answer, reason=options.reason, plan_digest=plan["plan_digest"])
    again = "; it had been taken before, and nothing changed" if done.get("replayed") else ""
    told = f"{options.stage}: {words(done['stage_status'])}; the run is {words(done['execution_status'])}{again}"
    options.out.say(done, [told])
    return DONE


def read_answer(name: str) -> Answer:
    """The answer in a file, or in the standard input for `-`: one JSON object, read strictly."""
    try:
        raw = sys.stdin.buffer.read(MOST_BYTES + 1) if name == "-" else _bytes_of(Path(name))
    except OSError as error:
        raise Refused(f"{name} cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise Refused(f"{name} has more than {MOST_BYTES} bytes")
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise Refused(f"{name} is no answer: {error}") from error
    if not isinstance(value, dict):
        raise Refused(f"{name} is no answer: it must be a JSON object")
    return value


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> Answer:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:100]!r} stands twice in one object")
    return found


def _known(client: SyncClient, options: argparse.Namespace) -> Answer:
    """The run's account, once it is clear that whoever acts is who they say they are."""
    account = client.executions.account(run_id(client, options.run))
    if options.by is not None and options.by != account["asked_by"]:
        raise Refused(f"impersonation_rejected: the token belongs to {account['asked_by']}, not to {options.by}")
    return account


def _stage_of(account: Answer, name: str) -> Answer:
    for stage in account["stages"]:
        if stage["name"] == name:
            found: Answer = stage
            return found
    names = ", ".join(stage["name"] for stage in account["stages"])
    raise Refused(f"the run has no stage {name}; it has: {names}")


def _show(options: argparse.Namespace, lines: Sequence[str]) -> None:
    """What is said before the answer, to people only."""
    if not options.out.is_json:
        options.out.lines(lines)
