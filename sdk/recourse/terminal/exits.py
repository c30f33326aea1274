"""How every command ends. The numbers are fixed: scripts rely on them."""

from __future__ import annotations

import textwrap

DONE, FAULT, REFUSED, STANDS_STILL, WAITS, UNKNOWN, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 4, 5, 130, 141

MEANINGS = {
    DONE: "done; of what was watched: it completed",
    FAULT: "a fault of the command itself",
    REFUSED: "refused, or wrong options; nothing was changed",
    STANDS_STILL: "`run`, `watch` and what waits: it ended without success, or stands still until somebody acts",
    WAITS: "kept, and waits for somebody's approval or review",
    UNKNOWN: "no definite answer; repeat with the same --client-request-id, where there is one",
    INTERRUPTED: "interrupted by Ctrl-C; what runs at the console goes on",
    PIPE_CLOSED: "whoever read the output has gone",
}


class Refused(Exception):
    """The command line itself refuses; nothing was changed. The text says why, for people."""


def as_lines(width: int) -> list[str]:
    """The table, for a terminal of this width."""
    lines: list[str] = []
    for number, meaning in MEANINGS.items():
        lines += textwrap.wrap(meaning, max(width, 20), initial_indent=f"  {number:>3}  ", subsequent_indent=" " * 7)
    return lines
