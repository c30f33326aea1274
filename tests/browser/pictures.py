"""Takes the pictures of the documents, from a console with the samples that it starts for that: `make pictures`.

    python -m tests.browser.pictures [name …]

Each time the same pictures, in docs/pictures; times and ids in them differ. A file there that no line of PICTURES names
is removed, unless single names were asked for.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import sync_playwright

from samples.feeder import FIRST_DAYS
from tests.browser.chromium import CHROMIUM, FLAGS
from tests.config.console_process import BASE_DIR, ConsoleProcess, manage, wait_until

FOLDER = BASE_DIR / "docs/pictures"
LARGEST = 120_000  # bytes
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 780}
COLOURS = 256
PEOPLE = {"olga": "operator", "ana": "approver"}


@dataclass(frozen=True, slots=True)
class Picture:
    """Shown is where `open_page` leads, from the start page; in one theme, at one width."""

    name: str
    open_page: Callable[[Any], object]
    theme: str = "light"
    size: dict[str, int] | None = None


def first(page: Any) -> Any:
    """What the first row of the list leads to."""
    return page.locator("main [data-rows] a").first


def runs(page: Any) -> None:
    page.goto("/console/")


def failed_run(page: Any) -> None:
    page.goto("/console/?error_code=VALIDATION_ERROR")
    first(page).click()
    page.wait_for_url("**/runs/**")


def recovery(page: Any) -> None:
    failed_run(page)
    page.get_by_role("link", name="Retry…").first.click()
    page.get_by_role("dialog").get_by_label("Reason").wait_for()


def branched_run(page: Any) -> None:
    page.goto("/console/?search=month-end")
    first(page).click()
    page.wait_for_url("**/runs/**")


def dead_letters(page: Any) -> None:
    page.goto("/console/dead-letters/")


def inbox(page: Any) -> None:
    page.goto("/console/approvals/")


def decision(page: Any) -> None:
    inbox(page)
    page.get_by_role("link", name="Gate before book").first.click()
    page.get_by_label("Reason").wait_for()


def planner(page: Any) -> None:
    page.goto("/console/triggers/")
    first(page).click()
    page.get_by_role("link", name="Plan a backfill").first.click()
    page.get_by_role("heading", level=1).wait_for()
    page.goto(f"{page.url.split('?')[0]}?from=2026-02-09&to=2026-02-20&month=2026-03")


def backfill(page: Any) -> None:
    page.goto("/console/backfills/")
    first(page).click()
    page.get_by_role("heading", level=1).wait_for()


def bulk(page: Any) -> None:
    page.goto("/console/bulk/")
    first(page).click()
    page.get_by_role("heading", level=1).wait_for()


def at(address: str) -> Callable[[Any], object]:
    return lambda page: page.goto(address)


PICTURES = (
    Picture("runs-light", runs),
    Picture("runs-dark", runs, "dark"),
    Picture("runs-narrow", runs, size=NARROW),
    Picture("run-light", failed_run),
    Picture("run-dark", branched_run, "dark"),
    Picture("run-narrow", failed_run, "dark", NARROW),
    Picture("recovery-light", recovery),
    Picture("recovery-dark", recovery, "dark"),
    Picture("dead-letters-light", dead_letters),
    Picture("approvals-light", inbox),
    Picture("decision-dark", decision, "dark"),
    Picture("planner-light", planner),
    Picture("backfill-dark", backfill, "dark"),
    Picture("bulk-light", bulk),
    Picture("audit-light", at("/console/audit/")),
    Picture("pipelines-light", at("/console/pipelines/")),
    Picture("workers-dark", at("/console/workers/"), "dark"),
)


def main(names: list[str]) -> None:
    wanted = [picture for picture in PICTURES if picture.name in names or not names]
    with samples() as (console, password), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for picture in wanted:
            context = browser.new_context(
                base_url=console.url, viewport=picture.size or WIDE, color_scheme=picture.theme, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto("/console/login/")
            page.get_by_label("Name").fill("admin")
            page.get_by_label("Password").fill(password)
            page.get_by_role("main").get_by_role("button", name="Log in").click()
            page.wait_for_url("**/console/**")
            picture.open_page(page)
            keep(picture.name, page.screenshot())
            context.close()
        browser.close()
    if not names:
        for path in FOLDER.glob("*.png"):
            if path.stem not in {picture.name for picture in PICTURES}:
                path.unlink()


def keep(name: str, shot: bytes) -> None:
    """Writes it with as many colours as it needs to look the same, and no more."""
    path = FOLDER / f"{name}.png"
    image = Image.open(BytesIO(shot)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    sys.stdout.write(f"{path.relative_to(BASE_DIR)}  {size / 1000:.0f} kB\n")
    if size > LARGEST:
        raise SystemExit(f"{name} is too large: {size:,} bytes")


@contextmanager
def samples() -> Iterator[tuple[ConsoleProcess, str]]:
    """A console whose samples have done their first sixty days, and where something waits for people."""
    with tempfile.TemporaryDirectory(prefix="recourse-pictures-") as folder:
        data = Path(folder) / "data"
        data.mkdir()
        console = ConsoleProcess(data, samples=True)
        try:
            lines = console.wait_until_ready()
            password = re.findall(r"with the password (\S+)", lines[-1])[0]
            fill(console, data)
            yield console, password
        finally:
            console.end()


def fill(console: ConsoleProcess, data: Path) -> None:
    tokens = {
        name: manage(data, "issue_token", "--user", name, "--workspace", "samples", "--role", role).stdout.strip()
        for name, role in PEOPLE.items()
    }
    olga = httpx.Client(base_url=console.url, headers={"Authorization": f"Bearer {tokens['olga']}"}, timeout=60)
    billing = httpx.Client(
        base_url=console.url,
        headers={"X-API-Key": (data / "samples" / "billing.key").read_text().strip()},
        timeout=60,
    )
    wait_until(lambda: _ended(olga) >= FIRST_DAYS, seconds=900, why="the first days are not over")

    def validate(name: str, *needs: str, **more: Any) -> dict[str, Any]:
        stage = {"stageName": name, "stageHandlerName": "ValidateInvoiceHandler", "input": '{"invoiceId":"invoice-42"}'}
        return stage | ({"dependsOn": list(needs)} if needs else {}) | more

    asked = {"approval": {"when": "before", "count": 2, "expiresInSeconds": 28_800}}
    month_end = [
        validate("collect"),
        validate("domestic", "collect"),
        validate("foreign", "collect"),
        validate("disputed", "collect"),
        validate("book", "domestic", "foreign", "disputed", **asked),
        validate("report", "book"),
    ]
    done(
        billing.post(
            "/pipelines/idempotent",
            json={"idempotencyKey": "month-end:2026-05", "name": "month-end", "stages": month_end},
        )
    )
    letters = done(olga.get("/v1/dead-letters")).json()["results"]
    done(olga.post(f"/v1/dead-letters/{letters[0]['id']}/acknowledge", json={"reason": "looking into it"}))
    wish = {"kind": "redrive", "filter": {"error_code": "MISSING_REQUIRED_DATA"}, "reason": "the bank published late"}
    done(olga.post("/v1/bulk-operations", json={**wish, "rate": 1, "canary": 5}))
    trigger = done(olga.get("/v1/triggers")).json()["results"][0]["id"]
    window = {"from_time": "2026-03-23T00:00:00+01:00", "to_time": "2026-04-10T23:59:00+02:00"}
    wish = {"trigger_binding_id": trigger, **window, "reason": "the spring was never fetched", "max_concurrent": 2}
    done(olga.post("/v1/triggers/backfill", json=wish))


def done(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise SystemExit(f"{answer.request.url}: {answer.status_code} {answer.text}")
    return answer


def _ended(client: httpx.Client) -> int:
    query = {"pipeline": "fx-daily", "status": ["completed", "failed"], "page_size": 100}
    return len(done(client.get("/v1/executions", params=query)).json()["results"])


if __name__ == "__main__":
    main(sys.argv[1:])
