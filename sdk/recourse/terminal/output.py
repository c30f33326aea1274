"""How answers are said: as a table or lines in a terminal, as plain text in a pipe, as JSON for machines.

A terminal gets colours (but for NO_COLOR, --no-color and TERM=dumb) and tables that fit its width: columns that matter
least go first, and where even identifiers do not fit beside another column every row becomes lines of its own. A pipe
gets no colours, no borders, and every value whole.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from recourse.texts import printable

Answer = Mapping[str, Any]
Value = Callable[[Answer], Any]

_BEYOND_ASCII = re.compile(r"[^\n\x20-\x7e]")
NARROWEST_TEXT = 10  # of a column that may be wrapped
GAP = 2
PLAIN = str.maketrans({"→": "->", "…": "...", "—": "-", "–": "-", "·": "-", "█": "#", "░": ".", "✓": "*"})
STYLES = {
    "completed": "green",
    "succeeded": "green",
    "approved": "green",
    "running": "cyan",
    "dispatched": "cyan",
    "ready": "cyan",
    "failed": "red",
    "denied": "red",
    "completed_with_failures": "red",
    "needs_reconciliation": "red",
    "blocked": "red",
    "waiting": "yellow",
    "paused": "yellow",
    "pausing": "yellow",
    "retry_scheduled": "yellow",
    "awaiting_approval": "yellow",
    "open": "yellow",
    "cancelled": "magenta",
    "skipped": "dim",
    "pending": "dim",
    "queued": "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. `rank`: 0 always stays, the highest goes first where it is narrow. `whole`: never wrapped,
    as what is copied must not be: identifiers, times, states. `least`: where narrower, others give way."""

    title: str
    value: str | Value
    rank: int = 0
    whole: bool = False
    least: int = NARROWEST_TEXT
    is_status: bool = False

    def of(self, row: Answer) -> str:
        found = row.get(self.value) if isinstance(self.value, str) else self.value(row)
        return printable("-" if found in (None, "") else str(found))


class Output:
    """Where the answers of one command go."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_json = bool(options.json)
        self.is_terminal = sys.stdout.isatty()
        self.moves = self.is_terminal and os.environ.get("TERM") != "dumb"  # whether the cursor can be sent elsewhere
        self.has_colours = self.moves and not options.no_color and not os.environ.get("NO_COLOR")
        self.has_signs = _has_signs()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # a terminal's own alphabet ends no command

    @property
    def width(self) -> int:
        """Of the terminal as it is now: it may be made wider and narrower."""
        return shutil.get_terminal_size((80, 24)).columns

    @property
    def height(self) -> int:
        return shutil.get_terminal_size((80, 24)).lines

    def document(self, value: Any) -> None:
        """One JSON document."""
        sys.stdout.write(_json(value, indent=2))

    def json_line(self, value: Any) -> None:
        """One JSON document on a line of its own, at once: for what goes on."""
        sys.stdout.write(_json(value))
        sys.stdout.flush()

    def lines(self, lines: Sequence[str]) -> None:
        sys.stdout.write("".join(f"{self.text(line)}\n" for line in lines))
        sys.stdout.flush()

    def say(self, answer: Any, lines: Sequence[str]) -> None:
        """The answer as it came for machines, these lines for people."""
        if self.is_json:
            self.document(answer)
        else:
            self.lines(lines)

    def note(self, text: str) -> None:
        """What is said besides the answer: in the error output, where no machine reads."""
        said = self.text(text)
        sys.stderr.write(f"{said}\n" if said.startswith(" ") else f"recourse: {said}\n")
        sys.stderr.flush()

    def text(self, line: str) -> str:
        """One line as this terminal may show it."""
        line = printable(line)
        return line if self.has_signs else line.translate(PLAIN)

    def page(self, answer: Answer, columns: Sequence[Column], nothing: str) -> None:
        """A page of a list, and how to read on."""
        if self.is_json:
            self.document(answer)
            return
        self.table(columns, answer.get("results") or (), nothing)
        self.tell_more(answer)

    def tell_more(self, answer: Answer) -> None:
        if answer.get("next"):
            self.note("there are more: --limit N up to 200, --all, or --next with the URL that --json tells")

    def table(self, columns: Sequence[Column], rows: Sequence[Answer], nothing: str = "nothing") -> None:
        cells = [[self.text(column.of(row)) for column in columns] for row in rows]
        if not cells:
            self.lines([nothing])
        elif not self.is_terminal:
            self.lines(plain_table([column.title for column in columns], cells))
        else:
            self._fitted(columns, cells)

    def console(self) -> Any:
        """rich's console for what this output is."""
        from rich.console import Console

        # left alone, rich takes a terminal without cursor for one of 80 columns
        size: dict[str, Any] = {} if self.moves else {"width": self.width, "height": self.height}
        return Console(
            file=sys.stdout,
            force_terminal=self.is_terminal,
            no_color=not self.has_colours,
            color_system="standard" if self.has_colours else None,
            highlight=False,
            markup=False,
            emoji=False,
            safe_box=True,
            **size,
        )

    def _fitted(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        kept = fitting(columns, cells, self.width)
        if kept is None:
            self.lines(as_cards(columns, cells, self.width))
            return
        try:
            self.console().print(rich_table(columns, cells, kept, self))
        except ImportError:  # the SDK alone, without what makes it pretty
            self.lines(plain_table([columns[at].title for at in kept], [[row[at] for at in kept] for row in cells]))


def rich_table(columns: Sequence[Column], cells: Sequence[Sequence[str]], kept: Sequence[int], out: Output) -> Any:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold" if out.has_colours else "")
    for at in kept:
        made.add_column(columns[at].title, overflow="fold", no_wrap=columns[at].whole)
    for row in cells:
        styles = [STYLES.get(row[at].replace(" ", "_"), "") if columns[at].is_status else "" for at in kept]
        shown = [Text(row[at], style) for at, style in zip(kept, styles, strict=True)]
        made.add_row(*(one if out.has_colours else one.plain for one in shown))
    return made


def fitting(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Which columns stand side by side in this width, by position; none when those that always stay do not fit."""
    needed = []
    for at, column in enumerate(columns):
        longest = max(cell_width(text) for text in (column.title, *(row[at] for row in cells)))
        needed.append(longest if column.whole else min(longest, max(column.least, cell_width(column.title))))
    kept = list(range(len(columns)))
    while sum(needed[at] + GAP for at in kept) > width:
        last = max(kept, key=lambda at: (columns[at].rank, at))
        if columns[last].rank == 0:
            return None
        kept.remove(last)
    return kept


def as_cards(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """Every row as lines of its own; what must stay whole is never broken, and what is not known is left out."""
    titles = max(len(column.title) for column in columns)
    lines: list[str] = []
    for row in cells:
        first = True
        for column, cell in zip(columns, row, strict=True):
            if cell == "-" and not first:
                continue
            if first:
                lines.append(cell)
            elif column.whole and 2 + titles + GAP + cell_width(cell) > width:
                lines += [f"  {column.title}", f"    {cell}"]
            else:
                indent = " " * (2 + titles + GAP)
                lead = f"  {column.title:<{titles + GAP}}"
                lines += textwrap.wrap(cell, max(width, len(indent) + 8), initial_indent=lead, subsequent_indent=indent)
            first = False
    return lines


def plain_table(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Columns in text, every value whole."""
    rows = [titles, *cells]
    widths = [max(cell_width(row[at]) for row in rows) for at in range(len(titles))]
    return [
        (" " * GAP)
        .join(cell + " " * (width - cell_width(cell)) for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]


def cell_width(text: str) -> int:
    """How many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def time_of(name: str) -> Value:
    """A column's value: the time under this name, to the second."""
    return lambda row: short_time(row.get(name))


def words_of(name: str) -> Value:
    """A column's value: a state as words."""
    return lambda row: words(row.get(name) or "")


def short_time(text: Any) -> str:
    """`2026-06-01 08:00:00Z`; what is no moment stays as it came."""
    try:
        return f"{datetime.fromisoformat(str(text)).astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    except ValueError:
        return str(text or "")


def words(text: Any) -> str:
    return str(text).replace("_", " ")


def _json(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing that others wrote moves a cursor or turns text around, not even at a terminal."""
    text = json.dumps(value, indent=indent, ensure_ascii=not _is_utf8(sys.stdout))
    return _BEYOND_ASCII.sub(lambda sign: sign[0] if sign[0].isprintable() else json.dumps(sign[0])[1:-1], text) + "\n"


def _is_utf8(stream: Any) -> bool:
    return str(getattr(stream, "encoding", "") or "utf-8").lower().replace("-", "").startswith("utf")


def _has_signs() -> bool:
    """Whether arrows and the like are shown: not where the encoding has none, nor where the locale is C by name."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    return _is_utf8(sys.stdout) and locale not in ("C", "POSIX")
