"""The models of the clients say what the OpenAPI documents say, no more and no less."""

from __future__ import annotations

import typing
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from config import client_models, client_reference
from config.environment import BASE_DIR
from config.openapi import application_schema, operations_schema

WRITE_ANEW = f"the API has changed: {client_models.WRITE_ANEW} writes it anew"


def test_the_models_are_those_of_the_documents() -> None:
    """O11: both ways: what a document has and lacks, its models have and lack."""
    for path, text in client_models.modules().items():
        assert (BASE_DIR / path).read_text() == text, f"{path}: {WRITE_ANEW}"
    written = {BASE_DIR / path for path in client_models.modules()}
    by_hand = {BASE_DIR / client_models.MODELS / name for name in ("__init__.py", "content.py", "pages.py")}
    assert set((BASE_DIR / client_models.MODELS).glob("*.py")) == written | by_hand


def test_the_reference_of_the_clients_is_that_of_their_methods() -> None:
    assert client_reference.PATH.read_text() == client_reference.page(), f"{client_reference.PATH.name}: {WRITE_ANEW}"


def test_a_field_more_or_less_or_of_another_kind_is_another_model() -> None:
    """O11: so that no change of the API goes by unseen."""
    document: Any = operations_schema()
    before = client_models.module(document, "x")
    for change in (
        lambda fields: fields.update(newer={"type": "string"}),
        lambda fields: fields.pop("status"),
        lambda fields: fields.update(status={"type": "integer"}),
        lambda fields: fields["status"].update(nullable=True),
        lambda fields: fields["status"].update(enum=["one", "two"]),
    ):
        changed = deepcopy(document)
        change(changed["components"]["schemas"]["ExecutionView"]["properties"])
        assert client_models.module(changed, "x") != before


def test_models_are_dictionaries_that_may_hold_more_than_is_known() -> None:
    """An older client shows what a newer console adds: nothing is parsed, so nothing is lost."""
    from recourse.models.operations import Signal

    answer: Signal = {"execution_id": "r", "status": "pause_signal_sent", "newer": 1}  # type: ignore[typeddict-unknown-key]
    assert answer == {"execution_id": "r", "status": "pause_signal_sent", "newer": 1}


def test_every_model_can_be_looked_into() -> None:
    """Names resolve, also those of fields that are words of Python's."""
    from recourse.models import application, operations

    found = 0
    for module in (application, operations):
        for value in vars(module).values():
            if typing.is_typeddict(value):
                assert isinstance(typing.get_type_hints(value), dict)
                found += 1
    assert found > 200
    assert "class" in typing.get_type_hints(operations.EffectView)


def test_what_requests_say_is_closed_and_what_answers_say_is_open() -> None:
    """A word that a newer console knows is no surprise to an older client."""
    asked = client_models.asked(operations_schema())
    assert "RetryRequest" in asked
    assert "ExecutionView" not in asked
    text = client_models.module(operations_schema(), "x")
    assert 'scope: NotRequired[Literal["stage", "stage_and_downstream"]]' in text
    assert "    # `queued`, `running`, `waiting`, `pausing`, `paused`, `blocked`," in text


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,12}", fullmatch=True) | st.sampled_from(["class", "from", "import", "a b", "9"]),
        st.sampled_from(
            [
                {"type": "string"},
                {"type": "string", "nullable": True, "description": "words " * 40},
                {"type": "array", "items": {"enum": ["a", "b"], "type": "string"}},
                {"enum": ["long" * 9, "longer" * 9, "longest" * 9, None], "type": "string", "nullable": True},
                {},
                {"type": "object", "additionalProperties": {"type": "integer"}},
            ]
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_whatever_a_document_says_is_python_of_bounded_width(fields: dict[str, Any], is_asked: bool) -> None:
    shape = {"type": "object", "properties": fields, "required": list(fields)[::2], "description": "what it is"}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
    operation = {"responses": {"200": body}} | ({"requestBody": body} if is_asked else {})
    document = {"paths": {"/x": {"post": operation}}, "components": {"schemas": {"Thing": shape}}}
    text = client_models.module(document, "It")
    compile(text, "models.py", "exec")
    assert max(map(len, text.splitlines())) <= 120


def test_the_documents_have_no_shape_without_fields_that_could_be_told() -> None:
    """What answers hold is typed: a bare object is one that holds whatever was given."""
    loose = [
        f"{name}.{field}"
        for document in (operations_schema(), application_schema())
        for name, shape in document["components"]["schemas"].items()
        for field, value in shape.get("properties", {}).items()
        if value.get("type") == "object" and not value.get("additionalProperties") and "properties" not in value
    ]
    free = {field for field in loose if "properties" not in field}
    assert len(free) <= 45, sorted(free)
