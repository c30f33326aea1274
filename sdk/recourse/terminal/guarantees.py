"""`recourse guarantees`: what the console guarantees as it is set, and what a pipeline lacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from recourse.terminal.exits import DONE, Refused
from recourse.terminal.output import Answer, words
from recourse.terminal.parsing import command

HEADINGS = {"promised": "Guaranteed", "off": "Not switched on", "not_promised": "Not guaranteed"}


def add_commands(topics: Any) -> None:
    """Adds `guarantees`."""
    told = command(
        topics,
        "guarantees",
        "what is guaranteed here and what is not; of a pipeline, what it lacks",
        _tell,
        description="Tells what the console guarantees as it and the workspace are set now, what could be switched on,"
        " and what is not guaranteed.\n\nOf a pipeline: its checklist in each environment in which a release is in"
        " force, and which of its stages are safe to repeat. Declared is what the release says, seen what its newest"
        " runs told; what is neither is not known, and is said to be.",
        examples=[
            "recourse guarantees",
            "recourse guarantees nightly",
            "recourse guarantees nightly --environment staging",
        ],
    )
    told.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="its slug")
    told.add_argument("--environment", metavar="SLUG", help="of the pipeline's, only this one")


def _tell(client: Any, options: argparse.Namespace) -> int:
    if options.pipeline is None:
        if options.environment is not None:
            raise Refused("--environment narrows what a pipeline lacks: name the pipeline too")
        answer = client.guarantees.get()
        options.out.say(answer, list(_statements(answer)))
        return DONE
    answer = client.pipelines.readiness(options.pipeline)
    if options.environment is not None:
        found = [one for one in answer["environments"] if one["environment"] == options.environment]
        if not found:
            raise Refused(f"no release of {options.pipeline} is in force in {options.environment}")
        answer = {**answer, "environments": found}
    options.out.say(answer, list(_readiness(answer)))
    return DONE


def _statements(answer: Answer) -> Iterator[str]:
    for standing, heading in HEADINGS.items():
        found = [one for one in answer["statements"] if one["standing"] == standing]
        yield f"{heading}:" if found else f"{heading}: nothing"
        for one in found:
            yield f"  {one['title']}"
            yield f"    {one['text']}"
            if one["because"]:
                yield f"    ({one['because']})"


def _readiness(answer: Answer) -> Iterator[str]:
    for one in answer["environments"]:
        met = sum(line["state"] == "met" for line in one["checklist"])
        yield (
            f"{answer['pipeline']} in {one['environment']}: {met} of {len(one['checklist'])} met"
            f" (release {one['digest'][:12]}, {one['runs']} of its runs looked at)"
        )
        for line in one["checklist"]:
            yield f"  {words(line['state']):<10}{line['title']}: {' '.join(filter(None, (line['why'], line['to_do'])))}"
        yield "  stages, and whether they are safe to repeat:"
        for stage in one["stages"]:
            yield f"    {stage['stage']}: {stage['words']}. {' '.join(stage['reasons'])}"
    if not answer["environments"]:
        yield f"{answer['pipeline']}: no release is in force; nothing can be said of it yet"
