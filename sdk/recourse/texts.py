"""Text and values as UTF-8, JSON and PostgreSQL can hold them."""

from __future__ import annotations

import json
from typing import Any

MOST_JSON = 16_000


def clean(text: str) -> str:
    """Text that UTF-8 and PostgreSQL can hold: NUL and lone surrogates are written as escapes, nothing is lost."""
    return str(text).replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def printable(line: str) -> str:
    """One line as a terminal may show it: nothing that others wrote begins a line, moves the cursor or hides text."""
    return "".join(sign if sign.isprintable() else " " for sign in line)


def shortened(text: str, most: int) -> str:
    """At most `most` characters: beginning and end stay, and what is missing between them is counted."""
    if len(text) <= most:
        return text
    side = (most - 60) // 2
    return f"{text[:side]}\n… {len(text) - 2 * side} characters left out …\n{text[-side:]}"


def loggable(value: Any) -> Any:
    """The value as JSON can hold it; what it cannot hold goes as text."""
    try:
        text = json.dumps(value, allow_nan=False, default=str, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        return clean(repr(value))
    return json.loads(text)


def bounded(value: Any) -> Any:
    """JSON that a server takes with what it is told: a larger value goes as the beginning and end of its text."""
    text = json.dumps(value)
    return value if len(text) <= MOST_JSON else {"shortened": shortened(text, MOST_JSON // 2)}
