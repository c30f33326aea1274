"""`recourse logs`: lines for people and machines, a page and all of them, and what is added while it is followed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdk.protocol_server import ProtocolServer
from tests.sdk.test_every_command import ANSWERS, ID, LINE, RUN, Say, page, say

__all__ = ["say"]
PATH = f"/v1/executions/{ID}/logs"


def line(number: int, **more: Any) -> dict[str, Any]:
    return LINE | {"id": number, "message": f"line {number}", **more}


def asked(server: ProtocolServer) -> list[str]:
    return [path.partition("?")[2] for path, _ in server.requests if path.partition("?")[0] == PATH]


def test_a_line_tells_when_how_grave_where_and_what(server: ProtocolServer, say: Say) -> None:
    first = line(1, attempt=1, level="WARNING", message="it broke\nat line 9\x1b[31m", fields={})
    server.answers[PATH] = (200, page(first, line(2)))
    said = say("logs", ID)
    assert said.out.splitlines() == [
        "2026-06-01 08:00:00Z  warning  fetch: it broke",
        "    at line 9 [31m",
        '2026-06-01 08:00:00Z  info     fetch (attempt 2): line 2 {"rows": 2}',
    ]


def test_no_line_is_said_and_what_narrows_is_asked_of_the_console(server: ProtocolServer, say: Say) -> None:
    server.answers[PATH] = (200, page())
    said = say(
        "logs", ID, "--stage", "fetch", "--level", "error", "--level", "info", "--attempt-id", ID, "--limit", "5"
    )
    assert (said.status, said.out) == (0, "nothing was logged\n")
    assert asked(server) == [f"attempt_id={ID}&level=error&level=info&stage=fetch&page_size=5"]


def test_a_page_says_that_there_is_more_and_all_pages_can_be_had(
    server: ProtocolServer, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {"": page(line(1)) | {"next": f"{server.url}{PATH}?cursor=abc"}, "cursor=abc": page(line(2))}
    paged(server, monkeypatch, pages)
    said = say("logs", ID)
    assert ("line 1" in said.out, "line 2" in said.out, "there are more" in said.err) == (True, False, True)
    told = json.loads(say("logs", ID, "--all", "--json").out)
    assert ([one["id"] for one in told["results"]], told["next"]) == ([1, 2], None)


def test_what_is_added_is_told_once_until_the_run_has_ended(
    server: ProtocolServer, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came in out of its turn, too; and what was logged just before the end."""
    following = f"{server.url}{PATH}?cursor=abc"
    looks = iter(
        [
            ("running", "", page(line(1), line(2))),
            ("running", "", page(line(1), line(2), line(3)) | {"next": following}),
            ("running", "cursor=abc", page(line(6))),
            ("failed", "cursor=abc", page(line(5), line(6), line(7))),
        ]
    )
    now: dict[str, Any] = {}
    answer = server.answer

    def answered(path: str, body: Any, headers: Any) -> tuple[int, Any]:
        if path.partition("?")[0] == f"/v1/executions/{ID}":
            now["status"], now["query"], now["page"] = next(looks)
            return 200, RUN | {"status": now["status"]}
        if path.partition("?")[0] == PATH:
            assert path.partition("?")[2].removeprefix("page_size=200") == now["query"]
            return 200, now["page"]
        return answer(path, body, headers)

    monkeypatch.setattr(server, "answer", answered)
    said = say("logs", ID, "--follow", "--json", "--every", "0.2")
    assert (said.status, said.err) == (0, "")
    assert [json.loads(one)["id"] for one in said.out.splitlines()] == [1, 2, 3, 6, 5, 7]


def test_following_tells_all_and_takes_no_part_of_a_list(server: ProtocolServer, say: Say) -> None:
    for words in (("--all",), ("--limit", "3"), ("--next", f"{server.url}{PATH}?cursor=abc")):
        said = say("logs", ID, "--follow", *words)
        assert (said.status, said.out, server.requests) == (2, "", [])
        assert "--follow begins with the oldest line" in said.err


def paged(server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, pages: dict[str, Any]) -> None:
    answer = server.answer

    def answered(path: str, body: Any, headers: Any) -> tuple[int, Any]:
        if path.partition("?")[0] != PATH:
            return answer(path, body, headers)
        return 200, pages[path.partition("?")[2].replace("page_size=200", "")]

    assert PATH in ANSWERS
    monkeypatch.setattr(server, "answer", answered)
