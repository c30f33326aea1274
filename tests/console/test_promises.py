"""What the texts promise, and what they must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    ("templates", "*.html"),
    ("docs", "*.md"),
    ("sdk/recourse", "*.py"),
    ("pipelines/console", "*.py"),
    ("recovery", "*.py"),
)
TEXTS = [
    ROOT / "README.md",
    *sorted(path for folder, ending in FOLDERS for path in (ROOT / folder).rglob(ending)),
]
CLAIM = re.compile(r"exactly[ -]once", re.IGNORECASE)
TAKEN_BACK = re.compile(r"\b(not|never|no|nobody|cannot|without)\b", re.IGNORECASE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_is_promised_exactly_once(path: Path) -> None:
    """P6, N5: the words occur only where the same paragraph, or the heading above it, takes them back."""
    heading = ""
    for paragraph in re.split(r"\n\s*\n|</p>", path.read_text()):
        if paragraph.lstrip().startswith("#"):
            heading = paragraph
        if CLAIM.search(paragraph):
            assert TAKEN_BACK.search(CLAIM.sub("", paragraph)) or TAKEN_BACK.search(heading), paragraph


def test_where_people_decide_it_is_said_that_a_log_promises_no_exactly_once() -> None:
    """R6, P6: in the guarantees, on the run's page and beside the checks before a retry."""
    guarantees = " ".join((ROOT / "docs/explain/guarantees.md").read_text().partition("## Not promised")[2].split())
    assert "**Exactly once.**" in guarantees
    assert "A log of our own cannot promise more" in guarantees
    for page in ("runs/_facts.html", "recovery/_check_fields.html"):
        assert "Exactly once is not promised" in (ROOT / "templates" / page).read_text()
