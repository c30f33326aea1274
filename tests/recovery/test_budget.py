"""What a run has spent is told with each charge, to people and on screens, and what is used up says what helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pipelines import artifact_storing
from pipelines.artifacts import Given
from pipelines.limits import Limits
from pipelines.models import Attempt, Run
from pipelines.sql import execute, query
from tests.cast import Api, Hand, Person, stages_of
from tests.clock import Clock
from tests.tampering import past_the_triggers

StartRun = Callable[..., Run]
RETRIED = {"max_output_bytes": 100, "max_retries": 5, "retry_interval": 1}


@pytest.fixture
def viewer(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["viewer"])


def budget(api: Api, run: Run, more: str = "") -> Any:
    answer = api.get(f"/v1/executions/{run.id}/budget{more}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def spend(run: Run, hand: Hand, clock: Clock, times: int) -> None:
    for _ in range(times):
        hand.report(hand.take(), "failed", error_code="UPSTREAM_ERROR")
        clock.advance(5)


def test_a_budget_tells_each_charge_and_what_is_left(
    start_run: StartRun, hand: Hand, clock: Clock, viewer: Api
) -> None:
    """R27, R28: one charge for each attempt that began, failed ones too; artifacts by their size."""
    run = start_run({"name": "a", "options": RETRIED}, "b", limits={"total_attempts": 6, "revisions": 4})
    spend(run, hand, clock, 2)
    job = hand.take()
    given = Given("report", b"x" * 30, sha256(b"x" * 30).hexdigest())
    artifact_storing.store(hand.holder, job.stage.id, job.attempt_id, given)
    hand.report(job, output=1)
    told = budget(viewer, run)
    allowance = 256 * 1024
    assert told["limits"] == Limits(total_attempts=6, revisions=4).as_json()
    assert told["charged"] == {"attempts": 3, "output_bytes": 330}
    assert told["reserved"] == {"attempts": 1, "output_bytes": allowance}
    assert told["left"] == {"attempts": 2, "output_bytes": 2**50 - 330 - allowance}
    assert told["revisions"] == {"used": 0, "left": 4}
    first, second = stages_of(run)
    assert told["stages"] == [
        {"stage_id": str(first.id), "name": "a", "attempts": 3, "charged": 300, "allowance": 100},
        {"stage_id": str(second.id), "name": "b", "attempts": 0, "charged": 0, "allowance": allowance},
    ]
    entries = told["entries"]["results"]
    assert [(one["kind"], one["attempt"], one["bytes"], one["total"]) for one in entries] == [
        ("attempt", 1, 100, 100),
        ("attempt", 2, 100, 200),
        ("attempt", 3, 100, 300),
        ("artifact", 3, 30, 330),
    ]


def test_charges_are_paged_both_ways_with_their_running_total(
    start_run: StartRun, hand: Hand, clock: Clock, viewer: Api
) -> None:
    run = start_run({"name": "a", "options": RETRIED})
    spend(run, hand, clock, 5)
    page = budget(viewer, run, "?page_size=2")["entries"]
    seen = [one["total"] for one in page["results"]]
    while page["next"]:
        page = viewer.get(page["next"]).json()["entries"]
        seen += [one["total"] for one in page["results"]]
    assert seen == [100, 200, 300, 400, 500]
    back = viewer.get(page["previous"]).json()["entries"]
    assert [one["total"] for one in back["results"]] == [300, 400]
    assert viewer.get(f"/v1/executions/{run.id}/budget?cursor=nonsense").status_code == 400


def test_a_page_of_many_charges_is_one_statement_that_sorts_no_more_than_the_page(
    start_run: StartRun, hand: Hand, clock: Clock, viewer: Api
) -> None:
    """Twenty thousand attempts: the database adds up what was before, and hands out a page."""
    run = start_run({"name": "a", "options": RETRIED})
    spend(run, hand, clock, 1)
    (made,) = Attempt.objects.filter(run=run)
    few = _statements(viewer, run)
    columns = [one.column for one in Attempt._meta.concrete_fields if one.column not in ("id", "number", "started_at")]
    told = ", ".join(columns)
    with past_the_triggers():
        execute(
            f"INSERT INTO pipelines_attempt (id, number, started_at, {told}) SELECT gen_random_uuid(), n + 1,"
            f" started_at + n * interval '1 second', {told} FROM pipelines_attempt, generate_series(1, 20000) n"
            " WHERE id = %s",
            [made.id],
        )
        execute("ANALYZE pipelines_attempt")
    assert _statements(viewer, run) <= few
    page = budget(viewer, run)["entries"]
    middle = viewer.get(page["next"]).json()["entries"]
    assert [one["total"] for one in middle["results"]] == [100 * number for number in range(51, 101)]
    with CaptureQueriesContext(connection) as caught:
        viewer.get(page["next"])
    (sql,) = [one["sql"] for one in caught.captured_queries if "picked AS" in one["sql"]]
    ((plan,),) = query(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}".replace("%", "%%"))
    steps = list(_steps(plan[0]["Plan"]))
    sorts = [one for one in steps if one["Node Type"] in ("Sort", "Incremental Sort")]
    assert all(one["Actual Rows"] <= 51 for one in sorts), sorts
    assert all(one.get("Sort Space Used", 0) < 1000 for one in sorts), "kB"
    assert all(one["Actual Rows"] <= 51 for one in steps if one["Node Type"] == "WindowAgg")


def _statements(viewer: Api, run: Run) -> int:
    with CaptureQueriesContext(connection) as caught:
        budget(viewer, run)
    return len(caught)


def _steps(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from _steps(inner)


def test_who_may_see_the_run_sees_its_budget_and_nobody_else(
    start_run: StartRun, api: Api, outsider: Person, as_person: Callable[[Person], Api], sibling_key: str
) -> None:
    run = start_run("a")
    path = f"/v1/executions/{run.id}/budget"
    assert api.get(path).status_code == 200
    for other in (as_person(outsider), Api({"X-API-Key": sibling_key})):
        assert other.get(path).status_code == 404
    assert Api({}).get(path).status_code == 401
    assert api.post(path, {}).status_code == 405


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"attempts_per_stage": 2}, "all 2 attempts of the stage are used"),
        ({"total_attempts": 2}, "all 2 attempts of the run are used or reserved"),
        ({"total_output_bytes": 250}, "another attempt needs 100 bytes, more than is left of the run's 250"),
    ],
)
def test_a_stage_whose_limits_are_used_up_says_which_and_what_helps(
    start_run: StartRun, hand: Hand, clock: Clock, viewer: Api, limits: dict[str, int], told: str
) -> None:
    """R25, R28: the blocker of an exhausted stage."""
    run = start_run({"name": "a", "options": RETRIED}, {"name": "b", "options": RETRIED}, limits=limits)
    spend(run, hand, clock, 2)
    causes = [one["cause"] for one in viewer.get(f"/v1/executions/{run.id}/blockers").json()["results"]]
    assert len(causes) == 2
    for cause in causes:
        assert f"{told}; skip it, or rerun on a release with larger limits" in cause


def test_what_the_concurrency_of_a_run_has_no_room_for_says_who_goes_first(
    start_run: StartRun, hand: Hand, viewer: Api
) -> None:
    """R25."""
    beside = [{"name": name, "depends_on": ["first"]} for name in "ab"]
    run = start_run("first", *beside, limits={"concurrency": 1})
    hand.report(hand.take(), output=1)
    hand.take()
    told = viewer.get(f"/v1/executions/{run.id}/blockers").json()["results"]
    (waiting,) = [one for one in told if one["stage"] == "b"]
    assert "the run lets 1 stage be active at a time; first: a" in waiting["cause"]


def test_the_run_page_shows_limits_that_somebody_set_and_folds_the_usual_ones(
    start_run: StartRun, hand: Hand, clock: Clock, people: dict[str, Person], client: Any
) -> None:
    client.force_login(people["viewer"].user)
    quiet = start_run("a")
    usual = client.get(f"/console/runs/{quiet.id}", follow=True).content.decode()
    usual = usual[usual.index("limits-title") :][:3000]
    assert "As usual: nobody set any</summary>" in usual
    assert "1,000,000" in usual, "whoever looks finds what holds"
    assert "100 stages" in usual
    hand.finish()
    run = start_run({"name": "a", "options": RETRIED}, limits={"total_attempts": 2, "deadline_seconds": 3600})
    spend(run, hand, clock, 2)
    page = client.get(f"/console/runs/{run.id}", follow=True).content.decode()
    assert "limits-title" in page
    assert "As usual" not in page
    assert "2 of 2" in page
    assert "nothing is left" in page
    assert "Attempts: 2 used and 0 reserved of 2" in page
    assert "style=" not in page[page.index("limits-title") :][:3000]
