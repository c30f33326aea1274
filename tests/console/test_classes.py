"""Every class of the style sheet is used somewhere, and every class that is used has a rule: none outlives the other.

Read from the sources: templates, what Python and JavaScript write into pages, and the two style sheets.
"""

from __future__ import annotations

import re
from pathlib import Path

import django.contrib.admin

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "static/recourse"
APPS = ("config", "pipelines", "approvals", "recovery")
SCRIPTS = "".join(path.read_text() for path in sorted(STATIC.glob("*.js")))
# `admin/` overrides pages of Django, with its classes
TEMPLATES = [path for path in sorted((ROOT / "templates").rglob("*.html")) if path.parent.name != "admin"]
# A class is put together where its name ends in what only the page knows.
OPEN_END = "\0"

# used without a rule, and why
WITHOUT_RULE: dict[str, str] = {}
# with a rule that nothing of ours uses, and why
UNUSED: dict[str, str] = {
    "faded": "of a bar of an earlier epoch: templatetags/timeline.py puts it beside `bar` before it writes the class"
}


def test_every_class_that_is_used_has_a_rule_or_is_looked_for_by_a_script() -> None:
    used = {name for name in _used() if OPEN_END not in name}
    asked = set(re.findall(r"\.([a-z][\w-]*)", " ".join(re.findall(r"[\"'`]([^\"'`\n]*)[\"'`]", SCRIPTS))))
    assert sorted(used - _ruled("console.css") - asked - _ruled("admin.css") - set(WITHOUT_RULE)) == []


def test_every_rule_is_about_a_class_that_is_used() -> None:
    used = _used()
    begun = tuple(name.removesuffix(OPEN_END) for name in used if name.endswith(OPEN_END) and name != OPEN_END)
    assert begun, "level-error and its like are put together"
    unused = {name for name in _ruled("console.css") - used if not name.startswith(begun)}
    assert sorted(unused - set(UNUSED)) == []


def test_every_rule_of_the_admin_site_is_about_a_class_of_ours_or_of_djangos() -> None:
    folder = Path(django.contrib.admin.__file__).parent
    theirs = "".join(
        path.read_text() for kind in ("templates/**/*.html", "static/**/*.css") for path in folder.glob(kind)
    )
    theirs += (folder / "templatetags/admin_list.py").read_text()
    ours = "".join(path.read_text() for path in (ROOT / "templates/admin").glob("*.html"))
    known = _used() | _classes_of(ours) | set(re.findall(r"[\w-]+", theirs))
    # a list's cells are called after its fields, its page after its model
    made = ("field-", "model-")
    assert sorted(name for name in _ruled("admin.css") - known if not name.startswith(made)) == []


def test_the_exceptions_are_still_exceptions() -> None:
    assert set(WITHOUT_RULE) <= _used() - _ruled("console.css")
    assert set(UNUSED) <= _ruled("console.css") - _used()


def test_reading_finds_what_it_is_asked_to_find() -> None:
    """What the tests above rest on: conditions inside of a class, blocks that are one, names put together."""
    assert _classes_of('<a class="btn{% if x %} primary{% else %} quiet{% endif %}">') == {"btn", "primary", "quiet"}
    assert _classes_of('<li class="level-{{ one }} row">') == {f"level-{OPEN_END}", "row"}
    assert _classes_of("{% block main_class %} narrow{% endblock %}") == {"narrow"}
    assert _classes_of('<a title="{% if a == "b" %}c{% endif %}" class="d">') == {"d"}
    assert _classes_of(_plain("""f'<a class="tick{" epoch" if one else ""} x-{two}">'""")) == {
        "tick",
        "epoch",
        f"x-{OPEN_END}",
    }
    told = (
        "/* .gone */ .a, .b:not(.c) > d { top: .5rem; content: '.no'; } @media (min-width: 60.01rem) { .e { top: 0 } }"
    )
    assert _selected(told) == {"a", "b", "c", "e"}


def _used() -> set[str]:
    found = {name for path in TEMPLATES for name in _classes_of(path.read_text())}
    for app in APPS:
        for path in (ROOT / app).rglob("*.py"):
            found |= _classes_of(_plain(path.read_text()))
    for names in re.findall(r"classList\.(?:add|toggle)\(([^)]*)\)", SCRIPTS):
        found |= set(re.findall(r"[\"'`]([\w-]+)[\"'`]", names))
    return found | {name for text in re.findall(r"className = [\"'`]([^\"'`]*)", SCRIPTS) for name in text.split()}


def _classes_of(text: str) -> set[str]:
    told = re.sub(r"{#.*?#}", " ", text)
    blocks = re.findall(r"{% block \w*_class %}([^{]*){% endblock %}", told)
    told = re.sub(r"{{.*?}}", OPEN_END, re.sub(r"{%.*?%}", " ", told))
    attributes = re.findall(r"\bclass=\\?\"([^\"\\]*)\\?\"", told)
    return {name for attribute in [*blocks, *attributes] for name in attribute.split()}


def _plain(python: str) -> str:
    """Source whose texts hold, in place of what is filled in, its own texts, or a mark where it has none."""

    def filled(match: re.Match[str]) -> str:
        own = re.findall(r"\"([^\"]*)\"|'([^']*)'", match[1])
        return " ".join(one or other for one, other in own) if own else OPEN_END

    return re.sub(r"\{([^{}\n]*)\}", filled, python)


def _ruled(sheet: str) -> set[str]:
    return _selected((STATIC / sheet).read_text())


def _selected(css: str) -> set[str]:
    told = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    told = re.sub(r"\"[^\"]*\"|'[^']*'", '""', told)
    return set(re.findall(r"\.([a-zA-Z][\w-]*)", " ".join(re.findall(r"([^{};]*){", told))))
