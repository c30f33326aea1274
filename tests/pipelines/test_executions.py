"""Looking at runs through `/v1`: lists and their filters, one run and what belongs to it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import catalog, releases, sweeps
from pipelines.creation import Place
from pipelines.models import Application, Environment, Run, WorkerSession, Workspace
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.factories import ApplicationFactory
from tests.verbs import pause_run, retry_stage, skip_stage

StartRun = Callable[..., Run]
GATED = {"name": "gated", "approval": {"when": "before", "expires_in": 3600}}


@pytest.fixture
def viewer(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["viewer"])


def found(client: Api, query: str = "") -> list[str]:
    """The names of the runs of a list's first page."""
    answer = client.get(f"/v1/executions?{query}")
    assert answer.status_code == 200, answer.content
    return [item["name"] for item in answer.json()["results"]]


def follow(client: Api, url: str | None, way: str = "next") -> Iterator[list[dict[str, Any]]]:
    """Every page from a URL on."""
    while url:
        parts = urlsplit(url)
        page = client.get(f"{parts.path}?{parts.query}").json()
        yield page["results"]
        url = page[way]


# lists


def test_runs_are_listed_newest_first_and_paged_both_ways(start_run: StartRun, viewer: Api, clock: Clock) -> None:
    """Contract §3: {next, previous, results}; no run is missed or told twice, whichever way one goes."""
    for number in range(7):
        start_run(name=f"run {number}")
        if number % 2:  # some are made at one instant: the id decides
            clock.advance(1)
    pages = list(follow(viewer, "/v1/executions?page_size=3"))
    assert [len(page) for page in pages] == [3, 3, 1]
    names = [item["name"] for page in pages for item in page]
    assert sorted(names) == [f"run {number}" for number in range(7)]
    assert names[0] in ("run 6",)
    last = viewer.get("/v1/executions?page_size=3").json()
    second = viewer.get(_path(last["next"])).json()
    third = viewer.get(_path(second["next"])).json()
    assert third["next"] is None
    back = list(follow(viewer, third["previous"], "previous"))
    assert [[item["name"] for item in page] for page in back] == [names[3:6], names[0:3]]
    assert last["previous"] is None


def test_a_page_stays_where_it_is_while_new_runs_arrive(start_run: StartRun, viewer: Api) -> None:
    for number in range(4):
        start_run(name=f"run {number}")
    first = viewer.get("/v1/executions?page_size=2").json()
    start_run(name="late")
    assert [item["name"] for item in viewer.get(_path(first["next"])).json()["results"]] == ["run 1", "run 0"]


@pytest.mark.parametrize(
    "query", ["cursor=nonsense", "cursor=bnVsbA", "page_size=0", "page_size=201", "page_size=-1", "page_size=x"]
)
def test_a_page_that_cannot_be_is_refused_by_name(viewer: Api, query: str) -> None:
    answer = viewer.get(f"/v1/executions?{query}")
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [query.partition("=")[0]]


@pytest.mark.parametrize(
    "path", ["executions", "operations", "dead-letters", "audit-events", "workers", "policies", "releases"]
)
def test_an_unknown_filter_is_refused_by_name(viewer: Api, path: str) -> None:
    """Contract §3; a mistyped filter must not show everything (F154)."""
    answer = viewer.get(f"/v1/{path}?stauts=failed&page_size=10")
    assert answer.status_code == 400
    assert answer.json()["code"] == "validation_error"
    assert list(answer.json()["errors"]) == ["stauts"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "succeeded"),
        ("created_after", "yesterday"),
        ("created_before", "2026-05-20T08:00:00"),
        ("created_after", "0001-01-01T00:00:00+14:00"),
        ("recovered_from", "42"),
        ("parent_id", "42"),
        ("handler", "x" * 301),
        ("search", "a\x00b"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(viewer: Api, name: str, value: str) -> None:
    answer = viewer.get(f"/v1/executions?{name}={quote(value)}")
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [name]


def test_filters_by_status_and_error(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    """A filter may repeat, and then either value matches; different filters narrow each other."""
    start_run(name="broken")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    start_run(name="slow")
    hand.report(hand.take(), "failed", error_code="TIMEOUT")
    start_run(name="fine")
    hand.finish()
    start_run(name="new")
    assert found(viewer, "status=failed") == ["slow", "broken"]
    assert found(viewer, "status=failed&status=queued") == ["new", "slow", "broken"]
    assert found(viewer, "error_code=TIMEOUT") == ["slow"]
    assert found(viewer, "error_code=TIMEOUT&error_code=BUSINESS_REJECTED") == ["slow", "broken"]
    assert found(viewer, "error_code=TIMEOUT&status=failed") == ["slow"]
    assert found(viewer, "error_code=TIMEOUT&status=completed") == []
    assert found(viewer, "status=blocked") == []


def test_filters_by_handler(start_run: StartRun, viewer: Api) -> None:
    start_run({"name": "a", "handler": "Mail"}, {"name": "b", "handler": "Mail"}, name="mails")
    start_run({"name": "a", "handler": "Print"}, name="prints")
    assert found(viewer, "handler=Mail") == ["mails"]
    assert found(viewer, "handler=Mail&handler=Print") == ["prints", "mails"]
    assert found(viewer, "handler=Mail&status=completed") == []
    assert found(viewer, "handler=mail") == []


def test_filters_by_place(
    start_run: StartRun,
    viewer: Api,
    workspace: Workspace,
    environments: dict[str, Environment],
    people: dict[str, Person],
    place: Place,
) -> None:
    """Pipelines and environments by slug, applications by name or id; what names nothing finds nothing."""
    other = ApplicationFactory(workspace=workspace, name="shipping")
    staging = environments["staging"]
    start_run(name="here")
    start_run(name="there", in_place=Place(workspace.id, other.id, staging.id, "staging"))
    _release(people["admin"], environments["development"])
    start_run(pipeline="nightly", name=None)
    assert found(viewer, "environment=staging") == ["there"]
    assert found(viewer, "application=billing") == ["Nightly", "here"]
    assert found(viewer, f"application={other.id}") == ["there"]
    assert found(viewer, "application=billing&environment=staging") == []
    assert found(viewer, "pipeline=nightly") == ["Nightly"]
    assert found(viewer, "pipeline=nightly&environment=staging") == []
    assert found(viewer, "pipeline=nightly&application=billing") == ["Nightly"]
    assert found(viewer, "pipeline=nothing") == []
    assert found(viewer, "status=queued&environment=staging") == ["there"]


def test_filters_by_time(start_run: StartRun, viewer: Api, clock: Clock) -> None:
    """`created_after` includes its instant, `created_before` does not."""
    start_run(name="early")
    clock.advance(hours=1)
    middle = start_run(name="middle").created_at.isoformat()
    clock.advance(hours=1)
    start_run(name="late")
    assert found(viewer, f"created_after={quote(middle)}") == ["late", "middle"]
    assert found(viewer, f"created_before={quote(middle)}") == ["early"]
    assert found(viewer, f"created_after={quote(middle)}&created_before={quote(middle)}") == []
    assert found(viewer, f"created_after={middle}") == ["late", "middle"], "a plus sign that arrives as a space"


def test_filters_by_the_run_it_was_forked_from(start_run: StartRun, viewer: Api) -> None:
    source, fork = start_run(name="source"), start_run(name="fork")
    Run.objects.filter(id=fork.id).update(recovered_from=source)
    assert found(viewer, f"recovered_from={source.id}") == ["fork"]
    assert found(viewer, f"recovered_from={uuid.uuid4()}") == []


def test_filters_by_the_run_whose_stage_started_it(start_run: StartRun, viewer: Api) -> None:
    parent, child, other = start_run(name="parent"), start_run(name="child"), start_run(name="other")
    Run.objects.filter(id__in=[child.id, other.id]).update(parent=parent)
    Run.objects.filter(id=other.id).update(status="failed")
    assert found(viewer, f"parent_id={parent.id}") == ["other", "child"]
    assert found(viewer, f"parent_id={parent.id}&status=failed") == ["other"]
    assert found(viewer, f"parent_id={parent.id}&handler=Handler") == ["other", "child"]
    assert found(viewer, f"parent_id={uuid.uuid4()}") == []
    assert viewer.get(f"/v1/executions/{child.id}").json()["parent_id"] == str(parent.id)


def test_searches_words_and_their_beginnings(start_run: StartRun, viewer: Api) -> None:
    """Contract §3, P89: name, keywords and context values, case-folded; all words of one search must occur."""
    start_run(
        name="Invoice run",
        keywords=[{"key": "region", "value": "Köln-Süd"}],
        context_items=[{"key": "invoice", "value": "INV-4711"}],
    )
    start_run(name="Other", context_items=[{"key": "invoice", "value": "INV-4712"}])
    assert found(viewer, "search=inv-4711") == ["Invoice run"]
    assert found(viewer, "search=471") == ["Other", "Invoice run"]
    assert found(viewer, "search=inv%20471") == ["Other", "Invoice run"]
    assert found(viewer, f"search={quote('KÖLN süd')}") == ["Invoice run"]
    assert found(viewer, "search=711") == [], "not from within a word"
    assert found(viewer, "search=4711%20other") == []
    assert found(viewer, "search=4711&search=4712") == ["Other", "Invoice run"]
    assert found(viewer, "search=4711&status=completed") == []


@pytest.mark.parametrize("text", ["'", "\\", "a & b", "!x", "(((", ":*", "<->", "%", "*", "a:b", "☃", "-", "''':*"])
def test_any_text_may_be_searched(start_run: StartRun, viewer: Api, text: str) -> None:
    start_run(name="plain")
    assert found(viewer, f"search={quote(text)}") == []


def test_sensitive_values_are_neither_shown_nor_found(start_run: StartRun, viewer: Api) -> None:
    run = start_run(name="plain", context_items=[{"key": "card", "value": "hunter2", "is_sensitive": True}])
    assert found(viewer, "search=hunter2") == []
    whole = viewer.get(f"/v1/executions/{run.id}")
    assert whole.json()["context_items"] == [{"key": "card", "value": "[REDACTED]", "is_sensitive": True}]
    assert b"hunter2" not in whole.content


def test_a_list_holds_only_what_the_caller_may_see(
    start_run: StartRun,
    workspace: Workspace,
    other_workspace: Workspace,
    environments: dict[str, Environment],
    application: Application,
    api: Api,
    viewer: Api,
    outsider: Person,
    as_person: Callable[[Person], Api],
) -> None:
    """I16, F144: the workspace; and for a key its own application and environment, whatever it filters by."""
    foreign = ApplicationFactory(workspace=other_workspace, name="billing")
    rung = other_workspace.environments.get(slug="development")
    start_run(name="own")
    start_run(name="higher", in_place=Place(workspace.id, application.id, environments["staging"].id, "staging"))
    start_run(name="foreign", in_place=Place(other_workspace.id, foreign.id, rung.id, "development"))
    assert found(viewer) == ["higher", "own"]
    assert found(api) == ["own"]
    assert found(as_person(outsider)) == ["foreign"]
    for query in ("status=queued", "application=billing", "environment=development", "handler=Handler", "search=own"):
        assert set(found(api, query)) <= {"own"}, query
        assert "foreign" not in found(viewer, query), query
    assert found(api, "environment=staging") == []
    assert found(viewer, f"application={foreign.id}") == []


def test_a_list_takes_as_many_queries_for_many_runs_as_for_one(start_run: StartRun, viewer: Api) -> None:
    """No query for each row, and none that counts."""
    start_run("a", "b", name="run", context_items=[{"key": "k", "value": "v"}])
    viewer.get("/v1/executions")  # the first use of a token is noted
    few = _queries(viewer, "/v1/executions")
    for _ in range(12):
        start_run("a", "b", name="run", context_items=[{"key": "k", "value": "v"}])
    many = _queries(viewer, "/v1/executions")
    assert len(many) == len(few) <= 4
    for sql in many:
        assert "count(*)" not in sql.lower() or "group by s.run_id" in sql.lower(), sql


# one run


def test_a_run_is_told_with_its_context(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run("first", keywords=[{"key": "a", "value": "b"}], trace={"trace_id": "t-1"})
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED", error_message="no such customer")
    told = viewer.get(f"/v1/executions/{run.id}").json()
    assert told["execution_id"] == str(run.id)
    assert (told["status"], told["is_terminal"]) == ("failed", True)
    stage_id = str(stages_of(run)[0].id)
    assert told["failure"] == {"code": "BUSINESS_REJECTED", "message": "no such customer", "stage_id": stage_id}
    assert told["keywords"] == [{"key": "a", "value": "b"}]
    assert (told["environment"], told["application"], told["pipeline"]) == ("development", "billing", None)
    assert told["inputs"] is None
    assert told["trace_id"] == "t-1"


def test_a_managed_run_shows_its_inputs(
    start_run: StartRun, viewer: Api, people: dict[str, Person], environment: Environment
) -> None:
    _release(people["admin"], environment)
    run = start_run(pipeline="nightly", name=None, input={"day": 3})
    told = viewer.get(f"/v1/executions/{run.id}").json()
    assert (told["inputs"], told["pipeline"]) == ({"day": 3}, "nightly")


def test_stages_are_told_in_graph_order(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run("first", "second")
    hand.report(hand.take(), output={"n": 1})
    first, second = viewer.get(f"/v1/executions/{run.id}/stages").json()["results"]
    assert (first["name"], first["status"], first["output"], first["attempt"]) == ("first", "completed", {"n": 1}, 1)
    assert (second["name"], second["status"], second["needs"]) == ("second", "ready", ["first"])


def test_attempts_are_told_newest_first_with_their_decision(
    start_run: StartRun, hand: Hand, viewer: Api, clock: Clock
) -> None:
    """P86, N6, F166: every attempt with its code, full traceback and why it was or was not tried again."""
    run = start_run({"name": "first", "options": {"max_retries": 1, "retry_interval": 10}})
    hand.report(hand.take(), "failed", error_code="UPSTREAM", traceback="line 1\nline 2")
    clock.advance(10)
    hand.report(hand.take(), "failed", error_code="UPSTREAM")
    newest, oldest = viewer.get(f"/v1/executions/{run.id}/attempts").json()["results"]
    assert (oldest["number"], oldest["traceback"], oldest["decision"]["verdict"]) == (1, "line 1\nline 2", "retry")
    assert (newest["number"], newest["decision"]["verdict"]) == (2, "retries_exhausted")
    assert newest["lease_expires_at"] is None
    stage_id = stages_of(run)[0].id
    path = f"/v1/executions/{run.id}/attempts"
    assert len(viewer.get(f"{path}?stage_id={stage_id}").json()["results"]) == 2
    assert viewer.get(f"{path}?stage_id={uuid.uuid4()}").json()["results"] == []


def test_outputs_of_every_epoch_stay_readable(
    start_run: StartRun, hand: Hand, viewer: Api, people: dict[str, Person], clock: Clock
) -> None:
    """P65, model §2: a retry erases nothing; what an earlier epoch produced can be compared with what counts now."""
    run = start_run("first")
    operator = people["operator"].actor
    one = hand.take()
    hand.report(one, output={"rows": 1})
    first = stages_of(run)[0].id
    clock.advance(1)
    retry_stage(first, actor=operator, reason="wrong data")
    path = f"/v1/stages/{first}/outputs"
    (old,) = viewer.get(path).json()["results"]
    assert (old["epoch"], old["attempt_id"], old["output"], old["current"]) == (
        1, str(one.attempt_id), {"rows": 1}, False,
    )  # fmt: skip
    skip_stage(first, actor=operator, reason="by hand", output={"rows": 2}, has_output=True)
    clock.advance(1)
    retry_stage(first, actor=operator, reason="once more")
    two = hand.take()
    clock.advance(1)
    hand.report(two, output=None)
    told = viewer.get(path).json()["results"]
    assert [(item["epoch"], item["output"], item["current"]) for item in told] == [
        (3, None, True),
        (2, {"rows": 2}, False),
        (1, {"rows": 1}, False),
    ]
    assert [item["attempt_id"] for item in told] == [str(two.attempt_id), None, str(one.attempt_id)]
    assert told[2]["digest"] == old["digest"] != told[1]["digest"]
    assert [len(page) for page in follow(viewer, f"{path}?page_size=2")] == [2, 1]


def test_outputs_are_shown_to_those_who_may_see_the_run(
    start_run: StartRun, hand: Hand, api: Api, sibling_key: str, outsider: Person, as_person: Callable[[Person], Api]
) -> None:
    """I16."""
    run = start_run("first")
    hand.report(hand.take(), output="secret")
    path = f"/v1/stages/{stages_of(run)[0].id}/outputs"
    assert api.get(path).json()["results"][0]["output"] == "secret"
    for stranger in (Api({"X-API-Key": sibling_key}), as_person(outsider)):
        assert stranger.get(path).status_code == 404


def test_the_timeline_is_told_in_order_and_paged(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run("first")
    hand.finish()
    pages = list(follow(viewer, f"/v1/executions/{run.id}/timeline?page_size=2"))
    events = [event for page in pages for event in page]
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert events[0]["kind"] == "run.create"
    assert events[-1]["kind"] == "run.completed"
    assert len({event["id"] for event in events}) == len(events) > 2


@pytest.mark.parametrize("part", ["", "/stages", "/attempts", "/timeline", "/logs", "/blockers"])
def test_what_belongs_to_a_run_takes_the_same_queries_whatever_its_size(
    start_run: StartRun, hand: Hand, viewer: Api, part: str
) -> None:
    small, large = start_run("a"), start_run(*"abcdefgh")
    hand.pull(1)
    hand.finish()
    few = _queries(viewer, f"/v1/executions/{small.id}{part}")
    assert len(_queries(viewer, f"/v1/executions/{large.id}{part}")) <= len(few) + 1


# why it does not move


def blockers(client: Api, run: Run) -> list[dict[str, Any]]:
    return client.get(f"/v1/executions/{run.id}/blockers").json()["results"]


def test_a_stage_nobody_can_run_says_so(start_run: StartRun, viewer: Api) -> None:
    """P15: a handler without a worker leaves the stage queued, and the run says why."""
    run = start_run({"name": "first", "handler": "Nobody"}, "second")
    first, second = blockers(viewer, run)
    assert (first["stage"], first["holder"], first["next_look"]) == ("first", "no worker", None)
    assert "no live worker has registered the handler Nobody" in first["cause"]
    assert (second["stage"], second["holder"]) == ("second", "first")
    assert second["cause"] == "waits for first, which is ready"


def test_a_worker_that_fell_silent_is_no_worker(start_run: StartRun, hand: Hand, viewer: Api, clock: Clock) -> None:
    run = start_run("first")
    assert blockers(viewer, run)[0]["holder"] == "hand-1"
    clock.advance(61)
    assert blockers(viewer, run)[0]["holder"] == "no worker"
    assert WorkerSession.objects.get().state == "active", "silence never ends a session"


def test_a_leased_stage_names_its_worker_and_the_lease(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run("first")
    (job,) = hand.pull(acquire=False)
    (told,) = blockers(viewer, run)
    assert "handed to hand-1" in told["cause"]
    lease = hand.acquire(job)
    (told,) = blockers(viewer, run)
    assert told["holder"] == "hand-1"
    assert "attempt 1 is leased by hand-1" in told["cause"]
    assert told["next_look"] == lease.expires_at.isoformat()


def test_a_scheduled_retry_names_its_time(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run({"name": "first", "options": {"max_retries": 3, "retry_interval": 10}})
    hand.report(hand.take(), "failed", error_code="UPSTREAM")
    (told,) = blockers(viewer, run)
    assert told["holder"] == "the clock"
    assert "retry 1 after UPSTREAM is due at" in told["cause"]
    assert told["next_look"] == stages_of(run)[0].available_at.isoformat()


def test_an_open_gate_says_since_when_and_until_when(start_run: StartRun, viewer: Api) -> None:
    run = start_run(GATED)
    (told,) = blockers(viewer, run)
    assert "a decision before the work has been asked for since" in told["cause"]
    assert "expires at" in told["cause"]
    assert told["next_look"] is not None


def test_a_pause_names_who_paused_it(start_run: StartRun, hand: Hand, viewer: Api, people: dict[str, Person]) -> None:
    run = start_run("first")
    pause_run(run.id, actor=people["operator"].actor, reason="audit day")
    told, _ = blockers(viewer, run)
    assert told["stage"] is None
    assert "paused by operator-acme" in told["cause"]
    assert "audit day" in told["cause"]


def test_doubt_and_failure_ask_for_a_person(start_run: StartRun, hand: Hand, viewer: Api, clock: Clock) -> None:
    doubtful = start_run({"name": "pay", "effect_mode": "external"})
    hand.take()
    clock.advance(61)
    sweeps.expire_leases()
    (told,) = blockers(viewer, doubtful)
    assert "needs reconciliation" in told["cause"]
    assert told["holder"] == "a person"
    failed = start_run("first", "second")
    hand.report(hand.take(), "failed", error_code="BUSINESS_REJECTED")
    told, _ = blockers(viewer, failed)
    assert told["cause"] == "failed with BUSINESS_REJECTED: retry it or skip it"


def test_a_run_that_is_done_has_no_blockers(start_run: StartRun, hand: Hand, viewer: Api) -> None:
    run = start_run("first")
    hand.finish()
    assert blockers(viewer, run) == []


def _path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def _queries(client: Api, path: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return [query["sql"] for query in captured if "set_config" not in query["sql"]]


def _release(admin: Person, environment: Environment) -> None:
    pipeline, _ = catalog.save_pipeline(actor=admin.actor, slug="nightly", name="Nightly")
    definition = {"slug": "nightly", "name": "Nightly", "stages": [{"name": "a", "handler": "Handler"}]}
    releases.register_release(
        actor=admin.actor, pipeline=pipeline, environment=environment, definition=definition, activate=True
    )
