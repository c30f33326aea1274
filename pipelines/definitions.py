"""What a pipeline definition may say. Pure: a document goes in, a definition with its defaults comes out, or a refusal.

Limits and the rules of options are those of the application API's inline stages. What a later version brings is refused
by name, never silently left out. Serves P11–P17, P34–P40, R25 (shape).
"""

from __future__ import annotations

import tomllib
from hashlib import sha256
from typing import Any

import rfc8785

from pipelines import input_schemas, limits
from pipelines.api.bodies import parse
from pipelines.api.serializers import (
    HANDLER,
    INPUT_BYTES,
    MOST_BASELINES,
    MOST_RECIPIENTS,
    MOST_STAGES,
    NAME,
    Bounds,
    Gated,
    Options,
    Recipient,
    named_twice,
    told_twice,
)
from pipelines.api.shapes import (
    AnyJson,
    Check,
    Flag,
    Identifier,
    ListOf,
    OneOf,
    Problems,
    Shape,
    Text,
    Wrong,
    json_problem,
    refusal,
)
from pipelines.creation import OPTION_DEFAULTS, STAGE_DEFAULTS
from pipelines.errors import Refusal
from pipelines.graph import GraphError, resolve_dependencies
from pipelines.models.runs import EffectMode, EffectProtocol, StageMode

SLUG_LENGTH = 100
DESCRIPTION = 10_000
MOST_SOURCE = 256 * 1024  # bytes of code


class Slug(Text):
    """Letters, digits, hyphens and underscores."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=SLUG_LENGTH, **kwargs)

    def checker(self) -> Check:
        check_text = super().checker()

        def check(value: Any) -> Any:
            clean = check_text(value)
            if type(clean) is Wrong:
                return clean
            if not (clean.isascii() and clean.replace("-", "").replace("_", "").isalnum()):
                return Wrong.at_value("must consist of letters, digits, hyphens and underscores")
            return clean

        return check


class StageInput(AnyJson):
    """A text is kept byte for byte; an object or a list becomes canonical JSON text."""

    def checker(self) -> Check:
        check_text = Text(blank=True, max_bytes=INPUT_BYTES).checker()

        def check(value: Any) -> Any:
            if type(value) not in (dict, list):
                return check_text(value)
            problem = json_problem(value, exact=True)
            if problem:
                return Wrong.at_value(problem)
            try:
                return check_text(rfc8785.dumps(value).decode())
            except rfc8785.CanonicalizationError:
                return Wrong.at_value("must be plain JSON; a date of TOML, for one, must be a string")

        return check


class DefinedApproval(Gated):
    """`expires_in` is seconds."""


class DefinedStage(Shape):
    """One stage of a pipeline. `needs` names the stages it waits for."""

    name = Text(max_length=NAME, control=False)
    handler = Text(max_length=HANDLER, control=False)
    needs = ListOf(child=Text(max_length=NAME), max_length=MOST_STAGES, required=False)
    input = StageInput(required=False)
    description = Text(blank=True, max_length=DESCRIPTION, required=False)
    run_next_if_failed = Flag(required=False)
    mode = OneOf(StageMode.values, required=False)
    effect_mode = OneOf(EffectMode.values, required=False)
    effect_protocol = OneOf(EffectProtocol.values, required=False)
    approval = DefinedApproval(required=False)
    recipients = ListOf(child=Recipient(), max_length=MOST_RECIPIENTS, required=False)
    options = Options(required=False)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        return told_twice(clean.get("recipients") or ())


class DefinedBaseline(Shape):
    """An artifact that the runs of a pipeline build on: a baseline of the workspace."""

    name = Text(max_length=NAME, control=False)
    artifact_id = Identifier()


class DefinedSource(Shape):
    """The code that a pipeline was deployed from, word for word: changed code is another release (N14)."""

    file = Text(max_length=NAME, control=False)
    sha256 = Text(max_length=64)
    text = Text(blank=True, max_bytes=MOST_SOURCE)

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        found = sha256(clean["text"].encode()).hexdigest()
        return [] if clean["sha256"] == found else [("sha256", f"must be the SHA-256 of the text, {found}")]


class InputSchema(AnyJson):
    """A JSON Schema (2020-12) that inputs of runs keep to."""

    def checker(self) -> Check:
        def check(value: Any) -> Any:
            if problem := json_problem(value, exact=True):
                return Wrong.at_value(problem)
            found = input_schemas.problem_of(value)
            return Wrong(found) if found else value

        return check


class Definition(Shape):
    """A pipeline as a document: what `release_definition` reads and `POST /v1/releases` takes."""

    spelling = {"source_": "source"}  # the bare name is DRF's own

    slug = Slug()
    name = Text(max_length=NAME, control=False)
    description = Text(blank=True, max_length=DESCRIPTION, default="")
    stages = ListOf(child=DefinedStage(), min_length=1, max_length=MOST_STAGES)
    limits = Bounds(required=False)
    input_schema = InputSchema(required=False)
    baseline = ListOf(child=DefinedBaseline(), max_length=MOST_BASELINES, required=False)
    source_ = DefinedSource(required=False, source="source")

    @staticmethod
    def rule(clean: dict[str, Any]) -> Problems:
        wrong = limits.problems(clean.get("limits") or {}, clean["stages"])
        wrong = [*wrong, *named_twice(clean.get("baseline") or ())]
        if wrong:
            return wrong
        try:
            resolve_dependencies(
                [stage["name"] for stage in clean["stages"]], [stage.get("needs") for stage in clean["stages"]]
            )
        except GraphError as error:
            field = {"name": "name", "depends_on": "needs"}[error.field]
            return [(f"stages[{error.position}].{field}", str(error))]
        return []


def read_document(raw: bytes, *, toml: bool) -> Any:
    """The document in a definition file. Refused when it cannot be read."""
    if not toml:
        try:
            return parse(raw)
        except Refusal as refusal:
            raise Refusal(refusal.code, refusal.detail.replace("the body", "the file", 1)) from refusal
    try:
        return tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise Refusal("validation_error", f"the file cannot be read as TOML: {error}") from error


def for_pipeline(document: dict[str, Any], slug: str) -> dict[str, Any]:
    """A document as the definition of the pipeline of that slug, which it need not name; refused by its own paths below
    `definition`."""
    checked = Definition.check({"slug": slug, **document})
    problems = checked.below("definition") if type(checked) is Wrong else []
    if not problems and checked["slug"] != slug:
        problems = [("definition.slug", f"must be {slug!r}, the pipeline that it is released for")]
    if problems:
        raise refusal(Wrong(*problems))
    return with_defaults(checked)


def with_defaults(clean: dict[str, Any]) -> dict[str, Any]:
    """A checked definition with everything left out filled in, so that saying a default and leaving it out is one."""
    bounds = limits.Limits.of(clean.get("limits")).as_json()
    filled = {**clean, "stages": [_filled(stage) for stage in clean["stages"]], "limits": bounds}
    if baseline := filled.pop("baseline", None):
        filled["baseline"] = [{**one, "artifact_id": str(one["artifact_id"])} for one in baseline]
    return filled


def _filled(stage: dict[str, Any]) -> dict[str, Any]:
    defaults = {("needs" if name == "depends_on" else name): value for name, value in STAGE_DEFAULTS.items()}
    unsaid = {"effect_protocol": "none", "mode": "execute", "recipients": []}
    told = {name: value for name, value in stage.items() if name not in unsaid or value != unsaid[name]}
    options = {**OPTION_DEFAULTS, **stage.get("options", {})}
    # an empty list waits for what no list waits for
    return {**defaults, **told, "needs": stage.get("needs") or None, "options": options}
