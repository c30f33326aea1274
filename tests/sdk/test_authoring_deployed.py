"""`recourse deploy` and what runs afterwards, with the console itself: its web server, a worker over HTTP, Celery's
executor.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recourse import Registry, SyncClient, Worker, cli
from recourse.authoring import load_handlers
from recourse.authoring.loading import OTHER_CODE

from pipelines import executor
from pipelines.models import AuditEvent, Effect, LogLine, Pipeline, Release
from tests.cast import Person
from tests.contract.conftest import url_of_test_database, web_server
from tests.sdk.conftest import eventually
from tests.sdk.pseudo_terminal import Terminal
from tests.sdk.test_authoring import TWO_STAGES, UPSERT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Web = tuple[str, subprocess.Popen[bytes]]
Said = SimpleNamespace  # status, out, err
SENDING = """
from recourse import Recipient
from recourse.authoring import pipeline, stage


@pipeline("nightly")
@stage(recipients=[Recipient("acme", "mail")])
async def run(ctx):
    return 1
"""

RESUMES = """
from recourse import StageFailure
from recourse.authoring import Context, Retries, pipeline, stage


@pipeline("batches", params=["batches"])
@stage(retries=Retries(times=1, every=0.1, on=["BUSY"]), effects="external", declares_effects=True)
async def run(ctx: Context) -> dict[str, object]:
    done = list(ctx.restored or [])
    for batch in ctx.params["batches"]:
        if batch in done:
            continue
        if batch == 3 and ctx.attempt == 1:
            raise StageFailure("BUSY", "not now")
        async with ctx.effect("external_http", step=f"batch-{batch}") as effect:
            effect.committed(f"ref-{batch}")
        done.append(batch)
        await ctx.checkpoint(done)
        await ctx.logger.info("done", batch=batch)
        await ctx.progress(100 * len(done) / len(ctx.params["batches"]), f"batch {batch}")
    return {"attempt": ctx.attempt, "done": done}
"""


@pytest.fixture(scope="module")
def web(django_db_setup: None) -> Iterator[Web]:
    with web_server(url_of_test_database("authoring"), RECOURSE_RENEW_SECONDS="1") as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    modules, paths = set(sys.modules), list(sys.path)
    (tmp_path / "nightly.py").write_text(TWO_STAGES)
    yield tmp_path / "nightly.py"
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


@pytest.fixture
def deploy(
    web: Web,
    people: dict[str, Person],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: Path,
) -> Callable[..., Said]:
    """`recourse deploy FILE …`, as a release manager, or as somebody else."""
    monkeypatch.setenv("RECOURSE_URL", web[0])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(file.parent))

    def run(*words: str, path: Path = file, role: str = "release_manager") -> Said:
        monkeypatch.setenv("RECOURSE_TOKEN", people[role].token)
        status = cli.main(["deploy", str(path), *words])
        captured = capsys.readouterr()
        return Said(status=status, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def client(web: Web, api_key: str) -> Iterator[SyncClient]:
    with SyncClient(web[0], api_key) as client:
        yield client


@pytest.fixture
def work(web: Web, api_key: str, file: Path) -> Iterator[Callable[..., None]]:
    """Starts a worker with the file as it is now, and ends the one before it."""
    started: list[Worker] = []

    def start(where: str = str(file)) -> None:
        while started:
            started.pop().stop()
        registry = Registry()
        load_handlers(where, registry)
        started.append(Worker(web[0], api_key, registry=registry, wait_seconds=1, drain_seconds=0.2))
        started[-1].start()

    yield start
    for worker in started:
        worker.stop()


def ended(client: SyncClient, key: str, pipeline: str = "nightly", **params: Any) -> dict[str, Any]:
    """A run of the pipeline, at its end."""
    run: Any = client.runs.create(idempotency_key=key, pipeline=pipeline, input=params)["pipeline"]

    def there() -> Any:
        found = client.runs.get(run["id"])
        return found if found["isTerminal"] else None

    found: dict[str, Any] = eventually(there, 60)
    return found


def outputs(run: dict[str, Any]) -> list[Any]:
    return [stage.get("output") for stage in run["stages"]]


def lines_of(run: dict[str, Any]) -> list[tuple[str, str, Any]]:
    rows = LogLine.objects.filter(attempt__stage__run_id=run["id"]).order_by("id")
    return [(line.level, line.message, line.fields) for line in rows]


def test_a_file_is_deployed_run_changed_deployed_again_and_run_on_the_new_release(
    deploy: Callable[..., Said], file: Path, client: SyncClient, work: Callable[..., None]
) -> None:
    """N14, N16, N17: a two-stage file from its first release to its second, by a worker over HTTP and by Celery's
    executor.
    """
    said = deploy("--activate")
    assert said.status == 0, said.err
    first = Release.objects.get()
    assert said.out.splitlines() == [
        f"nightly in development: {first.digest[:12]}, the first release of a new pipeline",
        "  + stage read",
        "  + stage send",
        f"registered as {first.id}, in force",
        f"its worker: recourse worker run --handlers {file}",
    ]
    assert (first.status, first.source_digest) == ("active", sha256(TWO_STAGES.encode()).hexdigest())
    assert Pipeline.objects.get().name == "Nightly report"

    work()
    run = ended(client, "1", count=3)
    assert (run["status"], run["releaseId"], outputs(run)) == ("completed", str(first.id), [[0, 1, 2], {"sent": 3}])
    assert lines_of(run) == [("info", "sending", {"numbers": 3})]

    file.write_text(TWO_STAGES.replace('"sending"', '"sending them"').replace("times=3", "times=4"))
    said = deploy("--activate")
    second = Release.objects.get(status="active")
    assert said.status == 0
    told = said.out.splitlines()
    assert told[:3] == [
        f"nightly in development: {second.digest[:12]} against {first.digest[:12]}, in force",
        "  ~ stage send",
        "      options.max_retries: 3 -> 4",
    ]
    assert '      -    await ctx.logger.info("sending", numbers=len(ctx.dependencies["read"]))' in told
    assert '      +    await ctx.logger.info("sending them", numbers=len(ctx.dependencies["read"]))' in told
    assert f"registered as {second.id}, in force" in told

    run = ended(client, "2", count=1)  # by the worker of before
    assert (run["status"], run["releaseId"]) == ("completed", str(second.id))
    warned = {"released": second.source_digest, "running": first.source_digest, "file": "nightly.py"}
    assert [line for line in lines_of(run) if line[0] == "warning"] == [("warning", OTHER_CODE, warned)] * 2
    assert ("info", "sending", {"numbers": 1}) in lines_of(run)

    work()
    run = ended(client, "3", count=2)
    assert (outputs(run)[1], lines_of(run)) == ({"sent": 2}, [("info", "sending them", {"numbers": 2})])


def test_celerys_executor_runs_a_file_as_a_worker_does(
    deploy: Callable[..., Said], file: Path, client: SyncClient
) -> None:
    """N14, N17: RECOURSE_HANDLERS takes a file, limited to one application."""
    assert deploy("--activate").status == 0
    registry = Registry()
    scope = executor.Scope.load([f"{file}@acme/billing"], registry)
    assert scope.handlers == {"nightly.read": ("acme", "billing"), "nightly.send": ("acme", "billing")}
    run: Any = client.runs.create(idempotency_key="k", pipeline="nightly", input={"count": 2})["pipeline"]
    drained = executor.Executor(scope, registry)
    try:
        drained.drain(SimpleNamespace(is_set=lambda: client.runs.get(run["id"])["isTerminal"]))
    finally:
        drained.close()
    found: Any = client.runs.get(run["id"])
    assert (found["status"], outputs(found)) == ("completed", [[0, 1], {"sent": 2}])
    assert lines_of(found) == [("info", "sending", {"numbers": 2})]


def test_a_bare_run_is_deployed_under_its_files_name_or_another(
    deploy: Callable[..., Said], file: Path, client: SyncClient, work: Callable[..., None]
) -> None:
    """N14, N16: source 004's example word for word; without the parameter its run fails for good and says which."""
    path = file.with_name("invoices.py")
    path.write_text(UPSERT)
    assert "invoices in development" in deploy("--activate", path=path).out
    said = deploy("--activate", "--slug", "netsuite", path=path)
    assert f"its worker: recourse worker run --handlers netsuite={path}" in said.out
    assert sorted(Pipeline.objects.values_list("slug", flat=True)) == ["invoices", "netsuite"]
    path.write_text('async def run(ctx):\n    return {"upserted": len(ctx.params["since"])}\n')
    deploy("--activate", "--slug", "netsuite", path=path)
    work(f"netsuite={path}")
    assert outputs(ended(client, "1", "netsuite", since="May")) == [{"upserted": 3}]
    failed = ended(client, "2", "netsuite", until="May")
    assert (failed["status"], len(failed["stages"])) == ("failed", 1)
    assert failed["failure"]["code"] == "MISSING_REQUIRED_DATA"
    assert "'since'; it was given until" in failed["failure"]["message"]


def test_an_attempt_goes_on_where_the_one_before_it_left_off(
    deploy: Callable[..., Said], file: Path, client: SyncClient, work: Callable[..., None]
) -> None:
    """N20, R3: checkpoints and effects of code are the console's own, and its retries those of the release."""
    path = file.with_name("batches.py")
    path.write_text(RESUMES)
    assert deploy("--activate", path=path).status == 0
    work(str(path))
    run = ended(client, "1", "batches", batches=[1, 2, 3, 4, 5])
    assert outputs(run) == [{"attempt": 2, "done": [1, 2, 3, 4, 5]}]
    lines = LogLine.objects.filter(message="done").order_by("id").values_list("attempt__number", "fields")
    assert [(number, fields["batch"]) for number, fields in lines] == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
    acts = Effect.objects.order_by("step_id").values_list("step_id", "state", "external_ref")
    assert list(acts) == [(f"batch-{one}", "committed", f"ref-{one}") for one in range(1, 6)]


def test_params_are_asked_for_when_a_run_is_made(deploy: Callable[..., Said], client: SyncClient) -> None:
    """N16: where the pipeline names them, a run without one is never made."""
    deploy("--activate")
    for given, told in (({}, "'count' is a required property"), ({"count": 1, "cuont": 2}, "cuont")):
        with pytest.raises(Exception, match=re.escape(told)) as refused:
            client.runs.create(idempotency_key="k", pipeline="nightly", input=given)
        assert (refused.value.status, refused.value.code) == (400, "validation_error")  # type: ignore[attr-defined]


def test_the_same_again_changes_nothing_and_says_so(deploy: Callable[..., Said]) -> None:
    deploy("--activate")
    events = AuditEvent.objects.count()
    release = Release.objects.get()
    for words in ([], ["--activate"]):
        said = deploy(*words)
        assert said.status == 0
        assert said.out.splitlines()[:2] == [
            f"nightly in development: {release.digest[:12]} is in force, and nothing is otherwise",
            "nothing was changed",
        ]
    assert (Release.objects.count(), AuditEvent.objects.count()) == (1, events)


def test_a_dry_run_says_it_all_and_registers_nothing(deploy: Callable[..., Said], file: Path) -> None:
    said = deploy("--dry-run", "--activate")
    assert (said.status, Pipeline.objects.count(), Release.objects.count()) == (0, 0, 0)
    assert "the first release of a new pipeline" in said.out
    deploy("--activate")
    file.write_text(TWO_STAGES.replace("needs=[read], ", "").replace("stages=[read, send]", "stages=[send]"))
    said = deploy("--dry-run")
    assert "  - stage read" in said.out.splitlines()
    assert '      needs[0]: "read" -> -' in said.out.splitlines()
    assert Release.objects.count() == 1
    told = json.loads(deploy("--dry-run", "--json").out)
    assert [(one["plan"]["removed"], one["release"]) for one in told["pipelines"]] == [(["read"], None)]


def test_without_activate_it_is_registered_and_what_was_in_force_stays(deploy: Callable[..., Said], file: Path) -> None:
    deploy("--activate")
    file.write_text(TWO_STAGES + "# more\n")
    said = deploy()
    new = Release.objects.get(status="draft")
    assert f"registered as {new.id}, not in force; with --activate it is" in said.out
    assert deploy().out.splitlines()[-2] == "nothing was changed"
    assert f"registered as {new.id}, in force" in deploy("--activate").out
    file.write_text(TWO_STAGES)
    assert "in force" in deploy("--activate").out, "what was superseded is put in force again"
    assert Release.objects.count() == 2


def test_what_sends_to_others_waits_for_another_person(
    deploy: Callable[..., Said], file: Path, web: Web, people: dict[str, Person]
) -> None:
    """R41: registered, not in force, and it says what to do; reviewed, the same command puts it in force."""
    file.write_text(SENDING)
    assert deploy("--activate").status == 0
    file.write_text(SENDING.replace('"mail"', '"chat"'))
    said = deploy("--activate")
    release = Release.objects.get(status="draft")
    assert said.status == 4
    assert f"registered as {release.id}, and waits: another person must review to whom it sends" in said.out
    assert "run: service" in said.out
    assert "then deploy again with --activate" in said.out
    with SyncClient(web[0], token=people["admin"].token) as admin:
        admin.releases.review(str(release.id), "they may")
    assert deploy("--activate").status == 0
    release.refresh_from_db()
    assert release.status == "active"


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("x = 1\n", [], "has no pipeline: write `async def run"),
        ("def run(ctx): ...\n", [], "has no pipeline"),
        ("1 / 0\n", [], r"fails when it is run: ZeroDivisionError: division by zero \(.*nightly\.py, line 1\)"),
        ("async def run(ctx:\n", [], "line 1: "),
        (TWO_STAGES, ["--environment", "nowhere"], "no environment is called 'nowhere'; there are: development, "),
        (TWO_STAGES, ["--slug", "weekly"], "has no pipeline 'weekly'; it has nightly"),
        (TWO_STAGES.replace("times=3", "times=20000"), [], r"definition\.stages\[1\]\.options\.max_retries"),
        (TWO_STAGES + 'x = pipeline("x", stages=[send_too])\n', [], "NameError: name 'send_too' is not defined"),
    ],
)
def test_what_cannot_be_deployed_is_refused_and_nothing_of_the_file_is_registered(
    deploy: Callable[..., Said], file: Path, text: str, words: list[str], told: str
) -> None:
    file.write_text("from recourse.authoring import pipeline, stage\n" + text if "x = pipeline" in text else text)
    said = deploy("--activate", *words)
    assert (said.status, said.out) == (2, "")
    assert re.search(told, said.err), said.err
    assert "Traceback" not in said.err
    assert (Pipeline.objects.count(), Release.objects.count()) == (0, 0)


def test_a_fault_in_the_last_pipeline_keeps_the_first_from_being_registered(
    deploy: Callable[..., Said], file: Path
) -> None:
    file.write_text(TWO_STAGES + 'x = pipeline("x", stages=[read], limits={"concurrency": 0})\n')
    said = deploy("--activate")
    assert said.status == 2
    assert "concurrency" in said.err
    assert Release.objects.count() == 0


def test_who_may_not_release_is_told(deploy: Callable[..., Said]) -> None:
    said = deploy("--activate", role="operator")
    assert (said.status, Release.objects.count()) == (2, 0)
    assert "permission_denied" in said.err


@pytest.mark.parametrize(
    ("more", "width", "has_colours"), [({}, 100, True), ({"NO_COLOR": "1"}, 100, False), ({"TERM": "dumb"}, 40, False)]
)
def test_in_a_terminal_what_comes_and_goes_has_colours_where_they_are_wanted(
    deploy: Callable[..., Said],
    web: Web,
    people: dict[str, Person],
    file: Path,
    more: dict[str, str],
    width: int,
    has_colours: bool,
) -> None:
    """O11: the same words in a terminal, narrow ones too, as in a pipe."""
    deploy("--activate")
    file.write_text(TWO_STAGES.replace('"sending"', '"sending \x1b[31mthem"'))
    environment = {"RECOURSE_URL": web[0], "RECOURSE_TOKEN": people["release_manager"].token, **more}
    words = [sys.executable, "-m", "recourse", "deploy", str(file), "--dry-run"]
    with Terminal(words, environment=environment, width=width) as seen:
        assert seen.end() == 0
    assert seen.has_colours == has_colours
    assert '+    await ctx.logger.info("sending  [31mthem"' in seen.screen, "what others wrote moves no cursor"
    said = deploy("--dry-run").out
    assert "\x1b" not in said
    assert [line.rstrip() for line in seen.screen.splitlines()] == [
        line.rstrip() for line in said.rstrip().splitlines()
    ]


def test_a_run_is_started_watched_found_again_and_its_logs_read_from_a_terminal(
    deploy: Callable[..., Said],
    file: Path,
    work: Callable[..., None],
    api_key: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """P27: one key, one run; with the application's key alone."""
    path = file.with_name("batches.py")
    path.write_text(RESUMES)
    assert deploy("--activate", path=path).status == 0
    work(str(path))
    monkeypatch.delenv("RECOURSE_TOKEN")
    monkeypatch.setenv("RECOURSE_API_KEY", api_key)

    def say(*words: str) -> Said:
        status = cli.main(words)
        captured = capsys.readouterr()
        return Said(status=status, out=captured.out, err=captured.err)

    start = ("start", "batches", "--key", "may", "--input", '{"batches": [1, 2, 3]}')
    said = say(*start, "--watch", "--every", "0.2")
    assert said.status == 0, said.err
    run, _, how = said.out.splitlines()[0].partition(": ")
    assert how.startswith("created, ")
    assert said.out.splitlines()[-1].endswith("completed")
    assert say(*start).out == f"{run}: found again, completed\n"
    refused = say(*start[:-1], '{"batches": []}')
    assert (refused.status, "idempotency_conflict" in refused.err) == (2, True)
    told = say("logs", "key:may", "--level", "INFO", "--follow", "--json")
    assert told.status == 0, told.err
    lines = [json.loads(line) for line in told.out.splitlines()]
    assert [(line["attempt"], line["fields"]["batch"]) for line in lines if line["message"] == "done"] == [
        (1, 1),
        (1, 2),
        (2, 3),
    ]
    assert say("logs", run, "--stage", "nowhere").out == "nothing was logged\n"
