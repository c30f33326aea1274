"""Commands without Python: `HANDLER='prog args'` as a worker's option says it, and a file in TOML.

[commands.ThumbnailHandler]
run = ["/usr/local/bin/thumbnail", "--size", "200"]
user = "thumbs"
memory_bytes = 536870912
env = { QUALITY = "80" }
"""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

from recourse.commands import Command, Limits, command
from recourse.errors import ConfigurationError
from recourse.handlers import Registry

OPTIONS = frozenset({"user", "env", "pass_env", "pause_seconds", *Limits.__dataclass_fields__})


def from_option(text: str, **options: Any) -> tuple[str, Command]:
    """`HANDLER=prog args`, the arguments quoted as for a shell, which runs nothing here."""
    name, sign, line = text.partition("=")
    try:
        args = shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(f"--command {name}: {error}") from error
    if not sign or not name.strip() or not args:
        raise ConfigurationError(f"--command is HANDLER='program arguments', not {text!r}")
    return name.strip(), _made(f"--command {name.strip()}", args, options)


def from_file(path: str) -> dict[str, Command]:
    """The commands of a file by their handlers' names. Raises ConfigurationError that names the place."""
    try:
        told = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    tables = told.get("commands")
    if set(told) != {"commands"} or not isinstance(tables, dict) or not tables:
        raise ConfigurationError(f"{path}: it has tables [commands.HANDLER] and nothing else")
    return {name: _from_table(f"{path}: commands.{name}", table) for name, table in tables.items()}


def register(registry: Registry, options: list[str], files: list[str], user: str | None) -> None:
    """Adds all of them; a name that is taken is refused. `user` holds for those given as options."""
    given = dict(from_option(one, user=user) for one in options)
    if len(given) < len(options):
        raise ConfigurationError("--command names a handler twice")
    for found in (given, *(from_file(path) for path in files)):
        for name, made in found.items():
            try:
                registry.add(name, made)
            except ValueError as error:
                raise ConfigurationError(str(error)) from error


def _from_table(where: str, table: Any) -> Command:
    if not isinstance(table, dict) or not isinstance(table.get("run"), list):
        raise ConfigurationError(f'{where}: it needs run = ["program", "argument", …]')
    options = {name: value for name, value in table.items() if name != "run"}
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ConfigurationError(f"{where}: {', '.join(unknown)} is none of {', '.join(sorted(OPTIONS))}")
    is_right = {
        "user": isinstance(options.get("user", ""), str),
        "env": isinstance(options.get("env", {}), dict),
        "pass_env": isinstance(options.get("pass_env", []), list),
        "pause_seconds": isinstance(options.get("pause_seconds", 0), int | float),
    }
    for name, right in is_right.items():
        if not right:
            raise ConfigurationError(f"{where}: {name} is of another kind")
    return _made(where, table["run"], options)


def _made(where: str, args: list[str], options: dict[str, Any]) -> Command:
    try:
        return command(args, **options)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
