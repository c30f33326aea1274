"""A window onto the console, and what may be asked of the page in it: of any page, whatever it shows.

`faults` names what is wrong with a page as lines of text; an empty list is a page with which nothing is.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import axe_playwright_python
from django.conf import settings
from django.test import Client

from tests.cast import Person

# wider than its window: the page itself scrolls sideways
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# what scrolls and takes no focus, and holds nothing that does
UNREACHABLE = """[...document.querySelectorAll("main *")].filter((part) =>
    /auto|scroll/.test(getComputedStyle(part).overflow) && part.tabIndex < 0
    && !part.querySelector("a, button, summary")
    && (part.scrollHeight > part.clientHeight + 1 || part.scrollWidth > part.clientWidth + 1)
  ).map((part) => part.outerHTML.slice(0, 80))"""
# what the policy would not let through: written into the page, or put there by a script
INLINE = """[...document.querySelectorAll("style, script:not([src]), [style]")].map((part) => part.outerHTML)
    .concat([...document.querySelectorAll("*")].flatMap((part) => [...part.attributes]
        .filter((one) => /^on/.test(one.name)).map((one) => `${part.tagName} ${one.name}`)))"""
SMALL = """[...document.querySelectorAll("main :is(a.btn, button, summary, select, input:not([type=hidden]))")]
    .filter((part) => part.checkVisibility() && !part.matches(".sr, [type=checkbox], [type=radio]"))
    .filter((part) => part.getBoundingClientRect().height < 23.5).map((part) => part.outerHTML.slice(0, 120))"""
# WCAG 2.2 to level AA, and what axe-core calls good practice
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RULES = [*WCAG, "best-practice"]
OF_COLOUR = ["color-contrast", "link-in-text-block"]
ASK_AXE = """([within, runOnly, rules]) => {
    const asked = {runOnly, rules, resultTypes: ["violations"]};
    return axe.run(within, asked).then((found) => found.violations.flatMap((rule) => rule.nodes.map((node) =>
        `${rule.id}: ${node.target.join(" ")} ${node.failureSummary.split("\\n").slice(1).join("; ")}`)));
}"""


class Window:
    """A browser window. `complaints` are its console's errors and what did not load: a broken policy shows there."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self.base = page, base
        self.complaints: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("response", self._answered)

    def go(self, path: str) -> Any:
        return self.page.goto(self.base + path)

    def be(self, person: Person) -> None:
        """Has a session of that person's from here on, and shows the start page."""
        client = Client()
        client.force_login(person.user)
        name = settings.SESSION_COOKIE_NAME
        self.page.context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": self.base}])
        self.go("/console/")

    def log_in(self, person: Person) -> None:
        """The same by the form."""
        self.go("/console/login/")
        self.page.fill("#id_username", person.user.get_username())
        self.page.fill("#id_password", "secret")
        self.page.click("main button.primary")
        self.page.wait_for_url("**/console/")

    def look(self, *, theme: str | None = None, width: int | None = None) -> None:
        """Shows the page in another theme, another width, without asking for it again."""
        if theme:
            self.page.evaluate("(theme) => document.documentElement.dataset.theme = theme", theme)
        if width:
            self.page.set_viewport_size({"width": width, "height": 900})

    def axe(
        self,
        *,
        rules: list[str] | None = None,
        tags: list[str] | None = None,
        within: str = "html",
        colours: bool = True,
    ) -> list[str]:
        """What axe-core finds on the page as it is now, a line for each place; nothing is the aim.

        Colours take it most of its time, and no width changes them: without `colours` it asks for all else.
        """
        self.bring_axe()
        only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": tags or RULES}
        complaints = len(self.complaints)
        left_out = {} if colours else {rule: {"enabled": False} for rule in OF_COLOUR}
        found: list[str] = self.page.evaluate(ASK_AXE, [within, only, left_out])
        # what the policy kept from axe-core's own copies of parts says nothing of the page
        del self.complaints[complaints:]
        return found

    def bring_axe(self) -> None:
        """Has axe-core in the page, as long as the page is there."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(axe_script())

    def faults(self) -> list[str]:
        """What is wrong with how the page lies in its window."""
        wider = self.page.evaluate(TOO_WIDE)
        asked = {"out of reach": UNREACHABLE, "inline": INLINE, "small": SMALL}
        return [
            *([f"wider than its window by {wider}"] if wider > 0 else []),
            *(f"{name}: {one}" for name, question in asked.items() for one in self.page.evaluate(question)),
        ]

    def _note(self, message: Any) -> None:
        # a refused form is answered 4xx, which the browser notes although all is well
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _answered(self, response: Any) -> None:
        """An asset that is not there, and whatever the server could not answer."""
        if response.status >= 500 or (response.status >= 400 and "/static/" in response.url):
            self.complaints.append(f"{response.status} {response.url}")


@cache
def axe_script() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
