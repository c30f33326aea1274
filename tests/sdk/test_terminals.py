"""The command line in a real terminal, as somebody sees it who is new to it. Every part of it runs as a process of its
own in a pseudo-terminal; only the console is the small server of these tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sdk.conftest import eventually
from tests.sdk.protocol_server import API_KEY, TOKEN, ProtocolServer, problem
from tests.sdk.pseudo_terminal import Terminal
from tests.sdk.test_every_command import ANSWERS, DIGEST, ELSEWHERE, ID, LONG, PLAN, RUN, SAID, STAGE, STAGES, page

RECOURSE = (sys.executable, "-m", "recourse")
Open = Callable[..., Terminal]


@pytest.fixture
def environment(server: ProtocolServer, tmp_path: Path) -> dict[str, str]:
    server.answers |= {path: (200, body) for path, body in ANSWERS.items()}
    (tmp_path / "answer.json").write_text(json.dumps({"request_digest": DIGEST, "output": 1}))
    root = Path(__file__).parents[2]
    return {
        "RECOURSE_URL": server.url,
        "RECOURSE_TOKEN": TOKEN,
        "RECOURSE_API_KEY": API_KEY,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONPATH": f"{root}:{root / 'sdk'}",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def open_terminal(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.chdir(tmp_path)
    opened = []

    def start(*words: str, width: int = 100, height: int = 40, **more: str) -> Terminal:
        terminal = Terminal([*RECOURSE, *words], environment=environment | more, width=width, height=height)
        opened.append(terminal)
        return terminal.__enter__()

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def widest(screen: str) -> int:
    return max(len(line) for line in screen.splitlines())


@pytest.mark.parametrize("name", [name for name in SAID if name not in ELSEWHERE])
def test_every_command_works_in_a_terminal_of_forty_columns(open_terminal: Open, name: str) -> None:
    """Nothing is asked with --yes, and no id is broken: it stands on one line, to be copied."""
    words, code = SAID[name]
    yes = ("--yes",) if "yes" in open_options(name) else ()
    seen = open_terminal(*name.split(), *words, *yes, width=40)
    assert seen.end() == code, seen.screen
    assert "Traceback" not in seen.screen
    assert seen.screen.count(ID[:13]) == seen.screen.count(ID[:-2]), seen.screen


def open_options(name: str) -> set[str]:
    from tests.sdk.test_every_command import LEAVES

    return {option.lstrip("-") for one in LEAVES[name].arguments() for option in one.option_strings}


def test_a_table_fits_whatever_the_width(open_terminal: Open) -> None:
    """What matters least is left out first; below that every row becomes lines of its own."""
    for width, shows, hides in (
        (200, ("pipeline", "failure", "created"), ()),
        (100, ("name", "environment"), ("pipeline",)),
        (64, ("run", "status"), ("pipeline", "environment")),
        (40, ("  status", "  created"), ()),
    ):
        seen = open_terminal("execution", "list", width=width)
        assert seen.end() == 0
        assert widest(seen.screen) <= width, seen.screen
        assert seen.screen.count(ID) == 2
        for word in shows:
            assert word in seen.screen, (width, word, seen.screen)
        for word in hides:
            assert word not in seen.screen, (width, word, seen.screen)


def test_what_waits_is_a_table_at_a_terminal_and_fits_it(server: ProtocolServer, open_terminal: Open) -> None:
    """P84: with why something is not yours; narrow, each is lines of its own and nothing is left out."""
    own = {"id": STAGE, "type": "operation", "kind": "rerun", "state": "open", "execution_name": "nightly", "have": 1}
    own |= {"need": 2, "requested_by": "dana", "may_decide": False, "why_not": {"detail": "it is your own"}}
    server.answers["/v1/approvals"] = (200, page(own, own | {"may_decide": True, "reason": "the table is back"}))
    for width in (200, 120, 40):
        seen = open_terminal("approval", "list", width=width)
        assert seen.end() == 0
        assert seen.screen.count(STAGE) == 2
        assert "1 of 2" in seen.screen
        assert "rerun of nightly" in seen.screen
        assert widest(seen.screen) <= width
        if width != 120:
            assert "no: it is your own" in seen.screen
            assert "the table is back" in seen.screen


def test_help_fits_forty_columns_but_for_what_is_copied(open_terminal: Open) -> None:
    seen = open_terminal("execution", "rerun", "--help", width=40)
    assert seen.end() == 0
    prose = [line for line in seen.screen.splitlines() if not line.startswith("  recourse")]
    assert all(len(line) <= 40 for line in prose), seen.screen


def test_colours_are_for_terminals_that_want_them(open_terminal: Open) -> None:
    """NO_COLOR, --no-color and a dumb terminal have none, and lose no word by it."""
    coloured = open_terminal("execution", "list", width=120)
    coloured.end()
    assert coloured.has_colours
    assert "\x1b[31mfailed" in coloured.raw
    for words, more in (((), {"NO_COLOR": "1"}), (("--no-color",), {}), ((), {"TERM": "dumb"})):
        plain = open_terminal("execution", "list", *words, width=120, **more)
        assert plain.end() == 0
        assert not plain.has_colours, plain.raw
        assert plain.screen == coloured.screen


def test_a_terminal_without_arrows_gets_what_it_can_show(server: ProtocolServer, open_terminal: Open) -> None:
    moved = [{"stage": "fetch", "was": "failed", "to": "ready", "why": "named"}]
    server.answers[f"/v1/stages/{STAGE}/retry"] = (200, PLAN | {"run_again": moved})
    for more in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}):
        seen = open_terminal("stage", "retry", STAGE, "--reason", "r", "--dry-run", **more)
        assert seen.end() == 0
        assert "fetch  failed -> ready" in seen.screen
    seen = open_terminal("execution", "list", PYTHONIOENCODING="ascii", width=200)
    assert seen.end() == 0
    assert "\\u53c2" in seen.screen, "what it has no sign for is told, and ends no command"
    seen = open_terminal("stage", "retry", STAGE, "--reason", "r", "--dry-run")
    assert seen.end() == 0
    assert "fetch  failed → ready" in seen.screen


def test_with_the_sdk_alone_tables_are_plain_and_watching_is_lines(
    open_terminal: Open, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "without" / "rich").mkdir(parents=True)
    (tmp_path / "without" / "rich" / "__init__.py").write_text("raise ImportError('not installed')")
    bare = {"PYTHONPATH": f"{tmp_path / 'without'}:{environment['PYTHONPATH']}"}
    seen = open_terminal("execution", "list", width=100, **bare)
    assert seen.end() == 0
    assert seen.screen.count(ID) == 2
    assert not seen.has_colours
    seen = open_terminal("watch", ID, **bare)
    assert seen.end() == 3
    assert "run: failed, NO_PROOF" in seen.screen


ASKED = {
    "cancel": (ID,),
    "execution cancel": (ID,),
    "execution rerun": (ID,),
    "execution replay": (ID,),
    "retry": (ID, "--stage", "fetch", "--reason", "mended"),
    "stage retry": (STAGE, "--reason", "mended"),
    "stage skip": (STAGE, "--reason", "told"),
    "stage reconcile": (STAGE, "--outcome", "absent", "--note", "looked"),
    "dead-letter redrive": (ID,),
    "dead-letter discard": (ID, "--reason", "left"),
    "approval decide": (ID, "--approve"),
    "backfill start": (ID, "--from", "2026-05-01T00:00+02:00", "--to", "2026-05-02T00:00+02:00"),
    "backfill cancel": (ID,),
    "import": (ID, "--stage", "fetch", "answer.json"),
}
AT_ONCE = {"execution pause", "execution resume", "dead-letter acknowledge", "run", "approval withdraw"} | {
    "execution stop-retry",
    "backfill pause",
    "backfill resume",
    "start",  # the same key again makes no other run, and a run can be cancelled
}
LOOKS = {"status", "export", "watch", "logs", "audit", "guarantees", "completion"} | {
    f"{topic} {verb}"
    for topic in ("execution", "stage", "approval", "dead-letter", "backfill", "config")
    for verb in ("list", "show", "snapshot", "policies", "plan", "watch", "path", "set-profile")
}


def test_whoever_acts_is_asked_or_it_is_known_why_not() -> None:
    """Nothing falls between: a command asks, acts at once because the act is undone by another, or only looks."""
    assert set(SAID) <= set(ASKED) | AT_ONCE | LOOKS
    assert all("yes" in open_options(name) for name in ASKED)
    assert not any("yes" in open_options(name) for name in AT_ONCE)


@pytest.mark.parametrize("name", ASKED)
def test_before_an_act_the_plan_is_shown_and_no_is_no(server: ProtocolServer, open_terminal: Open, name: str) -> None:
    """What is answered with anything but yes changes nothing; all that was sent are dry runs."""
    seen = open_terminal(*name.split(), *ASKED[name])
    seen.until("do it? [y/N]")
    seen.type("\n")
    assert seen.end() == 2
    assert "not done; nothing was changed" in seen.screen
    acts = [body for _, body in server.requests if body and "idempotencyKey" not in body]
    assert all(body.get("dry_run") for body in acts), acts


@pytest.mark.parametrize("name", [name for name in ASKED if name not in ("backfill cancel", "approval decide")])
def test_with_a_yes_just_that_plan_is_carried_out(server: ProtocolServer, open_terminal: Open, name: str) -> None:
    seen = open_terminal(*name.split(), *ASKED[name])
    seen.until("do it? [y/N]")
    seen.type("y\n")
    assert seen.end() == 0, seen.screen
    looked, acted = [body for _, body in server.requests if body]
    assert looked["dry_run"] is True
    assert (acted["plan_digest"], "dry_run" in acted) == (DIGEST, False)
    assert {**looked, **acted} == {**acted, "dry_run": True}, "what is done is what was looked at"


@pytest.mark.parametrize("words", [("--yes",), ("--json",), ("--plan-digest", DIGEST)])
def test_nobody_is_asked_who_said_so(server: ProtocolServer, open_terminal: Open, words: tuple[str, ...]) -> None:
    seen = open_terminal("execution", "rerun", ID, *words)
    assert seen.end() == 0
    assert "do it?" not in seen.screen
    (body,) = server.bodies("/rerun")
    assert "dry_run" not in body


def test_a_reason_that_is_needed_is_asked_for(server: ProtocolServer, open_terminal: Open) -> None:
    seen = open_terminal("dead-letter", "discard", ID)
    seen.until("why is it discarded?")
    seen.type("the customer has left\n")
    seen.until("do it?")
    seen.type("yes\n")
    assert seen.end() == 0
    assert {body["reason"] for body in server.bodies("/discard")} == {"the customer has left"}


def test_an_interrupt_at_the_question_is_a_no(server: ProtocolServer, open_terminal: Open) -> None:
    seen = open_terminal("execution", "cancel", ID)
    seen.until("do it?")
    seen.interrupt()
    assert seen.end() == 130
    assert "Traceback" not in seen.screen
    assert all(body.get("dry_run") for body in server.bodies("/cancel"))


def test_an_interrupt_ends_a_command_that_waits_for_its_answer(server: ProtocolServer, open_terminal: Open) -> None:
    server.fail("/v1/executions", "hang", times=1)
    seen = open_terminal("execution", "list")
    eventually(lambda: server._faults[0].left == 0)  # it hangs
    seen.interrupt()
    assert seen.end() == 130
    assert "Traceback" not in seen.screen
    server.heal()


def test_a_run_is_watched_live_until_it_ends(server: ProtocolServer, open_terminal: Open) -> None:
    """Drawn anew in place, and the exit code says how it ended."""
    run = RUN | {"status": "running", "name": "nightly", "finished_at": None}
    stages = [STAGES[0] | {"status": "running", "attempt": 1, "error_code": None}, STAGES[1]]
    server.answers[f"/v1/executions/{ID}"] = (200, run)
    server.answers[f"/v1/executions/{ID}/stages"] = (200, page(*stages))
    seen = open_terminal("watch", ID, "--every", "0.2")
    seen.until("nightly in production: running")
    server.answers[f"/v1/executions/{ID}/stages"] = (200, page(*(one | {"status": "completed"} for one in stages)))
    server.answers[f"/v1/executions/{ID}"] = (200, run | {"status": "completed", "finished_at": run["started_at"]})
    assert seen.end() == 0
    assert "nightly in production: completed" in seen.screen
    assert seen.screen.count("fetch") == 1, "it is drawn in place, not below"
    assert "running" not in seen.screen
    assert seen.has_colours


def test_a_run_that_retries_itself_is_watched_on(server: ProtocolServer, open_terminal: Open) -> None:
    """A failure that a policy takes up is not its end; where it was made anew, the new run is named."""
    retry = {"status": "due", "explanation": "patient: once more", "number": 1, "max_retries": 3, "due_at": None}
    server.answers[f"/v1/executions/{ID}"] = (200, RUN | {"run_retry": retry})
    seen = open_terminal("watch", ID, "--every", "0.2")
    seen.until("by policy: due: patient: once more")
    looks = len(server.requests)
    eventually(lambda: len(server.requests) > looks + 4)
    server.answers[f"/v1/executions/{ID}"] = (200, RUN | {"run_retry": retry | {"status": "done", "made": STAGE}})
    assert seen.end() == 3
    assert f"made anew as {STAGE}" in seen.screen


def test_an_interrupt_ends_the_watching_and_says_that_the_run_goes_on(
    server: ProtocolServer, open_terminal: Open
) -> None:
    server.answers[f"/v1/executions/{ID}"] = (200, RUN | {"status": "running"})
    seen = open_terminal("watch", ID)
    seen.until("running")
    seen.interrupt()
    assert seen.end() == 130
    assert f"the run goes on. To look again: recourse watch {ID}" in seen.screen.replace("\n", " ")
    assert "Traceback" not in seen.screen
    assert not server.bodies("/cancel")


def test_a_console_that_is_away_for_a_while_is_waited_for(server: ProtocolServer, open_terminal: Open) -> None:
    server.answers[f"/v1/executions/{ID}"] = (200, RUN | {"status": "running"})
    seen = open_terminal("watch", ID, "--every", "0.2")
    seen.until("running")
    server.fail("", 503, times=7)
    asked = len(server.requests)
    eventually(lambda: len(server.requests) > asked)
    server.answers[f"/v1/executions/{ID}"] = (200, RUN | {"status": "completed"})
    assert seen.end() == 0


def test_many_stages_leave_the_lines_that_there_are_to_those_at_which_something_happens(
    server: ProtocolServer, open_terminal: Open
) -> None:
    many = [{"stage_id": f"{n}", "name": f"stage-{n}", "status": "completed", "attempt": 1} for n in range(60)]
    many[50]["status"] = "failed"
    server.answers[f"/v1/executions/{ID}/stages"] = (200, page(*many))
    seen = open_terminal("watch", ID, height=12)
    assert seen.end() == 3
    assert "stage-50" in seen.screen
    assert "completed" in seen.screen.splitlines()[-1]
    assert len(seen.screen.splitlines()) <= 12


def test_a_backfill_is_watched_as_a_bar(server: ProtocolServer, open_terminal: Open) -> None:
    told = ANSWERS[f"/v1/backfills/{ID}"]
    progress = {"ticks": {"pending": 1}, "runs": {"completed": 1}, "active": 1, "held": 0, "eta_seconds": 90}
    server.answers[f"/v1/backfills/{ID}"] = (200, told | {"status": "running", "progress": progress})
    seen = open_terminal("backfill", "watch", ID, "--every", "0.2")
    seen.until("1 of 3")
    assert "1 completed, 1 active, 1 to be made, 1 had a run, about 2 min left" in seen.screen
    done = progress | {"runs": {"completed": 2, "failed": 1}, "active": 0, "ticks": {}}
    server.answers[f"/v1/backfills/{ID}"] = (200, told | {"status": "completed_with_failures", "progress": done})
    assert seen.end() == 3
    assert "3 of 3" in seen.screen


def test_the_audit_is_followed_event_by_event(server: ProtocolServer, open_terminal: Open) -> None:
    """Each event once, oldest first, whatever comes between two looks."""
    told = ANSWERS["/v1/audit-events"]["results"][0]
    events = [told | {"id": f"e{n}", "sentence": f"event {n}"} for n in range(9, -1, -1)]
    server.answers["/v1/audit-events"] = (200, page(*events[7:]))
    seen = open_terminal("audit", "--follow", "--every", "0.2")
    seen.until("event 2")
    server.answers["/v1/audit-events"] = (200, page(*events))
    seen.until("event 9")
    seen.interrupt()
    assert seen.end() == 130
    assert [line.split("  ")[-1] for line in seen.screen.splitlines() if "event" in line] == [
        f"event {n}" for n in range(10)
    ]


def test_errors_say_what_to_do(server: ProtocolServer, open_terminal: Open) -> None:
    server.answers[f"/v1/executions/{ID}/rerun"] = problem(409, "blackout_active", detail="the freeze holds")
    for words, more, told in (
        (("execution", "rerun", ID, "--yes"), {}, ("blackout_active: the freeze holds", "--override-reason")),
        (("status", ID), {"RECOURSE_TOKEN": "", "RECOURSE_API_KEY": ""}, ("no token", "RECOURSE_TOKEN")),
        (("status", ID), {"RECOURSE_URL": "localhost:8000"}, ("such as http://localhost:8000",)),
        (("status", "0197"), {}, ("names no run", "recourse execution list")),
        (("--profile", "nowhere", "status", ID), {}, ("there is no profile nowhere", "config.toml")),
    ):
        seen = open_terminal(*words, **more)
        assert seen.end() == 2
        for one in told:
            assert one in seen.screen, seen.screen


@pytest.fixture
def run_piped(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Runs a command with a pipe for each of its outputs, and nothing to read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECOURSE_")}
    started = []

    def start(*words: str, stdout: int = subprocess.PIPE, **more: str) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([*RECOURSE, *words], env=kept | environment | more, **streams))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for one in started:
        one.kill()
        with one:  # closes what is open, and waits
            pass


@pytest.mark.parametrize("words", [("execution", "list"), ("watch", ID), ("audit", "--follow"), ("completion", "bash")])
def test_whoever_reads_may_go(run_piped: Callable[..., subprocess.Popen[bytes]], words: tuple[str, ...]) -> None:
    """`recourse … | head -1`: no traceback, and the exit status that other programs have then."""
    reader, writer = os.pipe()
    os.close(reader)
    piped = run_piped(*words, stdout=writer)
    os.close(writer)
    assert (piped.wait(30), piped.communicate()[1]) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [("execution", "list"), ("completion", "bash")])
def test_what_cannot_be_written_is_a_sentence(
    run_piped: Callable[..., subprocess.Popen[bytes]], words: tuple[str, ...]
) -> None:
    with open("/dev/full", "wb") as full:
        piped = run_piped(*words, stdout=full)
    assert piped.wait(30) == 1
    told = piped.communicate()[1]
    assert b"No space left on device" in told
    assert b"Traceback" not in told


def test_in_a_pipe_a_watched_run_is_a_line_per_change(
    server: ProtocolServer, run_piped: Callable[..., subprocess.Popen[bytes]]
) -> None:
    run = RUN | {"status": "running", "failure": None}
    server.answers[f"/v1/executions/{ID}"] = (200, run)
    server.answers[f"/v1/executions/{ID}/stages"] = (200, page(STAGES[0] | {"status": "running", "attempt": 1}))
    piped = run_piped("watch", ID, "--every", "0.2")
    assert piped.stdout is not None
    first = [piped.stdout.readline().decode() for _ in range(2)]
    assert first == ["2026-06-01 08:00:00Z  fetch: running\n", "2026-06-01 08:00:00Z  the run: running\n"]
    seen = len(server.requests)
    eventually(lambda: len(server.requests) > seen + 4)  # looks that found nothing new
    server.answers[f"/v1/executions/{ID}/stages"] = (200, page(STAGES[0]))
    server.answers[f"/v1/executions/{ID}"] = (200, RUN)
    rest = [line.partition("  ")[2] for line in piped.communicate(timeout=30)[0].decode().splitlines()]
    assert sorted(rest) == ["fetch: running → failed, attempt 2, NO_PROOF", "the run: running → failed, NO_PROOF"]
    assert piped.returncode == 3


def test_ids_and_names_are_whole_in_a_pipe_whatever_the_width(
    run_piped: Callable[..., subprocess.Popen[bytes]],
) -> None:
    out, err = run_piped("execution", "list", COLUMNS="20").communicate(timeout=30)
    lines = out.decode().splitlines()
    assert (len(lines), err, b"\x1b" in out) == (3, b"", False)
    assert all(line.split("  ")[0] == ID for line in lines[1:])
    assert LONG.replace("\x1b", " ") in lines[1]
