"""What every list of rows does with its filters: the same refusals, the same meaning of one that is told twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.http import QueryDict

from approvals.rules_api import RuleFilter
from pipelines import list_filters, queries
from pipelines.aftermath import OfRunFilter, OpenFilter
from pipelines.api.artifacts import ArtifactFilter
from pipelines.api.blackouts import BlackoutFilter
from pipelines.api.checkpoints import CheckpointFilter
from pipelines.api.store import StoreFilter
from pipelines.errors import Refusal
from pipelines.filters import MOST_VALUES, ListFilter
from pipelines.models import DeadLetter, Run
from recovery.filters import BackfillFilter, BackfillTickFilter, BulkFilter, OperationFilter
from tests.cast import Api, Hand, Person

StartRun = Callable[..., Run]
LISTS = {
    "dead-letters": list_filters.DeadLetterFilter,
    "operations": OperationFilter,
    "audit-events": list_filters.AuditEventFilter,
    "workers": list_filters.WorkerFilter,
    "releases": list_filters.ReleaseFilter,
    "policies": list_filters.PolicyFilter,
    "pipelines": list_filters.PipelineFilter,
    "approval-rules": RuleFilter,
    "triggers": list_filters.TriggerFilter,
    "blackouts": BlackoutFilter,
    "backfills": BackfillFilter,
    "bulk-operations": BulkFilter,
    "artifacts": ArtifactFilter,
    "store/tables": StoreFilter,
    "reconciliation": OpenFilter,
}
each_list = pytest.mark.parametrize("name", LISTS)


@pytest.fixture
def admin(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    return as_person(people["admin"])


@pytest.fixture
def letters(start_run: StartRun, hand: Hand, clock: Any) -> list[DeadLetter]:
    """Three dead letters, a minute apart: of code A, B and A."""
    for code in ("A", "B", "A"):
        start_run()
        hand.report(hand.take(), "failed", error_code=code)
        clock.advance(60)
    return list(DeadLetter.objects.order_by("opened_at"))


@each_list
def test_an_unknown_filter_is_refused_by_its_name(name: str, admin: Api) -> None:
    answer = admin.get(f"/v1/{name}?colour=red")
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert list(answer.json()["errors"]) == ["colour"]


@each_list
def test_every_filter_refuses_what_no_text_may_be(name: str, admin: Api) -> None:
    for field in LISTS[name].names():
        for wrong in ("x" * 301, "a\x00b", "2026-05-20T08:00:00") if "created" in field else ("x" * 301, "a\x00b"):
            answer = admin.get(f"/v1/{name}?{urlencode({field: wrong})}")
            assert (answer.status_code, list(answer.json()["errors"])) == (400, [field]), (field, wrong)


@each_list
def test_every_filter_may_be_empty_and_then_narrows_nothing(name: str, admin: Api) -> None:
    everything = admin.get(f"/v1/{name}").json()["results"]
    asked = urlencode([(field, " ") for field in LISTS[name].names()])
    assert admin.get(f"/v1/{name}?{asked}").json()["results"] == everything


def test_words_of_a_closed_set_and_ids_are_checked(admin: Api) -> None:
    for path, field in (
        ("dead-letters?status=lost", "status"),
        ("dead-letters?reason=bad_luck", "reason"),
        ("dead-letters?execution_id=4711", "execution_id"),
        ("operations?kind=wish", "kind"),
        ("workers?status=asleep", "status"),
        ("policies?kind=speed", "kind"),
        ("releases?status=old", "status"),
        ("audit-events?created_after=yesterday", "created_after"),
        ("triggers?enabled=yes", "enabled"),
    ):
        answer = admin.get(f"/v1/{path}")
        assert (answer.status_code, list(answer.json()["errors"])) == (400, [field]), path


def test_what_is_wrong_is_told_for_every_filter_at_once(admin: Api) -> None:
    answer = admin.get("/v1/dead-letters?status=lost&execution_id=4711")
    assert sorted(answer.json()["errors"]) == ["execution_id", "status"]


def test_a_filter_told_twice_matches_any_and_two_filters_narrow_each_other(
    admin: Api, letters: list[DeadLetter]
) -> None:
    def found(query: str) -> list[str]:
        return [one["error_code"] for one in admin.get(f"/v1/dead-letters?{query}").json()["results"]]

    assert found("error_code=A") == ["A", "A"]
    assert found("error_code=A&error_code=B") == ["A", "B", "A"]
    assert found("error_code=A&status=discarded") == []
    assert found(f"error_code=A&execution_id={letters[0].run_id}") == ["A"]
    assert found(f"execution_id={letters[1].run_id}&execution_id={letters[2].run_id}") == ["A", "B"]


def test_a_bound_of_time_told_twice_is_the_wider_one(admin: Api, start_run: StartRun, clock: Any) -> None:
    for name in ("one", "two"):
        admin.post("/v1/environments", {"slug": name})
        clock.advance(60)
    first, second = [event["at"] for event in admin.get("/v1/audit-events").json()["results"]][::-1]

    def found(*bounds: str) -> int:
        return len(admin.get(f"/v1/audit-events?{'&'.join(bounds)}").json()["results"])

    assert found(f"created_after={quote(second)}") == 1
    assert found(f"created_after={quote(second)}", f"created_after={quote(first)}") == 2
    assert found(f"created_before={quote(second)}") == 1
    assert found(f"created_before={quote(first)}", f"created_before={quote(second)}") == 1
    assert found(f"created_before={quote(first)}") == 0


def test_more_values_than_a_list_takes_are_refused(admin: Api) -> None:
    asked = urlencode([("error_code", f"CODE_{number}") for number in range(MOST_VALUES + 1)])
    answer = admin.get(f"/v1/dead-letters?{asked}")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["error_code"])


def test_a_filter_shows_nothing_that_was_not_to_be_seen(
    outsider: Person, as_person: Callable[[Person], Api], letters: list[DeadLetter]
) -> None:
    """I16."""
    assert as_person(outsider).get(f"/v1/dead-letters?execution_id={letters[0].run_id}").json()["results"] == []


def test_the_screens_refuse_like_the_api(people: dict[str, Person]) -> None:
    rows = queries.dead_letters(people["viewer"].actor)
    with pytest.raises(Refusal) as refusal:
        list_filters.DeadLetterFilter.narrow(rows, QueryDict("state=open"))
    assert refusal.value.errors.keys() == {"state"}


def test_every_list_of_rows_is_asked_here() -> None:
    def below(kind: type[ListFilter]) -> set[type[ListFilter]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    of_one = {
        list_filters.AttemptFilter,
        list_filters.EffectFilter,
        list_filters.LogLineFilter,
        CheckpointFilter,
        list_filters.TickFilter,
        BackfillTickFilter,
        OfRunFilter,
    }
    assert below(ListFilter) - {ListFilter} == {*LISTS.values(), *of_one}
