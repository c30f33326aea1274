"""Writes docs/reference/settings.md from the list of variables: `python -m config.reference`."""

from __future__ import annotations

from config.environment import BASE_DIR, VARIABLES, Variable

PATH = BASE_DIR / "docs" / "reference" / "settings.md"
GROUPS = {
    "console": "Settings of the console",
    "client": "Read by the library and its command line, not by the console",
    "internal": "Set by `up` for its own processes",
    "tests": "Read by the tests",
}
HEAD = """# Settings

All come from environment variables. They are checked before the console starts: a value that cannot be used, and a name
that begins with `RECOURSE_` and is none of these, are refused with a sentence that says what was meant.
`python manage.py check` does the same without starting anything. This page is written from the code by
`python -m config.reference`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group, title in GROUPS.items():
        parts.append(f"\n## {title}\n\n| variable | default | meaning |\n|---|---|---|\n")
        parts.extend(_row(variable) for variable in VARIABLES if variable.group == group)
    return "".join(parts)


def _row(variable: Variable) -> str:
    default = f"`{variable.default}`" if variable.default else "–"
    limits = ""
    if variable.switch:
        limits = " `1`, `true`, `yes`, `on`, or `0`, `false`, `no`, `off`."
    elif variable.choices:
        limits = f" One of {', '.join(f'`{choice}`' for choice in variable.choices)}."
    elif variable.minimum is not None:
        limits = f" From {variable.minimum} to {variable.maximum}."
    return f"| `{variable.name}` | {default} | {variable.help}{limits} |\n"


if __name__ == "__main__":
    PATH.write_text(page())
