"""The code that a release was deployed from: kept word for word, told to workers, compared line by line."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from pipelines.console import differences
from pipelines.definitions import MOST_SOURCE
from pipelines.models import AuditEvent, Pipeline, Release, Run
from pipelines.release_plan import compare
from tests.cast import Api, Hand, Person, Worker, wire

CODE = "async def run(ctx):\n    return 1\n"
StartRun = Callable[..., Run]


def source_of(text: str, **more: Any) -> dict[str, Any]:
    return {"file": "nightly.py", "sha256": sha256(text.encode()).hexdigest(), "text": text, **more}


def definition(text: str | None = CODE, *names: str, **more: Any) -> dict[str, Any]:
    stages = [{"name": name, "handler": "Handler"} for name in names or ("run",)]
    source = {} if text is None else {"source": source_of(text)}
    return {"slug": "nightly", "name": "Nightly", "stages": stages, **source, **more}


@pytest.fixture
def manager(people: dict[str, Person], as_person: Callable[[Person], Api]) -> Api:
    found = as_person(people["release_manager"])
    assert found.post("/v1/pipelines", {"slug": "nightly", "name": "Nightly"}).status_code == 201
    return found


def post(manager: Api, told: dict[str, Any], **more: Any) -> Any:
    body = {"pipeline": "nightly", "environment": "development", "definition": told, **more}
    return manager.post("/v1/releases", body)


def registered(manager: Api, told: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = post(manager, told, **more)
    assert answer.status_code in (200, 201), answer.content
    release: dict[str, Any] = answer.json()
    return release


def planned(manager: Api, told: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The plan, of which nothing is kept."""
    before = Release.objects.count(), Pipeline.objects.count(), AuditEvent.objects.count()
    answer = post(manager, told, dry_run=True, **more)
    assert answer.status_code == 200, answer.content
    assert (Release.objects.count(), Pipeline.objects.count(), AuditEvent.objects.count()) == before
    plan: dict[str, Any] = answer.json()
    return plan


def test_code_is_kept_word_for_word_and_changed_code_is_another_release(manager: Api) -> None:
    """N14: also where nothing but a blank differs."""
    first = registered(manager, definition())
    assert first["source_digest"] == sha256(CODE.encode()).hexdigest()
    whole = manager.get(f"/v1/releases/{first['id']}").json()
    assert whole["definition"]["source"] == source_of(CODE)
    assert registered(manager, definition())["id"] == first["id"]
    other = registered(manager, definition(CODE + "\n"))
    assert other["digest"] != first["digest"]
    without = registered(manager, definition(None))
    assert (without["source_digest"], len({first["id"], other["id"], without["id"]})) == ("", 3)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        (source_of(CODE, sha256="0" * 64), "definition.source.sha256"),
        (source_of("é" * (MOST_SOURCE // 2 + 1)), "definition.source.text"),
        (source_of("a\x00b"), "definition"),
        (source_of(CODE, file=""), "definition.source.file"),
        (source_of(CODE, file="x" * 256), "definition.source.file"),
        (source_of(CODE, file="a\nb"), "definition.source.file"),
        (source_of(CODE, lines=2), "definition.source.lines"),
        ({"text": CODE, "file": "x.py"}, "definition.source.sha256"),
        ("text", "definition.source"),
        ([CODE], "definition.source"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_by_its_field_and_changes_nothing(
    manager: Api, source: Any, field: str
) -> None:
    for dry_run in (False, True):
        answer = post(manager, definition(None, source=source), dry_run=dry_run)
        assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
        assert field in answer.json()["errors"]
    assert not Release.objects.exists()


def test_the_largest_source_is_taken(manager: Api) -> None:
    text = "é" * (MOST_SOURCE // 2)
    assert registered(manager, definition(text))["source_digest"] == sha256(text.encode()).hexdigest()


def test_jobs_tell_the_digest_of_their_own_releases_code(
    manager: Api, start_run: StartRun, worker: Worker, hand: Hand
) -> None:
    """N14: by the wire and by the executor, for the first stage and for one that is handed on."""
    registered(manager, definition(CODE, "a", "b"), activate=True)
    old = start_run(pipeline="nightly", name=None)
    registered(manager, definition(CODE + "\n", "a", "b"), activate=True)
    start_run(pipeline="nightly", name=None)
    digest = sha256(CODE.encode()).hexdigest()
    job = worker.take(acquire=True)
    assert (job["pipelineId"], job["sourceDigest"]) == (str(old.id), digest)
    others = [wire(one) for one in hand.pull(10)]
    assert [one["sourceDigest"] for one in others] == [sha256((CODE + "\n").encode()).hexdigest()]
    worker.report(job)
    after = worker.take(acquire=True)
    assert (after["stageName"], after["sourceDigest"]) == ("b", digest)


def test_jobs_of_releases_without_code_tell_none(manager: Api, start_run: StartRun, worker: Worker) -> None:
    registered(manager, definition(None), activate=True)
    start_run(pipeline="nightly", name=None)
    start_run(name="inline")
    assert all("sourceDigest" not in worker.take(acquire=True) for _ in range(2))


# plans


def test_a_first_release_adds_everything(manager: Api) -> None:
    plan = planned(manager, definition(CODE, "a", "b"))
    assert (plan["is_new_pipeline"], plan["release_id"], plan["status"]) == (False, None, None)
    assert (plan["compared_with"], plan["is_in_force"]) == (None, False)
    assert (plan["added"], plan["removed"], plan["changed"], plan["other"]) == (["a", "b"], [], [], [])


def test_a_pipeline_that_is_not_there_yet_can_be_planned(manager: Api) -> None:
    body = {"pipeline": "new", "environment": "development", "definition": {**definition(), "slug": "new"}}
    plan = manager.post("/v1/releases", body | {"dry_run": True}).json()
    assert (plan["is_new_pipeline"], plan["added"]) == (True, ["run"])
    assert not Pipeline.objects.filter(slug="new").exists()


def test_a_plan_tells_what_is_otherwise_than_in_force_place_by_place(manager: Api) -> None:
    """With defaults filled in, so that saying one and leaving it out is the same."""
    first = registered(manager, definition(CODE, "a", "b"), activate=True)
    changed = definition(CODE.replace("1", "2"), "a", "c", limits={"concurrency": 2})
    changed["stages"][0] |= {"effect_mode": "none", "options": {"backoff": "fixed"}}
    plan = planned(manager, changed)
    assert (plan["compared_with"], plan["is_in_force"]) == (first["digest"], True)
    assert (plan["added"], plan["removed"]) == (["c"], ["b"])
    assert plan["changed"] == [
        {"stage": "a", "places": [{"path": "effect_mode", "before": '"idempotent"', "after": '"none"'}]}
    ]
    assert [place["path"] for place in plan["other"]] == ["limits.concurrency"]
    assert plan["code"] == ["@@ -1,3 +1,3 @@", " async def run(ctx):", "-    return 1", "+    return 2", " "]
    assert plan["digest"] == registered(manager, changed)["digest"]


def test_a_plan_of_what_is_in_force_says_so(manager: Api) -> None:
    release = registered(manager, definition(), activate=True)
    plan = planned(manager, definition())
    assert (plan["release_id"], plan["status"], plan["digest"]) == (release["id"], "active", release["digest"])
    assert (plan["added"], plan["removed"], plan["changed"], plan["other"], plan["code"]) == ([], [], [], [], [])


def test_a_plan_tells_what_another_person_must_review_first(manager: Api) -> None:
    """R41."""
    told = {"organisation": "acme", "service": "mail"}

    def sending(**more: str) -> dict[str, Any]:
        found = definition()
        found["stages"][0]["recipients"] = [{**told, **more}]
        return found

    registered(manager, sending(), activate=True)
    plan = planned(manager, sending(service="chat"), activate=True)
    assert [(one["stage"], one["what"]) for one in plan["changes"]] == [("run", "service")]
    release = registered(manager, sending(service="chat"), activate=True)
    assert (release["status"], release["needs_review"]) == ("draft", True)
    assert planned(manager, sending(service="chat"))["changes"] == plan["changes"]
    assert planned(manager, sending())["changes"] == []


def test_who_may_not_release_may_not_plan_one_and_an_unknown_environment_is_refused(
    manager: Api, people: dict[str, Person], as_person: Callable[[Person], Api], outsider: Person
) -> None:
    assert post(as_person(people["operator"]), definition(), dry_run=True).status_code == 403
    assert post(manager, definition(), environment="nowhere", dry_run=True).json()["code"] == "environment_unknown"
    registered(manager, definition(), activate=True)
    elsewhere = planned(as_person(outsider), definition())
    assert (elsewhere["is_new_pipeline"], elsewhere["compared_with"]) == (True, None)


# comparing


LINES = st.lists(st.sampled_from(["a", "b", "", "  c", "d"]), max_size=25).map("\n".join)


@given(LINES, LINES)
def test_a_unified_difference_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    """Every line of it is where its head says, and applying it gives the second text."""
    lines = differences.unified(before, after)
    assert lines is not None
    assert (lines == []) == (before == after)
    assert applied(before, lines) == after


def applied(before: str, lines: list[str]) -> str:
    old, made, at = before.split("\n"), [], 0
    for line in lines:
        if line.startswith("@@"):
            start, _, count = line.split()[1].removeprefix("-").partition(",")
            begins = int(start) - (count != "0")
            made += old[at:begins]
            at = begins
        elif line[0] in " -":
            assert old[at] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            at += 1
        else:
            made.append(line[1:])
    return "\n".join([*made, *old[at:]])


def test_a_small_change_in_a_large_text_is_shown_and_a_large_one_says_that_it_is_not() -> None:
    text = "\n".join(f"line {number}" for number in range(20_000))
    assert differences.unified(text, text.replace("line 9000\n", "")) == [
        "@@ -8999,5 +8999,4 @@",
        " line 8998",
        " line 8999",
        "-line 9000",
        " line 9001",
        " line 9002",
    ]
    assert differences.unified(text, text.upper()) is None
    assert compare(definition(text), definition(text.upper())).code is None


def test_what_comparing_costs_is_bounded_whatever_is_compared() -> None:
    """Lines that are alike a few times each are the worst that difflib can be given."""
    lines = [str(number % 100) for number in range(differences.MOST_LINES)]
    began = time.monotonic()
    assert differences.unified("\n".join(["x", *lines[:-2]]), "\n".join(["y", *reversed(lines[:-2])])) is not None
    assert time.monotonic() - began < 5


def test_a_plan_costs_the_same_however_much_is_in_it(
    manager: Api, django_assert_max_num_queries: Callable[..., CaptureQueriesContext]
) -> None:
    registered(manager, definition(CODE, "a"), activate=True)
    many = definition(CODE, *(f"s{number}" for number in range(60)))
    with django_assert_max_num_queries(12):
        planned_at_once = post(manager, many, dry_run=True)
    assert len(planned_at_once.json()["added"]) == 60
