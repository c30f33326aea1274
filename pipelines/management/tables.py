"""Tables for people at a terminal. What is piped gets the same text without colours, wide enough to break no line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

# what moves a cursor, colours a screen or types for whoever looks; workers' messages may hold any of it
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PIPED_WIDTH = 240  # of what no terminal shows


def text_of(output: Any, *shown: RenderableType) -> str:
    """What is shown as text for this output, in colours where it is a terminal that has them."""
    is_terminal = bool(output.isatty())
    console = Console(force_terminal=is_terminal, width=None if is_terminal else PIPED_WIDTH, markup=False)
    with console.capture() as captured:
        for one in shown:
            console.print(one, highlight=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def harmless(text: str) -> str:
    """The text without what a terminal would obey."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Rows under their headings; what rows say is shown as it is, never read as markup."""
    made = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(harmless(cell)) for cell in row))
    return made
