"""A real pseudo-terminal around a command: what a person would see and type, without another package.

`Screen` reads what was drawn as a terminal does, as far as the command line makes use of it: lines, carriage returns,
moving up, erasing. Colours are left out; `raw` has them.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

_PIECES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\r|\n|\x08|([^\x1b\r\n\x08]+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _as_a_shell_would() -> None:
    """Ctrl-C comes from this terminal, and is minded, also where the tests were started with it ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """`with Terminal([...], width=80) as seen: seen.until("[y/N]"); seen.type("y\\n"); assert seen.end() == 0`."""

    def __init__(
        self, words: Sequence[str], *, environment: Mapping[str, str], width: int = 100, height: int = 40
    ) -> None:
        self.raw = ""
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        told = {"TERM": "xterm-256color", "PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8"}
        self._process = subprocess.Popen(
            list(words),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=told | dict(environment),
            close_fds=True,
            start_new_session=True,
            preexec_fn=_as_a_shell_would,  # noqa: PLW1509
        )
        os.close(follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        os.close(self._leader)

    def until(self, words: str, seconds: float = 30.0) -> str:
        """Reads until these words are on the screen; answers all that is on it."""
        until = time.monotonic() + seconds
        while words not in self.screen:
            assert time.monotonic() < until, f"no {words!r} in time, but:\n{self.screen}"
            if not self._read(0.2) and self._process.poll() is not None and not self._read(0.2):
                assert words in self.screen, f"no {words!r} at all, but:\n{self.screen}"
        return self.screen

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C, as the terminal sends it."""
        self.type("\x03")

    def end(self, seconds: float = 30.0) -> int:
        """The exit code, once everything was read."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < until, f"it does not end:\n{self.screen}"
            self._read(0.1)
        while self._read(0.1):
            pass
        return self._process.returncode

    @property
    def screen(self) -> str:
        return drawn(self.raw)

    @property
    def has_colours(self) -> bool:
        return COLOUR.search(self.raw) is not None

    def _read(self, seconds: float) -> bool:
        if not select.select([self._leader], [], [], seconds)[0]:
            return False
        try:
            read = os.read(self._leader, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.raw += read.decode("utf-8", "replace")
        return bool(read)


def drawn(raw: str) -> str:
    """What a terminal that is high enough shows of this."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in _PIECES.finditer(raw):
        told, kind = piece.group(0), piece.group(2)
        if told == "\n":
            row += 1
        elif told == "\r":
            column = 0
        elif told == "\x08":
            column = max(0, column - 1)
        elif kind == "A":
            row = max(0, row - int(piece.group(1) or 1))
        elif kind == "B":
            row += int(piece.group(1) or 1)
        elif kind == "K":
            erased = len(lines[row]) if piece.group(1) != "2" else column
            lines[row] = lines[row][:column] if piece.group(1) != "2" else [" "] * erased
        elif piece.group(3):
            for sign in piece.group(3):
                lines[row] += [" "] * (column - len(lines[row]))
                lines[row][column : column + 1] = [sign]
                column += 1
        while row >= len(lines):
            lines.append([])
    return "\n".join("".join(line).rstrip() for line in lines).rstrip()
