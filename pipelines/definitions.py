"""What a pipeline definition may say. Pure: a document goes in, a definition with its defaults comes out, or a refusal.

One place for the limits and the rules of stages and their options, whichever API they arrive through. What a later
version brings is refused by name, never silently left out. Serves P11–P17, P34–P40, R25 (shape).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import rfc8785

from pipelines.creation import OPTION_DEFAULTS, STAGE_DEFAULTS
from pipelines.errors import Refusal
from pipelines.graph import GraphError, resolve_dependencies

NAME_LENGTH = 255
HANDLER_LENGTH = 300
SLUG_LENGTH = 100
DESCRIPTION_LENGTH = 10_000
INPUT_BYTES = 256 * 1024
OUTPUT_BYTES = 16 * 1024 * 1024
MOST_STAGES = 100
MOST_ERROR_CODES = 100
ERROR_CODE_LENGTH = 100
LONGEST_SECONDS = 365 * 24 * 3600
DEEPEST = 32
DOCUMENT_BYTES = 1024 * 1024

BACKOFFS = ("fixed", "linear", "exponential")
EFFECT_MODES = ("none", "idempotent", "external")
MOMENTS = ("before", "after")

DEFINITION_FIELDS = frozenset({"slug", "name", "description", "stages"})
STAGE_FIELDS = frozenset(
    {
        "name",
        "handler",
        "needs",
        "input",
        "description",
        "mode",
        "effect_mode",
        "effect_protocol",
        "approval",
        "run_next_if_failed",
        "options",
    }
)
APPROVAL_FIELDS = frozenset({"when", "expires_in"})
LATER_DEFINITION_FIELDS = frozenset({"limits", "input_schema"})
LATER_STAGE_FIELDS = frozenset({"recipients"})
LATER_APPROVAL_FIELDS = frozenset({"approver_role", "count", "require_person"})
LATER = "comes with a later version and is not taken yet"

Errors = dict[str, list[str]]


def read_document(text: str, *, toml: bool) -> Any:
    """The document in a definition file. Refused when it cannot be read."""
    try:
        return tomllib.loads(text) if toml else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(
            "validation_error", f"the file cannot be read as {'TOML' if toml else 'JSON'}: {error}"
        ) from error


def validate_definition(document: Any, *, slug: str | None = None) -> dict[str, Any]:
    """The definition that a document describes, every default filled in, so that equal ones have one digest.

    With `slug` the document may leave its own out, and must not name another. Refused with `validation_error` and a
    sentence for each field at fault.
    """
    errors: Errors = {}
    if not isinstance(document, Mapping):
        raise _refusal({"definition": ["must be an object"]})
    if _too_deep(document):
        raise _refusal({"definition": [f"must not be nested deeper than {DEEPEST} levels"]})
    _check_fields(document, DEFINITION_FIELDS, LATER_DEFINITION_FIELDS, "", errors)
    found: dict[str, Any] = {
        "slug": _slug(document.get("slug", slug), slug, errors),
        "name": _text(document, "name", "", errors, longest=NAME_LENGTH, required=True),
        "description": _text(document, "description", "", errors, longest=DESCRIPTION_LENGTH),
        "stages": _stages(document.get("stages"), errors),
    }
    if not errors:
        _check_graph(found["stages"], errors)
    if errors:
        raise _refusal(errors)
    return found


def check_option(name: str, value: Any) -> str | None:
    """What is wrong with a stage option, in words; None when nothing is. Names are the engine's (snake_case)."""
    return OPTION_RULES[name](value)


def check_text(value: Any, longest: int, *, blank: bool = False) -> str | None:
    """What is wrong with a text, in words."""
    if not isinstance(value, str):
        return "must be a string"
    if not blank and not value.strip():
        return "must not be blank"
    if len(value) > longest:
        return f"must have at most {longest} characters"
    if "\x00" in value:
        return "must not contain the character NUL"
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        return "must be valid Unicode"
    return None


def _whole(least: int, most: int) -> Callable[[Any], str | None]:
    def rule(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            return f"must be a whole number from {least} to {most}"
        return None

    return rule


def _seconds(*, positive: bool) -> Callable[[Any], str | None]:
    def rule(value: Any) -> str | None:
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (positive and value == 0) or value > LONGEST_SECONDS:
            return f"must be {'more than 0' if positive else '0 or more'} and at most {LONGEST_SECONDS} seconds"
        return None

    return rule


def _one_of(choices: Iterable[str]) -> Callable[[Any], str | None]:
    def rule(value: Any) -> str | None:
        return None if isinstance(value, str) and value in choices else f"must be one of: {', '.join(choices)}"

    return rule


def _truth(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def check_error_codes(value: Any) -> str | None:
    """What is wrong with a list of error codes, in words."""
    if not isinstance(value, list) or len(value) > MOST_ERROR_CODES:
        return f"must be a list of at most {MOST_ERROR_CODES} error codes"
    for code in value:
        if trouble := check_text(code, ERROR_CODE_LENGTH):
            return f"each code {trouble}"
    return None


OPTION_RULES: dict[str, Callable[[Any], str | None]] = {
    "max_retries": _whole(0, 1000),
    "retry_interval": _seconds(positive=False),
    "retry_on_error_codes": check_error_codes,
    "backoff": _one_of(BACKOFFS),
    "max_retry_interval": _seconds(positive=True),
    "jitter": _truth,
    "timeout": _seconds(positive=True),
    "max_recoveries": _whole(0, 1000),
    "max_output_bytes": _whole(1, OUTPUT_BYTES),
}
expires_in_rule = _whole(1, LONGEST_SECONDS)


def _stages(value: Any, errors: Errors) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_STAGES:
        errors["stages"] = [f"must be a list of 1 to {MOST_STAGES} stages"]
        return []
    return [_stage(stage, f"stages[{position}]", errors) for position, stage in enumerate(value)]


def _stage(value: Any, path: str, errors: Errors) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        errors[path] = ["must be an object"]
        return {}
    _check_fields(value, STAGE_FIELDS, LATER_STAGE_FIELDS, f"{path}.", errors)
    for name, now, later in (("mode", "execute", "import"), ("effect_protocol", "none", "intent")):
        if trouble := _only(value.get(name, now), now, later):
            errors[f"{path}.{name}"] = [trouble]
    return {
        "name": _text(value, "name", path, errors, longest=NAME_LENGTH, required=True),
        "handler": _text(value, "handler", path, errors, longest=HANDLER_LENGTH, required=True),
        "needs": _needs(value.get("needs"), f"{path}.needs", errors),
        "input": _input(value.get("input"), f"{path}.input", errors),
        "description": _text(value, "description", path, errors, longest=DESCRIPTION_LENGTH),
        "effect_mode": _ruled(value, "effect_mode", _one_of(EFFECT_MODES), path, errors),
        "approval": _approval(value.get("approval"), f"{path}.approval", errors),
        "run_next_if_failed": _ruled(value, "run_next_if_failed", _truth, path, errors),
        "options": _options(value.get("options", {}), f"{path}.options", errors),
    }


def _options(value: Any, path: str, errors: Errors) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        errors[path] = ["must be an object"]
        return {}
    _check_fields(value, frozenset(OPTION_RULES), frozenset(), f"{path}.", errors)
    for name in OPTION_RULES.keys() & value.keys():
        if trouble := check_option(name, value[name]):
            errors[f"{path}.{name}"] = [trouble]
    return {**OPTION_DEFAULTS, **value}


def _approval(value: Any, path: str, errors: Errors) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        errors[path] = ["must be an object"]
        return None
    _check_fields(value, APPROVAL_FIELDS, LATER_APPROVAL_FIELDS, f"{path}.", errors)
    if trouble := _one_of(MOMENTS)(value.get("when")):
        errors[f"{path}.when"] = [trouble]
    found = {"when": value.get("when")}
    if "expires_in" in value:
        if trouble := expires_in_rule(value["expires_in"]):
            errors[f"{path}.expires_in"] = [trouble]
        found["expires_in"] = value["expires_in"]
    return found


def _needs(value: Any, path: str, errors: Errors) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        errors[path] = ["must be a list of stage names"]
        return None
    return value


def _input(value: Any, path: str, errors: Errors) -> str | None:
    """A text is kept byte for byte; an object or a list becomes canonical JSON text."""
    if value is None:
        return None
    if isinstance(value, dict | list):
        try:
            value = rfc8785.dumps(value).decode()
        except (rfc8785.CanonicalizationError, UnicodeError, RecursionError):
            errors[path] = [
                "must be JSON that every reader understands alike: finite numbers up to 2^53, valid Unicode"
            ]
            return None
    if trouble := check_text(value, INPUT_BYTES, blank=True):
        errors[path] = [trouble]
        return None
    if len(value.encode()) > INPUT_BYTES:
        errors[path] = [f"must have at most {INPUT_BYTES} bytes"]
    return value


def _slug(value: Any, expected: str | None, errors: Errors) -> str:
    trouble = check_slug(value)
    if trouble is None and expected is not None and value != expected:
        trouble = f"must be {expected!r}, the pipeline that it is released for"
    if trouble:
        errors["slug"] = [trouble]
    return value


def check_slug(value: Any) -> str | None:
    """What is wrong with a slug, in words."""
    letters = isinstance(value, str) and value.isascii() and value.replace("-", "").replace("_", "").isalnum()
    if not letters or len(value) > SLUG_LENGTH:
        return f"must be 1 to {SLUG_LENGTH} letters, digits, hyphens and underscores"
    return None


def _text(
    value: Mapping[str, Any], name: str, path: str, errors: Errors, *, longest: int, required: bool = False
) -> str:
    given = value.get(name, None if required else "")
    if given is None and required:
        trouble: str | None = "is required"
    else:
        trouble = check_text(given, longest, blank=not required)
    if trouble:
        errors[f"{path}.{name}".lstrip(".")] = [trouble]
    return given or ""


def _ruled(value: Mapping[str, Any], name: str, rule: Callable[[Any], str | None], path: str, errors: Errors) -> Any:
    given = value.get(name, STAGE_DEFAULTS[name])
    if trouble := rule(given):
        errors[f"{path}.{name}"] = [trouble]
    return given


def _only(given: Any, now: str, later: str) -> str | None:
    if given == later:
        return f"{later!r} {LATER}"
    return None if given == now else f"must be {now!r}"


def _check_fields(
    value: Mapping[str, Any], known: frozenset[str], later: frozenset[str], path: str, errors: Errors
) -> None:
    for name in value:
        if name in later:
            errors[f"{path}{name}"] = [LATER]
        elif name not in known:
            errors[f"{path}{str(name)[:60]}"] = ["unknown field"]


def _check_graph(stages: list[dict[str, Any]], errors: Errors) -> None:
    try:
        resolve_dependencies([stage["name"] for stage in stages], [stage["needs"] for stage in stages])
    except GraphError as error:
        field = {"name": "name", "depends_on": "needs"}[error.field]
        errors[f"stages[{error.position}].{field}"] = [str(error)]


def _too_deep(document: Any) -> bool:
    level = [document]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _refusal(errors: Errors) -> Refusal:
    first = next(iter(errors))
    return Refusal("validation_error", f"{first}: {errors[first][0]}", errors=errors)
