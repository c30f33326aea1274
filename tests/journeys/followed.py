"""A tutorial, followed as a reader would: its files are written, its commands typed, what it says they answer compared.

What a page means by its code blocks:

- a line that begins with a name in backquotes and ends with a colon (`invoices.py`:) makes the next block that file;
- a `sh` block is typed into the reader's own terminal, which keeps its folder and its variables, and stops at the first
  command that fails;
- after a line that begins "In a second terminal" (or a third) it is started there and runs on; what ran in that
  terminal before is ended by Ctrl-C first;
- after a line that begins "In the terminal of `make up`" it ends the console there and starts it again;
- a block of no language after a `sh` block is what that answered; `…` stands for what is another one every time.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.config.console_process import BASE_DIR, ConsoleProcess, clean_environment, processes_of
from tests.quick import copy_of

# a shell that was begun with interrupts ignored, as by tests in the background, could never take them again
MINDS_CTRL_C = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('bash', ['bash', *sys.argv[1:]])"
)

TUTORIALS = BASE_DIR / "docs/tutorials"
ADDRESS = "http://localhost:8000"
PORT = "9377"  # where the tutorials' own services listen
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w.-]+\.\w+)`[^\n]*:$")
TERMINAL = re.compile(r"^In (?:a |the )?(second|third|terminal of `make up`)", re.MULTILINE)
OWN, CONSOLE = "own", "terminal of `make up`"


@dataclass(frozen=True)
class Step:
    """`kind` is "file", "typed" or "said"; `where` the file's name, or the terminal's."""

    kind: str
    where: str
    text: str


def steps_of(page: str) -> Iterator[Step]:
    """What a page asks its reader to do, in its order."""
    at = 0
    for block in BLOCK.finditer(page):
        before = page[at : block.start()].strip().rpartition("\n\n")[2]
        at = block.end()
        language, text = block.groups()
        if language == "sh":
            terminal = TERMINAL.match(before)
            yield Step("typed", terminal[1] if terminal else OWN, text)
        elif language == "":
            yield Step("said", OWN, text)
        else:
            named = FILE.match(before.splitlines()[-1])
            assert named is not None, f"which file is this?\n{text}"
            yield Step("file", named[1], text)


def agrees(told: str, said: str) -> bool:
    """Whether this is what the page tells, blanks at the ends of lines aside."""

    def lines(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = re.escape(lines(told)).replace("…", ".*?")
    return re.fullmatch(pattern, lines(said), re.DOTALL) is not None


class Reader:
    """A person with a fresh checkout in which `make up` runs, and as many terminals as a page asks for."""

    def __init__(self, home: Path, tables: Path) -> None:
        self.data_dir = home / "data"
        self.checkout = home / "checkout"
        self.folder = self.checkout
        for folder in (self.data_dir, self.checkout):
            folder.mkdir()
        (self.checkout / ".venv").symlink_to(sys.prefix)
        for name in ("manage.py", "sdk"):
            (self.checkout / name).symlink_to(BASE_DIR / name)
        with socket.create_server(("localhost", 0)) as probe:
            self._port = str(probe.getsockname()[1])
        self._exported = self.checkout / "exported"
        self._others: dict[str, subprocess.Popen[bytes]] = {}
        copy_of(tables, self.data_dir)
        self.console = ConsoleProcess(self.data_dir)
        self.said = ""

    def begin(self) -> None:
        self.console.wait_until_ready()

    def follow(self, page: str) -> None:
        for step in steps_of((TUTORIALS / page).read_text()):
            if step.kind == "file":
                (self.folder / step.where).write_text(self._here(step.text))
            elif step.kind == "said":
                assert agrees(step.text, self.said), f"{page} tells\n{step.text}\nand this was said:\n{self.said}"
            elif step.where == OWN:
                self.said = self.type(step.text)
            elif step.where == CONSOLE:
                self._start_again(step.text)
            else:
                self._run_on(step.where, step.text)

    def type(self, text: str) -> str:
        """What these commands print, in the reader's own terminal."""
        kept = f". {shlex.quote(str(self._exported))}" if self._exported.exists() else ":"
        marks = f"trap 'declare -px > {self._exported}; pwd > {self._exported}.folder' EXIT"
        done = self._bash(f"{kept}; {marks}; set -euo pipefail\n{text}")
        assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        self.folder = Path(self._exported.with_suffix(".folder").read_text().strip())
        return done.stdout

    def close(self) -> None:
        try:
            for other in self._others.values():
                self._interrupt(other)
        finally:
            self.console.end(signal.SIGKILL)
            sys.stderr.write(self.console.log_path.read_text())  # shown with a failed test
            for pid in processes_of(self.data_dir):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _bash(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", self._here(text)],
            env=clean_environment(self.data_dir),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def _here(self, text: str) -> str:
        return text.replace(ADDRESS, self.console.url).replace(PORT, self._port)

    def _run_on(self, terminal: str, text: str) -> None:
        """A fresh terminal in the folder: it knows only what the page has it read."""
        if terminal in self._others:
            self._interrupt(self._others[terminal])
        self._others[terminal] = subprocess.Popen(
            [sys.executable, "-c", MINDS_CTRL_C, "-c", f"set -euo pipefail\n{self._here(text)}"],
            env=clean_environment(self.data_dir),
            cwd=self.folder,
            start_new_session=True,
        )

    @staticmethod
    def _interrupt(process: subprocess.Popen[bytes]) -> None:
        """Ctrl-C: to all that was started in that terminal."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(60)

    def _start_again(self, text: str) -> None:
        """`NAME=VALUE make up`, after Ctrl-C, on the same address."""
        words = shlex.split(self._here(text))
        assert words[-2:] == ["make", "up"], text
        told = dict(word.replace("$PWD", str(self.checkout)).split("=", 1) for word in words[:-2])
        port = self.console.port
        assert self.console.end(signal.SIGINT) == 0
        self.console = ConsoleProcess(self.data_dir, "--port", str(port), environment=told)
        self.console.port = port
        self.console.wait_until_ready()
