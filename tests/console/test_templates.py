"""Templates, style sheet and script keep to what the strict policy allows, and say what they need."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

ROOT = Path(__file__).resolve().parents[2]
# `admin/` holds overrides of Django's own pages, whose context is Django's.
TEMPLATES = sorted(
    path for path in (ROOT / "templates").rglob("*.html") if path.relative_to(ROOT / "templates").parts[0] != "admin"
)


def test_every_template_declares_its_context_on_its_first_line() -> None:
    silent = [path.name for path in TEMPLATES if not re.match(r"\{# [Cc]ontext: .+ #\}\n", path.read_text())]
    # shown when nothing works, so it has no context at all
    assert silent == ["500.html"]
    assert "{%" not in (ROOT / "templates/500.html").read_text()


def test_no_template_has_a_style_or_a_script_of_its_own() -> None:
    """The policy forbids both; what is here would not work, and must not be made to."""
    forbidden = r"<style\b|\sstyle=|\son[a-z]+=|hx-on|javascript:|hx-vals=.js:|\|safe|autoescape off"
    for path in TEMPLATES:
        text = path.read_text()
        assert re.findall(forbidden, text) == [], path
        assert [tag for tag in re.findall(r"<script\b[^>]*>", text) if "src=" not in tag] == [], path
        assert re.findall(r'(?:src|href)="(?:https?:)?//', text) == [], path


def test_every_part_that_is_fetched_has_an_address_that_works_without_javascript() -> None:
    for path in TEMPLATES:
        links = re.findall(r"<a\b[^>]*hx-get[^>]*>", path.read_text())
        assert [link for link in links if " href=" not in link] == [], path


def test_every_page_sends_the_strict_policy() -> None:
    policy = Client().get("/console/login/").headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy


def test_htmx_is_told_to_add_no_style_and_to_run_no_text() -> None:
    page = Client().get("/console/login/").content.decode()
    for setting in ('"includeIndicatorStyles":false', '"allowEval":false', '"allowScriptTags":false'):
        assert setting in page


def test_what_others_made_is_pinned_with_its_licence_and_its_digest() -> None:
    notes = (ROOT / "static/vendor/README.md").read_text()
    for path in (ROOT / "static/vendor").iterdir():
        if path.name != "README.md":
            line = next(line for line in notes.splitlines() if f"`{path.name}`" in line)
            assert hashlib.sha256(path.read_bytes()).hexdigest() in line
            assert "0BSD" in line


def test_what_pages_ask_for_is_there() -> None:
    wanted = re.findall(r'"/static/([^"]+)"', Client().get("/console/login/").content.decode())
    assert len(wanted) == 5
    assert [name for name in wanted if finders.find(name) is None] == []


@pytest.mark.django_db
def test_the_admin_site_takes_its_colours_from_the_consoles_tokens() -> None:
    """One theme for both, chosen in the console: Django's own dark theme and its switch are not loaded."""
    page = Client().get("/admin/login/").content.decode()
    for name in ("tokens.css", "admin.css", "admin.js"):
        assert f'"/static/recourse/{name}"' in page
    assert "dark_mode.css" not in page
    assert "theme-toggle" not in page
    colours = (ROOT / "static/recourse/admin.css").read_text()
    assert re.findall(r"oklch\(|#[0-9a-f]{3,8}\b(?! [{a])", colours) == [], "colours stand in tokens.css alone"
