"""Which console, and as whom: the configuration file with its profiles, the environment, and what was said.

    default = "production"

    [profiles.production]
    url = "https://recourse.example.org"
    token_file = "~/.config/recourse/production.token"

What is said goes first (`--url`, `--profile`), then the environment (`RECOURSE_URL`, `RECOURSE_TOKEN`), then the
profile of `RECOURSE_PROFILE`, or the file's `default`. A profile's token goes to the profile's own address and to no
other. No token is ever taken from the command line, where others can read it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import stat
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recourse.errors import ConfigurationError
from recourse.settings import DEFAULT_URL
from recourse.terminal.exits import DONE
from recourse.terminal.parsing import command, group

SECRETS = ("token", "api_key")
SOURCES = ("", "_file", "_env", "_command")  # token = "…", token_file = "…", and so on
KNOWN = frozenset({"url", *(f"{secret}{source}" for secret in SECRETS for source in SOURCES)})
COMMAND_SECONDS = 30
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class File:
    """The configuration file as it was read; there need not be one."""

    path: Path
    default: str | None = None
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a command asks and as whom, and where each of it is from. `None`: nothing was set."""

    url: str
    url_from: str
    profile: str | None = None
    token: str | None = None
    token_from: str | None = None
    api_key: str | None = None
    api_key_from: str | None = None


def config_path() -> Path:
    """`$XDG_CONFIG_HOME/recourse/config.toml`, else below `~/.config`."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(home if home.startswith("/") else Path.home() / ".config") / "recourse" / "config.toml"


def read_file(note: Note) -> File:
    """The file, checked whole: raises ConfigurationError that names what is wrong. A secret in a file that others can
    read is said."""
    path = config_path()
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return File(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from error
    default, profiles = told.pop("default", None), told.pop("profiles", {})
    if told:
        raise ConfigurationError(f"{path}: unknown: {', '.join(sorted(told))}; there are default and [profiles.NAME]")
    if not isinstance(profiles, dict) or not all(isinstance(one, dict) for one in profiles.values()):
        raise ConfigurationError(f"{path}: a profile is a table: [profiles.NAME]")
    for name, profile in profiles.items():
        _check_profile(path, name, profile)
    if default is not None and default not in profiles:
        raise ConfigurationError(f"{path}: default names no profile there: {_listed(profiles)}")
    if any(secret in profile for profile in profiles.values() for secret in SECRETS):
        _warn_of_readers(path, note)
    return File(path, default, profiles)


def connection(options: argparse.Namespace, note: Note) -> Connection:
    """Where to ask and as whom. Raises ConfigurationError for a profile that is not there, or does not do."""
    file = read_file(note)
    named = options.profile or os.environ.get("RECOURSE_PROFILE") or None
    if named is not None and named not in file.profiles:
        there = f"it has: {_listed(file.profiles)}" if file.profiles else "it has none"
        raise ConfigurationError(f"there is no profile {named} in {file.path}; {there}")
    name = named or file.default
    profile = file.profiles[name] if name else {}
    said = options.profile is not None  # what was said goes before the environment
    url, url_from = _url(options, profile, name, said=said)
    found: dict[str, Any] = {}
    for secret in SECRETS:
        variables = ("RECOURSE_TOKEN",) if secret == "token" else ("RECOURSE_API_KEY", "PIPELOGIQ_API_KEY")  # noqa: S105
        set_one = next((one for one in variables if os.environ.get(one)), None)
        has = [f"{secret}{source}" for source in SOURCES if f"{secret}{source}" in profile]
        of_profile = bool(has) and url.rstrip("/") == profile.get("url", DEFAULT_URL).rstrip("/")
        if of_profile and (said or set_one is None):
            found[secret] = _secret(profile, has[0], note)
            found[f"{secret}_from"] = f"{has[0]} of the profile {name}"
        elif set_one is not None:
            found[secret], found[f"{secret}_from"] = os.environ[set_one], set_one
        elif has:
            found[f"{secret}_from"] = f"nowhere: the profile {name} keeps it for {profile.get('url', DEFAULT_URL)}"
    return Connection(url=url, url_from=url_from, profile=name, **found)


def add_commands(topics: Any) -> None:
    """Adds `config`."""
    verbs = group(
        topics,
        "config",
        "which console is asked, and as whom",
        __doc__ or "",
        ["recourse config show", "recourse config set-profile staging --url https://staging.example.org --default"],
    )
    command(
        verbs,
        "show",
        "tell what holds now, and where each of it is from; never a token",
        _show,
        examples=["recourse config show", "recourse config show --profile staging --json"],
        alone=True,
    )
    command(
        verbs, "path", "print where the configuration file is", _path, examples=["recourse config path"], alone=True
    )
    made = command(
        verbs,
        "set-profile",
        "write a new profile into the file",
        _set_profile,
        examples=[
            "recourse config set-profile production --url https://recourse.example.org"
            " --token-command 'pass show recourse/production' --default",
            "recourse config set-profile staging --url https://staging.example.org --token-env STAGING_TOKEN",
        ],
        description="Writes a new profile into the file, which only you may read then. A profile that is there is"
        " changed in an editor. Without any of the token options, RECOURSE_TOKEN is used.",
        alone=True,
    )
    made.add_argument("name", metavar="NAME", help="letters, digits, - and _")
    how = made.add_mutually_exclusive_group()
    how.add_argument("--token-file", metavar="FILE", help="holds the token, and nothing else")
    how.add_argument("--token-env", metavar="VARIABLE", help="of the environment, that holds it")
    how.add_argument("--token-command", metavar="COMMAND", help="prints it, such as that of a password store")
    made.add_argument("--default", action="store_true", help="take this one when none is named")


def _url(options: argparse.Namespace, profile: Mapping[str, str], name: str | None, *, said: bool) -> tuple[str, str]:
    of_profile = (profile["url"], f"the profile {name}") if "url" in profile else None
    of_environment = (os.environ["RECOURSE_URL"], "RECOURSE_URL") if os.environ.get("RECOURSE_URL") else None
    order = [of_profile, of_environment] if said else [of_environment, of_profile]
    if options.url:
        return options.url, "--url"
    return next((one for one in order if one is not None), (DEFAULT_URL, "nothing else was said"))


def _secret(profile: Mapping[str, str], how: str, note: Note) -> str:
    """The secret from where the profile says that it is; never told, whatever goes wrong."""
    told = profile[how]
    if how.endswith("_file"):
        path = Path(told).expanduser()
        _warn_of_readers(path, note)
        try:
            found = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigurationError(f"{how} {path} cannot be read: {why}") from error
    elif how.endswith("_env"):
        found = os.environ.get(told, "")
    elif how.endswith("_command"):
        found = _printed(how, told)
    else:
        found = told
    if not (found := found.strip()) or not found.isprintable():
        raise ConfigurationError(f"{how} {'' if how in SECRETS else told} gives no secret of one line")
    return found


def _printed(how: str, told: str) -> str:
    try:
        words = shlex.split(told)
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=COMMAND_SECONDS, check=True, text=True)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigurationError(f"{how} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"{how} gave nothing within {COMMAND_SECONDS} seconds") from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"{how} ended with {error.returncode}") from None
    return done.stdout


def _check_profile(path: Path, name: str, profile: Mapping[str, Any]) -> None:
    for key, value in profile.items():
        if key not in KNOWN:
            raise ConfigurationError(f"{path}: [profiles.{name}] has no {key}; there are: {', '.join(sorted(KNOWN))}")
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(f"{path}: [profiles.{name}] {key} is no text")
    for secret in SECRETS:
        if len(several := [f"{secret}{source}" for source in SOURCES if f"{secret}{source}" in profile]) > 1:
            raise ConfigurationError(f"{path}: [profiles.{name}] has {' and '.join(several)}; one of them is enough")


def _warn_of_readers(path: Path, note: Note) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # told when it is read
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        note(f"warning: others can read {path}, which holds a secret; to mend it: chmod 600 {shlex.quote(str(path))}")


def _listed(profiles: Mapping[str, Any]) -> str:
    return ", ".join(profiles) or "none"


def _show(options: argparse.Namespace) -> int:
    found, file = connection(options, options.out.note), config_path()
    told: dict[str, Any] = {
        "file": str(file),
        "file_exists": file.exists(),
        "profile": found.profile,
        "profiles": list(read_file(lambda _: None).profiles),
        "url": found.url,
        "url_from": found.url_from,
        "token": found.token is not None,
        "token_from": found.token_from,
        "api_key": found.api_key is not None,
        "api_key_from": found.api_key_from,
    }
    lines = [
        f"file      {file}{'' if told['file_exists'] else ' (there is none)'}",
        f"profiles  {', '.join(told['profiles']) or '-'}",
        f"profile   {found.profile or '-'}",
        f"url       {found.url} (from {found.url_from})",
        f"token     from {found.token_from or 'nowhere: manage.py issue_token makes one, RECOURSE_TOKEN holds it'}",
        f"api key   from {found.api_key_from or 'nowhere; only start and key:… need one'}",
    ]
    options.out.say(told, lines)
    return DONE


def _path(options: argparse.Namespace) -> int:
    options.out.say({"file": str(config_path())}, [str(config_path())])
    return DONE


def _set_profile(options: argparse.Namespace) -> int:
    file = read_file(options.out.note)
    if not _NAME.fullmatch(options.name):
        raise ConfigurationError(f"{options.name!r} is no name for a profile: letters, digits, - and _")
    if options.name in file.profiles:
        raise ConfigurationError(f"there is a profile {options.name}; to change it: edit {file.path}")
    url = options.url or DEFAULT_URL
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url!r} is not a whole address: --url is such as {DEFAULT_URL}")
    told = {"url": url}
    for how in ("token_file", "token_env", "token_command"):
        if value := getattr(options, how):
            told[how] = value
    if options.default and file.default:
        raise ConfigurationError(f"the default is {file.default}; to change it: edit {file.path}")
    before = file.path.read_text(encoding="utf-8") if file.path.exists() else ""
    block = [f"[profiles.{options.name}]", *(f"{name} = {_toml(value)}" for name, value in told.items())]
    text = "\n".join([before.rstrip("\n"), "", *block, ""] if before.strip() else [*block, ""])
    if options.default:
        text = f"default = {_toml(options.name)}\n\n{text}"
    _write(file.path, text)
    options.out.say({"file": str(file.path), "profile": options.name}, [f"{options.name}: written to {file.path}"])
    return DONE


def _toml(text: str) -> str:
    """A basic string. Raises ConfigurationError for control characters."""
    if not text.isprintable():
        raise ConfigurationError("what goes into the file is one line of text")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write(path: Path, text: str) -> None:
    """The whole file at once, for its owner only."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
