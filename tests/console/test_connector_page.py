"""Connectors on screen and in the documents: what the adapters can do is told from one place."""

from __future__ import annotations

from collections.abc import Callable
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from recourse.adapters import connectors, matrix

from config.environment import BASE_DIR
from tests.cast import Person
from tests.console.conftest import Visitor, text_of

pytestmark = pytest.mark.django_db


def test_the_matrix_tells_each_kind_with_what_it_can_and_cannot(operator: Visitor) -> None:
    """N11, N13: those that merge, and that none sends a key where its provider knows none."""
    page = unescape(text_of(operator.get("/console/connectors/")))
    for one in matrix.KINDS:
        assert one.name in page
        assert one.proved in page
    merging = {one.kind for one in matrix.KINDS if one.upsert}
    assert merging >= {"postgresql", "mysql", "sqlserver", "netsuite", "workspace"}
    assert {one.kind for one in matrix.KINDS if one.provider_key != matrix.NO_KEY} == {"http"}
    assert page.count(matrix.NO_KEY) == len(matrix.KINDS) - 1


def test_it_is_found_from_the_pipelines_and_by_viewers_too(
    browse: Callable[[Person], Visitor], people: dict[str, Person]
) -> None:
    viewer = browse(people["viewer"])
    assert "/console/connectors/" in viewer.get("/console/pipelines/").content.decode()
    assert viewer.get("/console/connectors/").status_code == 200


def test_it_asks_the_database_nothing_of_its_own(operator: Visitor) -> None:
    operator.get("/console/connectors/")
    with CaptureQueriesContext(connection) as asked:
        operator.get("/console/connectors/")
    assert not [one for one in asked.captured_queries if "pipelines_pipeline" in one["sql"]]


def test_each_kind_that_can_be_configured_is_in_the_matrix_and_the_other_way_round() -> None:
    """The workspace's store needs no connector."""
    assert {one.kind for one in matrix.KINDS} - {"workspace"} == set(connectors.KINDS)


def test_the_document_has_the_table_as_it_is() -> None:
    """N13: `python -m recourse.adapters.matrix` prints it."""
    document = (BASE_DIR / "docs/reference/connectors.md").read_text()
    assert matrix.as_markdown() in document
