"""The parser that all commands share: help that teaches, errors that name the nearest, options that are everywhere."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, NoReturn, cast

from recourse.terminal.exits import REFUSED

WIDEST_HELP = 100
SHARED: Mapping[str, Mapping[str, Any]] = {
    "--json": {"action": "store_true", "help": "for machines: what the console answers"},
    "--profile": {"metavar": "NAME", "help": "of the configuration file (RECOURSE_PROFILE)"},
    "--url": {"help": "the console's address (RECOURSE_URL)"},
    "--no-color": {"action": "store_true", "help": "leave colours out, as with NO_COLOR set"},
}
_AGO = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class HelpFormatter(argparse.HelpFormatter):
    """Paragraphs are wrapped to the terminal; indented lines are examples and tables, and stay as they are."""

    def __init__(self, prog: str, **options: Any) -> None:
        options.setdefault("width", help_width())
        options.setdefault("max_help_position", 26)
        super().__init__(prog, **options)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        """Without the options that every command has, which stand below."""
        super().add_usage(
            usage, [one for one in actions if not set(one.option_strings) & {*SHARED, "-h"}], groups, prefix
        )

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(wrapped(text, width))


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated: what a script says today means the same when options are added."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **options)
        self.set_defaults(spoken_to=self)

    def verbs(self) -> Mapping[str, Parser]:
        """The commands below this one, in their order; none of a command that is whole."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - there is no other name for it
                return cast("Mapping[str, Parser]", action.choices)
        return {}

    def tree(self) -> Iterator[Parser]:
        """This parser and all below it."""
        yield self
        for one in self.verbs().values():
            yield from one.tree()

    def arguments(self) -> Sequence[argparse.Action]:
        return [one for one in self._actions if not isinstance(one, argparse._SubParsersAction)]  # noqa: SLF001

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            options.spoken_to.error(self._unknown(rest[0], options.spoken_to))
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(REFUSED, f"{self.prog}: {message}\n  see: {self.prog} --help\n")

    @staticmethod
    def _unknown(word: str, spoken_to: Parser) -> str:
        if not word.startswith("-"):
            return f"there is one word too many: {word!r}"
        known = [name for one in spoken_to.arguments() for name in one.option_strings]
        return f"there is no option {word.partition('=')[0]}{_nearest(word.partition('=')[0], known)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(one) for one in action.choices]
        hint = _nearest(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            below = [one.prog for one in self.tree() if one.prog.endswith(f" {value}")]
            hint = f"; did you mean `{below[0]}`?" if below else hint
            self.error(f"there is no {value!r}{hint if '?' in hint else '; there are: ' + ', '.join(choices)}")
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(choices)}{hint}")


def help_width() -> int:
    return max(30, min(WIDEST_HELP, shutil.get_terminal_size().columns - 2))


def group(topics: Any, name: str, text: str, description: str = "", examples: Sequence[str] = ()) -> Any:
    """A topic with verbs of its own: what their parsers are added to."""
    made = topics.add_parser(name, help=text, description=description or sentence(text), epilog=_examples(examples))
    return made.add_subparsers(metavar="VERB", title="verbs")


def command(
    topics: Any,
    name: str,
    text: str,
    act: Callable[..., int],
    *,
    examples: Sequence[str],
    description: str = "",
    alone: bool = False,
) -> Any:
    """A command that does something. `act(client, options)` answers its exit code; `alone` it takes the options only,
    and nobody is asked anything. Options that all commands share are added by `share_options`.
    """
    made = topics.add_parser(name, help=text, description=description or sentence(text), epilog=_examples(examples))
    made.set_defaults(act=act, alone=alone, examples=list(examples))
    return made


def share_options(parser: Parser) -> None:
    """Gives every command, and the program itself, the options that mean the same everywhere."""
    for one in parser.tree():
        known = {name for action in one.arguments() for name in action.option_strings}
        shared = one.add_argument_group("everywhere")
        unsaid: dict[str, Any] = {"default": None if one is parser else argparse.SUPPRESS}
        for name, said in SHARED.items():
            if name not in known:
                shared.add_argument(name, **unsaid, **said)


def moment(text: str) -> str:
    """A time for the API: ISO text as it is, or `30m`, `2h`, `3d`, `1w` for that long ago."""
    ago = _AGO.fullmatch(text)
    if ago:
        try:
            return (datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})).isoformat()
        except OverflowError:
            raise argparse.ArgumentTypeError(f"{text!r} is too long ago") from None
    try:
        if datetime.fromisoformat(text).tzinfo is not None:
            return text
    except ValueError:
        pass
    example = "2026-05-20T08:00:00+02:00, or 2h for two hours ago"
    raise argparse.ArgumentTypeError(f"{text!r} is no time with its offset, such as {example}")


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number in these bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """A span of at least a fifth of a second and at most an hour."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.2 <= found <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.2 to 3600")
    return found


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of this width: unindented ones are paragraphs, all others stay as they are."""
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line and not line.startswith(" "):
            paragraph.append(line)
            continue
        if paragraph:
            yield from textwrap.wrap(" ".join(paragraph), width, break_long_words=False, break_on_hyphens=False)
            paragraph = []
        yield line


def _examples(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {one}" for one in examples)]) if examples else ""


def _nearest(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, 1, 0.6)
    return f"; did you mean {near[0]}?" if near else "."
