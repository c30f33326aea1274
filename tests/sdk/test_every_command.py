"""Every command there is, walked by one table: help that teaches, errors that help, JSON for machines, pipes.

A command that is added without a row in `SAID` fails here.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recourse import cli
from recourse.terminal import exits, reference
from recourse.terminal.parsing import SHARED, Parser

from pipelines.states import DeadLetterReason, DeadLetterState, RunStatus
from recovery.models import BackfillOrder, Reprocess
from recovery.states import BackfillState
from tests.sdk.protocol_server import API_KEY, TOKEN, ProtocolServer

ID = "0197f3a2-5c1e-7d55-8a44-6f1c2b9d7e10"
STAGE = "0197f3a2-5c1e-7d55-8a44-6f1c2b9d7e11"
DIGEST = "d" * 64
AT = "2026-06-01T08:00:00+00:00"
LONG = "A name that is long, with wide signs 参照 and a \x1b[31mcolour of its own"
ESCAPE = re.compile(r"\x1b")

RUN = {
    "execution_id": ID,
    "name": LONG,
    "status": "failed",
    "pipeline": "fx-daily",
    "environment": "production",
    "application": "fx",
    "created_at": AT,
    "started_at": AT,
    "finished_at": AT,
    "updated_at": AT,
    "failure": {"code": "NO_PROOF", "message": "line 9"},
    "progress": {"stages": 4, "done": 1, "stage": "fetch", "stage_status": "failed"},
}
STAGES = [
    {"stage_id": STAGE, "name": "fetch", "status": "failed", "attempt": 2, "epoch": 1, "error_code": "NO_PROOF"},
    {"stage_id": ID, "name": "store", "status": "pending", "attempt": 0, "epoch": 1, "error_code": None},
]
PLAN = {"kind": "retry", "execution_id": ID, "plan_digest": DIGEST, "disposition": "recovery_allowed"}
VERB = PLAN | {"operation_id": ID, "stage_id": STAGE, "status": "succeeded", "stage_status": "ready", "epoch": 2}
RETRIED = {"status": "called_off", "explanation": "patient: once more", "number": 1, "max_retries": 3, "why": "no use"}
LETTER = VERB | {"dead_letter_status": "redriven"}
ACCOUNT = {
    "execution_id": ID,
    "name": LONG,
    "environment": "production",
    "status": "completed",
    "is_paused": False,
    "asked_by": "dana",
    "standing": "the run completed",
    "story": ["somebody did something"],
    "stages": [{"stage_id": STAGE, "name": "fetch", "status": "completed", "standing": "completed", "next": []}],
}
APPROVAL = {
    "id": ID,
    "type": "gate",
    "state": "open",
    "status": "dispatched",
    "stage": "fetch",
    "execution_name": LONG,
    "have": 1,
    "need": 1,
    "plan_digest": None,
}
BACKFILL = {
    "id": ID,
    "backfill_id": ID,
    "trigger": "fx-daily",
    "environment": "production",
    "status": "completed",
    "window": {"from": AT, "to": AT},
    "requested_by": "dana",
    "total_ticks": 3,
    "failed": 0,
    "skipped": 1,
    "ticks": [{"tick_time": AT, "local_time": AT, "status": "pending", "rule": "fixed_time"}],
    "progress": {"ticks": {}, "runs": {"completed": 3}, "active": 0, "held": 0, "eta_seconds": None},
    "plan_digest": DIGEST,
}
EVENT = {"id": ID, "at": AT, "sentence": LONG, "action": "run.cancel", "outcome": "allowed", "request_id": ID}
DEAD = {
    "id": ID,
    "execution_id": ID,
    "stage_id": STAGE,
    "stage": "fetch",
    "execution_name": LONG,
    "reason": "terminal_error",
    "error_code": "MISSING_REQUIRED_DATA",
    "status": "open",
    "opened_at": AT,
}
POLICIES = {
    "stage_id": STAGE,
    "policies": [{"kind": "retry", "winner": {"name": "patient", "rule": {"max_retries": 3}}, "reason": LONG}],
}
STATEMENT = {
    "key": "exactly_once",
    "standing": "not_promised",
    "title": "Exactly once",
    "text": LONG,
    "because": "",
    "see": ["docs/explain/guarantees.md"],
}
READINESS = {
    "environment": "production",
    "release_id": ID,
    "digest": DIGEST,
    "runs": 3,
    "checklist": [
        {"key": "upserts", "title": "Writes merge", "state": "not_known", "why": LONG, "to_do": "", "see": []}
    ],
    "stages": [{"stage": "fetch", "verdict": "declared", "words": "Safe, as it says", "reasons": ["declared: it is."]}],
}
LINE = {
    "id": 7,
    "at": AT,
    "level": "info",
    "message": LONG,
    "fields": {"rows": 2},
    "stage_id": STAGE,
    "stage": "fetch",
    "attempt_id": ID,
    "attempt": 2,
}
WINDOW = ("--from", "2026-05-01T00:00+02:00", "--to", "2026-05-02T00:00+02:00")


def page(*results: Any) -> dict[str, Any]:
    return {"next": None, "previous": None, "results": list(results)}


ANSWERS: dict[str, Any] = {
    "/v1/executions": page(RUN, RUN),
    f"/v1/executions/{ID}": RUN,
    f"/v1/executions/{ID}/stages": page(*STAGES),
    f"/v1/executions/{ID}/blockers": page({"stage": "fetch", "holder": "person", "cause": "failed: retry it"}),
    f"/v1/executions/{ID}/logs": page(LINE, LINE),
    f"/v1/executions/{ID}/account": ACCOUNT,
    f"/v1/executions/{ID}/snapshot": {"execution_id": ID, "status": "failed"},
    f"/v1/executions/{ID}/children": page({"execution_id": ID, "status": "running", "stage": "fetch", "key": "k"}),
    f"/v1/executions/{ID}/run-retry/stop": RETRIED,
    **{f"/v1/executions/{ID}/{verb}": VERB for verb in ("pause", "resume", "rerun", "replay")},
    f"/v1/executions/{ID}/cancel": VERB | {"reconciliation": [{"kind": "effect_open", "detail": "it may arrive"}]},
    **{f"/v1/stages/{STAGE}/{verb}": VERB for verb in ("retry", "skip", "reconcile")},
    f"/v1/stages/{STAGE}/policies": POLICIES,
    f"/v1/stages/{STAGE}/import-request": {"stage": "fetch", "attempt": 1, "request_digest": DIGEST},
    f"/v1/stages/{STAGE}/import": {"stage_status": "completed", "execution_status": "running", "plan_digest": DIGEST},
    "/v1/approvals": page(APPROVAL),
    f"/v1/approvals/{ID}/decision": APPROVAL,
    f"/v1/approvals/{ID}/withdraw": APPROVAL,
    "/v1/dead-letters": page(DEAD, DEAD),
    **{f"/v1/dead-letters/{ID}/{verb}": LETTER for verb in ("acknowledge", "redrive", "discard")},
    "/v1/triggers": page({"id": ID, "name": "fx-daily", "environment": "production"}),
    "/v1/triggers/backfill": BACKFILL,
    "/v1/backfills": page(BACKFILL),
    f"/v1/backfills/{ID}": BACKFILL,
    f"/v1/backfills/{ID}/ticks": page(),
    **{f"/v1/backfills/{ID}/{verb}": BACKFILL for verb in ("pause", "resume", "cancel")},
    "/v1/audit-events": page(EVENT, EVENT),
    "/pipelines/by-idempotency-key": {"id": ID},
    "/pipelines/idempotent": {"created": True, "wasExisting": False, "pipeline": {"id": ID, "status": "queued"}},
    "/v1/guarantees": {"statements": [STATEMENT]},
    "/v1/pipelines/fx-daily/readiness": {"pipeline": "fx-daily", "environments": [READINESS]},
}

# a command → what is said to it, and the exit code; `--json` is added by the tests
SAID: dict[str, tuple[tuple[str, ...], int]] = {
    "status": ((ID,), 0),
    "retry": ((ID, "--stage", "fetch", "--reason", "mended"), 0),
    "run": ((ID,), 0),
    "cancel": ((ID, "--reason", "withdrawn"), 0),
    "export": ((ID, "--stage", "fetch"), 0),
    "import": ((ID, "--stage", "fetch", "answer.json"), 0),
    "start": (("fx-daily", "--key", "fx-1", "--input", '{"day": 1}'), 0),
    "watch": ((ID,), 3),
    "logs": ((ID, "--stage", "fetch", "--level", "info"), 0),
    "execution list": (("--status", "failed", "--status", "blocked", "--created-after", "2h"), 0),
    "execution show": (("key:invoice-7",), 0),
    "execution snapshot": ((ID,), 0),
    "execution pause": ((ID, "--until", "2026-06-01T08:00:00Z"), 0),
    "execution resume": ((ID,), 0),
    "execution cancel": ((ID,), 0),
    "execution rerun": ((ID, "--from-step-id", "fetch"), 0),
    "execution replay": ((ID, "--freeze-release", "--dry-run"), 0),
    "execution stop-retry": ((ID, "--reason", "the file is wrong"), 0),
    "stage retry": ((f"{ID}/fetch", "--scope", "stage_and_downstream", "--reason", "mended"), 0),
    "stage skip": ((STAGE, "--reason", "told by phone", "--output", '{"a": 1}'), 0),
    "stage reconcile": (("key:invoice-7/fetch", "--outcome", "absent", "--note", "looked"), 0),
    "stage policies": ((STAGE,), 0),
    "approval list": (("--view", "mine", "--limit", "5"), 0),
    "approval decide": ((ID, "--approve"), 0),
    "approval withdraw": ((ID,), 0),
    "dead-letter list": (("--status", "open", "--all"), 0),
    "dead-letter acknowledge": ((ID,), 0),
    "dead-letter redrive": ((ID, "--acknowledge-effects"), 0),
    "dead-letter discard": ((ID, "--reason", "left"), 0),
    "backfill plan": (("fx-daily", *WINDOW), 0),
    "backfill start": ((ID, *WINDOW, "--max-concurrent", "3", "--reason", "away"), 0),
    "backfill show": ((ID,), 0),
    "backfill list": (("--trigger", "fx-daily"), 0),
    "backfill watch": ((ID,), 0),
    "backfill pause": ((ID,), 0),
    "backfill resume": ((ID, "--override-reason", "it cannot wait"), 0),
    "backfill cancel": ((ID,), 0),
    "audit": (("--outcome", "denied", "--execution-id", ID), 0),
    "guarantees": (("fx-daily", "--environment", "production"), 0),
    "config show": ((), 0),
    "config path": ((), 0),
    "config set-profile": (("staging", "--token-env", "STAGING"), 0),
    "completion": (("bash",), 0),
}
ELSEWHERE = {"deploy", "mcp", "worker run"}  # with tests of their own
LINES = {"watch", "backfill watch"}  # with --json a document on each line
LISTS = {
    "execution list": "/v1/executions",
    "dead-letter list": "/v1/dead-letters",
    "backfill list": "/v1/backfills",
    "approval list": "/v1/approvals",
    "audit": "/v1/audit-events",
}


def leaves() -> dict[str, Parser]:
    found = (one for one in cli.make_parser().tree() if not one.verbs())
    return {one.prog.removeprefix("recourse "): one for one in found}


LEAVES = leaves()


@dataclass
class Said:
    status: int
    out: str
    err: str


Say = Callable[..., Said]


@pytest.fixture
def say(
    server: ProtocolServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Say:
    """Runs the command line in a pipe, as somebody with a token and their application's key."""
    for name, told in (("URL", server.url), ("TOKEN", TOKEN), ("API_KEY", API_KEY)):
        monkeypatch.setenv(f"RECOURSE_{name}", told)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answer.json").write_text(json.dumps({"request_digest": DIGEST, "output": 1}))
    server.answers |= {path: (200, body) for path, body in ANSWERS.items()}

    def run(*words: str) -> Said:
        try:
            status = cli.main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return run


def test_every_command_is_in_the_table() -> None:
    assert set(SAID) == set(LEAVES) - ELSEWHERE
    assert set(LEAVES) & ELSEWHERE >= {"deploy", "worker run"}


@pytest.mark.parametrize("name", LEAVES)
def test_help_teaches_with_an_example_that_is_one(name: str) -> None:
    """Each example in a help is understood by the parser, and is of the command that it stands at."""
    parser = LEAVES[name]
    examples = [line.strip() for line in parser.format_help().splitlines() if line.startswith(f"  recourse {name}")]
    assert examples or name in ELSEWHERE, f"recourse {name} --help shows no example"
    for example in examples if name not in ELSEWHERE else ():
        words = shlex.split(example.partition(" #")[0].partition(" && ")[0])[1:]
        options = cli.make_parser().parse_args(words)
        assert options.spoken_to.prog == f"recourse {name}"


@pytest.mark.parametrize("name", sorted(SAID))
def test_every_option_says_what_it_means(name: str) -> None:
    unsaid = [one.option_strings or [one.dest] for one in LEAVES[name].arguments() if not one.help]
    assert not unsaid, f"options of {name} without help: {unsaid}"


def test_topics_show_their_verbs_and_what_to_type(say: Say) -> None:
    for topic in (one for one in cli.make_parser().tree() if one.verbs()):
        words = topic.prog.split()[1:]
        shown = say(*words)
        assert (shown.status, shown.out) == (2, ""), "nothing was asked for"
        for verb in topic.verbs():
            assert verb in shown.err
        assert f"  {topic.prog} " in shown.err, "no example"
        assert say(*words, "--help").status == 0


@pytest.mark.parametrize("name", LEAVES)
def test_an_unknown_option_is_named_with_the_nearest_and_asks_nothing(
    server: ProtocolServer, say: Say, name: str
) -> None:
    if name in ELSEWHERE:
        pytest.skip("reads its own words")
    said = say(*name.split(), *SAID[name][0], "--jsom")
    assert (said.status, said.out, server.requests) == (2, "", [])
    assert f"recourse {name}: there is no option --jsom; did you mean --json?" in said.err
    assert f"see: recourse {name} --help" in said.err


@pytest.mark.parametrize("name", [name for name, parser in LEAVES.items() if any(
    one.required for one in parser.arguments()
) and name not in ELSEWHERE])  # fmt: skip
def test_what_is_missing_is_named_and_nothing_is_asked(server: ProtocolServer, say: Say, name: str) -> None:
    said = say(*name.split())
    assert (said.status, said.out, server.requests) == (2, "", [])
    assert "required" in said.err
    assert f"see: recourse {name} --help" in said.err


@pytest.mark.parametrize("name", SAID)
def test_json_is_one_document_that_tells_what_the_console_said(say: Say, name: str) -> None:
    """Of what goes on, one on each line. Nobody is asked, whatever the command."""
    words, code = SAID[name]
    said = say(*name.split(), *words, "--json")
    assert (said.status, said.err) == (code, "")
    documents = said.out.splitlines() if name in LINES else [said.out]
    for document in documents:
        json.loads(document)
    if name != "config set-profile":  # which writes
        assert say("--json", *name.split(), *words).out == said.out, "--json may stand before the command too"


@pytest.mark.parametrize("name", SAID)
def test_in_a_pipe_there_are_no_colours_no_wrapping_and_every_id_is_whole(say: Say, name: str) -> None:
    """What others wrote moves no cursor either."""
    words, code = SAID[name]
    said = say(*name.split(), *words)
    assert (said.status, said.err) == (code, "")
    assert said.out
    assert not ESCAPE.search(said.out)
    if LONG[:20] in said.out:
        assert "with wide signs 参照 and a  [31mcolour of its own" in said.out


@pytest.mark.parametrize("name", LISTS)
def test_a_list_that_goes_on_says_so_and_all_of_it_can_be_had(server: ProtocolServer, say: Say, name: str) -> None:
    path = LISTS[name]
    first, last = ANSWERS[path] | {"next": f"{server.url}{path}?cursor=abc"}, ANSWERS[path]
    server.answers[path] = (200, first)
    said = say(*name.split())
    assert "more" in said.err + said.out
    assert json.loads(say(*name.split(), "--json").out)["next"] == first["next"]
    pages = iter([first, last])
    answer = server.answer
    server.answers.pop(path)
    server.answer = lambda asked, body, headers: (  # type: ignore[method-assign]
        (200, next(pages)) if asked.partition("?")[0] == path else answer(asked, body, headers)
    )
    told = json.loads(say(*name.split(), "--all", "--json").out)
    assert (told["next"], len(told["results"])) == (None, 2 * len(last["results"]))


def test_a_verb_that_is_asked_for_at_the_wrong_place_is_found(server: ProtocolServer, say: Say) -> None:
    for words, hint in (
        (("exection", "list"), "did you mean execution?"),
        (("pause", ID), "did you mean `recourse execution pause`?"),
        (("execution", "puase", ID), "did you mean pause?"),
        (("backfill", "explode"), "there are: plan, start, list"),
    ):
        said = say(*words)
        assert (said.status, said.out, server.requests) == (2, "", [])
        assert hint in said.err


def test_options_are_never_abbreviated(say: Say) -> None:
    """A script means the same when options are added."""
    said = say("execution", "list", "--stat", "failed")
    assert (said.status, "did you mean --status?" in said.err) == (2, True)


def test_choices_are_those_of_the_console() -> None:
    def choices(name: str, option: str) -> set[str]:
        (found,) = (one for one in LEAVES[name].arguments() if option in one.option_strings)
        return set(found.choices or ())

    assert choices("execution list", "--status") == set(RunStatus.values)
    assert choices("dead-letter list", "--status") == set(DeadLetterState.values)
    assert choices("dead-letter list", "--reason") == set(DeadLetterReason.values)
    assert choices("backfill list", "--status") == set(BackfillState.values)
    assert choices("backfill start", "--reprocess") == set(Reprocess.values)
    assert choices("backfill start", "--order") == set(BackfillOrder.values)


def test_the_exit_codes_stand_in_one_table_that_help_and_documents_tell() -> None:
    told = cli.make_parser().format_help()
    howto = Path("docs/howto/command-line.md").read_text()
    for number, meaning in exits.MEANINGS.items():
        assert f"{number:>3}  {meaning.split()[0]}" in told
        assert f"| {number} | {meaning} |" in howto
    numbers = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert numbers == set(exits.MEANINGS)


def test_the_reference_is_what_the_parser_says() -> None:
    told = reference.as_markdown(cli.make_parser())
    assert Path("docs/reference/cli.md").read_text() == told, (
        "write it anew: python -m recourse.terminal.reference > docs/reference/cli.md"
    )
    for name in LEAVES:
        assert f"### recourse {name}\n" in told
    assert all(f"`{name}" in told for name in SHARED)


def test_what_is_no_console_is_said_and_shows_no_stack(server: ProtocolServer, say: Say) -> None:
    """Another server at that address answers 200 with something of its own."""
    for answer in ({}, {"results": None}, {"title": "Welcome"}):
        server.answers["/v1/executions"] = (200, answer)
        said = say("execution", "list")
        assert (said.status, said.out) == (1, "")
        assert f"{server.url} does not answer as a console does" in said.err
        assert "Traceback" not in said.err


@pytest.mark.parametrize("name", ["execution list", "audit", "watch"])
def test_json_carries_whatever_others_wrote_and_moves_no_cursor(server: ProtocolServer, say: Say, name: str) -> None:
    """Escaped where a terminal would obey it; the value is the same."""
    hostile = "参照 \x1b[2J \x9b2J \u202e turned \U000e0041 \x7f"
    server.answers["/v1/executions"] = (200, page(RUN | {"name": hostile}))
    server.answers["/v1/audit-events"] = (200, page(EVENT | {"sentence": hostile}))
    server.answers[f"/v1/executions/{ID}"] = (200, RUN | {"name": hostile})
    told = say(*name.split(), *(SAID[name][0] if name == "watch" else ()), "--json").out
    assert hostile in _texts(json.loads(told))
    assert "参照" in told
    assert all(sign.isprintable() or sign == "\n" for sign in told)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []
