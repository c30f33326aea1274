"""Pipelines written as code: what their context offers, how they are marked, and how a file of them is read."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recourse import Job, Recipient, Registry, StageContext, default_registry, execution
from recourse.authoring import Context, Pipeline, Retries, Stage, load, load_handlers, pipeline, register, stage
from recourse.authoring.loading import OTHER_CODE
from recourse.errors import ConfigurationError, Release, StageFailure
from recourse.links import Recorder

# Source 004, technique 1, word for word.
UPSERT = """
async def run(ctx):
    invoices = await ctx.adapters.netsuite.read(
        {"collection": "invoices", "updated_after": ctx.params["since"]}
    )
    rows = [{"invoice_id": i["id"], "amount": i["amount"], "status": i["status"]}
            for i in invoices]

    # Idempotent: upsert on the target's key column instead of inserting duplicates.
    await ctx.adapters.postgres.write(rows, op="upsert")
    await ctx.logger.info("upserted invoices", count=len(rows))
    return {"upserted": len(rows)}
"""

TWO_STAGES = '''
from recourse.authoring import Context, Retries, pipeline, stage


@stage(effects="none")
async def read(ctx: Context) -> list[int]:
    """Reads the numbers."""
    return list(range(ctx.params["count"]))


@stage(needs=[read], retries=Retries(times=3, every=0.5, backoff="exponential", on=["BUSY"]), effects="idempotent")
async def send(ctx: Context) -> dict[str, int]:
    await ctx.logger.info("sending", numbers=len(ctx.dependencies["read"]))
    return {"sent": len(ctx.dependencies["read"])}


nightly = pipeline("nightly", name="Nightly report", stages=[read, send], params=["count"])
'''


def context(link: Recorder | None = None, **wire: Any) -> StageContext:
    job = {"stageId": "s", "executionId": "e", "attempt": 1, "stageHandlerName": "Do", "idempotencyKey": "s:1"}
    return StageContext(Job(job | wire), link=link)


def attempt(registry: Registry, handler: str, link: Recorder | None = None, **wire: Any) -> execution.Report:
    """Runs a handler as a worker does."""
    raw = context(link, stageHandlerName=handler, **wire)
    return execution.run(raw.job, registry, context=raw)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where files of pipelines lie; what they leave in the process is gone afterwards."""
    modules, paths = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


def write(folder: Path, text: str, name: str = "invoices.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# the context


def test_params_are_the_members_of_the_input() -> None:
    """N16."""
    ctx = Context(context(input='{"since": "2026-05-01", "batches": [1, 2]}'))
    assert ctx.params["since"] == "2026-05-01"
    assert ctx.params["batches"] == [1, 2]
    assert dict(ctx.params) == {"since": "2026-05-01", "batches": [1, 2]}
    assert "until" not in ctx.params
    assert ctx.params.get("until") is None
    assert ctx.params.get("until", 7) == 7


@pytest.mark.parametrize(
    ("given_input", "told"),
    [
        ('{"until": 1, "batches": []}', "it was given until, batches"),
        ("{}", "it was given none"),
        (None, "it was given none"),
    ],
)
def test_a_missing_param_fails_for_good_and_is_named_with_those_that_are_there(
    given_input: str | None, told: str
) -> None:
    """N16: never a bare KeyError."""
    with pytest.raises(StageFailure) as caught:
        Context(context(input=given_input)).params["since"]
    assert (caught.value.code, caught.value.retryable) == ("MISSING_REQUIRED_DATA", False)
    assert caught.value.message == f"the run was given no parameter 'since'; {told}"


def test_of_very_many_params_only_some_are_named() -> None:
    """N16: the message stays readable."""
    many = ", ".join(f'"p{number}": 0' for number in range(50))
    with pytest.raises(StageFailure, match=r"p19 and 30 more$"):
        Context(context(input=f"{{{many}}}")).params["since"]


@pytest.mark.parametrize(("text", "kind"), [("[1]", "list"), ('"x"', "text"), ("1", "number"), ("true", "boolean")])
def test_an_input_that_is_no_object_has_no_params(text: str, kind: str) -> None:
    """N16."""
    with pytest.raises(StageFailure, match=f"VALIDATION_ERROR: the input is a JSON {kind}"):
        Context(context(input=text)).params  # noqa: B018


def test_lines_have_their_level_message_and_fields() -> None:
    """N17."""

    async def say(ctx: Context) -> None:
        await ctx.logger.debug("a")
        await ctx.logger.info("upserted invoices", count=3, day="2026-05-01")
        await ctx.logger.warning("c")
        await ctx.logger.error("d", level="high", message="also a field")

    asyncio.run(say(Context(raw := context())))
    lines = [(line["level"], line["message"], line.get("fields")) for line in raw.take_lines()]
    assert lines == [
        ("debug", "a", None),
        ("info", "upserted invoices", {"count": 3, "day": "2026-05-01"}),
        ("warning", "c", None),
        ("error", "d", {"level": "high", "message": "also a field"}),
    ]


def test_a_checkpoint_is_stored_and_restored_by_the_next_attempt() -> None:
    """N20: the state is durable before the code goes on, and the next attempt has it."""
    link = Recorder()

    async def run(ctx: Context) -> Any:
        before = ctx.restored
        await ctx.checkpoint({"done": [1]})
        return [before, ctx.restored]

    assert asyncio.run(run(Context(context(link)))) == [None, {"done": [1]}]
    assert [what for what, _ in link.written] == ["checkpoints"]
    left = {"checkpointId": "c", "sequence": 1, "state": {"done": [1, 2]}}
    assert Context(context(checkpoint=left)).restored == {"done": [1, 2]}


def test_a_checkpoint_gives_the_stage_back_where_the_run_is_pausing() -> None:
    raw = context(Recorder())
    raw.control.pause_requested = True
    with pytest.raises(Release):
        asyncio.run(Context(raw).checkpoint({"done": 1}))


def test_an_effect_is_noted_before_and_after_its_act() -> None:
    """R3, O42: over the same effects as in plain handlers."""
    link = Recorder()

    async def run(ctx: Context) -> None:
        async with ctx.effect("external_http", step="charge") as effect:
            effect.external_ref = "ch_1"

    asyncio.run(run(Context(context(link))))
    assert [body["effects"][0]["state"] for _, body in link.written] == ["declared", "committed"]


def test_progress_artifacts_and_identity_are_those_of_the_attempt() -> None:
    link = Recorder()

    async def run(ctx: Context) -> Any:
        await ctx.progress(50, "half")
        return await ctx.artifact("report", b"bytes")

    ctx = Context(raw := context(link, pipelineId="r", dependencies={"read": [1]}))
    assert asyncio.run(run(ctx)).sha256 == sha256(b"bytes").hexdigest()
    assert raw.take_progress() == {"percent": 50, "message": "half"}
    assert (ctx.run_id, ctx.attempt, ctx.idempotency_key, ctx.cancelled) == ("r", 1, "s:1", False)
    assert ctx.dependencies == {"read": [1]}
    raw.control.stop("cancelled")
    assert ctx.cancelled


# the shape


def test_stages_say_what_they_need_and_how_they_are_tried_again() -> None:
    @stage
    async def read(ctx: Context) -> int:
        """Reads.

        Slowly.
        """
        return 1

    @stage(
        needs=[read],
        retries=Retries(times=5, every=10, backoff="linear", most=60, jitter=True, on=["BUSY"]),
        effects="external",
        declares_effects=True,
        timeout=30,
        max_output_bytes=10,
        recipients=[Recipient("acme", "mail")],
        approval={"when": "before"},
        run_next_if_failed=True,
    )
    async def send(ctx: Context) -> int:
        return 2

    @stage(needs=["send"], name="tell", description="Tells.", input={"to": "all"})
    async def other(ctx: Context) -> int:
        return 3

    document = pipeline("nightly", stages=[read, send, other], limits={"concurrency": 2}).definition()
    assert document == {
        "slug": "nightly",
        "name": "nightly",
        "description": "",
        "limits": {"concurrency": 2},
        "stages": [
            {"name": "read", "handler": "nightly.read", "description": "Reads.\n\nSlowly."},
            {
                "name": "send",
                "handler": "nightly.send",
                "needs": ["read"],
                "recipients": [{"organisation": "acme", "service": "mail", "billing": "", "retention": ""}],
                "effect_mode": "external",
                "effect_protocol": "intent",
                "approval": {"when": "before"},
                "run_next_if_failed": True,
                "options": {
                    "max_retries": 5,
                    "retry_interval": 10,
                    "backoff": "linear",
                    "max_retry_interval": 60,
                    "jitter": True,
                    "retry_on_error_codes": ["BUSY"],
                    "timeout": 30,
                    "max_output_bytes": 10,
                },
            },
            {
                "name": "tell",
                "handler": "nightly.tell",
                "needs": ["send"],
                "description": "Tells.",
                "input": {"to": "all"},
            },
        ],
    }


def test_one_function_is_a_pipeline_of_one_stage() -> None:
    """N14."""

    @pipeline("invoices", name="Invoices", params=["since"])
    async def run(ctx: Context) -> dict[str, int]:
        return {"upserted": 0}

    assert isinstance(run, Pipeline)
    assert run.definition() == {
        "slug": "invoices",
        "name": "Invoices",
        "description": "",
        "stages": [{"name": "run", "handler": "invoices.run"}],
        "input_schema": {
            "type": "object",
            "properties": {"since": {}},
            "required": ["since"],
            "additionalProperties": False,
        },
    }


def test_a_marked_function_may_be_a_pipeline_by_itself_and_is_called_as_it_was_written() -> None:
    schema = {"type": "object", "properties": {"since": {"type": "string"}}}

    @pipeline("invoices", params=schema)
    @stage(effects="none")
    async def run(ctx: Context) -> str:
        return str(ctx.params["since"])

    assert run.definition()["input_schema"] == schema
    assert run.definition()["stages"] == [{"name": "run", "handler": "invoices.run", "effect_mode": "none"}]
    assert asyncio.run(_await(run.stages[0], Context(context(input='{"since": "May"}')))) == "May"


async def _await(one: Stage, ctx: Context) -> Any:
    return await one(ctx)


async def nothing(ctx: Context) -> None:
    pass


def plain(ctx: Context) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: stage(plain), r"a stage is an async function; write: async def plain\(ctx\)"),
        (lambda: pipeline("x")(plain), "a stage is an async function"),
        (lambda: pipeline("not a slug", stages=[stage(nothing)]), "letters, digits, hyphens and underscores"),
        (lambda: pipeline("", stages=[stage(nothing)]), "letters, digits"),
        (lambda: pipeline("x", stages=[]), "has no stage"),
        (lambda: pipeline("x", stages=[nothing]), "is no stage; mark the function with @stage"),
        (lambda: pipeline("x", stages=[stage(nothing), stage(nothing)]), "two stages are named 'nothing'"),
        (lambda: pipeline("x", stages=[stage(needs=["y"])(nothing)]), "needs 'y', which is not among its stages"),
        (lambda: stage(needs="read")(nothing), r"needs=\[read\]"),
        (lambda: pipeline("x", params="since")(nothing), r"params=\['since'\]"),
        (lambda: Retries(times=0, every=1), "at least 1 time"),
        (lambda: Retries(times=1, every=0), "more than 0 seconds"),
        (lambda: Retries(times=1, every=1, on="BUSY"), r"on=\['BUSY'\]"),
    ],
)
def test_what_cannot_be_meant_is_said_where_it_is_written(make: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make()


@given(st.text(max_size=120))
def test_only_slugs_are_slugs(text: str) -> None:
    fits = re.fullmatch(r"[A-Za-z0-9_-]{1,100}", text) is not None
    try:
        pipeline(text, stages=[stage(nothing)])
    except ConfigurationError:
        assert not fits
    else:
        assert fits


# files


def test_a_file_with_nothing_but_run_is_a_pipeline_of_its_name(folder: Path) -> None:
    """N14, N15: source 004's example as it stands there."""
    loaded = load(write(folder, UPSERT))
    (found,) = loaded.pipelines
    assert (found.slug, [one.name for one in found.stages]) == ("invoices", ["run"])
    assert loaded.source is not None
    assert found.definition(loaded.source)["source"] == {
        "file": "invoices.py",
        "sha256": sha256(UPSERT.encode()).hexdigest(),
        "text": UPSERT,
    }
    (named,) = load(str(folder / "invoices.py"), "netsuite-invoices").pipelines
    assert named.definition()["stages"] == [{"name": "run", "handler": "netsuite-invoices.run"}]


def test_the_same_bytes_are_the_same_code_and_changed_ones_are_other_code(folder: Path) -> None:
    path = write(folder, TWO_STAGES)
    first, again = load(path), load(path)
    assert first.module is again.module
    write(folder, TWO_STAGES + "\n")
    changed = load(path)
    assert changed.module is not first.module
    assert changed.source is not None
    assert first.source is not None
    assert changed.source.sha256 != first.source.sha256
    assert changed.pipelines[0].definition() == first.pipelines[0].definition()


def test_of_several_pipelines_all_are_taken_or_the_one_that_is_named(folder: Path) -> None:
    path = write(folder, TWO_STAGES + 'weekly = pipeline("weekly", stages=[read])\nalias = nightly\n')
    assert [one.slug for one in load(path).pipelines] == ["nightly", "weekly"]
    assert [one.slug for one in load(path, "weekly").pipelines] == ["weekly"]
    with pytest.raises(ConfigurationError, match="has no pipeline 'daily'; it has nightly, weekly"):
        load(path, "daily")


def test_a_file_may_import_what_stands_beside_it_and_hides_nothing_installed(folder: Path) -> None:
    write(folder, "RATE = 3\n", "rates_of_this_test.py")
    write(folder, "raise RuntimeError\n", "httpx.py")
    path = write(folder, "import httpx\nfrom rates_of_this_test import RATE\nasync def run(ctx):\n    return RATE\n")
    registry = Registry()
    load_handlers(path, registry)
    assert attempt(registry, "invoices.run").body["output"] == 3


def test_a_module_is_read_as_a_file_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, TWO_STAGES, "nightly_of_this_test.py")
    monkeypatch.syspath_prepend(folder)
    registry = Registry()
    load_handlers("nightly_of_this_test", registry)
    load_handlers("nightly_of_this_test", registry)  # once more changes nothing
    assert registry.names == ["nightly.read", "nightly.send"]
    source = load("nightly_of_this_test").source
    assert source is not None
    assert (source.file, source.text) == ("nightly_of_this_test.py", TWO_STAGES)


TWICE = "from recourse.authoring import pipeline\nasync def a(ctx): ...\nx = pipeline('a')(a)\ny = pipeline('a')(a)\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\nasync def run(ctx:\n", "line 2: "),
        ("async def run(ctx): ...\n" + "#" * 262_144, "has 262168 bytes; the code of a pipeline has at most 262144"),
        (TWICE, "two pipelines have the slug 'a'"),
    ],
)
def test_a_file_that_is_none_says_why(folder: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load(write(folder, text))


def test_what_a_file_raises_goes_on_and_it_can_be_mended(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load(write(folder, "1 / 0\nasync def run(ctx): ...\n"))
    assert not [name for name in sys.modules if name.startswith("invoices__")]
    assert load(write(folder, "async def run(ctx): ...\n")).pipelines


def test_what_is_not_there_is_said_with_what_was_meant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    write(folder, UPSERT)
    with pytest.raises(ConfigurationError, match=r"nowhere\.py cannot be read: No such file"):
        load("nowhere.py")
    with pytest.raises(ConfigurationError, match=r"there is no module 'nowhere_at_all'$"):
        load("nowhere_at_all")
    with pytest.raises(ConfigurationError, match=r"there is no module 'invoices'; for a file say invoices\.py"):
        load("invoices")


def test_source_is_text(folder: Path) -> None:
    (folder / "invoices.py").write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\nasync def run(ctx): ...\n")
    with pytest.raises(ConfigurationError, match="is not UTF-8 at byte 28"):
        load(str(folder / "invoices.py"))


# handlers


def test_the_stages_of_a_file_are_handlers(folder: Path) -> None:
    """N14, N16, N17: what is returned is the output; params, dependencies and lines are there."""
    registry = Registry()
    load_handlers(write(folder, TWO_STAGES), registry)
    assert registry.names == ["nightly.read", "nightly.send"]
    assert registry.has_async
    assert attempt(registry, "nightly.read", input='{"count": 2}').body["output"] == [0, 1]
    report = attempt(registry, "nightly.send", dependencies={"read": [0, 1]})
    assert (report.outcome, report.body["output"]) == ("succeeded", {"sent": 2})
    assert [(line["message"], line["fields"]) for line in report.body["logs"]] == [("sending", {"numbers": 2})]
    failed = attempt(registry, "nightly.read", input="{}")
    assert (failed.outcome, failed.body["errorCode"]) == ("failed", "MISSING_REQUIRED_DATA")
    assert failed.body["retryable"] is False


def test_a_slug_before_the_file_is_that_of_its_run(folder: Path) -> None:
    path = write(folder, "async def run(ctx):\n    return 1\n")
    registry = Registry()
    load_handlers(f"netsuite={path}", registry)
    assert registry.names == ["netsuite.run"]


def test_beside_handlers_of_its_own_a_function_called_run_is_just_a_function(folder: Path) -> None:
    """Modules that were written before stay as they were."""
    path = write(folder, "from recourse import handler\n@handler('Old')\ndef old(ctx): ...\nasync def run(ctx): ...\n")
    load_handlers(path, default_registry)
    try:
        assert [name for name in default_registry.names if name in ("Old", "invoices.run")] == ["Old"]
        load_handlers(f"chosen={path}", registry := Registry())
        assert registry.names == ["chosen.run"]
    finally:
        default_registry._handlers.pop("Old")


def test_a_name_that_another_function_has_is_refused() -> None:
    registry = Registry()
    registry.add("x.nothing", plain)
    with pytest.raises(ConfigurationError, match=r"two functions would be the handler 'x\.nothing'"):
        register([pipeline("x", stages=[stage(nothing)])], None, registry)


@pytest.mark.parametrize("released", [None, "same", "other"])
def test_a_worker_that_runs_other_code_than_the_release_says_so_and_runs_it(folder: Path, released: str | None) -> None:
    path = write(folder, "async def run(ctx):\n    return 1\n")
    registry = Registry()
    load_handlers(path, registry)
    own = sha256(Path(path).read_bytes()).hexdigest()
    digest = {None: {}, "same": {"sourceDigest": own}, "other": {"sourceDigest": "0" * 64}}[released]
    report = attempt(registry, "invoices.run", **digest)
    assert report.body["output"] == 1
    lines = [(line["level"], line["message"], line["fields"]) for line in report.body.get("logs", ())]
    fields = {"released": "0" * 64, "running": own, "file": "invoices.py"}
    assert lines == ([("warning", OTHER_CODE, fields)] if released == "other" else [])


def test_to_whom_a_stage_sends_is_declared_with_its_handler() -> None:
    """R40: a worker announces it as for any handler."""
    mail = Recipient("acme", "mail")
    registry = Registry()
    register([pipeline("x", stages=[stage(recipients=[mail])(nothing)])], None, registry)
    assert registry.find("x.nothing").recipients == (mail,)
