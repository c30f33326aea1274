"""What tests of whole tables rely on: no cell is passed over, none sees another, and each that fails is named."""

from __future__ import annotations

import pytest

from pipelines.models import Workspace
from tests.cells import in_each_cell

pytestmark = pytest.mark.django_db


def test_each_cell_that_does_not_hold_is_named_with_its_reason_and_all_are_looked_at() -> None:
    seen = []

    def held(number: int) -> None:
        seen.append(number)
        assert number % 2 == 0, "it is odd"
        if number == 4:
            Workspace.objects.get(slug="nobody")

    with pytest.raises(pytest.fail.Exception) as failed:
        in_each_cell(range(6), held)
    assert seen == list(range(6))
    told = str(failed.value).splitlines()
    assert told[0] == "4 of 6 cells do not hold"
    assert [line.partition(":")[0] for line in told if line[:1].isdigit()][1:] == ["1", "3", "4", "5"]
    assert "it is odd" in told[1]
    assert "DoesNotExist" in str(failed.value)


def test_what_a_cell_wrote_or_broke_is_undone_before_the_next() -> None:
    def held(slug: str) -> None:
        assert not Workspace.objects.exists()
        Workspace.objects.create(slug=slug, name=slug)
        assert slug != "bad", "after it wrote"

    with pytest.raises(pytest.fail.Exception, match="1 of 3 cells"):
        in_each_cell(["one", "bad", "two"], held)
    assert not Workspace.objects.exists()


def test_a_table_without_cells_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="without cells"):
        in_each_cell([], lambda cell: None)
