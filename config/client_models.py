"""Writes the models of the clients from the OpenAPI documents, and their reference: `python -m config.client_models`.

One module for each document, because both have words of their own for the same things. What a request may say is
closed (`Literal`); what an answer says is open (`str`, with the words known today beside it), so that a newer console's
word is no surprise to an older client.
"""

from __future__ import annotations

import keyword
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]
Json = Mapping[str, Any]

WIDTH = 120
MODELS = Path("sdk") / "recourse" / "models"
WRITE_ANEW = "python -m config.client_models"
NOT_OURS = {"Problem"}  # refusals are exceptions
HEAD = '''"""{title}: what its requests and answers hold.

Written from the OpenAPI document by `{command}`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from recourse.models.pages import Page
'''
TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def modules() -> dict[Path, str]:
    """Every module that is written, by its path in the repository."""
    from config.openapi import application_schema, operations_schema

    return {
        MODELS / "operations.py": module(operations_schema(), "The operations API (`/v1`)"),
        MODELS / "application.py": module(application_schema(), "The application API"),
    }


def module(document: Document, title: str) -> str:
    """One document's shapes as typed dictionaries, by name."""
    shapes = document["components"]["schemas"] | dict(either(document))
    said = asked(document)
    parts = []
    for name in sorted(set(shapes) - NOT_OURS, key=lambda name: ("oneOf" in shapes[name], name)):
        if is_page(name, shapes[name]):
            continue
        parts.append("\n\n" + "\n".join(_Writer(shapes, closed=name in said).model(name)) + "\n")
    head = HEAD.format(title=title, command=WRITE_ANEW)
    text = "".join(parts)
    used = [word for word in ("Any", "Literal", "NotRequired", "TypedDict") if word in text]
    head = head.replace("Any, Literal, NotRequired, TypedDict", ", ".join(used))
    if "Page[" not in text:
        head = head.replace("\nfrom recourse.models.pages import Page\n", "")
    return head + text


def asked(document: Document) -> set[str]:
    """The shapes that requests are made of."""
    shapes = document["components"]["schemas"]
    found: set[str] = set()
    waiting = [
        name
        for operations in document["paths"].values()
        for operation in operations.values()
        if isinstance(operation, dict)
        for name in _named(operation.get("requestBody", {}))
    ]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _named(shapes[name])
    return found


def either(document: Document) -> Iterator[tuple[str, Json]]:
    """What a call answers that was done at once, or was only asked for: of its fields some are missing in each."""
    shapes = document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            answers = answers_of(operation, shapes) if "responses" in operation else []
            if len(answers) > 1:
                merged: dict[str, Any] = {"properties": {}, "required": set(shapes[answers[0]]["required"])}
                for shape in (shapes[name] for name in answers):
                    merged["properties"] |= shape["properties"]
                    merged["required"] &= set(shape["required"])
                merged["description"] = shapes[answers[0]].get("description", "")
                yield "Or".join(answers), merged


def answers_of(operation: Json, shapes: Mapping[str, Json]) -> list[str]:
    """The shapes of what an operation answers once it is no dry run."""
    found = []
    for status, answer in operation["responses"].items():
        for content in answer.get("content", {}).values() if status.startswith("2") else ():
            shape = content["schema"]
            while "oneOf" in (named := shapes[_name(shape)] if "$ref" in shape else {}):
                shape = named["oneOf"][0]  # the others are what a dry run answers
            if "$ref" in shape and _name(shape) not in found:
                found.append(_name(shape))
    return found


def is_page(name: str, shape: Json) -> bool:
    return name.endswith("Page") and set(shape.get("properties", ())) == {"next", "previous", "results"}


class _Writer:
    def __init__(self, shapes: Mapping[str, Json], *, closed: bool) -> None:
        self._shapes = shapes
        self._closed = closed

    def model(self, name: str) -> Iterator[str]:
        shape = self._shapes[name]
        fields = shape.get("properties", {})
        if "oneOf" in shape:
            yield f"{name} = {' | '.join(_name(one) for one in shape['oneOf'])}"
        elif any(keyword.iskeyword(field) or not field.isidentifier() for field in fields):
            yield f"{name} = TypedDict("  # a field's name is a word of Python's
            yield f'    "{name}",'
            yield "    {"
            for field, value in fields.items():
                yield from self._field(shape, field, value, quoted=True)
            yield "    },"
            yield ")"
            yield from _words(shape.get("description", ""), "")
        else:
            yield f"class {name}(TypedDict):"
            words = list(_words(shape.get("description", ""), "    "))
            yield from words
            if words and fields:
                yield ""
            for field, value in fields.items():
                yield from self._field(shape, field, value)
            if not words and not fields:
                yield "    pass"

    def _field(self, shape: Json, field: str, value: Json, *, quoted: bool = False) -> Iterator[str]:
        kind = self.type(value)
        required = field in shape.get("required", ())
        if quoted:
            kind = kind if '"' in kind else f'"{kind}"'  # a choice names no other model, and may be broken
            text = f'"{field}": ' + (kind if required else f"NotRequired[{kind}]") + ","
        else:
            text = f"{field}: " + (kind if required else f"NotRequired[{kind}]")
        indent = "        " if quoted else "    "
        remark = self._remark(value)
        for line in textwrap.wrap(remark, WIDTH - len(indent) - 2):
            yield f"{indent}# {line}"
        yield from _broken(indent + text)

    def _remark(self, value: Json) -> str:
        words = value.get("description", "")
        inner = value.get("items", value)
        known = "" if self._closed or "enum" not in inner else ", ".join(f"`{word}`" for word in inner["enum"] if word)
        if "enum" in inner:
            words = "\n".join(line for line in words.splitlines() if not line.startswith("* `"))
        return ": ".join(part for part in (" ".join(words.split()), known) if part)

    def type(self, value: Json) -> str:
        """A field's type, in Python's words."""
        kind = self._bare(value)
        return f"{kind} | None" if value.get("nullable") and kind != "Any" else kind

    def _bare(self, value: Json) -> str:
        if "$ref" in value:
            name = _name(value)
            if is_page(name, self._shapes[name]):
                return f"Page[{self.type(self._shapes[name]['properties']['results']['items'])}]"
            return name
        if "allOf" in value:
            (only,) = value["allOf"]
            return self._bare(only)
        if "enum" in value and self._closed:
            return "Literal[" + ", ".join(f'"{word}"' for word in value["enum"] if word is not None) + "]"
        if value.get("type") == "array":
            return f"list[{self.type(value['items'])}]"
        if value.get("type") == "object":
            more = value.get("additionalProperties")
            return f"dict[str, {self.type(more)}]" if isinstance(more, Mapping) and more else "dict[str, Any]"
        if value.get("format") == "binary":
            return "bytes"
        return TYPES.get(value.get("type", ""), "Any")


def _broken(line: str) -> Iterator[str]:
    """A line, or several where it is longer than the page: one word of a long choice on each."""
    head, bracket, tail = line.partition("Literal[")
    if len(line) <= WIDTH or not bracket:
        yield line
        return
    indent = " " * (len(line) - len(line.lstrip()))
    choices, _, rest = tail.partition("]")
    outer = head.endswith("NotRequired[")
    inside = indent + ("        " if outer else "    ")
    if outer:
        yield head
        yield f"{indent}    Literal["
    else:
        yield head + bracket
    for choice in choices.split(", "):
        yield f"{inside}{choice},"
    if outer:
        yield f"{indent}    ]"
        yield f"{indent}{rest}"
    else:
        yield f"{indent}]{rest}"


def _words(text: str, indent: str) -> Iterator[str]:
    """A docstring, wrapped; nothing for none."""
    words = " ".join(text.split())
    if not words:
        return
    ending = '"""'
    lines = textwrap.wrap(words, WIDTH - len(indent) - len(ending), initial_indent=ending)
    if len(lines) == 1 and len(indent + lines[0] + ending) <= WIDTH:
        yield indent + lines[0] + ending
        return
    yield from (indent + line for line in lines)
    yield indent + ending


def _named(value: Any) -> Iterator[str]:
    """The shapes that a part of a document names."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield _name(value)
        for inner in value.values():
            yield from _named(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner)


def _name(value: Json) -> str:
    name: str = value["$ref"].rsplit("/", 1)[1]
    return name


def write(root: Path) -> list[Path]:
    """Writes what differs; returns which that was."""
    changed = []
    for path, text in modules().items():
        if not (root / path).exists() or (root / path).read_text() != text:
            (root / path).write_text(text)
            changed.append(path)
    return changed


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    from config.environment import BASE_DIR

    for written in write(BASE_DIR):
        print(written)  # noqa: T201
    from config import client_reference

    client_reference.PATH.write_text(client_reference.page())
