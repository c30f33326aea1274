"""`recourse deploy`: makes releases of the pipelines in a file, says what is otherwise, and puts them in force.

What changes is the console's to tell: it compares the definitions as it would keep them. All plans are made before
anything is registered, so that a file with a fault in its last pipeline changes nothing.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recourse.errors import ApiError, ConfigurationError
from recourse.terminal.exits import DONE, WAITS
from recourse.terminal.output import Output
from recourse.terminal.parsing import command
from recourse.texts import shortened

if TYPE_CHECKING:
    from recourse.authoring import Loaded, Pipeline
    from recourse.client import SyncClient
    from recourse.models.operations import PlaceChanged
    from recourse.models.operations import ReleasePlanView as Plan
    from recourse.models.operations import ReleaseView as Release

MOST_VALUE = 200
ENVIRONMENT = "development"
STYLES = {"+": "green", "-": "red", "@": "cyan"}

DESCRIPTION = """\
Makes a release of every pipeline in FILE: its stages, and its code word for word. Changed code is another release; the
same again changes nothing. Says what is otherwise than in the release in force. The file is run to find its pipelines.
"""


def add_commands(topics: Any) -> None:
    """Adds `deploy`."""
    deploy = command(
        topics,
        "deploy",
        "release the pipelines of a Python file",
        _deploy,
        description=DESCRIPTION,
        examples=[
            "recourse deploy invoices.py --dry-run",
            "recourse deploy invoices.py --environment staging --activate",
            "recourse deploy pipelines.nightly --slug nightly --activate",
        ],
    )
    deploy.add_argument("file", metavar="FILE", help="a Python file, or a module that can be imported")
    deploy.add_argument(
        "--environment", default=ENVIRONMENT, metavar="NAME", help=f"where it is released ({ENVIRONMENT})"
    )
    deploy.add_argument("--slug", metavar="SLUG", help="of a file's `async def run`; else: this pipeline alone")
    deploy.add_argument("--activate", action="store_true", help="put it in force")
    deploy.add_argument("--dry-run", action="store_true", help="say what is otherwise, and register nothing")


def _deploy(client: SyncClient, options: argparse.Namespace) -> int:
    loaded = read(options.file, options.slug)
    console = _Console(client, options.environment)
    documents = [(one, one.definition(loaded.source)) for one in loaded.pipelines]
    planned = [(pipeline, document, console.plan(pipeline, document)) for pipeline, document in documents]
    made: list[tuple[Plan, Release | None]] = []
    for pipeline, document, plan in planned:
        _show(options.out, lines_of_plan(plan))
        release = None if options.dry_run else console.release(pipeline, document, plan, activate=options.activate)
        if not options.dry_run:
            told = ["nothing was changed"] if release is None else lines_of_release(release, wanted=options.activate)
            _show(options.out, told)
        made.append((plan, release))
    told_to_machines = {"pipelines": [{"plan": plan, "release": release} for plan, release in made]}
    worker = [f"its worker: recourse worker run --handlers {_handlers(options)}"]
    options.out.say(told_to_machines, [] if options.dry_run else worker)
    waits = options.activate and any(release is not None and release["needs_review"] for _, release in made)
    return WAITS if waits else DONE


def read(file: str, slug: str | None) -> Loaded:
    """The pipelines of a file. Raises ConfigurationError for one that has none or fails, naming the line."""
    from recourse.authoring import load

    try:
        loaded = load(file, slug)
    except ConfigurationError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        told = "".join(traceback.format_exception_only(error)).strip()
        raise ConfigurationError(f"{file} fails when it is run: {told} ({at.filename}, line {at.lineno})") from error
    if not loaded.pipelines:
        raise ConfigurationError(
            f"{file} has no pipeline: write `async def run(ctx)`, or name one: nightly = pipeline('nightly', ...)"
        )
    return loaded


class _Console:
    """What is asked of it, in one environment."""

    def __init__(self, client: SyncClient, environment: str) -> None:
        self._client = client
        self._environment = environment

    def plan(self, pipeline: Pipeline, document: Mapping[str, Any]) -> Plan:
        try:
            return self._client.releases.register.plan(
                pipeline=pipeline.slug, environment=self._environment, definition=document
            )
        except ApiError as refusal:
            if refusal.code != "environment_unknown":
                raise
            there = ", ".join(one["slug"] for one in self._client.environments.list()["results"])
            raise ConfigurationError(f"{refusal.detail}; there are: {there}") from refusal

    def release(self, pipeline: Pipeline, document: Mapping[str, Any], plan: Plan, *, activate: bool) -> Release | None:
        """The release as it is now; None where it was so before."""
        if plan["release_id"] is not None and (plan["status"] == "active" or not activate):
            return None
        if plan["is_new_pipeline"]:
            told = {"slug": pipeline.slug, "name": pipeline.name, "description": pipeline.description}
            self._client.pipelines.save(**told)
        return self._client.releases.register(
            pipeline=pipeline.slug, environment=self._environment, definition=document, activate=activate
        )


def lines_of_plan(plan: Plan) -> list[str]:
    """What is otherwise: stages with the places that differ, what is said of the whole, and the code line by line."""
    where = f"{plan['pipeline']} in {plan['environment']}"
    digest = plan["digest"][:12]
    if plan["status"] == "active":
        return [f"{where}: {digest} is in force, and nothing is otherwise"]
    if plan["compared_with"] is None:
        new = " of a new pipeline" if plan["is_new_pipeline"] else ""
        lines = [f"{where}: {digest}, the first release{new}"]
        return [*lines, *(f"  + stage {stage}" for stage in plan["added"])]
    what = "in force" if plan["is_in_force"] else "which was in force last"
    lines = [f"{where}: {digest} against {plan['compared_with'][:12]}, {what}"]
    lines += [f"  + stage {stage}" for stage in plan["added"]]
    lines += [f"  - stage {stage}" for stage in plan["removed"]]
    for changed in plan["changed"]:
        lines.append(f"  ~ stage {changed['stage']}")
        lines += [f"      {_place(place)}" for place in changed["places"]]
    lines += [f"  ~ {_place(place)}" for place in plan["other"]]
    if plan["code"] is None:
        lines.append("  ~ code: more is otherwise than is shown here; the release's page has both")
    elif plan["code"]:
        lines += ["  ~ code", *(f"      {line}" for line in plan["code"])]
    elif len(lines) == 1:
        lines.append("  nothing is otherwise")
    return lines


def lines_of_release(release: Release, *, wanted: bool) -> list[str]:
    """What became of it; where somebody must review it first, what to do."""
    told = f"registered as {release['id']}"
    if release["status"] == "active":
        return [f"{told}, in force"]
    if not release["needs_review"]:
        return [f"{told}, not in force; with --activate it is"]
    sends = [
        f"  {one['stage']}: {one['what']} {one['before'] or '-'} -> {one['after'] or '-'}" for one in release["changes"]
    ]
    lines = [f"{told}, and waits: another person must review to whom it sends", *sends]
    lines.append("  somebody else who may release opens it in the console: Pipelines, Review recipients")
    return [*lines, "  then deploy again with --activate"] if wanted else lines


def _place(place: PlaceChanged) -> str:
    before, after = (
        shortened(side or "-", MOST_VALUE).replace("\n", " ") for side in (place["before"], place["after"])
    )
    return f"{place['path']}: {before} -> {after}"


def _handlers(options: argparse.Namespace) -> str:
    return f"{options.slug}={options.file}" if options.slug else str(options.file)


def _show(out: Output, lines: Sequence[str]) -> None:
    """Lines for people, what comes and what goes in colours where there are any."""
    if out.is_json:
        return
    if not out.has_colours:
        out.lines(lines)
        return
    try:
        from rich.text import Text
    except ImportError:  # the SDK alone, without what makes it pretty
        out.lines(lines)
        return
    console = out.console()
    for line in lines:
        console.print(Text(out.text(line), STYLES.get(line.lstrip()[:1], "")), soft_wrap=True)
