"""The code of a release on its page, and what is otherwise in it than in another."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from html import unescape
from typing import Any

import pytest

from pipelines.console.pipeline_pages import MOST_LINES
from pipelines.definitions import Definition, with_defaults
from pipelines.models import Environment, Pipeline, Release
from pipelines.releases import register_release
from tests.cast import Person
from tests.console.conftest import Visitor, text_of
from tests.factories import PipelineFactory

pytestmark = pytest.mark.django_db

CODE = "async def run(ctx):\n    batches = 1\n    return batches\n"
ATTACK = '# "></pre><script>alert(1)</script>\n'
Deploy = Callable[..., Release]


@pytest.fixture
def deploy(people: dict[str, Person], environment: Environment) -> Deploy:
    pipeline: Pipeline = PipelineFactory(workspace=environment.workspace, slug="nightly", name="Nightly")

    def make(text: str | None, *, activate: bool = False, file: str = "nightly.py", **more: Any) -> Release:
        document = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "run", "handler": "nightly.run"}], **more}
        if text is not None:
            document["source"] = {"file": file, "sha256": sha256(text.encode()).hexdigest(), "text": text}
        definition = with_defaults(Definition.clean(document))
        return register_release(
            actor=people["admin"].actor,
            pipeline=pipeline,
            environment=environment,
            definition=definition,
            activate=activate,
        )[0]

    return make


def page_of(visitor: Visitor, release: Release, **query: str) -> tuple[str, str]:
    """The page's text, and its markup."""
    response = visitor.get(f"/console/pipelines/releases/{release.id}/", query)
    assert response.status_code == 200
    return unescape(text_of(response)), response.content.decode()


def test_the_code_is_shown_with_what_is_otherwise_in_it(operator: Visitor, deploy: Deploy) -> None:
    """N14: line by line, beside the places that differ."""
    old = deploy(CODE, activate=True)
    new = deploy(CODE.replace("= 1", "= 2"))
    text, markup = page_of(operator, new)
    assert "The code: nightly.py" in text
    assert "− batches = 1 + batches = 2" in text
    assert "async def run(ctx):" in text
    assert "source.text" not in text
    assert markup.count("async def run") == 2, "once as code, once beside the lines that differ"
    assert new.source_digest[:12] in text
    back, _ = page_of(operator, old, against=str(new.id))
    assert "− batches = 2 + batches = 1" in back


def test_of_the_same_code_nothing_is_said_to_differ(operator: Visitor, deploy: Deploy) -> None:
    deploy(CODE, activate=True)
    text, markup = page_of(operator, deploy(CODE, limits={"concurrency": 2}))
    assert "code-differences" not in markup
    assert "limits.concurrency" in text


def test_a_release_without_code_has_none_and_shows_what_was_taken_away(operator: Visitor, deploy: Deploy) -> None:
    deploy(CODE, activate=True)
    text, markup = page_of(operator, deploy(None))
    assert "The code" not in text
    assert "− async def run(ctx):" in text
    assert 'id="code"' not in markup


def test_only_so_many_lines_are_shown_and_the_rest_is_counted(operator: Visitor, deploy: Deploy) -> None:
    deploy("\n".join(f"a{number}" for number in range(900)), activate=True)
    text, markup = page_of(operator, deploy("\n".join(f"b{number}" for number in range(900))))
    assert f"{1801 - MOST_LINES:,} more lines are not shown".replace(",", "") in text.replace(",", "")
    assert markup.count("<ins") + markup.count("<del") < MOST_LINES + 10
    text, _ = page_of(operator, deploy("\n".join(f"c{number}" for number in range(3_000))))
    assert "More lies between the first line that differs and the last than is compared here" in text


def test_code_is_shown_as_text_whatever_is_in_it(operator: Visitor, deploy: Deploy) -> None:
    deploy(CODE, activate=True)
    _, markup = page_of(operator, deploy(ATTACK + CODE, file="<script>alert(2)</script>.py"))
    assert "<script>alert" not in markup


def test_another_workspaces_code_is_not_there(
    browse: Callable[[Person], Visitor], outsider: Person, deploy: Deploy
) -> None:
    """I16."""
    release = deploy(CODE, activate=True)
    assert browse(outsider).get(f"/console/pipelines/releases/{release.id}/").status_code == 404
