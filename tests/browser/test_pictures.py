"""The documents' pictures: each is there, is small, says in words what it shows, and can be taken anew."""

from __future__ import annotations

import re

import pytest

from config.environment import BASE_DIR
from tests.browser.pictures import FOLDER, LARGEST, PICTURES

DOCUMENTS = [BASE_DIR / "README.md", *(BASE_DIR / "docs").rglob("*.md")]
SHOWN = [
    (document, text, document.parent / address)
    for document in DOCUMENTS
    for text, address in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", document.read_text())
]


def test_every_picture_that_a_document_shows_is_there_and_told_in_words() -> None:
    for document, text, path in SHOWN:
        assert path.resolve().is_file(), f"{document.name}: {path}"
        assert len(text.split()) >= 4, f"{document.name}: {path.name} has no words for who does not see it"


def test_the_target_takes_those_pictures_and_no_others() -> None:
    taken = {f"{picture.name}.png" for picture in PICTURES}
    assert {path.name for path in FOLDER.glob("*")} == taken
    assert {path.name for _, _, path in SHOWN} == taken, "a picture that nothing shows helps nobody"


@pytest.mark.parametrize("name", [picture.name for picture in PICTURES])
def test_a_picture_is_no_heavier_than_a_page(name: str) -> None:
    assert (FOLDER / f"{name}.png").stat().st_size <= LARGEST
