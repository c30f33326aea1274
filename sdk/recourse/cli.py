"""The command line for people: `recourse execution pause ID`. What it asks is the operations API's; nothing is decided
here. A module with commands has `add_commands(topics)`, and stands in `MODULES`.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from recourse import deploy_commands, run_commands
from recourse.errors import (
    ApiError,
    ConfigurationError,
    Judged,
    OperatorReviewRequired,
    OutcomeUnknown,
    PlanChanged,
)
from recourse.mcp_server import command as mcp
from recourse.terminal import (
    approvals,
    audit,
    backfills,
    completion,
    executions,
    exits,
    guarantees,
    letters,
    logs,
    profiles,
    stages,
    starting,
    watching,
)
from recourse.terminal.exits import FAULT, INTERRUPTED, PIPE_CLOSED, REFUSED, UNKNOWN, WAITS, Refused
from recourse.terminal.output import Output
from recourse.terminal.parsing import Parser, command, group, help_width, share_options
from recourse.version import VERSION

# in the order in which `recourse --help` tells them
MODULES = (
    run_commands,
    starting,
    watching,
    logs,
    executions,
    stages,
    approvals,
    letters,
    backfills,
    audit,
    guarantees,
    deploy_commands,
    mcp,
)
LAST = (profiles, completion)

ID = executions.ID
DESCRIPTION = f"""\
Looks at runs and steers them: the operations API from a terminal. `recourse TOPIC --help` tells more, with examples.

  export RECOURSE_URL=https://recourse.example.org RECOURSE_TOKEN=...   # manage.py issue_token makes one
  recourse execution list --status failed
  recourse status {ID}
  recourse retry {ID} --stage correctness --reason "line 9 is mended"
  recourse watch {ID}
  recourse approval list --view mine
"""

EPILOG = """\
which console, and as whom: what is said (--url, --profile), else the environment (RECOURSE_URL, RECOURSE_TOKEN), else
a profile of the configuration file (RECOURSE_PROFILE, or its default): recourse config --help. A token never stands on
the command line.

plans: --dry-run shows what would be done and changes nothing. Its digest, given as --plan-digest, carries out just that
plan, or is refused because the world has moved. At a terminal, acts that cannot be undone show their plan, ask, and
carry out what was shown; --yes, --json, or an input that is no terminal: nobody is asked.

output: --json is for machines: one document, of what goes on (watch, --follow) a line each. In a pipe there are
no colours and every value is whole; NO_COLOR and --no-color leave colours out at a terminal too.

exit status:
"""

WHAT_TO_DO = {
    "unauthorized": "the token is missing, wrong or withdrawn: manage.py issue_token makes one; recourse config show"
    " tells which is used",
    "permission_denied": "ask somebody who may do this",
    "impersonation_rejected": "leave the actor out: it is who the token belongs to",
    "self_approval": "who asked for it does not decide it: somebody else must look at it",
    "approval_stale": "nobody decides it any more: ask for it anew",
    "gate_decision_conflict": "a decision is final; it stands in: recourse approval list --view decided",
    "deadline_exceeded": "its run is over for good: start a new one",
    "not_found": "look at the id, at the workspace that the token is for, and at the address: recourse config show",
    "checkpoint_not_found": "is that the stage's name? Else choose an earlier --from-step-id, or replay",
    "client_request_id_invalid": "give a UUID in lowercase, or none",
    "recovery_idempotency_conflict": "this --client-request-id stands for another request: use a new one",
    "execution_state_invalid": "look how it stands: recourse status RUN",
    "stage_state_invalid": "look how it stands: recourse status RUN",
    "needs_reconciliation": "find out what happened outside, then: recourse stage reconcile",
    "recovery_environment_mismatch": "leave --environment out: it is the source's, or the key's",
    "environment_unknown": "leave --environment out: it is the source's",
    "checkpoint_integrity_invalid": "the checkpoint cannot be trusted: replay, and have it looked into",
    "definition_changed": "the release in force lacks a stage that is needed: replay, or choose another step",
    "release_not_active": "activate a release for this environment first",
    "plan_changed": "look at the new plan with --dry-run, and give its digest",
    "operator_review_required": "somebody else with the right decides about it: recourse approval decide",
    "recovery_denied": "nobody overrides this; the reasons say what contradicts",
    "gate_denied": "a rejected gate is final in its run: rerun or replay opens it anew",
    "blackout_active": "wait for its end, or say why it cannot wait with --override-reason",
    "stale_request": "it answers no request that is awaited now, and is kept as evidence: export the request anew",
    "attempts_exhausted": "the limits of the run admit no further attempt: a new run needs wider ones",
    "budget_exhausted": "the limits of the run admit no more of it: a new run needs wider ones",
    "backfill_too_many_ticks": "choose a shorter window, or allow them with --max-ticks",
    "backfill_window_invalid": "--from comes before --to, and --to is not after now",
    "cron_invalid": "five fields, in quotes, such as --cron '15 16 * * mon-fri'",
    "timezone_invalid": "a zone by its name, such as Europe/Berlin",
    "payload_too_large": "what was sent is larger than the console takes: a file belongs into an artifact",
    "artifact_corrupt": "the bytes are not those that were stored: have it looked into where they are kept",
    "unsupported": "this console does not know that: it may be older than this command; recourse --version",
    "rate_limited": "wait a little",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; answers its exit code. Only `--help`, `--version` and wrong options end by SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()
        return PIPE_CLOSED
    except OSError as error:
        _write_no_more()
        sys.stderr.write(f"recourse: {error}\n")
        return FAULT
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    return code


def make_parser() -> Parser:
    """Everything that can be said, with what it means."""
    parser = Parser(
        prog="recourse", description=DESCRIPTION, epilog="\n".join([EPILOG.rstrip("\n"), *exits.as_lines(help_width())])
    )
    parser.add_argument("--version", action="version", version=f"recourse {VERSION}")
    topics = parser.add_subparsers(metavar="TOPIC", title="topics")
    for module in MODULES:
        module.add_commands(topics)
    _add_worker(topics)
    for module in LAST:
        module.add_commands(topics)
    share_options(parser)
    return parser


def _run(words: Sequence[str]) -> int:
    if list(words[:2]) == ["worker", "run"]:
        from recourse.worker.__main__ import main as run_worker

        return run_worker(list(words[2:]))
    options = make_parser().parse_args(list(words))
    if not hasattr(options, "act"):
        options.spoken_to.print_help(sys.stderr)
        return REFUSED
    options.out = Output(options)
    try:
        if getattr(options, "alone", False):
            return int(options.act(options))
        return _ask_console(options)
    except ApiError as refusal:
        return _refused(refusal, options)
    except OutcomeUnknown as error:
        options.out.note(str(error))
        if error.key:
            options.out.note(f"  repeat with {getattr(options, 'key_option', '--client-request-id')} {error.key}")
        return UNKNOWN
    except (ConfigurationError, Refused) as error:
        options.out.note(str(error))
        return REFUSED


def _ask_console(options: argparse.Namespace) -> int:
    found = profiles.connection(options, options.out.note)
    if found.token is None and found.token_from:
        options.out.note(f"no token: it comes from {found.token_from}, and {found.url} was asked for")

    from recourse.client import SyncClient

    with SyncClient(found.url, api_key=found.api_key, token=found.token) as client:
        try:
            return int(options.act(client, options))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            options.out.note(f"{found.url} does not answer as a console does ({type(error).__name__} {error})")
            options.out.note(
                f"  is that the address? recourse config show. Else it is a fault of this: {at.filename}:{at.lineno}"
            )
            return FAULT


def _refused(refusal: ApiError, options: argparse.Namespace) -> int:
    """One line for what, one for what to do; reasons and the new plan where the refusal carries them."""
    out: Output = options.out
    if out.is_json:
        out.document(dict(refusal.body))
    out.note(f"{refusal.code}: {refusal.detail}")
    for name, messages in (refusal.errors or {}).items() if isinstance(refusal.errors, Mapping) else ():
        told = "; ".join(map(str, messages)) if isinstance(messages, list) else str(messages)
        if told not in refusal.detail:
            out.note(f"  {name}: {told}")
    if isinstance(refusal, Judged):
        for reason in refusal.reasons:
            out.note(f"  {reason.get('text') or reason.get('code') if isinstance(reason, Mapping) else reason}")
        out.note(f"  operation {refusal.operation_id}")
    if isinstance(refusal, PlanChanged) and refusal.plan:
        out.note(f"  the digest of the new plan is {refusal.plan.get('plan_digest')}")
    if refusal.code in WHAT_TO_DO:
        out.note(f"  {WHAT_TO_DO[refusal.code]}")
    return WAITS if isinstance(refusal, OperatorReviewRequired) else REFUSED


def _add_worker(topics: Any) -> None:
    """What follows `worker run` is the worker's own to read."""
    verbs = group(
        topics,
        "worker",
        "run a worker: recourse worker run --help",
        "Runs the stages of one application. What follows `run` is read by the worker: recourse worker run --help.",
        ["recourse worker run --handlers my.handlers", "recourse worker run --help"],
    )
    run = command(
        verbs,
        "run",
        "run the stages of one application",
        lambda options: REFUSED,
        examples=["recourse worker run --handlers my.handlers --concurrency 4"],
        alone=True,
    )
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="recourse worker run --help tells them")


def _write_no_more() -> None:
    """Whoever read has gone, or the disk is full: nothing more is written, not even at the end of the process."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:
        pass
