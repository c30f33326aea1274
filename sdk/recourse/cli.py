"""The command line for people: `recourse execution pause ID`. What it asks is the operations API's; nothing is decided
here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recourse import deploy_commands
from recourse.client import SyncClient
from recourse.errors import (
    ApiError,
    ConfigurationError,
    Judged,
    OperatorReviewRequired,
    OutcomeUnknown,
    PlanChanged,
)
from recourse.run_commands import Refused, add_commands
from recourse.telling import (
    lines_of_approvals,
    lines_of_decision,
    lines_of_fork,
    lines_of_preview,
    lines_of_snapshot,
)
from recourse.texts import printable
from recourse.worker.__main__ import main as run_worker

DESCRIPTION = """\
Looks at runs and steers them: the operations API from a terminal. `--dry-run` shows the plan and changes nothing; with
its digest, `--plan-digest` carries out just that plan, or refuses because the world has moved.

  export RECOURSE_TOKEN=...        # manage.py issue_token makes one
  recourse status f7f0ad4c-0000-0000-0000-000000000001
  recourse retry f7f0ad4c-0000-0000-0000-000000000001 --stage correctness --reason "line 9 is mended"
  recourse execution snapshot f7f0ad4c-0000-0000-0000-000000000001
  recourse execution rerun f7f0ad4c-0000-0000-0000-000000000001 --from-step-id classify_ticket --dry-run
  recourse approval list --view mine
"""

EPILOG = """\
environment: RECOURSE_URL (else http://localhost:8000), RECOURSE_TOKEN.

exit status:
  0  done
  1  a fault of the command itself
  2  refused, or wrong options; nothing was changed
  3  `run` only: it stands still until somebody acts; the lines say who and how
  4  kept, and waits for somebody's approval or review
  5  no definite answer; repeat with the same --client-request-id
"""

DONE, REFUSED, WAITS, UNKNOWN = 0, 2, 4, 5
WAITING = frozenset({"awaiting_approval", "review_required", "open"})

WHAT_TO_DO = {
    "unauthorized": "RECOURSE_TOKEN is missing, wrong or withdrawn: manage.py issue_token makes one",
    "permission_denied": "ask somebody who may do this",
    "impersonation_rejected": "leave the actor out: it is who the token belongs to",
    "self_approval": "who asked for it does not decide it: somebody else must look at it",
    "approval_stale": "nobody decides it any more: ask for it anew",
    "gate_decision_conflict": "a decision is final; it stands in: recourse approval list --view decided",
    "deadline_exceeded": "its run is over for good: start a new one",
    "not_found": "look at the id, and at the workspace that the token is for",
    "checkpoint_not_found": "is that the stage's name? Else choose an earlier --from-step-id, or replay",
    "client_request_id_invalid": "give a UUID in lowercase, or none",
    "recovery_idempotency_conflict": "this --client-request-id stands for another request: use a new one",
    "execution_state_invalid": "look at its state with: recourse execution snapshot",
    "needs_reconciliation": "find out what happened outside, then reconcile the stage in the console",
    "recovery_environment_mismatch": "leave --environment out: it is the source's",
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
    "rate_limited": "wait a little",
}

VIEWS = ("waiting", "mine", "asked", "decided")
Answer = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] == ["worker", "run"]:
        return run_worker(words[2:])
    options = _parser().parse_args(words)
    try:
        with SyncClient(options.url) as client:
            if hasattr(options, "act"):
                status: int = options.act(client, options)
                return status
            answer = options.call(client, options)
    except ApiError as refusal:
        return _refused(refusal, options)
    except OutcomeUnknown as error:
        _complain(str(error))
        if error.key:
            _complain(f"  repeat with --client-request-id {error.key}")
        return UNKNOWN
    except (ConfigurationError, Refused) as error:
        _complain(str(error))
        return REFUSED
    _say(answer, options)
    return WAITS if answer.get("status") in WAITING else DONE


def _say(answer: Answer, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    tell = lines_of_preview if getattr(options, "dry_run", False) else options.tell
    print("\n".join(map(printable, tell(answer))))


def _refused(refusal: ApiError, options: argparse.Namespace) -> int:
    """One line for what, one for what to do; reasons and the new plan where the refusal carries them."""
    if options.json:
        print(json.dumps(dict(refusal.body), indent=2, ensure_ascii=False))
    _complain(f"{refusal.code}: {refusal.detail}")
    for name, messages in (refusal.errors or {}).items() if isinstance(refusal.errors, Mapping) else ():
        told = "; ".join(map(str, messages)) if isinstance(messages, list) else str(messages)
        if told not in refusal.detail:
            _complain(f"  {name}: {told}")
    if isinstance(refusal, Judged):
        for reason in refusal.reasons:
            _complain(f"  {reason.get('text') or reason.get('code') if isinstance(reason, Mapping) else reason}")
        _complain(f"  operation {refusal.operation_id}")
    if isinstance(refusal, PlanChanged) and refusal.plan:
        _complain(f"  the digest of the new plan is {refusal.plan.get('plan_digest')}")
    if refusal.code in WHAT_TO_DO:
        _complain(f"  {WHAT_TO_DO[refusal.code]}")
    return WAITS if isinstance(refusal, OperatorReviewRequired) else REFUSED


def _complain(text: str) -> None:
    text = printable(text)
    print(f"recourse: {text}" if not text.startswith(" ") else text, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recourse",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    topics = parser.add_subparsers(metavar="TOPIC", required=True)
    add_commands(topics)
    deploy_commands.add_commands(topics)
    execution = topics.add_parser("execution", help="one run: the operations API calls it an execution")
    _add_execution_verbs(execution.add_subparsers(metavar="VERB", required=True))
    approval = topics.add_parser("approval", help="what waits for people: gates and requests for agreement")
    _add_approval_verbs(approval.add_subparsers(metavar="VERB", required=True))
    # what follows `worker run` is the worker's own to read
    worker = topics.add_parser("worker", help="run a worker: recourse worker run --help")
    worker.add_subparsers(metavar="VERB", required=True).add_parser("run", help="run the stages of one application")
    return parser


def _add_verb(
    verbs: Any, name: str, text: str, call: Callable[..., Answer], tell: Callable[[Answer], list[str]]
) -> Any:
    verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    verb.add_argument("--json", action="store_true", help="the answer as it came")
    verb.add_argument("--url", help="the console's address (RECOURSE_URL)")
    verb.set_defaults(call=call, tell=tell)
    return verb


def _add_approval_verbs(verbs: Any) -> None:
    listed = _add_verb(verbs, "list", "list gates and requests, newest first", _approvals, lines_of_approvals)
    listed.add_argument("--view", choices=VIEWS, default="waiting", help="mine: what you may decide now")
    listed.add_argument("--type", choices=("gate", "operation"))
    listed.add_argument("--next", metavar="URL", help="read on where a page ended")
    decide = _add_verb(
        verbs, "decide", "approve or reject; what is approved is done as planned", _decide, lines_of_decision
    )
    decide.add_argument("approval_id", metavar="APPROVAL_ID")
    answer = decide.add_mutually_exclusive_group(required=True)
    answer.add_argument("--approve", dest="approved", action="store_true")
    answer.add_argument("--reject", dest="approved", action="store_false", help="needs a --reason")
    _add_common(decide)
    withdraw = _add_verb(verbs, "withdraw", "take back what you asked for", _withdraw, lines_of_decision)
    withdraw.add_argument("approval_id", metavar="APPROVAL_ID")
    withdraw.add_argument("--reason", help="kept with the act, for whoever looks later")


def _add_execution_verbs(verbs: Any) -> None:
    def add(name: str, text: str, call: Callable[..., Answer], tell: Callable[[Answer], list[str]]) -> Any:
        verb = _add_verb(verbs, name, text, call, tell)
        verb.add_argument("execution_id", metavar="EXECUTION_ID")
        return verb

    add("snapshot", "tell where the run stands by its newest checkpoint", _snapshot, lines_of_snapshot)
    pause = add("pause", "stop handing out further work; what runs may finish", _verb("pause"), _signal)
    pause.add_argument("--until", help="when the engine resumes it by itself, such as 2026-06-01T08:00:00Z")
    _add_common(pause)
    _add_common(add("resume", "let a paused run go on", _verb("resume"), _signal))
    _add_common(add("cancel", "end the run for good", _verb("cancel"), _cancelled))
    rerun = add(
        "rerun", "fork a new run that runs one step and all that follows from it again", _verb("rerun"), lines_of_fork
    )
    rerun.add_argument("--from-step-id", help="where to begin (else where the newest checkpoint stands)")
    replay = add("replay", "fork a new run from the beginning", _verb("replay"), lines_of_fork)
    replay.add_argument("--freeze-release", action="store_true", default=None, help="note a frozen-input hint")
    for fork in (rerun, replay):
        fork.add_argument("--environment", help="only the source's own is taken")
        fork.add_argument("--flow-slug", help="only the source's own is taken")
        fork.add_argument("--override-reason", help="start it although a blackout holds; kept with the act")
        _add_common(fork)


def _add_common(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--reason", help="kept with the act, for whoever looks later")
    verb.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    verb.add_argument("--plan-digest", help="carry out this plan and no other")
    verb.add_argument("--client-request-id", help="a lowercase UUID that makes repeating safe")


NOT_OF_THE_VERB = frozenset({"execution_id", "json", "url", "call", "tell"})


def _verb(name: str) -> Callable[[SyncClient, argparse.Namespace], Answer]:
    def call(client: SyncClient, options: argparse.Namespace) -> Answer:
        said = {key: value for key, value in vars(options).items() if key not in NOT_OF_THE_VERB}
        answer: Answer = getattr(client.executions, name)(options.execution_id, **said)
        return answer

    return call


def _snapshot(client: SyncClient, options: argparse.Namespace) -> Answer:
    return client.executions.snapshot(options.execution_id)


def _approvals(client: SyncClient, options: argparse.Namespace) -> Answer:
    filters = {"view": options.view} | ({"type": options.type} if options.type else {})
    return client.approvals.list(next=options.next, **filters)


def _decide(client: SyncClient, options: argparse.Namespace) -> Answer:
    return client.approvals.decide(
        options.approval_id,
        options.approved,
        options.reason,
        dry_run=options.dry_run,
        plan_digest=options.plan_digest,
        client_request_id=options.client_request_id,
    )


def _withdraw(client: SyncClient, options: argparse.Namespace) -> Answer:
    return client.approvals.withdraw(options.approval_id, options.reason)


def _signal(answer: Answer) -> list[str]:
    return [f"{answer['execution_id']}: {str(answer['status']).replace('_', ' ')}"]


def _cancelled(answer: Answer) -> list[str]:
    lines = [f"{answer['execution_id']}: {answer['status']}"]
    outside = answer.get("reconciliation") or []
    if outside:
        lines.append("may still go on outside:")
    for one in outside:
        lines.append(f"  {one.get('stage_id', '')} {one.get('kind', '')}: {one.get('detail', '')}")
    return lines
