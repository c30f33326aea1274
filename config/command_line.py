"""What every management command needs before Django reads its settings: a data directory and its database."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# These need no database, or, like `up`, start it themselves.
WITHOUT_DATABASE = {"help", "version", "--help", "-h", "--version", "up"}


def prepare(arguments: list[str]) -> list[str]:
    """Take `--data DIR` out of a command line (it becomes RECOURSE_DATA) and make the embedded database available.

    The database is the running one, or one that is started for this command's time; with DATABASE_URL nothing is
    started. Ends the process with exit code 2 and one sentence when the database cannot be started or `--data` names
    nothing.
    """
    rest, data = _without_data(arguments)
    if data is not None:
        os.environ["RECOURSE_DATA"] = str(Path(data).absolute())
    command = rest[1] if len(rest) > 1 else "help"
    if (
        not os.environ.get("DATABASE_URL")
        and command not in WITHOUT_DATABASE
        and "--help" not in rest
        and "-h" not in rest
    ):
        _attach()
    return rest


def _without_data(arguments: list[str]) -> tuple[list[str], str | None]:
    rest: list[str] = []
    data = None
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return [*rest, argument, *remaining], data
        if argument == "--data":
            data = next(remaining, "")
        elif argument.startswith("--data="):
            data = argument.removeprefix("--data=")
        else:
            rest.append(argument)
            continue
        if not data:
            sys.exit(_refuse("--data needs a directory"))
    return rest, data


def _attach() -> None:
    import atexit

    from config import embedded
    from config.environment import BASE_DIR

    try:
        attachment = embedded.attach(Path(os.environ.get("RECOURSE_DATA") or BASE_DIR / "var").absolute())
    except embedded.EmbeddedDatabaseError as error:
        sys.exit(_refuse(str(error)))
    atexit.register(attachment.release)


def _refuse(sentence: str) -> int:
    sys.stderr.write(sentence + "\n")
    return 2
