"""`recourse stage …`: what people do to one stage, and which policies rule it (O15 and model §5)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from recourse.terminal.asking import add_plan_options, planned, reason_of
from recourse.terminal.choosing import STAGE_HELP, stage_id
from recourse.terminal.executions import ID, told
from recourse.terminal.exits import DONE, Refused
from recourse.terminal.output import Answer, Column, words
from recourse.terminal.parsing import command, group

OUTCOMES = ("committed", "absent", "contradicted")
SCOPES = ("stage", "stage_and_downstream")
POLICIES = (
    Column("kind", "kind", whole=True),
    Column("policy", lambda one: (one.get("winner") or {}).get("name")),
    Column("rule", lambda one: _rule((one.get("winner") or {}).get("rule"))),
    Column("because", "reason", rank=1),
    Column("outranks", lambda one: ", ".join(policy["name"] for policy in one.get("shadowed") or ()), rank=2),
)


def add_commands(topics: Any) -> None:
    """Adds `stage`."""
    verbs = group(
        topics,
        "stage",
        "one stage of a run: retry, skip, reconcile, its policies",
        "Acts on one stage. STAGE is a stage's id, or RUN/NAME.",
        [
            f"recourse stage retry {ID}/correctness --reason 'line 9 is mended'",
            f"recourse stage policies {ID}/correctness",
        ],
    )
    retry = command(
        verbs,
        "retry",
        "run the stage again in a new epoch; nothing of the old one is erased",
        _retry,
        examples=[
            f"recourse stage retry {ID}/correctness --reason 'line 9 is mended'",
            f"recourse stage retry {ID}/load --scope stage_and_downstream --dry-run",
        ],
    )
    retry.add_argument("--scope", choices=SCOPES, default="stage", help="alone (stage), or with all behind it")
    retry.add_argument("--input", metavar="TEXT", help="replaces the stage's own from now on")
    retry.add_argument("--acknowledge-effects", action="store_true", default=None, help="the outside was looked at")
    retry.add_argument("--override-reason", metavar="TEXT", help="start it although a blackout holds; kept with it")
    skip = command(
        verbs,
        "skip",
        "leave the stage out on purpose; what waits for it may go on",
        _skip,
        examples=[
            f"recourse stage skip {ID}/notify --reason 'told by phone'",
            f"recourse stage skip {ID}/notify --dry-run",
        ],
    )
    reconcile = command(
        verbs,
        "reconcile",
        "say what was found out about what the stage did outside",
        _reconcile,
        description="Says what was found out about what the stage did outside: of one effect with --effect-id, else of "
        "the stage. The outside world committed it (then the stage completes with --output), it is absent there (then "
        "it may run again), or what is known is contradicted (then it fails).",
        examples=[
            f"recourse stage reconcile {ID}/charge --outcome absent --note 'the bank has no such booking'",
            f"recourse stage reconcile {ID}/charge --outcome committed --note 'booking 4711' --output '\"4711\"'",
        ],
    )
    reconcile.add_argument("--outcome", choices=OUTCOMES, required=True, help=", ".join(OUTCOMES))
    reconcile.add_argument("--note", required=True, metavar="TEXT", help="what was looked at, for whoever looks later")
    reconcile.add_argument("--effect-id", metavar="ID", help="of one effect of the stage; else of the stage itself")
    reconcile.add_argument("--evidence", metavar="FILE", help="JSON: {summary, source, sealed, clean, digest}")
    for verb in (skip, reconcile):
        verb.add_argument("--output", metavar="JSON", help="what those get that wait for it; @FILE reads a file")
    for verb in (retry, skip, reconcile):
        verb.add_argument("stage", metavar="STAGE", help=STAGE_HELP)
        add_plan_options(verb)
    policies = command(
        verbs,
        "policies",
        "tell which policies rule the stage, and which they outrank",
        _policies,
        examples=[f"recourse stage policies {ID}/correctness", f"recourse stage policies {ID}/correctness --json"],
    )
    policies.add_argument("stage", metavar="STAGE", help=STAGE_HELP)


def _retry(client: Any, options: argparse.Namespace) -> int:
    stage = stage_id(client, options.stage)
    reason = reason_of(options, "why is it retried? ")
    answer = planned(
        options,
        lambda **how: client.stages.retry(
            stage,
            reason=reason,
            scope=options.scope,
            input=options.input,
            acknowledge_effects=options.acknowledge_effects,
            override_reason=options.override_reason,
            **how,
        ),
    )
    return told(options, answer, _moved)


def _skip(client: Any, options: argparse.Namespace) -> int:
    stage, output = stage_id(client, options.stage), json_of("--output", options.output)
    reason = reason_of(options, "why is it left out? ")
    answer = planned(options, lambda **how: client.stages.skip(stage, reason=reason, output=output, **how))
    return told(options, answer, _moved)


def _reconcile(client: Any, options: argparse.Namespace) -> int:
    stage, output = stage_id(client, options.stage), json_of("--output", options.output)
    evidence = json_of("--evidence", f"@{options.evidence}") if options.evidence else None
    found = {
        "outcome": options.outcome,
        "note": options.note,
        "effect_id": options.effect_id,
        "output": output,
        "evidence": evidence,
    }
    answer = planned(options, lambda **how: client.stages.reconcile(stage, **found, reason=options.reason, **how))
    return told(options, answer, _moved)


def _policies(client: Any, options: argparse.Namespace) -> int:
    answer = client.stages.policies(stage_id(client, options.stage))
    if options.out.is_json:
        options.out.document(answer)
    else:
        options.out.table(POLICIES, answer["policies"], "no policies")
    return DONE


def json_of(option: str, text: str | None) -> Any:
    """The JSON that an option gives, itself or in a file: @FILE."""
    if text is None:
        return None
    try:
        return json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except OSError as error:
        raise Refused(f"{option}: {text[1:]} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"{option} is no JSON: {error}; a text is one in quotes: '\"done\"'") from error


def _moved(answer: Answer) -> list[str]:
    at = f"epoch {answer['epoch']}, " if answer.get("epoch") else ""
    return [f"stage {answer.get('stage_id')}: {at}{words(answer.get('stage_status') or answer.get('status'))}"]


def _rule(rule: Any) -> str:
    return ", ".join(f"{words(name)} {value}" for name, value in rule.items()) if isinstance(rule, dict) else ""
